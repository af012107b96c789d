"""The command line as a program: terminals, pipes, interrupts, and a missing extra."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import __version__
from agent.cli.errors import ExitCode
from agent.engine.wire import Answer, WireRequest
from agent.graph import DAG
from agent.testing import LoopbackServer

from .payloads import combine_payloads, payloads
from .runner import COMMAND, FOREIGN, MODEL, ROOT, Terminal, complete_answer, environment, is_streamed, stream_chunks

pytestmark = [
    pytest.mark.alone,
    # pexpect forks, and there are threads: the child only replaces itself by another program.
    pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning"),
]

WORDS = [f"word{number} " for number in range(60)]


def answer(request: WireRequest) -> Answer:
    """Answer with words, slowly if the last message says so."""
    asked = str(json.loads(request.body)["messages"][-1]["content"])
    pieces = {"hostile": combine_payloads(), "long": [f"line {n}\n" for n in range(20000)]}.get(asked)
    if pieces is None:
        return stream_chunks(WORDS, delay=0.02 if asked == "slowly" else 0.0)
    return stream_chunks(pieces) if is_streamed(request) else complete_answer("".join(pieces))


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(answer) as one:
        yield one


def start_program(server: LoopbackServer, *arguments: str, **more: str) -> Terminal:
    return Terminal("run", "-m", MODEL, *arguments, env=environment(server.url, **more))


def test_an_answer_appears_while_it_arrives(server: LoopbackServer) -> None:
    with start_program(server, "slowly") as terminal:
        terminal.see("word3 ")
        assert "word59" not in terminal.shown
        terminal.see("word59")
        assert terminal.end() == ExitCode.OK
        assert "".join(terminal.shown.split()) == "".join(word.strip() for word in WORDS)


def test_ctrl_c_ends_the_answer_and_leaves_a_clean_line(server: LoopbackServer) -> None:
    before = len(server.disconnects)
    with Terminal("run", "-m", MODEL, "slowly", env=environment(server.url), look=True) as terminal:
        terminal.see("word5 ")
        began = time.monotonic()
        terminal.program.sendintr()
        assert terminal.end() == ExitCode.INTERRUPTED
        assert time.monotonic() - began < 5
        assert "Traceback" not in terminal.shown
        assert "word59" not in terminal.shown
        *words, last = terminal.shown.splitlines()
        assert all(line.startswith("word") for line in words)  # and no empty line behind them
        assert last == "the terminal is as it was"
        assert terminal.screen.cursor.x == 0
    assert server.wait_until(lambda: len(server.disconnects) > before), "the vendor was not told to stop"


def test_a_resized_terminal_loses_nothing(server: LoopbackServer) -> None:
    with start_program(server, "slowly") as terminal:
        for columns, lines, word in ((30, 30, "word5 "), (100, 10, "word20 "), (60, 40, "word40 ")):
            terminal.see(word)
            terminal.resize(columns, lines)
        assert terminal.end() == ExitCode.OK
        assert terminal.raw.decode().split() == [word.strip() for word in WORDS]


def test_a_hostile_model_commands_no_terminal(server: LoopbackServer) -> None:
    for options in ((), ("--no-stream",)):
        with start_program(server, *options, "hostile", NO_COLOR="1") as terminal:
            assert terminal.end() == ExitCode.OK
            seen = terminal.raw.decode().replace("\r\n", "\n")
            assert FOREIGN.findall(seen) == []
            assert seen.count("begin") == len(payloads()) - 1
            assert terminal.screen.title == ""


def test_an_error_is_red_and_has_no_traceback() -> None:
    with Terminal("run", "-m", "openai:gpt-5", "hi", env=environment()) as terminal:
        assert terminal.end() == ExitCode.SETUP
        assert terminal.raw.startswith(b"\x1b[31merror: There is no key for 'openai'")
        assert "Traceback" not in terminal.shown


def test_a_terminal_without_a_prompt_or_with_a_wrong_flag_is_told_so(server: LoopbackServer) -> None:
    with start_program(server) as terminal:
        assert terminal.end() == ExitCode.USAGE
        assert "prompt is empty" in terminal.shown
    with start_program(server, "--modle", "x", "hi", NO_COLOR="1") as terminal:
        assert terminal.end() == ExitCode.USAGE
        assert terminal.shown.startswith("Usage: agent run [OPTIONS] [PROMPT]...\nerror: No such option: --modle")
        assert terminal.shown.endswith("fix: agent run --help")


def shell(line: str, url: str | None = None) -> subprocess.CompletedProcess[str]:
    script = f"set -o pipefail; {line}"
    words = {"AGENT": " ".join(COMMAND)}
    return subprocess.run(
        ["bash", "-c", script], env=environment(url, **words), capture_output=True, text=True, timeout=60, check=False
    )


def test_a_pipe_gets_plain_text(server: LoopbackServer) -> None:
    done = shell(f"echo context | $AGENT run -m {MODEL} one | cat", server.url)
    assert (done.returncode, done.stdout.split()[:2], done.stderr) == (0, ["word0", "word1"], "")
    assert "\x1b" not in done.stdout


def test_a_reader_that_has_enough_is_no_error(server: LoopbackServer) -> None:
    done = shell(f"$AGENT run -m {MODEL} long </dev/null | head -n 2", server.url)
    assert done.stdout == "line 0\nline 1\n"
    assert done.stderr == ""
    assert done.returncode == ExitCode.BROKEN_PIPE


def test_ctrl_c_in_a_pipe_keeps_what_had_come(server: LoopbackServer) -> None:
    program = subprocess.Popen(
        [*COMMAND, "run", "-m", MODEL, "slowly"],
        env=environment(server.url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout is not None
    begun = os.read(program.stdout.fileno(), 5)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=20)
    assert begun == b"word0"
    assert b"word59" not in out
    assert (program.returncode, err) == (ExitCode.INTERRUPTED, b"")


def test_a_graph_is_opened_in_a_browser(tmp_path: Path) -> None:
    DAG().user("Hello?").assistant("Yes.").save(tmp_path / "talk.json")
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\ncat "${{1#file://}}" > "{tmp_path}/seen"\n')
    browser.chmod(0o755)
    command = ["graph", "talk.json", "--out", "talk.html"]
    with Terminal(*command, env=environment(BROWSER=f"{browser} %s"), cwd=tmp_path) as terminal:
        assert terminal.end() == ExitCode.OK
        assert terminal.shown == "talk.html"
    assert "Hello?" in (tmp_path / "seen").read_text("utf-8")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """An interpreter that has what this package depends on, and nothing of its extra `cli`."""
    folder = tmp_path_factory.mktemp("packages")
    hidden = {"typer", "rich", "platformdirs", "click", "shellingham"}
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if installed.suffix != ".pth" and re.split(r"[-.]", installed.name)[0].lower() not in hidden:
            (folder / installed.name).symlink_to(installed)
    paths = f"import sys; sys.path[1:1] = [{str(ROOT)!r}, {str(folder)!r}]"
    start = "import runpy; sys.argv[0] = 'agent'; runpy.run_module('agent', run_name='__main__')"
    return [sys.executable, "-S", "-E", "-c", f"{paths}; {start}"]


def test_without_the_extra_there_is_advice_a_version_and_the_embedded_model(bare: list[str]) -> None:
    def agent(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*bare, *arguments], env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )

    missing = agent("run", "hi")
    assert (missing.returncode, missing.stdout) == (ExitCode.SETUP, "")
    assert missing.stderr.splitlines() == [
        "error: The command line needs typer and rich and platformdirs, which is not installed.",
        'fix: pip install "agent-llm-router[cli]"',
    ]
    version = agent("--version")
    assert (version.returncode, version.stdout, version.stderr) == (0, f"agent {__version__}\n", "")
    status = agent("local", "status")
    assert status.returncode in (ExitCode.OK, ExitCode.SETUP)
    assert re.match(r"engine: +\S.*\nweights: +\S.*\nready: +(yes|no\.)", status.stdout), status.stderr
    assert agent("local", "nonsense").returncode == ExitCode.USAGE


@pytest.mark.timing
def test_the_version_is_there_at_once() -> None:
    """At most 2.5 times the CPU time of an empty interpreter, plus the import of typer."""

    def seconds(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)

    rounds = [
        (seconds("-c", "pass"), seconds("-c", "import typer"), seconds("-m", "agent", "--version")) for _ in range(5)
    ]
    nothing, typer, ours = (min(times) for times in zip(*rounds, strict=True))
    assert ours <= 2.5 * nothing + (typer - nothing), f"{ours:.3f} s against {nothing:.3f} s and {typer:.3f} s"


def test_the_script_of_the_package_is_this_one() -> None:
    from importlib.metadata import entry_points

    (script,) = (point for point in entry_points(group="console_scripts") if point.value == "agent.cli:main")
    assert script.name == "agent"
    assert (Path(sys.executable).parent / "agent").exists()
