"""Tools that run programs (Bash, Python), and the process runner behind them.

Programs run in their own process group, with a time limit and an environment without secrets. Confined programs can
reach the root, a temporary folder and system files, and have no network (see `sandbox_process`).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep
from typing import Any

from typing_extensions import override

from ..errors import ConfigurationError
from ..tools.base import AgentToolResult, ToolContext, ToolError
from ..types import JsonObject
from ..types.config import Risk
from .files import encode_text, replace_text
from .workspace import MAX_KEPT, PythonScript, WorkspaceTool, arguments_schema, boolean_field, now, text_field

_SOURCES = {
    name: Path(__file__).with_name(name).read_text("utf-8") for name in ("search_process.py", "sandbox_process.py")
}


def base_interpreter() -> str:
    """Return the real path of the interpreter, outside any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def standard_library() -> str:
    return os.path.realpath(sysconfig.get_paths()["stdlib"])


def build_command(source: str, order: str) -> list[str]:
    """Build the command that runs a source file of this package in an isolated interpreter."""
    return [base_interpreter(), "-I", "-S", "-B", "-W", "ignore", "-c", _SOURCES[source], order]


def python_folders() -> list[str]:
    """List the files that this Python needs to start, including its packages."""
    found = [base_interpreter()]
    for prefix in dict.fromkeys((sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix)):
        found += [os.path.join(prefix, part) for part in ("bin", "lib", "lib64", "include", "pyvenv.cfg")]
    return [path for path in dict.fromkeys(found) if os.path.exists(path)]


MAX_OUTPUT = 10_000_000
"""Bytes of output that are kept. The rest is only counted."""
SUPERVISOR_TIMEOUT = 3.0
"""Seconds for the supervisor to end all processes before it is killed."""
DEADLINE_MARGIN = 0.5
"""Seconds reserved before the deadline of the call, to return the output so far."""

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
# fmt: off
_ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "passwd", "group", "nsswitch.conf", "localtime",
    "timezone", "alternatives", "ssl/certs", "ssl/openssl.cnf", "pki/tls/certs", "ca-certificates", "os-release",
    "mime.types", "services", "protocols", "terminfo", "locale.alias", "locale.conf", "inputrc", "perl", "magic",
    "gitconfig",
)
_PROC = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems")
# fmt: on
READABLE_FILES = (*(f"/etc/{name}" for name in _ETC), *(f"/proc/{name}" for name in _PROC))
"""System files that programs need, such as the linker cache. They exclude passwords and keys."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
PASSED_VARIABLES = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ")


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The outcome of a program."""

    output: str
    code: int | None
    """The exit code; 128 and above for a signal; None if the program was stopped."""
    seconds: float
    stopped: str = ""
    """Why the program was stopped; empty if it was not."""
    lost: int = 0
    """Bytes of output beyond `MAX_OUTPUT`."""


@dataclass(frozen=True, slots=True)
class ProgramRunner:
    """Runs the programs of one toolkit."""

    root: str
    confine: bool = True
    may_write: bool = True
    readable: Sequence[str] = ()
    """More folders that programs may read and execute."""
    namespaces: bool = True
    """Whether to use namespaces where available. Tests disable them."""

    def check(self) -> None:
        """Raise ConfigurationError if programs cannot be confined."""
        if not self.confine:
            return
        missing = _find_missing_feature()
        fix = "Pass allow_exec='unconfined' to run programs with all rights of the user."
        if missing is not None:
            raise ConfigurationError(f"Programs cannot be confined here: {missing}.", field="allow_exec", fix=fix)
        for needed in (base_interpreter(), standard_library()):
            if self.may_write and _is_inside(needed, self.root):
                raise ConfigurationError(
                    "The root contains the Python that confines programs, so that programs could change it.",
                    field="allow_exec",
                    fix=f"Use a smaller root, or allow_write=False. {fix}",
                )

    def environment(self, temporary: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
        variables = {"LANG": "C.UTF-8", **kept, "PATH": os.pathsep.join(self._path())}
        return {**variables, "HOME": self.root, "TMPDIR": temporary, "TERM": "dumb", "PWD": self.root}

    def _path(self) -> list[str]:
        """Search path for programs, without folders that are not accessible: a shell stops at those."""
        requested = [os.path.dirname(sys.executable), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
        requested = list(dict.fromkeys(folder for folder in requested if os.path.isabs(folder)))
        if not self.confine:
            return requested
        reached = [os.path.realpath(path) for path in (*SYSTEM_FOLDERS, *python_folders(), *self.readable, self.root)]
        return [path for path in requested if any(_is_inside(os.path.realpath(path), folder) for folder in reached)]

    def run(
        self, command: Sequence[str], temporary: str, timeout: float, context: ToolContext[Any], reading: Sequence[str]
    ) -> ProgramResult:
        """Run a command until it ends, times out or is cancelled. `reading` lists more readable paths."""
        environment = self.environment(temporary)
        left = context.seconds_left()
        seconds = min(timeout, left - DEADLINE_MARGIN if left > 2 * DEADLINE_MARGIN else left / 2)
        if not self.confine:
            return _run_unconfined(command, self.root, environment, seconds, context)
        writing = [temporary, *([self.root] if self.may_write else [])]
        shared = [self.root, *reading, *self.readable, *SYSTEM_FOLDERS, *READABLE_FILES, *python_folders()]
        order = {"command": list(command), "folder": self.root, "namespaces": self.namespaces, "reading": shared}
        return _run_confined({**order, "writing": writing, "devices": DEVICES}, environment, seconds, context)


def _find_missing_feature() -> str | None:
    """Describe why programs cannot be confined; None if they can."""
    if sys.platform != "linux":
        return "this requires Linux"
    from . import sandbox_process  # lazy: loads the C library, which only Linux needs

    return sandbox_process.find_missing_feature()


def _is_inside(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def _run_unconfined(
    command: Sequence[str], folder: str, environment: Mapping[str, str], seconds: float, context: ToolContext[Any]
) -> ProgramResult:
    process = subprocess.Popen(  # noqa: S603 -- a model's command: that is what this tool is for
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    monitor = _ProcessMonitor(process, seconds, context)
    try:
        monitor.read(until_exit=True)
    finally:
        _end_group(process)
    monitor.read_rest()
    return monitor.result(128 - process.returncode if process.returncode < 0 else process.returncode)


def _run_confined(
    order: dict[str, Any], environment: Mapping[str, str], seconds: float, context: ToolContext[Any]
) -> ProgramResult:
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 -- this interpreter, this package's source
            build_command("sandbox_process.py", json.dumps({**order, "report": write_end})),
            cwd="/",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(write_end,),
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    monitor = _ProcessMonitor(process, seconds, context)
    assert process.stdin is not None
    with open(read_end, "rb") as report, process.stdin as lifeline:
        try:
            monitor.read(until_exit=False)
        finally:
            lifeline.close()  # the supervisor ends all processes when its input closes
            try:
                process.wait(SUPERVISOR_TIMEOUT)
            except subprocess.TimeoutExpired:
                _end_group(process)
        monitor.read_rest()
        line = report.readline(10_000)  # the supervisor's first report counts
        outcome: dict[str, Any] = json.loads(line) if line else {}
    if "refused" in outcome:
        raise ToolError(f"The program was not run, because it could not be confined: {outcome['refused']}")
    return monitor.result(outcome.get("code"))


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has exited. It stays a zombie, so that its process group id is not reused."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the rest of a process group, also after its leader has exited."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _ProcessMonitor:
    """Reads the output of a program, and watches its time limit and the cancellation signal."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float, context: ToolContext[Any]) -> None:
        self._process, self._seconds, self._context = process, seconds, context
        self._started = monotonic()
        self._kept: list[bytes] = []
        self._size = 0
        self._stopped = ""
        assert process.stdout is not None
        self._output = process.stdout
        os.set_blocking(self._output.fileno(), False)

    def read(self, *, until_exit: bool) -> None:
        """Read until the program exits (or also closes its output), or must be stopped."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while True:
                left = self._seconds - (monotonic() - self._started)
                if left <= 0 or self._context.signal.is_set():
                    self._stopped = "it was cancelled" if left > 0 else f"it took longer than {self._seconds:.3g} s"
                    return
                if selector.get_map():
                    if selector.select(min(left, 0.1)) and self._read_chunk() == b"":
                        selector.unregister(self._output)
                else:  # the output is closed, but the program may still run
                    sleep(min(left, 0.01))
                if _has_ended(self._process) and (until_exit or not selector.get_map()):
                    return

    def read_rest(self) -> None:
        """Read the rest of the pipe, whose writers have exited or left the process group."""
        while self._read_chunk():
            pass
        self._output.close()

    def _read_chunk(self) -> bytes | None:
        """Read a chunk; None if there is nothing now, empty at the end."""
        data: bytes | None = self._output.read(65536)
        if not data:
            return data
        self._size += len(data)
        room = MAX_OUTPUT - (self._size - len(data))
        if room > 0:
            self._kept.append(data[:room])
        return data

    def result(self, code: int | None) -> ProgramResult:
        output = b"".join(self._kept).decode("utf-8", "replace")
        lost = max(self._size - MAX_OUTPUT, 0)
        return ProgramResult(output, None if self._stopped else code, monotonic() - self._started, self._stopped, lost)


MAX_SECONDS = 600
_TIMEOUT: JsonObject = {
    "type": "number",
    "description": f"Seconds it may take, up to {MAX_SECONDS}.",
    "exclusiveMinimum": 0,
    "maximum": MAX_SECONDS,
}


@dataclass(eq=False)
class _ProgramTool(WorkspaceTool):
    risk: Risk = field(default="exec", kw_only=True)
    programs: ProgramRunner = field(kw_only=True, repr=False)
    seconds: float = field(default=120.0, kw_only=True)
    """The default time limit."""

    def run_program(self, command: list[str], arguments: dict[str, Any], context: ToolContext[Any]) -> AgentToolResult:
        """Run a command. A nonzero exit code is no error; a stopped program is."""
        scratch = self.workspace.scratch
        reading = [str(scratch.folder("outputs")), str(scratch.folder("scripts"))]
        seconds = arguments.get("timeout") or self.seconds
        try:
            result = self.programs.run(command, str(scratch.folder("tmp")), seconds, context, reading)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ToolError(f"The program could not be started: {reason}.") from None
        notes = []
        if result.lost:
            notes.append(f"[{result.lost:,} more bytes of output were discarded.]")
        if result.stopped:
            notes.append(f"[Stopped: {result.stopped}. The output so far is above.]")
        elif result.code:
            notes.append(f"[exit code {result.code}]")
        written = result.output.removesuffix("\n")
        content = "\n".join(part for part in (written, *notes) if part) or "[The program succeeded without output.]"
        facts = {"exit_code": result.code, "seconds": round(result.seconds, 3)}
        return AgentToolResult(content, facts, is_error=bool(result.stopped))


@dataclass(eq=False)
class BashTool(_ProgramTool):
    """Runs a shell command with a time limit."""

    name: str = "Bash"
    description: str = (
        "Runs a command with bash in the root folder and returns its output. Only files persist between calls. "
        "Processes that are still running at the end are killed."
    )
    parameters: JsonObject = arguments_schema(["command"], command=text_field("The command."), timeout=_TIMEOUT)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> AgentToolResult:
        command = arguments["command"]
        if "\0" in command:
            raise ToolError("The command contains a NUL byte.")
        shell = ["/bin/bash", "--noprofile", "--norc"] if os.path.exists("/bin/bash") else ["/bin/sh"]
        return self.run_program([*shell, "-c", command], arguments, context)


@dataclass(eq=False)
class PythonTool(_ProgramTool):
    """Stores Python scripts and runs them in separate processes."""

    name: str = "Python"
    description: str = (
        "Python scripts. action=create takes content and returns a file_id; action=edit changes a script, by "
        "old_string and new_string or by new content; action=run runs it in the root folder and returns its output."
    )
    parameters: JsonObject = arguments_schema(
        ["action"],
        action={"type": "string", "enum": ["create", "edit", "run"]},
        file_id=text_field("The script id, for edit and run."),
        content=text_field("The complete script, for create and edit."),
        old_string=text_field("The exact text to replace, for edit. It must be unique, unless replace_all is true."),
        new_string=text_field("The replacement."),
        replace_all=boolean_field("Replace every occurrence."),
        args={"type": "array", "items": {"type": "string"}, "description": "Arguments of the script, for run."},
        timeout=_TIMEOUT,
    )

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str | AgentToolResult:
        match arguments["action"]:
            case "create":
                return self._create(arguments)
            case "edit":
                return self._edit(arguments)
            case _:
                return self._run(arguments, context)

    def _create(self, arguments: dict[str, Any]) -> str:
        content = arguments.get("content")
        if content is None:
            raise ToolError("action=create needs content.")
        file_id = f"py_{token_hex(3)}"
        path = self.workspace.scratch.folder("scripts") / f"{file_id}.py"
        self._write(path, content)
        with self.workspace.lock:
            scripts = self.workspace.scripts
            scripts[file_id] = PythonScript(file_id, str(path), content, now())
            forgotten = [scripts.pop(old) for old in list(scripts)[:-MAX_KEPT]]
        for script in forgotten:
            Path(script.file_path).unlink(missing_ok=True)
        return f"Created {file_id}: {content.count(chr(10)) + 1:,} lines. Run it with action=run, file_id={file_id}."

    def _write(self, path: Path, content: str) -> None:
        path.write_bytes(encode_text(content, self.workspace.max_file_bytes))
        path.chmod(0o600)

    def _edit(self, arguments: dict[str, Any]) -> str:
        with self.workspace.lock:
            script = self._script(arguments)
            content = arguments.get("content")
            if content is None:
                old, new = arguments.get("old_string"), arguments.get("new_string")
                if old is None or new is None:
                    raise ToolError("action=edit needs content, or old_string and new_string.")
                content, _ = replace_text(script.content, old, new, bool(arguments.get("replace_all")), script.file_id)
            self._write(Path(script.file_path), content)
            self.workspace.scripts[script.file_id] = replace(script, content=content)
        return f"Changed {script.file_id}."

    def _run(self, arguments: dict[str, Any], context: ToolContext[Any]) -> AgentToolResult:
        with self.workspace.lock:
            script = self._script(arguments)
            ran = replace(script, last_run_at=now(), run_count=script.run_count + 1)
            self.workspace.scripts[script.file_id] = ran
        options = arguments.get("args") or []
        if any("\0" in option for option in options):
            raise ToolError("An argument contains a NUL byte.")
        command = [sys.executable, "-s", "-B", script.file_path, *options]
        return self.run_program(command, arguments, context)

    def _script(self, arguments: dict[str, Any]) -> PythonScript:
        scripts = self.workspace.scripts
        found = scripts.get(arguments.get("file_id") or "")
        if found is None:
            known = ", ".join(scripts) or "none"
            raise ToolError(f"There is no script {arguments.get('file_id')!r}. Scripts: {known}.")
        return found
