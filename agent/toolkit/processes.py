"""Runs programs for tools: in a process group of their own, with an environment that holds no secrets, for a time.

Confined (see `confined`) they reach the root, a folder for temporary files, what programs need to start, and no
network. Unconfined they may do whatever the user may, and only time and environment are limited.
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
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO

from ..errors import ConfigurationError
from ..tools.base import ToolContext, ToolError

_SOURCES = {
    name: Path(__file__).with_name(name).read_text("utf-8") for name in ("search_process.py", "sandbox_process.py")
}


def base_interpreter() -> str:
    """The real file of the Python that runs this, outside any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def standard_library() -> str:
    return os.path.realpath(sysconfig.get_paths()["stdlib"])


def bare_command(source: str, order: str) -> list[str]:
    """Run a source of this package: no site, no environment, nothing of the current directory, no bytecode written."""
    return [base_interpreter(), "-I", "-S", "-B", "-W", "ignore", "-c", _SOURCES[source], order]


def folders_of_python() -> list[str]:
    """What has to be readable for the running Python, its packages included, to start."""
    found = [base_interpreter()]
    for prefix in dict.fromkeys((sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix)):
        found += [os.path.join(prefix, part) for part in ("bin", "lib", "lib64", "include", "pyvenv.cfg")]
    return [path for path in dict.fromkeys(found) if os.path.exists(path)]


MOST_OUTPUT = 10_000_000
"""Bytes that are kept of what a program writes. The rest is counted."""
GRACE = 3.0
"""Seconds for the supervisor to end everything before it is ended itself."""
MARGIN = 0.5
"""Seconds kept back from the deadline of a call, to tell what the program had written until then."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
# fmt: off
_ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "passwd", "group", "nsswitch.conf", "localtime",
    "timezone", "alternatives", "ssl/certs", "ssl/openssl.cnf", "pki/tls/certs", "ca-certificates", "os-release",
    "mime.types", "services", "protocols", "terminfo", "locale.alias", "locale.conf", "inputrc", "perl", "magic",
    "gitconfig",
)
_PROC = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems")
# fmt: on
FACTS = (*(f"/etc/{name}" for name in _ETC), *(f"/proc/{name}" for name in _PROC))
"""What programs read to find their libraries and where they are. Passwords and keys are elsewhere in /etc."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
KEPT_VARIABLES = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ")


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a program."""

    output: str
    code: int | None
    """128 and more for a signal; None if it was stopped."""
    seconds: float
    stopped: str = ""
    """Why it was stopped, if it was."""
    lost: int = 0
    """Bytes of output that were not kept."""


@dataclass(frozen=True, slots=True)
class Programs:
    """How programs of one toolkit are run."""

    root: str
    confine: bool = True
    may_write: bool = True
    readable: Sequence[str] = ()
    """Folders beyond those of the system that programs may read and run."""
    namespaces: bool = True
    """Tried where the kernel has them. Off for tests of what holds without."""

    def check(self) -> None:
        """Raises ConfigurationError where programs cannot be confined as they should be."""
        if not self.confine:
            return
        missing = _what_is_missing()
        fix = "Say allow_exec='unconfined' to let programs do whatever this user may do."
        if missing is not None:
            raise ConfigurationError(f"Programs cannot be confined here: {missing}.", field="allow_exec", fix=fix)
        for needed in (base_interpreter(), standard_library()):
            if self.may_write and _is_beneath(needed, self.root):
                raise ConfigurationError(
                    "Programs cannot be confined to a root that holds the Python which confines them: "
                    "they could change it.",
                    field="allow_exec",
                    fix=f"Take a smaller root, or allow_write=False. {fix}",
                )

    def environment(self, temporary: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        given = {"LANG": "C.UTF-8", **kept, "PATH": os.pathsep.join(self._path())}
        return {**given, "HOME": self.root, "TMPDIR": temporary, "TERM": "dumb", "PWD": self.root}

    def _path(self) -> list[str]:
        """Where programs are looked for. A shell stops at one that it may not run, so none such is on the way."""
        wanted = [os.path.dirname(sys.executable), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
        wanted = list(dict.fromkeys(folder for folder in wanted if os.path.isabs(folder)))
        if not self.confine:
            return wanted
        reached = [os.path.realpath(path) for path in (*SYSTEM, *folders_of_python(), *self.readable, self.root)]
        return [path for path in wanted if any(_is_beneath(os.path.realpath(path), folder) for folder in reached)]

    def run(
        self, command: Sequence[str], temporary: str, timeout: float, context: ToolContext[Any], reading: Sequence[str]
    ) -> Ended:
        """Run a command to its end, or until its time is up, or the call is given up. `reading`: files it may read."""
        environment = self.environment(temporary)
        left = context.seconds_left()
        seconds = min(timeout, left - MARGIN if left > 2 * MARGIN else left / 2)
        if not self.confine:
            return _run_plainly(command, self.root, environment, seconds, context)
        writing = [temporary, *([self.root] if self.may_write else [])]
        shared = [self.root, *reading, *self.readable, *SYSTEM, *FACTS, *folders_of_python()]
        order = {"command": list(command), "folder": self.root, "namespaces": self.namespaces, "reading": shared}
        return _run_confined({**order, "writing": writing, "devices": DEVICES}, environment, seconds, context)


def _what_is_missing() -> str | None:
    """Why programs cannot be confined on this machine; None if they can."""
    if sys.platform != "linux":
        return "that takes Linux"
    from . import sandbox_process  # lazy: loads the C library, which only Linux needs

    return sandbox_process.what_is_missing()


def _is_beneath(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def _run_plainly(
    command: Sequence[str], folder: str, environment: Mapping[str, str], seconds: float, context: ToolContext[Any]
) -> Ended:
    process = subprocess.Popen(  # noqa: S603 -- a model's command: that is what this tool is for
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    watched = _Watched(process, seconds, context)
    try:
        watched.read(until_exit=True)
    finally:
        _end_group(process)
    watched.read_rest()
    return watched.ended(128 - process.returncode if process.returncode < 0 else process.returncode)


def _run_confined(
    order: dict[str, Any], environment: Mapping[str, str], seconds: float, context: ToolContext[Any]
) -> Ended:
    heard, told = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 -- this interpreter, this package's source
            bare_command("sandbox_process.py", json.dumps({**order, "report": told})),
            cwd="/",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(told,),
        )
    except BaseException:
        os.close(heard)
        raise
    finally:
        os.close(told)
    watched = _Watched(process, seconds, context)
    assert process.stdin is not None
    with open(heard, "rb") as report, process.stdin as lifeline:
        try:
            watched.read(until_exit=False)
        finally:
            lifeline.close()  # the supervisor ends everything when it hears nobody any more
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                _end_group(process)
        watched.read_rest()
        outcome = _outcome(report)
    if "refused" in outcome:
        raise ToolError(f"The program was not run, because it could not be confined: {outcome['refused']}")
    return watched.ended(outcome.get("code"))


def _outcome(report: BinaryIO) -> dict[str, Any]:
    """The first thing that was reported."""
    line = report.readline(10_000)
    read: dict[str, Any] = json.loads(line) if line else {}
    return read


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended. It is not waited for, so that its number, and its group's, stay its own."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End all that is left of a process group, also after its leader has ended by itself."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Watched:
    """Reads what a program writes, and watches the time and the signal meanwhile."""

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
        """Until the program has ended, and at will its output has, or until it must end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while True:
                left = self._seconds - (monotonic() - self._started)
                if left <= 0 or self._context.signal.is_set():
                    self._stopped = "it was given up" if left > 0 else f"it took longer than {self._seconds:.3g} s"
                    return
                if selector.get_map():
                    if selector.select(min(left, 0.1)) and self._take() == b"":
                        selector.unregister(self._output)
                else:  # it has closed its output, and may still be at work
                    sleep(min(left, 0.01))
                if _has_ended(self._process) and (until_exit or not selector.get_map()):
                    return

    def read_rest(self) -> None:
        """What lies in the pipe. Its writers have ended, or have left the group and are not waited for."""
        while self._take():
            pass
        self._output.close()

    def _take(self) -> bytes | None:
        """What there is to read. None: nothing now; empty: nothing any more."""
        data: bytes | None = self._output.read(65536)
        if not data:
            return data
        self._size += len(data)
        room = MOST_OUTPUT - (self._size - len(data))
        if room > 0:
            self._kept.append(data[:room])
        return data

    def ended(self, code: int | None) -> Ended:
        output = b"".join(self._kept).decode("utf-8", "replace")
        lost = max(self._size - MOST_OUTPUT, 0)
        return Ended(output, None if self._stopped else code, monotonic() - self._started, self._stopped, lost)
