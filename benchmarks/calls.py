"""CPU of a call and of a streamed chunk, as a ratio to raw httpx 0.28 with the standard library's JSON.

The server runs in a process of its own and always gives the same answer. Contestants take turns in blocks; only this
process's CPU counts. The floor runs twice, and the ratio of the floor to itself says how far to trust the rest.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx

from agent import Agent
from agent.answers import Answer
from agent.testing import LoopbackServer, Script
from agent.wire import WireRequest

CHUNKS = 1000
TEXT = "word " * CHUNKS
Result = tuple[float, float, float]
"""Our ratio to the floor, the floor's to itself, and the floor's milliseconds."""
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def serve() -> None:
    """The server's process: print the address, answer until the pipe closes."""
    whole, long = Script("An answer of a few words, as models give them."), Script(TEXT.strip())
    answers: dict[bool, Answer] = {}

    def fixed(request: WireRequest) -> Answer:
        streaming = b'"stream":true' in request.body
        if streaming not in answers:
            answer = (long if streaming else whole)(request)
            pieces = [piece.outcome for piece in answer.timed() if isinstance(piece.outcome, bytes)]
            headers = {"content-type": answer.headers["content-type"]}
            if not streaming:
                headers["content-length"] = str(sum(map(len, pieces)))
            answers[streaming] = Answer(pieces, headers=headers)
        return answers[streaming]

    server = LoopbackServer(fixed)
    print(server.url, flush=True)
    sys.stdin.read()
    server.close()


class Contest:
    """The same work done by the floor and by us."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}/v1/chat/completions"
        self.agent = Agent("openai-chat:m", base_url=f"{url}/v1", api_key="sk-bench")
        self.client = httpx.Client()
        self.headers = {"authorization": "Bearer sk-bench"}

    def floor_call(self) -> int:
        reply = self.client.post(self.url, json=BODY, headers=self.headers)
        return len(json.loads(reply.content)["choices"][0]["message"]["content"])

    def our_call(self) -> int:
        return len(self.agent.complete("hi").text or "")

    def floor_stream(self) -> int:
        size = 0
        body = json.dumps({**BODY, "stream": True}, separators=(",", ":"))
        headers = {**self.headers, "content-type": "application/json"}
        with self.client.stream("POST", self.url, content=body, headers=headers) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    size += len((choices[0]["delta"].get("content") if choices else None) or "")
        return size

    def our_stream(self) -> int:
        return sum(len(event.text or "") for event in self.agent.stream("hi") if event.type == "text_delta")


def cpu(work: Callable[[], int], times: int) -> float:
    before = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - before) / times


def compare(floor: Callable[[], int], ours: Callable[[], int], *, blocks: int, times: int) -> Result:
    assert floor() == ours(), "the contestants do not find the same text"
    ratios: list[float] = []
    control: list[float] = []
    floors: list[float] = []
    for _ in range(blocks):
        first, mine, second = cpu(floor, times), cpu(ours, times), cpu(floor, times)
        floors += [first, second]
        ratios.append(mine / ((first + second) / 2))
        control.append(second / first)
    return statistics.median(ratios), statistics.median(control), statistics.median(floors) * 1000


def async_ratio(url: str, *, blocks: int, times: int) -> Result:
    agent = Agent("openai-chat:m", base_url=f"{url}/v1", api_key="sk-bench")

    async def main() -> Result:
        ratios: list[float] = []
        control: list[float] = []
        floors: list[float] = []
        async with httpx.AsyncClient(headers={"authorization": "Bearer sk-bench"}) as client:

            async def floor() -> None:
                json.loads((await client.post(f"{url}/v1/chat/completions", json=BODY)).content)

            async def ours() -> None:
                await agent.acomplete("hi")

            async def block(work: Callable[[], Any]) -> float:
                before = time.process_time()
                for _ in range(times):
                    await work()
                return (time.process_time() - before) / times

            await block(floor)
            await block(ours)
            for _ in range(blocks):
                first, mine, second = await block(floor), await block(ours), await block(floor)
                floors += [first, second]
                ratios.append(mine / ((first + second) / 2))
                control.append(second / first)
        return statistics.median(ratios), statistics.median(control), statistics.median(floors) * 1000

    return asyncio.run(main())


def main() -> int:
    command = [sys.executable, "-c", "from benchmarks.calls import serve; serve()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        contest = Contest(url)
        rows = {
            "one call, sync": compare(contest.floor_call, contest.our_call, blocks=15, times=40),
            "one call, async": async_ratio(url, blocks=15, times=40),
            f"stream of {CHUNKS} chunks, sync": compare(contest.floor_stream, contest.our_stream, blocks=9, times=3),
        }
        for name, (ratio, control, floor) in rows.items():
            print(f"{name:32} {ratio:5.2f} x raw httpx ({floor:.2f} ms CPU; the floor against itself {control:.2f})")
        contest.client.close()
        process.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
