"""The server that other tests trust: it must not itself be what fails."""

from __future__ import annotations

import gc
import socket
import ssl
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from agent.testing import Answer, LoopbackServer, Script


def _dial(address: tuple[str | None, int | None], into: list[socket.socket]) -> None:
    for _ in range(20):
        client = socket.socket()
        into.append(client)
        try:
            client.connect(address)
        except OSError:
            return  # the server has closed


@pytest.mark.parametrize("secure", [False, True])
def test_closed_while_clients_come_it_leaves_no_socket_open(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: left.append(repr(unraisable.exc_value)))
    tls: Any = None
    if secure:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)
    for _ in range(60):
        clients: list[socket.socket] = []
        server = LoopbackServer(Script("never told"), ssl_context=tls)
        address = urlsplit(server.url)
        dialing = threading.Thread(target=_dial, args=((address.hostname, address.port), clients))
        dialing.start()
        server.close()
        dialing.join()
        for client in clients:
            client.close()
    gc.collect()
    assert left == []


def test_closed_in_mid_answer_it_hangs_up_at_once() -> None:
    server = LoopbackServer(Script("slowly " * 100, delay=5.0))
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname or "", address.port or 0)) as client:
        body = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        client.settimeout(5)
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        server.close()
        while client.recv(65536):
            pass
    assert server.open_connections == 0


@pytest.mark.parametrize("answer", [Answer(failure=OSError()), Answer([b"a", OSError()])], ids=["at once", "later"])
def test_a_connection_that_breaks_is_reset_and_not_closed_in_peace(answer: Answer) -> None:
    with LoopbackServer(lambda request: answer) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname or "", address.port or 0)) as client:
            client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
            client.settimeout(5)
            with pytest.raises(ConnectionResetError):
                while client.recv(65536):
                    pass


def test_small_pieces_do_not_wait_for_each_other() -> None:
    """Without TCP_NODELAY each answer on a connection that was used before takes 40 ms."""
    with LoopbackServer(lambda request: Answer([b"a", b"b", b"c"])) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname or "", address.port or 0)) as client:
            client.settimeout(5)
            started = time.monotonic()
            for _ in range(50):
                client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
                heard = b""
                while not heard.endswith(b"0\r\n\r\n"):
                    heard += client.recv(65536)
            assert time.monotonic() - started < 1.0
