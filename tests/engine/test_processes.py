"""One agent for many threads, event loops and processes."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from agent import Agent, errors
from agent.engine.wire import WireRequest
from agent.testing import Answer, LoopbackServer
from agent.transports.http import HttpTransport
from agent.types import RetryConfig
from tests.engine.play import (
    NO_TLS,
    agent_at,
    completion,
    cut,
    error_reply,
    stall,
    stream_or_whole,
    tokens,
    whole,
    without_gc,
)
from tests.support.drivers import Driver, make_transport, run_and_leave_nothing

ROOT = Path(__file__).parents[2]
PACKAGE = str(ROOT / "agent") + os.sep


def test_threads_share_an_agent_and_never_each_others_answers() -> None:
    def echo(request: WireRequest) -> Answer:
        text = request.body.split(b'"content":"')[1].split(b'"')[0].decode()
        return Answer([completion(text)], headers={"content-type": "application/json"})

    with LoopbackServer(echo) as server:
        transport = HttpTransport(proxy=False)
        agent = agent_at(server, transport=transport)
        wrong: list[object] = []

        def work(number: int) -> None:
            for turn in range(6):
                text = f"thread {number} turn {turn}"
                try:
                    if agent.complete(text).text != text:
                        wrong.append(text)
                except Exception as error:
                    wrong.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(server.requests) == 32 * 6
        assert server.connections_made <= 40, "connections are shared"
        transport.close()
        assert server.wait_until(lambda: server.open_connections == 0)


@pytest.mark.parametrize("carrier", ["http", "httpx"])
def test_no_thread_of_ours_is_left_after_a_call(vendor: LoopbackServer, carrier: str) -> None:
    before = set(threading.enumerate())
    agent = agent_at(vendor, transport=carrier)
    agent.complete("hi")
    agent.stream("hi").collect()
    asyncio.run(agent.acomplete("hi"))
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("carrier", ["http", "httpx"])
def test_many_event_loops_one_after_the_other_leave_nothing(vendor: LoopbackServer, carrier: str) -> None:
    transport = make_transport(carrier, proxy=False)
    agent = agent_at(vendor, transport=transport)

    async def main() -> None:
        assert (await agent.acomplete("hi")).text == "hello"
        assert (await agent.astream("hi").collect()).text == "t0 t1 t2 "

    for _ in range(20):
        asyncio.run(main())
    assert vendor.wait_until(lambda: vendor.open_connections == 0)
    known = transport._loops
    assert known is not None
    assert len(known.by_loop) <= 1


def test_dropped_transports_close_their_connections(drive_http: Driver, vendor: LoopbackServer) -> None:
    dropped: list[weakref.ref[object]] = []

    async def use_and_drop() -> None:
        transport = drive_http.transport(proxy=False, ssl_context=NO_TLS)
        agent = agent_at(vendor, transport=transport)
        if drive_http.awaits:
            await agent.acomplete("hi")
            await agent.astream("hi").collect()
        else:
            agent.complete("hi")
            agent.stream("hi").collect()
        dropped.append(weakref.ref(transport))

    async def main() -> None:
        for _ in range(20):
            await use_and_drop()
        while vendor.open_connections:
            await asyncio.sleep(0.005)

    with without_gc():
        asyncio.run(asyncio.wait_for(main(), 20))
    assert [transport() for transport in dropped] == [None] * 20


@pytest.mark.parametrize("carrier", ["http", "httpx"])
def test_event_loops_in_several_threads_share_an_agent(vendor: LoopbackServer, carrier: str) -> None:
    agent = agent_at(vendor, transport=make_transport(carrier, proxy=False))
    wrong: list[BaseException] = []

    async def main() -> None:
        texts = await asyncio.gather(*(agent.acomplete("hi") for _ in range(5)))
        assert [text.text for text in texts] == ["hello"] * 5

    def work() -> None:
        try:
            for _ in range(4):
                asyncio.run(main())
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert vendor.wait_until(lambda: vendor.open_connections == 0)


def run_script(code: str, *, within: float = 20.0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=within,
        env=environment,
        check=False,
    )


@pytest.mark.parametrize("carrier", ["http", "httpx"])
def test_a_forked_child_and_its_parent_both_go_on(vendor: LoopbackServer, carrier: str) -> None:
    """In a process of its own: this one has threads, and Python warns of forking with threads."""
    done = run_script(f"""
        import asyncio, os, sys
        from agent import Agent
        agent = Agent("openai-chat:m", api_key="k", base_url="{vendor.url}/v1", max_retries=0, transport="{carrier}")

        async def both():
            assert (await agent.acomplete("hi")).text == "hello"
            return (await agent.astream("hi").collect()).text

        stream = agent.stream("hi")
        first = next(iterator := iter(stream))
        agent.complete("hi")  # leaves an idle connection, which the child must not touch
        child = os.fork()
        if child == 0:
            ok = agent.complete("hi").text == "hello" and asyncio.run(both()) == "t0 t1 t2 "
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0, "the child failed"
        rest = list(iterator)
        assert stream.response.text == "t0 t1 t2 ", "the parent's stream was disturbed"
        assert agent.complete("hi").text == "hello"
        assert asyncio.run(both()) == "t0 t1 t2 "
        print("fine")
    """)
    assert (done.stdout, done.stderr) == ("fine\n", "")
    assert vendor.connections_made == 5, "two of the parent's, two of the child's, and one of the parent's loop"


@pytest.mark.parametrize("carrier", ["http", "httpx"])
def test_a_loop_that_forks_leaves_its_parent_alone(vendor: LoopbackServer, carrier: str) -> None:
    done = run_script(f"""
        import asyncio, os
        from agent import Agent
        agent = Agent("openai-chat:m", api_key="k", base_url="{vendor.url}/v1", max_retries=0, transport="{carrier}")

        async def main():
            await agent.acomplete("hi")
            child = os.fork()
            if child == 0:
                os._exit(0 if agent.complete("hi").text == "hello" else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert (await agent.acomplete("hi")).text == "hello"

        asyncio.run(main())
        print("fine")
    """)
    assert (done.stdout, done.stderr) == ("fine\n", "")


@pytest.mark.parametrize("carrier", ["http", "httpx"])
@pytest.mark.parametrize("form", ["stream", "astream", "run_stream", "batch_stream"])
def test_a_forked_child_cannot_read_a_stream_of_its_parent(carrier: str, form: str) -> None:
    """It would take pieces from the shared connection, which the parent would miss."""
    text = "".join(f"t{number} " for number in range(20))

    def answer(request: WireRequest) -> Answer:
        return tokens(20, 0.01) if b'"stream":true' in request.body else whole(text, after=0.05)

    with LoopbackServer(answer) as server:
        url = f"{server.url}/v1"
        done = run_script(f"""
            import asyncio, os
            from agent import Agent, errors
            agent = Agent("openai-chat:m", api_key="k", base_url="{url}", max_retries=0, transport="{carrier}")

            def fork(read_rest):
                child = os.fork()
                if child == 0:
                    try:
                        read_rest()
                    except errors.ConfigurationError as error:
                        assert "parent process" in str(error)
                        os._exit(0)
                    os._exit(1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child read the stream"

            async def read():
                stream = agent.astream("hi")
                iterator = aiter(stream)
                await anext(iterator)

                async def read_rest():
                    async for _ in iterator:
                        pass

                fork(lambda: asyncio.new_event_loop().run_until_complete(read_rest()))
                await read_rest()
                return stream.response.text

            if "{form}" == "astream":
                assert asyncio.run(read()) == {text!r}
            else:
                options = {{"concurrency": 1}} if "{form}" == "batch_stream" else {{}}
                stream = agent.{form}(["hi", "hi"] if options else "hi", **options)
                iterator = iter(stream)
                events = [next(iterator)]
                fork(lambda: (list(iterator), stream.result))
                events += iterator
                if options:
                    assert [item.unwrap().text for item in events] == [{text!r}, {text!r}]
                else:
                    assert (stream.result if "{form}" == "run_stream" else stream.response).text == {text!r}
            print("fine")
        """)
    assert (done.stdout, done.stderr) == ("fine\n", "")


SPAWNER = """
import asyncio, multiprocessing, sys
from agent import Agent

def ask(agent):
    async def both():
        return (await agent.acomplete("hi")).text, (await agent.astream("hi").collect()).text
    return (agent.complete("hi").text, agent.stream("hi").collect().text, *asyncio.run(both()))

if __name__ == "__main__":
    agent = Agent("openai-chat:m", api_key="k", base_url=sys.argv[1], max_retries=0, transport=sys.argv[2])
    assert agent.complete("hi").text == "hello"
    stream = iter(agent.stream("hi"))
    next(stream)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for answers in pool.map(ask, [agent, agent, agent]):
            assert answers == ("hello", "t0 t1 t2 ") * 2, answers
    list(stream)
    print("fine")
"""


@pytest.mark.parametrize("carrier", ["http", "httpx"])
def test_spawned_processes_use_an_agent_beside_their_parent(
    vendor: LoopbackServer, carrier: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPAWNER)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program), f"{vendor.url}/v1", carrier],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "sk-env"},
        check=False,
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")
    keys = {dict(request.headers)[b"authorization"] for request in vendor.requests}
    assert keys == {b"Bearer k", b"Bearer sk-env"}, "the parent's key was not pickled"


def test_an_agent_can_be_pickled_without_its_key_or_connections(
    vendor: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_at(vendor, temperature=0.5, retry=RetryConfig(max_retries=1, jitter=False))
    agent.complete("hi")
    data = pickle.dumps(agent)
    assert b"sk-test" not in data
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    copy: Agent = pickle.loads(data)
    assert copy.config.temperature == 0.5
    assert copy.retry == agent.retry
    assert copy.complete("hi").text == "hello"
    assert dict(vendor.requests[-1].headers)[b"authorization"] == b"Bearer sk-other"


@pytest.mark.parametrize("carrier", ["http", "httpx"])
def test_a_transport_cannot_be_pickled_and_says_so(carrier: str) -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(make_transport(carrier, proxy=False))


EXITS = {
    "an open stream": "it = iter(agent.stream('hi')); next(it)",
    "a stream that outlives its module": """
import builtins
builtins.kept = iter(agent.stream('hi')); next(builtins.kept)""",
    "an open async stream": """
async def main():
    it = aiter(agent.astream('hi')); await anext(it)
asyncio.run(main())""",
    "an async stream kept after its loop": """
async def main():
    global s, it
    s = agent.astream('hi'); it = aiter(s); await anext(it)
asyncio.run(main())""",
    "a thread that reads": """
threading.Thread(target=lambda: list(agent.stream('hi')), daemon=True).start(); time.sleep(0.2)""",
    "a hung tool thread": """
def hang(): time.sleep(30)
def flow():
    def branch(): yield from Invoke(hang, blocking=True)
    one = yield from Spawn(branch())
    yield from Wait([one], 0.1)
    yield from Cancel([one])
drain(SyncRun(HttpTransport(), flow()))
async def main(): await adrain(AioRun(HttpTransport(), flow()))
asyncio.run(main())""",
}


@pytest.mark.timing
@pytest.mark.parametrize(
    ("name", "carrier"),
    [
        *((name, "http") for name in EXITS),
        # asyncio closes all generators of a response at once, and httpx's close each other: it says so on stderr.
        *((name, "httpx") for name in EXITS if "async stream" not in name),
    ],
)
def test_a_program_ends_quickly_and_quietly_with(name: str, carrier: str) -> None:
    with LoopbackServer(lambda request: stall()) as server:
        prelude = f"""
import asyncio, threading, time
from agent import Agent
from agent.engine.drivers.asyncio import AioRun, adrain
from agent.engine.drivers.sync import SyncRun, drain
from agent.engine.flow import Cancel, Invoke, Spawn, Wait
from agent.transports.http import HttpTransport
agent = Agent("openai-chat:m", api_key="k", base_url="{server.url}/v1", max_retries=0, transport="{carrier}")
started = time.monotonic()
"""
        started = time.monotonic()
        done = run_script(prelude + EXITS[name].strip("\n") + "\nprint('fine', flush=True)\n")
        assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")
        assert time.monotonic() - started < 4, "2 s, and as much for starting Python on a busy machine"
        assert server.wait_until(lambda: server.open_connections == 0)


CALLS_AT_EXIT = {
    "complete": "agent.complete('hi')",
    "stream": "agent.stream('hi').collect()",
    "batch": "agent.batch(['hi']).unwrap()",
    "an async tool": "agent.run('hi', tools=[lookup])",
    "a race": "Router([agent, agent.with_config(model='other')], race=2).complete('hi')",
    "acomplete": "asyncio.run(agent.acomplete('hi'))",
    "httpx": "through_httpx.complete('hi')",
}


@pytest.mark.parametrize("call", CALLS_AT_EXIT.values(), ids=CALLS_AT_EXIT.keys())
def test_a_call_in_a_finalizer_at_exit_ends_with_an_answer_or_an_error(call: str) -> None:
    """Threads no longer run then: waiting for a name lookup, a worker or an event loop would never end."""
    with LoopbackServer(stream_or_whole) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        done = run_script(
            f"""
            import asyncio, gc, sys, warnings
            from agent import Agent, Router, errors
            warnings.simplefilter("ignore")
            agent = Agent("openai-chat:m", api_key="k", base_url="{url}/v1", max_retries=0)
            through_httpx = Agent("openai-chat:m", api_key="k", base_url="{url}/v1", transport="httpx")
            async def lookup(): "Look something up."

            class AtExit:
                def __init__(self): self.itself = self
                def __del__(self):
                    try:
                        outcome = "an answer" if {call} else "nothing"
                    except errors.Aborted:
                        outcome = "an error"
                    print(sys.is_finalizing(), outcome, flush=True)

            at_exit = AtExit()
            at_exit.__del__()  # imports everything: no module can be imported at the end
            gc.disable()
            del at_exit
            gc.enable()
            """
        )
    first, last = done.stdout.splitlines()
    assert first == "False an answer"
    assert last in ("True an answer", "True an error")


@pytest.mark.parametrize(
    "answer", [cut, error_reply, lambda: Answer(failure=OSError("no"))], ids=["cut", "500", "refused"]
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_failed_call_leaves_no_reference_cycle(
    drive_http: Driver, answer: Callable[[], Answer], streaming: bool
) -> None:
    """A cycle would keep sockets open until the collector comes."""
    server = drive_http.serve(lambda request: answer())
    transport = drive_http.transport(proxy=False)
    agent = agent_at(server, transport=transport, retry=RetryConfig(max_retries=1, initial_delay=0))

    def fail() -> weakref.ref[errors.AgentError]:
        try:
            if streaming:
                agent.stream("hi").collect()
            else:
                agent.complete("hi")
        except errors.AgentError as error:
            return weakref.ref(error)
        raise AssertionError("it succeeded")

    async def afail() -> weakref.ref[errors.AgentError]:
        try:
            if streaming:
                await agent.astream("hi").collect()
            else:
                await agent.acomplete("hi")
        except errors.AgentError as error:
            return weakref.ref(error)
        raise AssertionError("it succeeded")

    with without_gc():
        error = fail() if not drive_http.awaits else asyncio.run(afail())
        assert error() is None, gc.get_referrers(error())


def test_tracebacks_are_short_and_name_the_cause(drive_http: Driver, vendor: LoopbackServer) -> None:
    vendor.close()
    agent = agent_at(vendor, transport=drive_http.carrier)
    with pytest.raises(errors.ConnectionError) as caught:
        if not drive_http.awaits:
            agent.complete("hi")
        else:
            run_and_leave_nothing(agent.acomplete("hi"))
    error = caught.value
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)]
    assert len(ours) <= (17 if drive_http.carrier is None else 23)
    cause = error.__cause__
    assert isinstance(cause, OSError if drive_http.carrier is None else httpx2.ConnectError)
    assert len(error.attempts) == 1
