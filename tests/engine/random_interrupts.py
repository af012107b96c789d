"""A program that is interrupted at random moments of its calls, and says what became of it.

Run by test_interrupts: `python -m tests.engine.random_interrupts SEED`.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time

from agent import Agent, RetryConfig
from agent.testing import LoopbackServer
from agent.transports.http import HttpTransport
from tests.engine.play import agent_at, error_reply, tokens
from tests.engine.test_interrupts import FailsEveryOther, read_all

ROUNDS = 60


def main(seed: int) -> None:
    rng = random.Random(seed)
    network = FailsEveryOther()
    with LoopbackServer(
        lambda request: tokens(20, 0.0005) if network(request).status == 200 else error_reply()
    ) as server:
        transport = HttpTransport(proxy=False)
        agent = agent_at(
            server, retry=RetryConfig(max_retries=1, initial_delay=0.001, budget=None), transport=transport
        )
        read_all(agent)  # the first call builds lazy state
        hits = 0
        errors: list[str] = []
        for _ in range(ROUNDS):
            try:
                hits += interrupt_after(rng.uniform(0, 0.03), agent)
            except Exception as error:
                errors.append(repr(error))
        transport.close()
        server.wait_until(lambda: server.open_connections == 0)
        print(json.dumps({"hits": hits, "errors": errors, "open": server.open_connections}))


def interrupt_after(seconds: float, agent: Agent) -> bool:
    over = threading.Event()

    def fire() -> None:
        if not over.wait(seconds):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=fire)
    hit = False
    try:
        try:
            thread.start()
            read_all(agent)
        finally:
            over.set()
    except KeyboardInterrupt:
        hit = True
    try:
        thread.join()
        time.sleep(0.001)
    except KeyboardInterrupt:
        pass  # it came just after the end
    return hit


if __name__ == "__main__":
    main(int(sys.argv[1]))
