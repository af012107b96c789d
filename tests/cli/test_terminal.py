"""Only sanitized text reaches a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cli import terminal
from agent.cli.terminal import Sanitizer, sanitize
from agent.engine.wire import Answer, WireRequest
from agent.models import ModelFacts, _registered, facts, register_model
from agent.testing import LoopbackServer
from agent.types import ToolCall
from tests.support.cases import for_each

from .payloads import combine_payloads, payloads
from .runner import FOREIGN, MODEL, complete_answer, is_streamed, run, run_on_terminal, stream_chunks

PAYLOADS = payloads()


def foreign(data: bytes | str) -> list[str]:
    text = data if isinstance(data, str) else data.decode("utf-8")
    return FOREIGN.findall(text)


def sanitize_pieces(pieces: list[str]) -> str:
    sanitizer = Sanitizer()
    return "".join([*(sanitizer.feed(piece) for piece in pieces), sanitizer.finish()])


@pytest.fixture(scope="module")
def hostile() -> Iterator[LoopbackServer]:
    """A model that answers with the payload of the request, or fails with it."""

    def answer(request: WireRequest) -> Answer:
        name = str(json.loads(request.body)["messages"][-1]["content"])
        pieces = combine_payloads() if name.endswith("all of them") else PAYLOADS[name.removeprefix("fail ")]
        if name.startswith("fail "):
            text = "".join(pieces)
            body = {"error": {"message": text, "type": text, "code": text}}
            return Answer([json.dumps(body).encode()], status=400, headers={"content-type": "application/json"})
        return stream_chunks(pieces) if is_streamed(request) else complete_answer("".join(pieces))

    with LoopbackServer(answer) as server:
        yield server


@pytest.fixture
def model(hostile: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{hostile.url}/v1")
    monkeypatch.setenv("NO_COLOR", "1")
    return MODEL


def test_there_are_more_than_a_hundred_payloads() -> None:
    assert len(PAYLOADS) > 200
    assert sum(bool(foreign("".join(pieces))) for pieces in PAYLOADS.values()) > 200


@for_each("name", PAYLOADS)
def test_no_payload_leaves_a_control_character(name: str) -> None:
    pieces = PAYLOADS[name]
    text = sanitize_pieces(pieces)
    assert foreign(text) == []
    assert text.startswith("begin")
    assert "end" in text
    assert sanitize("".join(pieces)) == text


SENT = [name for name in PAYLOADS if name != "half-a-pair"]
"""Those that can be sent: JSON libraries refuse half a pair, which has a test of its own."""
SOME = SENT[::12]


@pytest.mark.parametrize("options", [(), ("--no-stream",)], ids=["streamed", "whole"])
def test_a_terminal_gets_no_foreign_control_byte(model: str, options: tuple[str, ...]) -> None:
    code, seen = run_on_terminal("run", "-m", model, *options, "all of them")
    assert (code, foreign(seen)) == (0, [])
    assert seen.decode() == "".join(f"{sanitize(''.join(PAYLOADS[name]))}\n" for name in SENT)
    for name in SOME:
        code, seen = run_on_terminal("run", "-m", model, *options, name)
        assert (code, foreign(seen)) == (0, []), name
        assert seen.decode() == sanitize("".join(PAYLOADS[name])) + "\n"


@pytest.mark.parametrize("options", [(), ("--no-stream",), ("--json",)], ids=["streamed", "whole", "json"])
def test_a_pipe_gets_none_either(model: str, options: tuple[str, ...]) -> None:
    for name in ("all of them", *SOME):
        done = run("run", "-m", model, *options, name)
        assert (done.code, foreign(done.out), foreign(done.err)) == (0, [], []), name
        assert "begin" in done.out, name
        assert "end" in done.out, name


def test_a_vendors_error_brings_none_along(model: str) -> None:
    for name in ("all of them", *SOME):
        code, seen = run_on_terminal("run", "-m", model, f"fail {name}")
        assert (code, foreign(seen)) == (1, []), name
        assert b"error: " in seen, name


def test_half_a_pair_does_not_become_a_byte() -> None:
    assert sanitize("a\udc9b31m") == "a\ufffd31m"


def test_bytes_that_are_no_text_do_not_become_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1 controls as lone bytes: a UTF-8 decoder turns them into replacement characters."""
    event = (
        b'data: {"choices":[{"index":0,"delta":{"content":"begin \x9b31m\x9d0;t\x9c end"},"finish_reason":"stop"}]}\n\n'
    )
    answer = Answer([event, b"data: [DONE]\n\n"], headers={"content-type": "text/event-stream"})
    with LoopbackServer(lambda request: answer) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("NO_COLOR", "1")
        _, seen = run_on_terminal("run", "-m", MODEL, "hi")
    assert foreign(seen) == []
    assert b"\x9b" not in seen.replace("\ufffd".encode(), b"")


def test_what_tools_are_called_is_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.testing import VendorScript

    evil = "\x1b]0;owned\x07\x1b[2Jname"
    script = VendorScript(ToolCall(id="c1", name=evil, arguments={evil: evil}), "end")
    with LoopbackServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("NO_COLOR", "1")
        code, seen = run_on_terminal("run", "-m", MODEL, "--tool", "agent.cli.terminal:sanitize", "hi")
    assert foreign(seen) == []
    assert b"name" in seen
    assert code == 0, seen


def test_what_models_are_called_is_cleaned() -> None:
    evil = "evil\x1b]0;owned\x07\x1b[2J\u202emodel"
    register_model(ModelFacts(provider="openai", model=evil))
    try:
        for options in ((), ("--json",)):
            code, seen = run_on_terminal("models", "evil", *options)
            assert (code, foreign(seen)) == (0, [])
            assert b"evil" in seen
    finally:
        del _registered["openai", evil.lower()]
        facts.cache_clear()


def test_what_a_vendor_says_about_itself_is_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "evil\x1b]0;owned\x07\x1b[2Jmodel"
    body = json.loads(bytes(complete_answer("end").pieces[0]))  # type: ignore[arg-type]
    answer = Answer([json.dumps({**body, "model": evil}).encode()], headers={"content-type": "application/json"})
    with LoopbackServer(lambda request: answer) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("NO_COLOR", "1")
        code, seen = run_on_terminal("run", "-m", MODEL, "--no-stream", "-v", "hi")
    assert (code, foreign(seen)) == (0, [])
    assert b"evilmodel" in seen


def test_a_graph_is_drawn_without_them(tmp_path: object) -> None:
    from pathlib import Path

    from agent.graph import DAG

    path = Path(str(tmp_path)) / "g.json"
    DAG().user("begin \x1b[2J\x9b31m\u202e end").assistant("\x1b]0;t\x07 fine").save(path)
    for options in (("--text",), ("--mermaid",)):
        code, seen = run_on_terminal("graph", str(path), *options)
        assert (code, foreign(seen)) == (0, [])
        assert b"begin" in seen


# The sanitizer itself


@pytest.mark.parametrize(
    ("given_text", "seen"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("a\x1b[31mb\x1b[0mc", "abc"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
        ("a\x1bPq data \x1b\\b", "ab"),
        ("a\x9b31mb", "ab"),
        ("one\r\ntwo\rthree", "one\ntwothree"),
        ("ab\b\bcd\x7f", "abcd"),
        ("a\x1b]0;no end", "a0;no end"),
        ("a\x1b]0;no end\nnext", "a0;no end\nnext"),
        ("quoted \x9dwith a codepage\nnext", "quoted with a codepage\nnext"),
        ("a\u202eb\u2066c", "abc"),
        ("שלום العربية", "שלום العربية"),
        ("漢字 😀 é", "漢字 😀 é"),
    ],
)
def test_what_is_kept_and_what_is_dropped(given_text: str, seen: str) -> None:
    assert sanitize(given_text) == seen


@given(st.lists(st.text(st.sampled_from("ab \n\x1b[]P\\;m0?\x07\x9b\x9d\x9c\x18\r\u202e"), max_size=6), max_size=8))
def test_pieces_come_to_the_same_as_the_whole(pieces: list[str]) -> None:
    text = sanitize_pieces(pieces)
    assert text == sanitize("".join(pieces))
    assert foreign(text) == []


def test_text_is_not_held_back_while_nothing_is_wrong_with_it() -> None:
    sanitizer = Sanitizer()
    assert [sanitizer.feed(piece) for piece in ("one ", "two\n", "three")] == ["one ", "two\n", "three"]
    assert sanitizer.feed("\x1b]0;x") == ""
    assert sanitizer.feed("\n") == "0;x\n"
    assert sanitizer.finish() == ""


def test_json_keeps_what_it_escapes() -> None:
    value = {"text": "\x1b[31m\x9b\u202e漢\x7f"}
    text = terminal.format_json(value)
    assert foreign(text) == []
    assert "漢" in text
    assert json.loads(text) == value


def test_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    _, seen = run_on_terminal("run", "-m", "nonsense", "hi")
    assert seen.startswith(b"\x1b[31merror: ")
    assert "\x1b" not in run("run", "-m", "nonsense", "hi").err
    monkeypatch.setenv("NO_COLOR", "1")
    assert b"\x1b" not in run_on_terminal("run", "-m", "nonsense", "hi")[1]
