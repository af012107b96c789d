"""CPU time of async calls with both HTTP options, with and without a proxy, relative to httpx 0.28.

The server runs in a separate process and also acts as a proxy. The contestants take turns in blocks, and only the CPU
time of this process counts. Run as `python -m benchmarks.transports`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping

import httpx

from agent import Agent
from agent.engine.wire import Answer, Limits, WireRequest
from agent.testing import LoopbackServer, Script
from agent.transports.http import HttpTransport

CHUNKS = 1000
HEADERS = {"authorization": "Bearer sk-bench", "content-type": "application/json", "accept": "*/*"}
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM = BODY[:-1] + b',"stream":true}'
Work = Callable[[], Awaitable[object]]


def serve() -> None:
    """The server's process: print the address, answer until the pipe closes."""
    answers: dict[bool, Answer] = {}
    for streaming, script in ((False, Script("An answer of a few words.")), (True, Script(("word " * CHUNKS).strip()))):
        answer = script(WireRequest("/v1/chat/completions", (), STREAM if streaming else BODY))
        pieces = [piece.outcome for piece in answer.iter_pieces() if isinstance(piece.outcome, bytes)]
        length = {} if streaming else {"content-length": str(sum(map(len, pieces)))}
        answers[streaming] = Answer(pieces, headers={"content-type": answer.headers["content-type"], **length})
    server = LoopbackServer(lambda request: answers[b'"stream":true' in request.body])
    print(server.url, flush=True)
    sys.stdin.read()
    server.close()


async def cpu(work: Work, times: int) -> float:
    before = time.process_time()
    for _ in range(times):
        await work()
    return (time.process_time() - before) / times * 1e6


async def contest(name: str, works: Mapping[str, Work], *, blocks: int, times: int, each: int = 1) -> None:
    """Print the median of each contestant's microseconds, and of its ratio to the first."""
    for work in works.values():
        await cpu(work, max(1, times // 4))
    rounds = [[await cpu(work, times) / each for work in works.values()] for _ in range(blocks)]
    shown = []
    for at, contestant in enumerate(works):
        ratio = statistics.median(one[at] / one[0] for one in rounds)
        shown.append(f"{contestant} {statistics.median(one[at] for one in rounds):.0f} µs {ratio:.2f}")
    print(f"{name:28} {'; '.join(shown)}", flush=True)


def together(work: Work, count: int) -> Work:
    async def run_all() -> None:
        await asyncio.gather(*(work() for _ in range(count)))

    return run_all


async def compare(name: str, url: str, proxy: str | None) -> None:
    address = f"{url}/v1/chat/completions"
    headers = tuple((key.encode(), value.encode()) for key, value in HEADERS.items())
    ours: dict[str, HttpTransport] = {
        "http": HttpTransport(proxy=proxy or False),
        "httpx": HttpTransport(proxy=proxy or False, library="httpx2"),
    }

    def call(transport: HttpTransport) -> Work:
        return lambda: transport.asend(WireRequest(address, headers, BODY), Limits())

    def agents(transport: HttpTransport) -> Work:
        agent = Agent("openai-chat:m", base_url=f"{url}/v1", api_key="sk-bench", transport=transport)
        return lambda: agent.acomplete("hi")

    def stream(transport: HttpTransport) -> Work:
        agent = Agent("openai-chat:m", base_url=f"{url}/v1", api_key="sk-bench", transport=transport)
        return lambda: agent.astream("hi").collect()

    async with httpx.AsyncClient(headers=HEADERS, proxy=proxy, trust_env=False) as client:

        async def floor() -> None:
            json.loads((await client.post(address, content=BODY)).content)

        async def floor_stream() -> None:
            async with client.stream("POST", address, content=STREAM) as reply:
                async for line in reply.aiter_lines():
                    if line.startswith("data: {"):
                        json.loads(line[6:])

        calls = {"httpx": floor, **{kind: call(transport) for kind, transport in ours.items()}}
        whole = {"httpx": floor, **{kind: agents(transport) for kind, transport in ours.items()}}
        streams = {"httpx": floor_stream, **{kind: stream(transport) for kind, transport in ours.items()}}
        await contest(f"{name}, transport alone", calls, blocks=9, times=50)
        await contest(f"{name}, a call", whole, blocks=9, times=50)
        await contest(f"{name}, {CHUNKS} chunks", streams, blocks=7, times=3)
        crowd = {kind: together(work, 128) for kind, work in whole.items()}
        await contest(f"{name}, 128 in flight", crowd, blocks=5, times=2, each=128)


def main() -> int:
    command = [sys.executable, "-c", "from benchmarks.transports import serve; serve()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        asyncio.run(compare("direct", url, None))
        asyncio.run(compare("through a proxy", url, url))
        process.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
