"""Child process servers that send invalid data, hang and die."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from agent import errors
from agent.mcp import MCPServer
from agent.tools import ToolError
from tests.mcp_.conftest import HERE, until

PLAIN = str(HERE / "plain_server.py")


def plain(how: str = "", **settings: Any) -> MCPServer:
    return MCPServer.stdio(sys.executable, [PLAIN, how], **settings)


def act(server: MCPServer, do: str, **settings: Any) -> str:
    return server.call("act", {"do": do}, **settings).text


def alive(pid: int) -> bool:
    """Running, and not merely waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_server_that_the_sdk_ships_has_no_tools_and_is_no_problem() -> None:
    # `python -m mcp.server` is the only one inside the SDK's wheel; as a module it wants trio, its coroutine does not.
    code = "import anyio, mcp.server.__main__ as shipped; anyio.run(shipped.main)"
    with MCPServer.stdio(sys.executable, ["-c", code]) as server:
        assert server.tools == []
        assert server.resources() == []
        assert server.prompts() == []


@pytest.mark.timing
@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize(
    ("make", "kind", "says", "seconds"),
    [
        (lambda: MCPServer.stdio("no-such-command"), errors.ConfigurationError, "No such file.*full path", 1),
        (
            lambda: MCPServer.stdio("true", cwd="/no/such/place"),
            errors.ConfigurationError,
            "directory does not exist",
            1,
        ),
        (lambda: MCPServer.stdio("a\0b"), errors.ConfigurationError, "cannot be started", 1),
        (lambda: plain("gone"), errors.ConnectionError, "status 2; its last message was: no such module: weather", 2),
        (lambda: plain("babbling"), errors.ConnectionError, "not messages.*not what you expect", 2),
        (lambda: plain("mute", connect_timeout=0.2), errors.TimeoutError, r"within 0\.2 s while connecting", 1),
        (lambda: plain("endless"), errors.ProtocolError, "list of tools is endless", 5),
    ],
    ids=["no command", "directory does not exist", "a NUL", "ends at once", "babbles", "never answers", "endless list"],
)
def test_a_server_that_cannot_be_used_is_a_typed_error_in_time(
    make: Callable[[], MCPServer], kind: type[errors.AgentError], says: str, seconds: float, asynchronous: bool
) -> None:
    started = monotonic()
    with pytest.raises(kind, match=says):
        asyncio.run(make().aopen()) if asynchronous else make().open()
    assert monotonic() - started < seconds


def test_a_command_line_in_one_string_is_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match="one string for each argument"):
        MCPServer.stdio("python", "-m weather")


def test_a_server_that_leaves_at_the_newer_greeting_is_greeted_the_older_way() -> None:
    with plain("easily offended") as server:
        assert server.protocol_version == "2025-11-25"
        assert act(server, "hello") == "hello"


def test_a_child_sees_none_of_our_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    with plain(env={"TOKEN": "for the server"}) as server:
        seen = json.loads(act(server, "env"))
    assert seen["TOKEN"] == "for the server"
    assert "sk-canary" not in seen.values()
    assert set(seen) <= {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE", "TOKEN"}


def test_a_server_that_dies_is_an_error_with_its_last_words_and_the_next_call_starts_it_again() -> None:
    with plain(env={"TOKEN": "hunter2-hunter2"}) as server:
        before = act(server, "pid")
        with pytest.raises(errors.ConnectionError, match="status 3; its last message was: the disk is full; token was"):
            act(server, "die")
        assert act(server, "pid") != before


def test_last_words_hold_no_secret_and_no_escape_sequence() -> None:
    with plain(env={"TOKEN": "hunter2-hunter2"}) as server, pytest.raises(errors.ConnectionError) as caught:
        act(server, "die")
    told = f"{caught.value} {caught.value.body}"
    assert "first words" in told
    assert "first words" not in str(caught.value)
    assert "hunter2" not in told
    assert "\x1b" not in told


def test_eight_threads_that_find_a_server_dead_start_it_once() -> None:
    with plain() as server:
        with pytest.raises(errors.ConnectionError):
            act(server, "die")
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(lambda _: act(server, "pid"), range(8)))) == 1


def test_calls_under_way_when_a_server_dies_all_fail() -> None:
    async def main(server: MCPServer) -> list[Any]:
        silent = [server.acall("act", {"do": "silence"}) for _ in range(3)]
        return await asyncio.gather(*silent, server.acall("act", {"do": "die"}), return_exceptions=True)

    with plain() as server:
        outcomes = asyncio.run(main(server))
    assert [type(outcome) for outcome in outcomes] == [errors.ConnectionError] * 4


def test_a_server_that_shall_not_be_restarted_stays_dead() -> None:
    with plain(reconnect=False) as server:
        for do in ("die", "pid"):
            with pytest.raises(errors.ConnectionError, match="status 3"):
                act(server, do)


def test_a_server_that_cannot_come_back_is_tried_again_by_each_call(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(Path(PLAIN).read_text("utf-8"), "utf-8")
    with MCPServer.stdio(sys.executable, [str(script)]) as server:
        script.write_text("raise SystemExit('moved away')")
        with pytest.raises(errors.ConnectionError, match="status 3"):
            act(server, "die")
        for _ in range(2):
            with pytest.raises(errors.ConnectionError, match="moved away"):
                act(server, "pid")
        assert [tool.name for tool in server.tools] == ["act"]
        script.write_text(Path(PLAIN).read_text("utf-8"), "utf-8")
        assert act(server, "back") == "back"


def test_whoever_has_heard_of_a_failure_is_never_told_it_again_by_the_next_call() -> None:
    with plain() as server:
        server._connect = lambda notes, on_end: object()  # an object that no client can connect to
        with pytest.raises(errors.ConnectionError, match="status 3"):
            act(server, "die")
        for _ in range(20):
            with pytest.raises(errors.AgentError):
                act(server, "pid")
            assert server._session is not None
            assert server._session.is_over


def test_output_that_is_no_message_is_skipped() -> None:
    with plain() as server:
        assert act(server, "invalid_line") == "babbled"


def test_a_message_beyond_the_limit_ends_the_connection_and_the_next_call_makes_another() -> None:
    with plain(max_bytes=100_000) as server:
        assert len(act(server, "long 90000")) == 90_000
        with pytest.raises(errors.ConnectionError, match="more than 100000 bytes"):
            act(server, "long 200000")
        assert act(server, "here") == "here"


@pytest.mark.parametrize(("do", "says"), [("nonsense", "violates the protocol"), ("garbled", "not base64")])
def test_an_answer_against_the_protocol_is_an_error_of_that_call_alone(do: str, says: str) -> None:
    with plain() as server:
        with pytest.raises(errors.ProtocolError, match=says):
            act(server, do)
        assert act(server, "here") == "here"


def test_an_answer_that_cannot_be_read_is_not_waited_for() -> None:
    with plain() as server:
        with pytest.raises(ToolError, match="not a valid message"):
            act(server, "half a character")
        assert act(server, "here") == "here"


def test_a_server_that_wants_to_use_our_model_is_refused() -> None:
    with plain() as server:
        assert act(server, "sample") == "Sampling not supported"


def test_each_way_of_giving_up_sends_one_cancellation() -> None:
    async def cancel(server: MCPServer) -> None:
        calling = asyncio.create_task(server.acall("act", {"do": "silence"}))
        await asyncio.sleep(0.05)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)

    with plain() as server:
        with pytest.raises(errors.TimeoutError):
            act(server, "silence", timeout=0.1)
        asyncio.run(cancel(server))
        until(lambda: len(server.call("act", {"do": "cancelled?"}).structured["cancelled"]) == 2)
        assert server.call("act", {"do": "cancelled?"}).structured["cancelled"] == [
            "timed out after 0.1s",
            "caller cancelled",
        ]


@pytest.mark.timing
@pytest.mark.parametrize("how", ["", "stubborn"], ids=["that goes", "that ignores it"])
def test_closing_ends_a_child_and_everything_it_started(how: str) -> None:
    with plain(how) as server:
        pid, grandchild = int(act(server, "pid")), int(act(server, "grandchild"))
        assert alive(grandchild)
        started = monotonic()
    assert monotonic() - started < 2.0
    assert not alive(pid)
    until(lambda: not alive(grandchild))


def test_calls_under_way_when_the_server_is_closed_end_with_an_error() -> None:
    async def main() -> None:
        server = await plain().aopen()
        calling = asyncio.create_task(server.acall("act", {"do": "silence"}))
        await asyncio.sleep(0.05)
        await server.aclose()
        with pytest.raises(errors.ConnectionError, match="it was closed"):
            await calling

    asyncio.run(main())


def test_a_server_is_used_while_it_is_open_and_may_be_opened_again() -> None:
    server = plain()
    for use in (lambda: server.tools, lambda: server.call("act"), lambda: server.instructions):
        with pytest.raises(errors.ConfigurationError, match="inside `with server:`"):
            use()
    for _ in range(2):
        with server:
            assert act(server, "here") == "here"
            with pytest.raises(errors.ConfigurationError, match="already open"):
                server.open()
    assert repr(server).endswith(" plain_server.py', closed)")


@pytest.mark.timing
def test_opening_can_be_cancelled() -> None:
    async def main() -> None:
        opening = asyncio.create_task(plain("mute").aopen())
        await asyncio.sleep(0.1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    started = monotonic()
    asyncio.run(main())
    assert monotonic() - started < 1.5


def test_a_server_is_opened_and_closed_by_async_with() -> None:
    async def main() -> str:
        async with plain() as server:
            return (await server.acall("act", {"do": "here"})).text

    assert asyncio.run(main()) == "here"


@pytest.mark.parametrize("key", ["only", "without"])
def test_tools_are_chosen_by_names_that_exist(key: str) -> None:
    wrong: dict[str, Any] = {key: ["axt"]}
    with pytest.raises(errors.ConfigurationError, match=r"no tool 'axt'\. It has: act"):
        plain("", **wrong).open()
    right: dict[str, Any] = {key: ["act"], "prefix": "my."}
    with plain("", **right) as server:
        assert [tool.name for tool in server.tools] == (["my_act"] if key == "only" else [])


def test_no_file_stays_open() -> None:
    def rounds() -> int:
        with plain() as server:
            act(server, "here")
            with pytest.raises(errors.ConnectionError):
                act(server, "die")
        return len(os.listdir("/proc/self/fd"))

    assert rounds() == rounds()
