"""Programs: permissions, time limits and cleanup."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from agent.errors import ConfigurationError
from agent.toolkit import Toolkit, TruncationConfig, sandbox_process, search_process
from agent.toolkit import programs as processes
from agent.toolkit.programs import base_interpreter
from agent.tools import AgentToolResult, ToolContext
from tests.toolkit.places import Places, expect_error, use, why_not_confined

BOTH = ["confined", "unconfined"]


@pytest.fixture(params=BOTH)
def kit(request: pytest.FixtureRequest) -> Toolkit:
    made: Toolkit = request.getfixturevalue(request.param)
    return made


def alive(mark: str) -> bool:
    """Whether a process with this in its command line lives."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes() and b"Z" not in state(entry):
                    return True
            except OSError:
                continue
    return False


def state(entry: Path) -> bytes:
    return (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]


# Successful programs


ORDINARY = {
    "echo hello": "hello",
    "echo out; echo err >&2": "out\nerr",
    "cat inside.txt sub/file.txt": "inside\nin sub",
    "echo new > new.txt; cat new.txt": "new",
    "mkdir -p a/b && touch a/b/c && ls a/b": "c",
    "ln -s sub/file.txt link && cat link": "in sub",
    "mv inside.txt sub/moved.txt && ls sub": "deep\nfile.txt\nmoved.txt",
    "cat < <(echo substituted)": "substituted",
    "echo to stdout > /dev/stdout": "to stdout",
    "echo text | tee /dev/stderr | tr a-z A-Z": "text\nTEXT",
    "cat <<'E'\nhere\nE": "here",
    "f=$(mktemp) && echo temporary > $f && cat $f": "temporary",
    "sort -S 1M <(seq 3) | tail -1": "3",
    "cat; echo nothing to read": "nothing to read",
    "python3 -c 'print(6 * 7)'": "42",
    "printf '\\377\\n'": "�",
    "sleep 0.01 & wait; jobs; echo waited": "waited",
}


def test_ordinary_commands_work(kit: Toolkit) -> None:
    everything = "\n".join(f"(\n{command}\n) 2>&1; echo ---" for command in ORDINARY)
    assert use(kit.bash, command=everything).split("\n---")[:-1] == [
        answer if number == 0 else f"\n{answer}" for number, answer in enumerate(ORDINARY.values())
    ]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("true", "[The program succeeded without output.]"),
        ("false", "[exit code 1]"),
        ("echo some; exit 7", "some\n[exit code 7]"),
        ("kill -TERM $$", "[exit code 143]"),
        ("sleep 5 & disown; echo left", "left"),
        ("exec >&- 2>&-; sleep 0.1; echo done > done.txt; exit 9", "[exit code 9]"),
    ],
)
def test_how_a_command_ended_is_told(kit: Toolkit, command: str, answer: str) -> None:
    assert use(kit.bash, command=command) == answer


def test_modes_and_repositories_work_where_there_are_namespaces(confined: Toolkit, places: Places) -> None:
    answer = use(confined.bash, command="printf '#!/bin/sh\\necho ran' > s; chmod +x s && ./s; echo here")
    if "Operation not permitted" in answer:
        pytest.skip("this kernel gives no namespaces to this user")
    assert answer == "ran\nhere"
    shared = "import multiprocessing; multiprocessing.Lock(); print('locked')"
    assert use(confined.bash, command=f'python3 -c "{shared}"; echo > /dev/shm/left; ls /dev/shm') == "locked\nleft"
    assert "left" not in use(confined.bash, command="ls /dev/shm")
    assert not Path("/dev/shm/left").exists()


def test_a_command_that_fails_is_no_error_and_says_its_code(kit: Toolkit) -> None:
    result = kit.bash.run({"command": "exit 3"}, ToolContext())
    assert isinstance(result, AgentToolResult)
    assert (result.is_error, result.details["exit_code"]) == (False, 3)
    assert "NUL byte" in expect_error(kit.bash, command="echo \0")


def test_a_command_that_is_too_long_for_the_system_is_told(kit: Toolkit) -> None:
    assert "Argument list too long" in expect_error(kit.bash, command="#" * 10_000_000)


def test_a_root_in_shared_memory_is_fine() -> None:
    if reason := why_not_confined() or ("" if os.access("/dev/shm", os.W_OK) else "there is no shared memory"):
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root, Toolkit(root, allow_exec=True) as kit:
        assert use(kit.bash, command="echo written > file; cat file; ls /dev/shm; true").startswith("written\nls: ")


# Time


@pytest.mark.parametrize(
    "command",
    [
        "sleep {mark}",
        "sleep {mark} & wait",
        "(trap '' TERM HUP INT; sleep {mark}; sleep {mark})",
        "yes {mark} > /dev/null",
    ],
)
def test_a_command_that_must_end_ends_with_all_it_started(kit: Toolkit, places: Places, command: str) -> None:
    ends_at_once(kit, places, command)


@pytest.mark.parametrize("namespaces", [True, False])
@pytest.mark.parametrize(
    "command",
    [
        "setsid sleep {mark} & sleep {mark}",
        "python3 -c 'import os, time; os.fork(); os.setpgid(0, 0); time.sleep({mark})'",
    ],
)
def test_confined_even_who_leaves_the_group_ends(
    confined: Toolkit, places: Places, command: str, namespaces: bool
) -> None:
    confined.bash.programs = replace(confined.bash.programs, namespaces=namespaces)
    ends_at_once(confined, places, command)


def ends_at_once(kit: Toolkit, places: Places, command: str) -> None:
    """Give the call up as soon as the program runs."""
    mark = fresh_mark()
    context = ToolContext[None]()

    def give_up() -> None:
        wait_for(lambda: (places.root / "begun").exists())
        context.signal.set()

    waiting = threading.Thread(target=give_up)
    waiting.start()
    result = kit.bash.run({"command": f"echo begun; echo > begun; {command.format(mark=mark)}"}, context)
    waiting.join()
    assert result.is_error
    assert result.content == "begun\n[Stopped: it was cancelled. The output so far is above.]"
    wait_for(lambda: not alive(mark))  # a killed process needs a moment to end


def fresh_mark() -> str:
    """Seconds to sleep by which processes of this test are known."""
    return str(3_000_000 + time.monotonic_ns() % 1_000_000)


def wait_for(happened: Callable[[], object]) -> None:
    until = monotonic() + 10
    while not happened():
        assert monotonic() < until
        time.sleep(0.005)


def test_a_command_has_the_time_it_asks_for(kit: Toolkit) -> None:
    mark, started = fresh_mark(), monotonic()
    result = kit.bash.run({"command": f"sleep {mark}", "timeout": 0.2}, ToolContext())
    assert 0.2 <= monotonic() - started < 5
    assert result.content == "[Stopped: it took longer than 0.2 s. The output so far is above.]"
    wait_for(lambda: not alive(mark))  # a killed process needs a moment to end


def test_what_is_left_running_ends_with_the_command(confined: Toolkit) -> None:
    for namespaces in (True, False):
        confined.bash.programs = replace(confined.bash.programs, namespaces=namespaces)
        mark = fresh_mark()
        command = f"setsid sleep {mark} & (setsid sh -c 'sleep {mark} & sleep {mark}' &); sleep 0.05; echo done"
        started = monotonic()
        assert use(confined.bash, command=command) == "done"
        assert monotonic() - started < 10
        assert not alive(mark)


@pytest.mark.timing
def test_a_program_ends_before_the_deadline_of_its_call(kit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "DEADLINE_MARGIN", 0.4)
    deadline = monotonic() + 0.6
    result = kit.bash.run({"command": "sleep 60"}, ToolContext(deadline=deadline))
    assert monotonic() < deadline
    assert result.content.startswith("[Stopped: it took longer than ")


def test_the_program_ends_with_the_process_that_wanted_it(confined: Toolkit, places: Places) -> None:
    mark = fresh_mark()
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
from agent.toolkit import Toolkit
from agent.tools import ToolContext
bash = Toolkit({str(places.root)!r}, allow_exec=True).bash
bash.run({{"command": "echo > begun; setsid sleep {mark}"}}, ToolContext())
"""
    # It gets no chance to clean up, so its folder is put where this test's own is.
    environment = {**os.environ, "TMPDIR": str(places.root.parent)}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment)
    wait_for(lambda: (places.root / "begun").exists() and alive(f"sleep\0{mark}"))
    process.kill()
    process.wait()
    wait_for(lambda: not alive(f"sleep\0{mark}"))


# Output


def test_endless_output_is_counted_and_not_kept(kit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_OUTPUT", 1_000_000)
    answer = use(kit.bash, command="head -c 5000000 /dev/zero | tr '\\0' x")
    assert answer.endswith("\n[4,000,000 more bytes of output were discarded.]")
    [stored] = kit.truncated_outputs
    assert stored.original_chars < 1_000_100
    assert use(kit.bash, command=f"head -c 3 {stored.temp_file_path}") == "xxx"  # programs may read it, too


def test_long_output_keeps_its_end(places: Places) -> None:
    with Toolkit(places.root, allow_exec="unconfined", truncation=TruncationConfig(max_lines=4)) as kit:
        lines = use(kit.bash, command="seq 100; exit 5").splitlines()
        assert lines[:2] == ["1", "2"]
        assert lines[3:] == ["100", "[exit code 5]"]


# Scripts


def test_a_script_is_created_run_and_edited(kit: Toolkit, places: Places) -> None:
    made = use(kit.python, action="create", content="import sys\nprint(open('inside.txt').read(), sys.argv[1:])")
    [file_id] = kit.scripts
    assert re.fullmatch("py_[0-9a-f]{6}", file_id)
    assert made == f"Created {file_id}: 2 lines. Run it with action=run, file_id={file_id}."
    assert use(kit.python, action="run", file_id=file_id, args=["a b", "$c"]) == "inside\n ['a b', '$c']"
    assert use(kit.python, action="edit", file_id=file_id, old_string="sys.argv", new_string="len(sys.argv), sys.argv")
    assert use(kit.python, action="run", file_id=file_id, args=["x"]) == "inside\n 2 ['x']"
    script = kit.scripts[file_id]
    assert script.run_count == 2
    assert script.last_run_at is not None
    assert script.last_run_at >= script.created_at > 1_600_000_000
    assert script.content == Path(script.file_path).read_text()
    assert not Path(script.file_path).is_relative_to(places.root)
    assert use(kit.python, action="edit", file_id=file_id, content="raise SystemExit(4)") == f"Changed {file_id}."
    assert use(kit.python, action="run", file_id=file_id) == "[exit code 4]"
    assert "ZeroDivisionError" in run_script(kit, "1 / 0")
    result = kit.python.run(
        {"action": "run", "file_id": create_script(kit, "while True: pass"), "timeout": 0.2}, ToolContext()
    )
    assert "took longer than 0.2 s" in result.content


def create_script(kit: Toolkit, content: str) -> str:
    return use(kit.python, action="create", content=content).split()[1].rstrip(":")


def run_script(kit: Toolkit, content: str) -> str:
    return use(kit.python, action="run", file_id=create_script(kit, content))


def test_what_cannot_be_done_with_scripts_is_told(unconfined: Toolkit) -> None:
    kit = unconfined
    file_id = create_script(kit, "one = 1\none = 1")
    assert "needs content" in expect_error(kit.python, action="create")
    assert f"There is no script 'py_none'. Scripts: {file_id}." == expect_error(
        kit.python, action="run", file_id="py_none"
    )
    assert "There is no script '../x'" in expect_error(kit.python, action="edit", file_id="../x", content="x")
    assert "There is no script None" in expect_error(kit.python, action="run")
    assert "needs content, or" in expect_error(kit.python, action="edit", file_id=file_id, old_string="x")
    assert "2 times" in expect_error(kit.python, action="edit", file_id=file_id, old_string="one", new_string="two")
    assert "NUL byte" in expect_error(kit.python, action="run", file_id=file_id, args=["\0"])
    use(kit.python, action="edit", file_id=file_id, old_string="one", new_string="two", replace_all=True)
    assert kit.scripts[file_id].content == "two = 1\ntwo = 1"


def test_only_so_many_scripts_are_kept_and_they_go_with_the_toolkit(unconfined: Toolkit) -> None:
    ids = [create_script(unconfined, "") for _ in range(102)]
    assert list(unconfined.scripts) == ids[-100:]
    folder = Path(unconfined.scripts[ids[-1]].file_path).parent
    assert len(list(folder.iterdir())) == 100
    unconfined.close()
    assert not folder.exists()


# Confinement


def test_a_toolkit_that_may_not_write_confines_programs_to_reading(places: Places) -> None:
    if reason := why_not_confined():
        pytest.skip(reason)
    with Toolkit(places.root, allow_write=False, allow_exec=True) as kit:
        for namespaces in (True, False):
            kit.bash.programs = replace(kit.bash.programs, namespaces=namespaces)
            answer = use(
                kit.bash, command="cat inside.txt; echo x > new; rm inside.txt; echo ok > $TMPDIR/a; cat $TMPDIR/a"
            )
            assert answer.startswith("inside\n")
            assert answer.endswith("\nok")
    assert sorted(os.listdir(places.root)) == ["inside.txt", "sub"]


def test_folders_of_programs_can_be_added(places: Places) -> None:
    if reason := why_not_confined():
        pytest.skip(reason)
    program = places.outside / "program"
    program.write_text("#!/bin/sh\necho ran\n")
    program.chmod(0o755)
    with Toolkit(places.root, allow_exec=True) as kit:
        assert "denied" in use(kit.bash, command=str(program))
    with Toolkit(places.root, allow_exec=True, program_folders=[places.outside]) as kit:
        assert use(kit.bash, command=f"{program}; echo x > {places.outside}/new || echo held").endswith("held")
        assert use(kit.bash, command=str(program)) == "ran"
    assert not (places.outside / "new").exists()


def test_where_the_kernel_cannot_confine_programs_are_refused_unless_that_is_said(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_process, "landlock_version", lambda: 0)
    with pytest.raises(ConfigurationError, match="no Landlock") as raised:
        Toolkit(places.root, allow_exec=True)
    assert raised.value.field == "allow_exec"
    assert "unconfined" in str(raised.value.fix)
    with Toolkit(places.root, allow_exec="unconfined") as kit:
        assert use(kit.bash, command="echo hello") == "hello"
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="abacus"))
    with pytest.raises(ConfigurationError, match="this is abacus"):
        Toolkit(places.root, allow_exec=True)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigurationError, match="requires Linux"):
        Toolkit(places.root, allow_exec=True)


def test_a_root_that_holds_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := why_not_confined():
        pytest.skip(reason)
    folder = Path(base_interpreter()).parent.parent
    for root in (folder, Path("/")):
        with pytest.raises(ConfigurationError, match="contains the Python that confines programs"):
            Toolkit(root, allow_exec=True)


def test_what_cannot_be_confined_is_not_run(confined: Toolkit, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.toolkit import programs as interpreter

    broken = {
        "no Landlock": (
            "CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446",
            "CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 9999, 446",
        ),
        "no ruleset": ("RESTRICT_SELF = 444, 445, 446", "RESTRICT_SELF = 444, 445, 9999"),
        "no filter": ('prctl("seccomp", SET_SECCOMP, 2,', 'prctl("seccomp", SET_SECCOMP, 99,'),
        "no privileges": ("NO_NEW_PRIVILEGES = 1, 22, 24, 36, 38", "NO_NEW_PRIVILEGES = 1, 22, 24, 36, 9999"),
        "no program": ('"folder"', '"nothing"'),
    }
    source = interpreter._SOURCES["sandbox_process.py"]
    for name, (old, new) in broken.items():
        assert old in source, name
        monkeypatch.setitem(interpreter._SOURCES, "sandbox_process.py", source.replace(old, new))
        answer = expect_error(confined.bash, command="touch ran")
        assert "was not run, because it could not be confined" in answer, name
    assert not (places.root / "ran").exists()


# The filter of system calls, run by a small interpreter


def verdict(program: bytes, machine: str, number: int, *arguments: int) -> int:
    """Return the verdict of a filter on a system call: 0 or an error number."""
    data = struct.pack("<iIQ6Q", number, sandbox_process.ARCHITECTURES[machine], 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    steps = [struct.unpack("=HBBI", program[at : at + 8]) for at in range(0, len(program), 8)]
    at, held = 0, 0
    while True:
        code, yes, no, value = steps[at]
        at += 1
        if code == sandbox_process.LOAD:
            held = struct.unpack("<I", data[value : value + 4])[0]
        elif code == sandbox_process.RETURN:
            return 0 if value == sandbox_process.ALLOW else value & 0xFFFF
        else:
            assert code in (sandbox_process.EQUAL, sandbox_process.AT_LEAST)
            at += yes if (held == value if code == sandbox_process.EQUAL else held >= value) else no


@pytest.mark.parametrize("machine", sandbox_process.ARCHITECTURES)
def test_the_filter_refuses_what_it_should_and_nothing_else(machine: str) -> None:
    strict = sandbox_process.filter_program(machine, metadata=False, signals=False, truncation=False)
    loose = sandbox_process.filter_program(machine, metadata=True, signals=True, truncation=True)
    assert len(strict) // 8 < 4096
    refused_always = {number for numbers in sandbox_process.REFUSED[machine].values() for number in numbers}
    refused_always |= set(sandbox_process.ATTRIBUTES[machine])
    assert {number for number in range(600) if verdict(loose, machine, number)} == refused_always
    also = {*sandbox_process.METADATA[machine], sandbox_process.TRUNCATE_CALL[machine]}
    assert {number for number in range(600) if verdict(strict, machine, number)} == refused_always | also
    utimensat, kill = sandbox_process.UTIMENSAT[machine], sandbox_process.KILL[machine]
    assert verdict(strict, machine, utimensat, 3, 0) == 0  # of an open file
    assert verdict(strict, machine, utimensat, 3, 0x1000) == 1
    assert verdict(strict, machine, utimensat, 3, 0x1_0000_0000) == 1
    assert verdict(loose, machine, utimensat, 3, 0x1000) == 0
    assert verdict(strict, machine, kill, 0xFFFFFFFFFFFFFFFF, 9) == 1
    assert verdict(strict, machine, kill, 1234, 9) == 0
    assert verdict(loose, machine, kill, 0xFFFFFFFFFFFFFFFF, 9) == 0


def test_calls_under_other_numbers_are_refused() -> None:
    program = sandbox_process.filter_program("x86_64", metadata=True, signals=True, truncation=True)
    assert verdict(program, "x86_64", 0x40000000 + 41) == 38
    assert verdict(program, "aarch64", 1) == 38


# The process that matches patterns, in this one


def test_matches_and_excerpts() -> None:
    pattern = re.compile("b+")
    assert search_process.matches(pattern, "abc\nx\r\nbb\r\n\x0bb", 10) == [(1, "abc"), (3, "bb"), (4, "\x0bb")]
    assert search_process.matches(pattern, "b\nb\nb", 2) == [(1, "b"), (2, "b")]
    assert search_process.excerpt("x" * 500, 499) == "x" * 500
    assert search_process.excerpt("x" * 2000, 0) == "x" * 500 + "…"
    assert search_process.excerpt("x" * 2000, 1000) == "…" + "x" * 500 + "…"


def test_orders_hold_no_secret_and_no_folder_that_was_not_named(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []

    def record(command: list[str], **settings: Any) -> Any:
        taken.append((command, settings))
        raise OSError(2, "No such file")

    monkeypatch.setenv("SOME_API_KEY", "sk-secret")
    monkeypatch.setattr(processes.ProgramRunner, "check", lambda self: None)
    monkeypatch.setattr(subprocess, "Popen", record)
    with Toolkit(places.root, allow_exec=True) as kit:
        assert "could not be started: No such file" in expect_error(kit.bash, command="true")
    [(command, settings)] = taken
    order = json.loads(command[-1])
    assert "sk-secret" not in repr(settings["env"]) + command[-1]
    assert command[1:3] == ["-I", "-S"]
    assert order["writing"][1:] == [str(places.root)]
    home = os.path.expanduser("~")
    assert not {"/", "/etc", "/home", "/proc", "/tmp", "/var", "/run", "/dev", home} & {
        *order["reading"],
        *order["writing"],
    }
