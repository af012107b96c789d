"""Addresses of a host, and the race between them (Happy Eyeballs, RFC 8305)."""

from __future__ import annotations

import os
import selectors
import socket
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

ATTEMPT_DELAY = 0.25
"""Seconds before the next address is tried while the earlier attempts are still pending."""


class SocketAddress(NamedTuple):
    """What `socket.connect` takes."""

    family: int
    address: tuple[Any, ...]


def resolve(host: str, port: int) -> list[SocketAddress]:
    """The host's addresses, alternating between families."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return interleave(list(dict.fromkeys(SocketAddress(info[0], info[4]) for info in found)))


def interleave(addresses: list[SocketAddress]) -> list[SocketAddress]:
    """Alternate between address families, beginning with that of the first address (RFC 8305, section 4)."""
    families = list(dict.fromkeys(address.family for address in addresses))
    queues = [[address for address in addresses if address.family == family] for family in families]
    longest = max(map(len, queues), default=0)
    return [queue[place] for place in range(longest) for queue in queues if place < len(queue)]


def connect_first(addresses: list[SocketAddress], seconds: float) -> socket.socket:
    """Connect to the first address that answers. The socket returned does not block."""
    until = monotonic() + seconds
    waiting = list(addresses)
    failure = OSError("the host has no address")
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or selector.get_map():
                if waiting:
                    try:
                        pending = _start(waiting.pop(0))
                        selector.register(pending, selectors.EVENT_WRITE)
                    except OSError as error:
                        failure = error
                        continue
                next_at = monotonic() + ATTEMPT_DELAY if waiting else until
                while selector.get_map():
                    left = min(next_at, until) - monotonic()
                    ready = [key.fileobj for key, _ in selector.select(max(0.0, left))]
                    for connecting in ready:
                        assert isinstance(connecting, socket.socket)
                        selector.unregister(connecting)
                        if not (code := connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
                            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                            return connecting
                        connecting.close()
                        failure = OSError(code, os.strerror(code))
                    if monotonic() >= until:
                        raise TimeoutError("no address of the host answered in time")
                    if ready or monotonic() >= next_at:
                        break  # a failed attempt lets the next address start at once
            raise failure
        finally:
            failure = OSError()  # an error that stays in a frame it refers to is a reference cycle
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()


def _start(address: SocketAddress) -> socket.socket:
    connecting = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        with suppress(BlockingIOError):
            connecting.connect(address.address)
    except BaseException:
        connecting.close()
        raise
    return connecting
