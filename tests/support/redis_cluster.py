"""A cluster of three masters, and a master with a replica and a Sentinel, on loopback."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis, RedisCluster
from redis.exceptions import RedisError
from redis.sentinel import Sentinel

from tests.support.redis_server import find_server

SLOTS = 16384
MASTER = "main"


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait until a condition of servers holds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (RedisError, OSError):
            pass
        time.sleep(0.02)
    raise AssertionError("the servers did not become ready")


def find_port() -> int:
    """Return a free port that leaves room for the bus of a cluster, 10,000 ports higher."""
    while True:
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            if port > 55_000:
                continue
            try:
                bus.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port


class Servers:
    """Server processes with a directory of their own."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *options: str, port: int = 0) -> int:
        port = port or find_port()
        folder = Path(self._directory.name) / str(port)
        folder.mkdir(exist_ok=True)
        command = [find_server(), *options, "--port", str(port), "--dir", str(folder), "--bind", "127.0.0.1"]
        self.processes[port] = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        return port

    def client(self, port: int) -> Any:  # Any: redis-py lacks some types
        return Redis(port=port, protocol=2, socket_timeout=5.0)

    def kill(self, port: int) -> None:
        process = self.processes.pop(port)
        process.kill()
        process.wait()

    def close(self) -> None:
        for port in list(self.processes):
            self.kill(port)
        self._directory.cleanup()


class ClusterServers(Servers):
    """Three masters that share the slots."""

    def __init__(self) -> None:
        super().__init__()
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--save", "")
        self.ports = [self.start(*options) for _ in range(3)]
        for number, port in enumerate(self.ports):
            wait_until(self.client(port).ping)
            with self.client(port) as client:
                first, end = SLOTS * number // 3, SLOTS * (number + 1) // 3
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1))
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", str(self.ports[0]))
        for port in self.ports:
            wait_until(partial(self._is_ready, port))

    def _is_ready(self, port: int) -> bool:
        with self.client(port) as client:
            client.set_response_callback("CLUSTER INFO", lambda reply, **_: reply)
            return b"cluster_state:ok" in client.execute_command("CLUSTER INFO")

    def connect(self) -> Any:
        return RedisCluster(host="127.0.0.1", port=self.ports[0], protocol=2)


class SentinelServers(Servers):
    """A master, its replica, and one Sentinel that may decide alone."""

    def __init__(self) -> None:
        super().__init__()
        self.master = self.start("--save", "")
        self.replica = self.start("--save", "", "--replicaof", "127.0.0.1", str(self.master))
        wait_until(lambda: self.client(self.replica).info("replication")["master_link_status"] == "up")
        port = find_port()
        path = Path(self._directory.name) / "sentinel.conf"
        path.write_text(
            f"port {port}\nsentinel monitor {MASTER} 127.0.0.1 {self.master} 1\n"
            f"sentinel down-after-milliseconds {MASTER} 300\nsentinel failover-timeout {MASTER} 3000\n"
        )
        self.processes[port] = subprocess.Popen([find_server(), str(path), "--sentinel"], stdout=subprocess.DEVNULL)
        self.sentinel: Any = Sentinel([("127.0.0.1", port)], socket_timeout=1.0)  # type: ignore[no-untyped-call]
        wait_until(lambda: self.sentinel.discover_slaves(MASTER))
