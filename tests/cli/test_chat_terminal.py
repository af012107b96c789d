"""`agent chat` in a real terminal."""

from __future__ import annotations

import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.chat_terminal import Terminal, Vendor, vendor_and_environment
from tests.cli.payloads import payloads

pytestmark = pytest.mark.alone


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[tuple[Vendor, dict[str, str]]]:
    with vendor_and_environment(tmp_path) as both:
        yield both


def foreign(shown: str) -> list[str]:
    """Control characters in what was shown while no line was edited."""
    ours = shown.replace("\x1b[?2004l", "").replace("\x1b[?2004h", "").replace("\r\n", "\n").replace("\n\r", "\n")
    return re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", ours.strip("\r"))


def test_a_chat_is_kept_and_gone_on_with_by_another_process(
    runner: tuple[Vendor, dict[str, str]], tmp_path: Path
) -> None:
    vendor, env = runner
    with Terminal("chat", "--system", "Be kind.", env=env) as chat:
        chat.expect("new session · /help")
        chat.say("I am Ada.")
        chat.expect("You said: I am Ada.")
        chat.say('"""')
        chat.say("two")
        chat.resize(50, 20)  # in the middle of a text
        chat.say("lines")
        chat.say('"""')
        chat.expect("You said: two\r\nlines")
        chat.say("one \\")
        chat.say("more")
        chat.expect("You said: one \r\nmore")
        chat.is_ready()
        chat.paste("pasted\n  in three\nlines")
        chat.say("")
        chat.expect("You said: pasted\r\n  in three\r\nlines")
        assert vendor.questions()[-1] == "pasted\n  in three\nlines"
        chat.say("/undo")
        chat.expect("undid 1 turn; 3 turns left")
        chat.say("/undo")
        chat.expect("undid 1 turn; 2 turns left")
        chat.say("/fork other")
        chat.expect("now in other")
        chat.say("evil")
        shown = chat.expect(" after\r\n")
        assert "before " in shown
        assert foreign(shown) == []
        assert (chat.screen.title, chat.screen.icon_name) == ("", "")
        assert any("before red" in line for line in chat.screen.display)
        chat.say("count")
        for columns, word in ((20, "number5 "), (120, "number15 "), (50, "number25 ")):
            chat.expect(word)
            chat.resize(columns, 20)  # in the middle of an answer
        chat.expect("number39")
        chat.is_ready()
        told = re.findall(r"number\d+", chat.raw.decode("utf-8", "replace"))
        assert told == [f"number{number}" for number in range(40)]
        chat.say("/undo")
        chat.expect("undid 1 turn; 3 turns left")
        chat.say("/graph")
        chat.expect("(here)")
        chat.say("/cost")
        chat.expect("this chat")
        chat.say("/modle x")
        chat.expect("Did you mean /model?")
        chat.resize(100, 30)
        chat.say("/model openai-chat:gpt-4o")
        chat.expect("model: openai-chat:gpt-4o")
        chat.say("the last line")
        chat.expect("You said: the last line")
        chat.is_ready()
        chat.type("\x04")
        chat.expect("to continue: agent chat other")
        assert chat.exit_code() == 0
        assert chat.is_as_it_was
    assert vendor.seen[-1][0] == {"role": "system", "content": "Be kind."}
    assert vendor.questions() == ["I am Ada.", "two\nlines", "evil", "the last line"]
    history = tmp_path / "data" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "data" / "sessions.db").stat().st_mode) == 0o600

    with Terminal("chat", "--continue", env=env) as chat:
        chat.expect("openai-chat:gpt-4o · session other, 4 turns")
        chat.expect("You said: the last line")
        chat.is_ready()
        chat.type("\x1b[A")  # up: a line of the chat before
        chat.expect("the last line")
        chat.say(" again")
        chat.expect("You said: the last line again")
        chat.say("/history")
        shown = chat.expect("You said: the last line again\r\n")
        assert "> evil" in shown
        assert foreign(shown) == []
        chat.is_ready()
        chat.press("\x03", "Press Ctrl-C again, or Ctrl-D, to leave")
        chat.is_ready()
        chat.type("half a line")
        chat.expect("half a line")
        chat.press("\x03", "> ")
        assert chat.exit_code("\x03") == 0
        assert chat.is_as_it_was
        assert "sk-secret-canary" not in chat.raw.decode("utf-8", "replace")
    assert vendor.questions()[-2:] == ["the last line", "the last line again"]


def test_an_answer_that_is_stopped_or_fails_leaves_the_chat_as_it_was(
    runner: tuple[Vendor, dict[str, str]], tmp_path: Path
) -> None:
    vendor, env = runner
    tools = tmp_path / "rocket.py"
    tools.write_text(
        "from agent import tool\n\n\n@tool(risk='exec')\ndef launch(what: str) -> str:\n"
        "    '''Launches.'''\n    return 'it flies'\n"
    )
    with Terminal("chat", "mine", "--tool", f"{tools}:launch", env=env) as chat:
        chat.say("first")
        chat.expect("You said: first")
        chat.say("slow one")
        chat.expect("word word word")
        chat.type("\x03")
        chat.expect("Interrupted. This turn is not stored")
        assert chat.screen.display[chat.screen.cursor.y].rstrip() in ("", ">")
        chat.say("second")
        chat.expect("You said: second")
        assert vendor.questions() == ["first", "second"]

        chat.say("refuse this")
        shown = chat.expect("This turn is not stored. /retry repeats it.")
        assert "error: no such luck" in shown
        assert shown.count("error:") == 1
        assert "Traceback" not in shown
        assert foreign(shown) == []
        chat.say("break off")
        chat.expect("error:")
        chat.expect("/retry")
        asked = len(vendor.seen)
        chat.say("/retry")
        chat.expect("/retry repeats it.")
        assert vendor.questions() == ["first", "second", "break off"]
        assert len(vendor.seen) > asked

        chat.say("tool please")
        shown = chat.expect("Allow launch to execute code? [y/N/always] ")
        assert foreign(shown) == []
        chat.say("n")
        chat.expect("The tool said")
        chat.say("tool again")
        chat.expect("[y/N/always] ")
        chat.say("y")
        chat.expect("it flies")
        chat.expect("The tool said it flies.")

        chat.say("slow two")
        chat.expect("word word")
        chat.kill()

    with Terminal("chat", "mine", env=env) as chat:
        chat.expect("session mine, 4 turns")
        chat.say("third")
        chat.expect("You said: third")
        chat.say("/quit")
        assert chat.exit_code() == 0
        assert chat.is_as_it_was
    assert vendor.questions() == ["first", "second", "tool please", "tool again", "third"]


@pytest.mark.parametrize("output", ["terminal", "elsewhere"])
def test_what_is_typed_before_the_question_approves_nothing(
    runner: tuple[Vendor, dict[str, str]], tmp_path: Path, output: str
) -> None:
    _, env = runner
    launched, tools = tmp_path / "launched", tmp_path / "rocket.py"
    tools.write_text(
        "from pathlib import Path\nfrom agent import tool\n\n\n@tool(risk='exec')\ndef launch(what: str) -> str:\n"
        f"    'Launches.'\n    Path({str(launched)!r}).touch()\n    return 'it flies'\n"
    )
    with Terminal("chat", "--tool", f"{tools}:launch", env=env, shows_output=output == "terminal") as chat:
        chat.is_ready()
        chat.type("tool please\ry\ry\ralways\r")
        chat.expect("to execute code? [y/N/always] ")
        chat.say("n")
        chat.expect("The user at the terminal denied the call.")
        chat.is_ready()
    assert not launched.exists()


def test_no_payload_of_a_model_commands_the_terminal_of_a_chat(runner: tuple[Vendor, dict[str, str]]) -> None:
    _, env = runner
    with Terminal("chat", "mine", env=env) as chat:
        chat.is_ready()
        chat.say("hostile")
        chat.expect("hostile\r\n")
        said = chat.expect("> ")
        chat.say("/history")
        again = chat.expect("/history\r\n") + chat.expect("> hostile\r\n") + chat.expect("> ")
        assert chat.exit_code("\x04") == 0
    for shown in (said, again):
        assert shown.count("begin") == len(payloads()) - 1  # half a pair cannot be sent
        assert foreign(shown) == []
    assert (chat.screen.title, chat.screen.icon_name) == ("", "")


def test_two_chats_in_one_session_lose_nothing_of_each_other(runner: tuple[Vendor, dict[str, str]]) -> None:
    _, env = runner
    with Terminal("chat", "mine", env=env) as one:
        one.say("first")
        one.expect("You said: first")
        with Terminal("chat", "mine", env=env) as other:
            other.expect("session mine, 1 turn")
            other.say("from the other")
            other.expect("You said: from the other")
            other.is_ready()  # then it is written down
            one.say("from the one")
            one.expect("Another process has changed mine. This turn is stored in the fork mine-2")
            one.say("/graph")
            shown = one.expect("(here)") + one.expect("> ")
            assert "from the other  ← mine" in shown
            other.say("/history")
            shown = other.expect("> first") + other.expect("> from the other")
            assert "from the one" not in shown
            other.kill()
        one.kill()
    with Terminal("chat", "mine-2", env=env) as chat:
        chat.expect("session mine-2, 2 turns")


def test_ctrl_c_ends_a_chat_that_a_script_leads(runner: tuple[Vendor, dict[str, str]]) -> None:
    _, env = runner
    with subprocess.Popen(
        [sys.executable, "-m", "agent", "chat", "mine"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write(b"first\nslow\nnever asked\n")
        chat.stdin.flush()
        assert chat.stdout.readline() == b"You said: first\n"
        assert chat.stdout.read(4) == b"word"
        chat.send_signal(signal.SIGINT)
        out, err = chat.communicate(timeout=20)
        assert (chat.returncode, err) == (130, b"")
        assert b"never" not in out


def test_without_readline_a_chat_still_works(runner: tuple[Vendor, dict[str, str]], tmp_path: Path) -> None:
    vendor, env = runner
    (tmp_path / "readline.py").write_text("raise ImportError('there is none')\n")
    without = {**env, "PYTHONPATH": f"{tmp_path}:{env['PYTHONPATH']}", "PYTHONSAFEPATH": ""}
    with Terminal("chat", "plain", env=without) as chat:
        chat.expect("> ")
        chat.say("hello")
        chat.expect("You said: hello")
        chat.is_ready()
        chat.press("\x03", "Ctrl-C again")
        chat.is_ready()
        assert chat.exit_code("\x03") == 0
    assert vendor.questions() == ["hello"]
