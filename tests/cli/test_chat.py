"""`agent chat` with piped input: turns, commands, failures and storage."""

from __future__ import annotations

import contextlib
import io
import json
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from agent.cli import main
from agent.cli.chat import ChatRepl, Keyboard, PipedLines, PromptedLines, read_text
from agent.cli.chat.commands import COMMANDS
from agent.cli.chat.session import ChatSession, ChatSettings
from agent.cli.options import open_session_store
from agent.cli.terminal import RunDisplay
from agent.graph import DAG
from agent.stores import SqliteStore
from agent.testing import scripted_agent
from tests.cli.chat_script import ChatRunner
from tests.cli.chat_terminal import PAYLOADS, ROOT, Vendor, vendor_and_environment
from tests.cli.payloads import payloads

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> ChatRunner:
    return ChatRunner.at(tmp_path, monkeypatch, capsys)


@pytest.fixture
def vendor(runner: ChatRunner) -> Iterator[Vendor]:
    with vendor_and_environment(runner.home) as (vendor, env):
        for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "AGENT_MODEL"):
            runner.monkeypatch.setenv(name, env[name])
        yield vendor


# Turns


def test_each_line_of_a_pipe_is_a_turn_and_only_answers_go_to_standard_output(runner: ChatRunner) -> None:
    done = runner.run("chat", "mine", lines=b'Hello\n\n   \r\ntwo \\\r\nlines\n"""\na\n\nb\n"""\n//slash\ncaf\xe9')
    assert done.code == 0
    assert (
        done.out == "You said: Hello\nYou said: two \nlines\nYou said: a\n\nb\nYou said: /slash\nYou said: caf\ufffd\n"
    )
    assert done.err == ""
    again = runner.run("chat", "--continue", lines="/history\n")
    assert again.out.startswith("> Hello\nYou said: Hello\n\n> two \n. lines\n")


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("one", "one"),
        ("a\\\nb\\\nc", "a\nb\nc"),
        ("ends in two \\\\", "ends in two \\\\"),
        ("cut off \\", "cut off "),
        ('"""one line"""', "one line"),
        ('"""begins\nends"""', "begins\nends"),
        ('"""\nnever ends', "never ends"),
        ('say """ inside', 'say """ inside'),
    ],
)
def test_a_text_may_have_several_lines(typed: str, read: str) -> None:
    assert read_text(PipedLines(typed.splitlines(keepends=True))) == read


def test_a_vendor_that_fails_is_told_of_and_the_chat_goes_on(runner: ChatRunner, vendor: Vendor) -> None:
    done = runner.run("chat", "mine", lines="first\nrefuse me\nbreak off\nlast\n")
    assert done.code == 1
    assert [line for line in done.out.splitlines() if line.startswith("You")] == ["You said: first", "You said: last"]
    assert done.err.count("error: ") == 2
    assert done.err.count("This turn is not stored. /retry repeats it.") == 2
    assert not CONTROLS.search(done.out + done.err)
    assert vendor.questions() == ["first", "last"]


def test_a_missing_key_is_told_in_one_line_and_ends_with_the_code_for_it(runner: ChatRunner, vendor: Vendor) -> None:
    runner.monkeypatch.delenv("OPENAI_API_KEY")
    runner.monkeypatch.delenv("OPENAI_BASE_URL")
    done = runner.run("chat", lines="hello\n")
    assert (done.code, done.out) == (3, "")
    assert "OPENAI_API_KEY" in done.err
    assert "Traceback" not in done.err
    assert runner.run("sessions").out == ""  # nothing was said, so nothing is kept
    runner.monkeypatch.delenv("AGENT_MODEL")
    done = runner.run("chat", "-m", "opnai:x", lines="hello\n")
    assert done.code == 2
    assert "opnai" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("chat", "--continue"), "There is no session to continue"),
        (("chat", "a/b"), "Invalid session id"),
        (("chat", "x", "--continue"), "--continue excludes a session name"),
        (("chat", "--tool", "json"), "is not a reference"),
        (("chat", "--tool", "json:nothing"), "has no 'nothing'"),
        (("chat", "-m", "nocolon"), "does not name a provider and a model"),
        (("chat", "--frobnicate"), "--frobnicate"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_asked(
    runner: ChatRunner, arguments: tuple[str, ...], said: str
) -> None:
    done = runner.run(*arguments, lines="hello\n")
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_new_session_does_not_take_the_place_of_another(runner: ChatRunner) -> None:
    runner.run("chat", "mine", lines="hello\n")
    done = runner.run("chat", "mine", "--new", lines="hello\n")
    assert done.code == 2
    assert "already" in done.err
    assert runner.run("chat", "mine", lines="/history\n").out.count("> hello") == 1


# Commands


def test_branches_part_and_are_drawn_and_found_again(runner: ChatRunner, vendor: Vendor) -> None:
    lines = "base\n/fork left\nl1\n/switch mine\nr1\n/undo\nr2\n/switch\n/graph\n/switch lef\nl2\n"
    done = runner.run("chat", "mine", lines=lines)
    assert done.code == 0
    assert "* mine\n" in done.out
    assert "  left\n" in done.out
    picture = done.out[done.out.index("●") : done.out.rindex("You said: l2")].splitlines()
    ends = {line.split("● ")[-1].lstrip("│ "): line for line in picture if "←" in line}
    assert sorted(ends) == [
        "assistant: You said: l1  ← left",
        "assistant: You said: r1  ← undone",
        "assistant: You said: r2  ← mine (here)",
    ]
    assert sum("base" in line for line in picture) == 2
    assert vendor.questions() == ["base", "l1", "l2"]
    assert "mine is unchanged" in done.err
    assert "undid 1 turn; 1 turn left" in done.err


def test_a_conversation_goes_on_with_another_vendor_and_remembers_whom_it_asked(
    runner: ChatRunner, vendor: Vendor
) -> None:
    lines = "one\n/model openai-chat:gpt-4o\ntwo\n/model nobody:x\n/model\nthree\n/system Be curt.\nfour\n/system\n"
    done = runner.run("chat", "mine", "--system", "Be kind.", lines=lines)
    assert "model: openai-chat:gpt-4o" in done.err
    assert "There is no provider named 'nobody'" in done.err
    assert "\nmodel: openai-chat:gpt-4o\n" in done.err
    assert done.err.endswith("instructions: Be curt.\n")
    assert vendor.questions() == ["one", "two", "three", "four"]
    assert [messages[0]["content"] for messages in vendor.seen] == ["Be kind.", "Be kind.", "Be kind.", "Be curt."]
    runner.monkeypatch.setenv("AGENT_MODEL", "openai-chat:something-else")
    assert runner.run("chat", "mine", lines="/model\n").err == "model: openai-chat:gpt-4o\n"


def test_undo_and_retry_until_there_is_nothing_left(runner: ChatRunner, vendor: Vendor) -> None:
    done = runner.run("chat", "mine", lines="a\nb\nc\n/undo 2\n/retry\n/undo\n/undo\n/undo none\n/retry\n/fork\nd\n")
    assert done.out.splitlines() == [f"You said: {text}" for text in "abcad"]
    assert "There is no turn to undo." in done.err
    assert "'none' is not a number of turns." in done.err
    assert "There is no turn to retry." in done.err
    assert "now in mine-2; mine is unchanged" in done.err
    assert vendor.questions() == ["d"]
    graph = runner.run("sessions", "graph", "mine").out
    assert graph.count("user: a") == 2  # the first answer stayed where it was when there was a second


def test_a_question_that_failed_is_asked_again_and_its_old_answer_outlives_a_failure(
    runner: ChatRunner, vendor: Vendor
) -> None:
    done = runner.run("chat", "mine", lines="refuse\n/retry\n/history\n")
    assert done.err.count("no such luck") == 2
    assert "The conversation is empty." in done.err
    runner.run("chat", "mine", lines="good\n")
    asked = Vendor.__call__
    runner.monkeypatch.setattr(Vendor, "__call__", lambda self, request: asked(self, _refuse(request)))
    assert "no such luck" in runner.run("chat", "mine", lines="/retry\n").err
    assert runner.run("chat", "mine", lines="/history\n").out == "> good\nYou said: good\n"


def _refuse(request: Any) -> Any:
    from dataclasses import replace

    body = json.loads(request.body)
    body["messages"][-1]["content"] = "refuse"
    return replace(request, body=json.dumps(body).encode())


def test_costs_are_those_of_the_conversation_of_what_was_undone_and_of_the_run(
    runner: ChatRunner, vendor: Vendor
) -> None:
    runner.run("chat", "mine", lines="earlier\n")
    done = runner.run("chat", "mine", lines="/cost\none\ntwo\n/undo\n/cost\n")
    tables = [block.splitlines() for block in done.out.split("answers")[1:]]
    assert [line.split()[-4:][0] for line in tables[0][1:3]] == ["1", "0"]
    costs = {line.split("  ")[0]: line.split() for line in tables[1][1:4]}
    assert costs["this conversation"][2] == "2"
    assert costs["including undone turns"][3] == "3"
    assert costs["this chat"][2] == "2"
    assert all(re.fullmatch(r"\$0\.\d+", line[-1]) for line in costs.values())
    unknown = runner.run("chat", "-m", "scripted:echo", lines="hello\n/cost\n").out
    assert "unknown" in unknown


def test_files_go_along_and_conversations_become_files(runner: ChatRunner, vendor: Vendor) -> None:
    (runner.home / "notes.txt").write_text("remember the milk")
    (runner.home / "there.md").write_text("mine")
    lines = (
        "/attach notes.txt\nwhat does it say?\nand now?\n/save out.md\n/save out.json\n/save out.html\n/save there.md\n"
        "/save out.exe\n/save\n/attach\n/attach missing\n"
        "/graph page.html\n/graph page.html\n/graph page.png\n/graph page.json\n"
    )
    done = runner.run("chat", "mine", lines=lines)
    sent = [message["content"] for message in vendor.seen[-1] if message["role"] == "user"]
    assert "remember the milk" in json.dumps(sent[0])
    assert sent[1] == "and now?"
    assert "**You:** File notes.txt" in (runner.home / "out.md").read_text("utf-8")
    assert json.loads((runner.home / "out.json").read_text("utf-8"))["id"] == "mine"
    for page in ("out.html", "page.html"):
        assert "and now?" in (runner.home / page).read_text("utf-8")
    assert (runner.home / "there.md").read_text() == "mine"
    assert DAG.load(runner.home / "page.json").to_messages()[-1].text == "You said: and now?"
    assert done.err.count("error: ") == 7


def test_an_unknown_command_gets_a_suggestion_and_help_names_them_all(runner: ChatRunner) -> None:
    done = runner.run("chat", lines="/hstory\n/zzzzzz\n/help\n/sessions\n/exit\nnot read any more\n")
    assert done.code == 2
    assert "Did you mean /history?" in done.err
    assert "start it with //" in done.err
    assert "There are no stored sessions" in done.err
    for name in ("model", "fork", "undo", "retry", "graph", "cost", "history", "system", "attach", "save", "quit"):
        assert f"\n/{name}" in f"\n{done.out}"
    assert "not read" not in done.out


# Control sequences of a model or a stored text


def test_nothing_of_what_a_model_a_tool_or_a_stored_text_says_commands_the_terminal(
    runner: ChatRunner, vendor: Vendor
) -> None:
    (runner.home / "rocket.py").write_text("def launch(what: str) -> str:\n    '''x'''\n    return what\n")
    lines = f"evil {PAYLOADS}\ntool\n/history\n/graph\n/sessions\n/undo\n/system {PAYLOADS}\n"
    done = runner.run("chat", "mine", "--tool", "rocket.py:launch", lines=lines)
    shown = [
        done,
        runner.run("sessions"),
        runner.run("sessions", "show", "mine"),
        runner.run("sessions", "graph", "mine"),
    ]
    shown += [runner.run("sessions", "--json"), runner.run("sessions", "show", "mine", "--json")]
    runner.run("sessions", "export", "mine", "out.md")
    for one in shown:
        assert one.code == 0, one.err
        assert not CONTROLS.search(one.out + one.err)
    assert not CONTROLS.search((runner.home / "out.md").read_text("utf-8"))
    assert "before" in done.out
    assert "→ launch(" in done.err
    stored = json.loads(shown[-1].out)["messages"][0]["content"]
    assert "\x1b]0;owned\x07" in stored  # it is kept as it was said, and shown otherwise


def test_a_hundred_payloads_are_said_stored_and_shown_again_as_text(runner: ChatRunner) -> None:
    said = ("".join(pieces) for pieces in payloads().values())
    lines = [payload for payload in said if len(payload) < 1000 and "\n" not in payload and "\r" not in payload]
    assert len(lines) >= 100
    done = runner.run("chat", "mine", lines="\n".join([*(f"say {line}" for line in lines), "/history", "/graph", ""]))
    again = runner.run("sessions", "show", "mine")
    assert done.code == again.code == 0, done.err
    assert done.out.count("You said: say") >= len(lines)
    assert not CONTROLS.search(done.out + done.err + again.out)


# Two at once, and other surprises


def test_a_turn_that_somebody_else_overtook_is_kept_in_a_fork(runner: ChatRunner, vendor: Vendor) -> None:
    runner.run("chat", "mine", lines="first\n")
    asked = Vendor.__call__

    def overtaken(self: Vendor, request: Any) -> Any:
        runner.monkeypatch.setattr(Vendor, "__call__", asked)
        with open_session_store() as store:
            scripted_agent("B.").session("mine", store=store).run("b")
        return asked(self, request)

    runner.monkeypatch.setattr(Vendor, "__call__", overtaken)
    done = runner.run("chat", "mine", lines="c\nd\n/switch mine\n/history\n")
    assert "Another process has changed mine. This turn is stored in the fork mine-2" in done.err
    assert vendor.questions() == ["first", "c", "d"]
    assert "> b\nB.\n" in done.out
    assert "> c" not in done.out


def test_a_session_that_is_deleted_meanwhile_is_not_lost(runner: ChatRunner, vendor: Vendor) -> None:
    runner.run("chat", "mine", lines="first\n")
    asked = Vendor.__call__

    def delete_session(self: Vendor, request: Any) -> Any:
        runner.monkeypatch.setattr(Vendor, "__call__", asked)
        with open_session_store() as store:
            store.delete("mine")
        return asked(self, request)

    runner.monkeypatch.setattr(Vendor, "__call__", delete_session)
    runner.run("chat", "mine", lines="second\n")
    assert "> first" in runner.run("sessions", "show", "mine-2").out


def test_a_command_that_somebody_else_overtook_changes_nothing(runner: ChatRunner) -> None:
    with at_a_keyboard("first") as chat:
        chat.run()
        with open_session_store() as store:
            scripted_agent("B.").session("mine", store=store).run("b")
        ChatRepl(chat.session, Typed("/undo", "/history")).run()
    shown = runner.capsys.readouterr()
    assert "it was changed elsewhere" in shown.err
    assert "> b\nB.\n" in shown.out


def test_a_name_that_is_taken_meanwhile_leads_to_another(runner: ChatRunner) -> None:
    with open_session_store() as store:
        asking = ChatSettings(lambda names: scripted_agent(), ["scripted:script"])
        named, nameless = ChatSession(store, asking, name="mine"), ChatSession(store, asking)
        for taken in ("mine", nameless.id):
            store.create(taken)
        for conversation, words in ((named, "one"), (nameless, "two")):
            ChatRepl(conversation, PipedLines([words])).run()
            assert conversation.turns == 1
        assert named.id == "mine-2"
        assert store.load(nameless.id).title == "two"
        assert len(store.list()) == 4


def test_there_is_nothing_to_branch_from_or_to_draw_at_the_beginning(runner: ChatRunner) -> None:
    done = runner.run(
        "chat", lines="/fork\n/graph\n/cost\n/switch\n/system Be curt.\nhello\n/fork taken\n/fork taken\n"
    )
    assert "There is no turn to fork from." in done.err
    assert "(empty)" in done.out
    assert "this chat                0   0    0    $0" in done.out
    assert "The session 'taken' exists already." in done.err
    assert "instructions: Be curt.\n> hello" in runner.run("chat", "taken", lines="/history\n").out


def test_ctrl_c_ends_a_chat_that_a_script_leads(runner: ChatRunner) -> None:
    def interrupt(self: RunDisplay, event: Any) -> None:
        raise KeyboardInterrupt

    runner.monkeypatch.setattr(RunDisplay, "show", interrupt)
    done = runner.run("chat", "mine", lines="one\ntwo\n")
    assert done.code == 130
    assert runner.run("sessions", "show", "mine").code == 2


class Typed(Keyboard):
    """Keys without a keyboard: texts, and exceptions in place of keys."""

    def __init__(self, *keys: str | type[BaseException]) -> None:
        super().__init__()
        self._keys = iter(keys)

    @override
    def read_line(self, prompt: str) -> str:
        key = next(self._keys, EOFError)
        if isinstance(key, str):
            return key
        raise key

    @override
    def ask(self, question: str) -> str:
        sys.stderr.write(question)
        return self.read_line(question)


@contextlib.contextmanager
def at_a_keyboard(*keys: str | type[BaseException], tools: Any = (), lines: Any = None) -> Iterator[ChatRepl]:
    """A chat whose model answers these lines, or echoes."""
    with open_session_store() as store:
        agent = scripted_agent(*lines) if lines else scripted_agent()
        asking = ChatSettings(
            lambda names: agent, ["scripted:script"], tools, lambda call, context: chat.approve(call, context)
        )
        record = None if not store.list() else store.load("mine")
        conversation = ChatSession(store, asking, record, name=None if record else "mine")
        chat = ChatRepl(conversation, Typed(*keys))
        yield chat


def test_an_interrupt_at_any_moment_leaves_a_turn_whole_or_not_there(runner: ChatRunner) -> None:
    with at_a_keyboard("first") as chat:
        chat.run()
    moments = 0
    while True:
        passed = _interrupt_at(runner, moments)
        with at_a_keyboard("good") as chat:
            chat.run()
            questions = [message.text for message in chat.session.dag.to_messages()][::2]
            assert questions == ["first", *["good"] * (moments + 1)] or not passed
            assert chat.session.interrupted == 0
        moments += 1
        if not passed:
            break
    assert moments > 5
    assert "Interrupted. This turn is not stored; /retry repeats it." in runner.capsys.readouterr().err


def _interrupt_at(runner: ChatRunner, moment: int) -> bool:
    """Whether the turn was interrupted: False if it has fewer moments."""
    left = [moment]
    see = RunDisplay.show

    def interrupt(self: RunDisplay, event: Any) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        see(self, event)

    with runner.monkeypatch.context() as patch, at_a_keyboard("stop me") as chat:
        patch.setattr(RunDisplay, "show", interrupt)
        chat.run()
        return chat.session.interrupted == 1


def test_an_interrupt_while_the_turn_is_written_tells_what_the_store_says(runner: ChatRunner) -> None:
    append = SqliteStore.append

    def interrupt_append(self: SqliteStore, *args: Any, **options: Any) -> int:
        append(self, *args, **options)
        raise KeyboardInterrupt

    with at_a_keyboard("first", "second", "/history") as chat:
        runner.monkeypatch.setattr(SqliteStore, "append", interrupt_append)
        chat.run()
        assert chat.session.turns == 2
    shown = runner.capsys.readouterr()
    assert "The answer was complete and is stored." in shown.err
    assert "> second\nYou said: second" in shown.out


def test_a_store_that_fails_is_told_of_and_the_chat_goes_on(runner: ChatRunner) -> None:
    from agent.stores import StoreFullError

    append, failures = SqliteStore.append, [StoreFullError("There is no room.")]

    def fail(self: SqliteStore, *args: Any, **options: Any) -> int:
        if failures:
            raise failures.pop()
        return append(self, *args, **options)

    with at_a_keyboard("first", "second", "/retry") as chat:
        runner.monkeypatch.setattr(SqliteStore, "append", fail)
        chat.run()
        assert chat.session.turns == 2
        assert chat.session.chat_spending.responses == 3
    assert "error: There is no room." in runner.capsys.readouterr().err


def test_ctrl_c_at_the_prompt_hints_first_and_leaves_the_second_time(runner: ChatRunner) -> None:
    stop = KeyboardInterrupt
    with at_a_keyboard(stop, "hello", stop, stop, "not read") as chat:
        assert chat.run() == 0
        assert chat.session.turns == 1
    shown = runner.capsys.readouterr()
    assert shown.err.count("Press Ctrl-C again, or Ctrl-D, to leave") == 2
    assert shown.err.endswith("to continue: agent chat mine\n")


def test_a_tool_that_runs_code_is_asked_about_and_shown(runner: ChatRunner) -> None:
    from agent import tool
    from agent.types import ToolCall

    ran: list[str] = []

    @tool(risk="exec")
    def launch(what: str) -> str:
        ran.append(what)
        return f"launched {what}"

    @tool(risk="read")
    def look() -> str:
        return "clear"

    def call(number: int, name: str = "launch") -> ToolCall:
        return ToolCall(
            id=f"call_{number}", name=name, arguments={"what": f"rocket {number}"} if name == "launch" else {}
        )

    lines: list[Any] = []
    for number in range(6):
        lines += [call(number), f"done {number}"]
    lines += [call(9, "look"), "looked"]
    keys: tuple[Any, ...] = ("0", "n", "1", "y", "2", KeyboardInterrupt, "3", EOFError, "4", "always", "5", "6")
    with at_a_keyboard(*keys, tools=[launch, look], lines=[*lines[:5], *lines[6:]]) as chat:
        chat.run()
    assert ran == ["rocket 1", "rocket 4", "rocket 5"]
    shown = runner.capsys.readouterr()
    assert shown.err.count("Allow launch to execute code? [y/N/always] ") == 5
    assert '? launch(what="rocket 1")\n' in shown.err  # all of it, however long
    assert "✗ launch: The user at the terminal denied the call." in shown.err
    assert '→ launch(what="rocket 1")\n← launch: launched rocket 1' in shown.err
    assert "← look: clear" in shown.err
    assert "done 2" not in shown.out


def test_a_pipe_cannot_be_asked_so_code_is_not_run_unless_it_was_allowed(runner: ChatRunner, vendor: Vendor) -> None:
    (runner.home / "rocket.py").write_text(
        "from agent import tool\n@tool(risk='exec')\ndef launch(what: str) -> str:\n    return 'it flies'\n"
    )
    assert "needs approval" in runner.run("chat", "--tool", "rocket.py:launch", lines="tool\n").out
    done = runner.run("chat", "--tool", "rocket.py:launch", "--allow-exec", lines="tool\n")
    assert done.out == "The tool said it flies.\n"


def test_the_tab_key_completes_commands_sessions_and_files(runner: ChatRunner) -> None:
    from agent.cli.chat.commands import complete_line

    (runner.home / "folder").mkdir()
    (runner.home / "folder" / "file.txt").write_text("x")
    with at_a_keyboard("hello") as chat:
        chat.run()
        assert complete_line(chat, "/sy") == ["/system "]
        assert complete_line(chat, "/switch m") == ["/switch mine"]
        assert complete_line(chat, "/attach fol") == ["/attach folder/"]
        assert complete_line(chat, "/attach folder/") == ["/attach folder/file.txt"]
        assert complete_line(chat, "hello") == []


def test_a_keyboard_keeps_its_lines_for_the_next_chat_and_its_answers_to_itself(runner: ChatRunner) -> None:
    readline = FakeReadline()
    keys: list[str | Exception] = ["one", UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), "tw\udcff", "yes"]
    typed = iter(keys)

    def record_call(prompt: str) -> str:
        shown.append(prompt)
        key = next(typed)
        if isinstance(key, Exception):
            raise key
        return key

    shown: list[str] = []
    runner.monkeypatch.setattr("agent.cli.chat._import_readline", lambda: readline)
    runner.monkeypatch.setattr("builtins.input", record_call)
    runner.monkeypatch.setattr("agent.cli.chat.discard_input", lambda: True)
    runner.monkeypatch.setenv("TERM", "xterm")
    keyboard = Keyboard(runner.home / "deep" / "history", lambda line: [f"{line}!"])
    assert readline.settings == ["set enable-bracketed-paste on", "tab: complete"]
    assert [keyboard.read_line("> "), keyboard.read_line("> "), keyboard.ask("Sure? ")] == ["one", "tw\ufffd", "yes"]
    assert shown == ["> ", "> ", "> ", "Sure? "]
    assert "not UTF-8" in runner.capsys.readouterr().err
    assert readline.kept == ["one", "tw\udcff"]
    assert stat.S_IMODE((runner.home / "deep" / "history").stat().st_mode) == 0o600
    assert [readline.completer("", 0), readline.completer("", 1)] == ["half!", None]


class FakeReadline:
    """The functions of readline that the keyboard uses, apart from this process's own."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.settings: list[str] = []
        self.asked = 0
        self.history = True
        self.typed = iter(["one", "tw\udcff"])
        self.completer: Any = None

    def append_history_file(self, number: int, path: Path) -> None:
        if self.history:
            self.kept.append(next(self.typed))

    def get_current_history_length(self) -> int:
        self.asked += 1  # as if every line were a new one
        return self.asked

    def parse_and_bind(self, setting: str) -> None:
        self.settings.append(setting)

    def set_auto_history(self, wanted: bool) -> None:
        self.history = wanted

    def set_completer(self, completer: Any) -> None:
        self.completer = completer

    def get_line_buffer(self) -> str:
        return "half"

    def __getattr__(self, name: str) -> Any:
        return lambda *given: None


def test_with_its_output_elsewhere_a_chat_asks_on_standard_error(runner: ChatRunner) -> None:
    runner.monkeypatch.setattr("builtins.input", lambda prompt: f"[{prompt}]")
    runner.monkeypatch.setattr("agent.cli.chat.discard_input", lambda: True)
    keyboard = PromptedLines()
    assert [keyboard.read_line("> "), keyboard.ask("Sure? "), keyboard.has_partial_line] == ["[]", "[]", False]
    shown = runner.capsys.readouterr()
    assert (shown.out, shown.err) == ("", "> Sure? ")


def test_an_answer_that_may_have_been_typed_before_the_question_is_none(runner: ChatRunner) -> None:
    runner.monkeypatch.setattr("builtins.input", lambda prompt: "y")
    with open("/dev/null") as nothing:
        for source in (nothing, io.StringIO("y\n")):
            runner.monkeypatch.setattr("sys.stdin", source)
            for keyboard in (Keyboard(), PromptedLines()):
                with pytest.raises(EOFError):
                    keyboard.ask("Sure? ")


# The guide


def test_the_guide_lists_every_command() -> None:
    guide = (ROOT / "docs" / "guides" / "chat.md").read_text("utf-8")
    rows = guide.split("## Commands")[1].split("##")[0]
    assert set(re.findall(r"`/(\w+)", rows)) == set(COMMANDS)


def test_the_guide_shows_what_a_chat_prints(runner: ChatRunner) -> None:
    guide = (ROOT / "docs" / "guides" / "chat.md").read_text("utf-8")
    shown = guide.split("```text\n$ agent chat")[1].split("\n```")[0].splitlines()
    arguments, transcript = shown[0].split(), shown[1:]
    typed = [line for line in transcript if line.startswith(("> ", ". "))]
    printed = io.StringIO()

    class Echoed(PipedLines):
        @override
        def read_line(self, prompt: str) -> str:
            text = super().read_line(prompt)
            printed.write(f"{prompt}{text}\n")
            return text

    runner.monkeypatch.setattr("agent.cli.chat.PipedLines", Echoed)
    runner.monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(line[2:] for line in typed).encode()))
    )
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        assert main(["chat", *arguments]) == 0
    assert printed.getvalue().splitlines() == transcript
