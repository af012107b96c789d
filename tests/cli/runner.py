"""Run the command line in this process, on a pseudo-terminal, or as a program."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pexpect
import pyte

from agent.cli import main
from agent.engine.wire import Answer, Piece, WireRequest

ROOT = Path(__file__).parents[2]
MODEL = "openai-chat:gpt-test"
COMMAND = (sys.executable, "-m", "agent")
FOREIGN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters that must never reach a terminal."""


@dataclass(frozen=True)
class Result:
    """The outcome of a command."""

    code: int
    out: str
    err: str


def stream_chunks(pieces: Sequence[str], *, delay: float = 0.0) -> Answer:
    """Stream text chunks in the Chat Completions format."""
    events: list[dict[str, object]] = [{"delta": {"content": piece}, "finish_reason": None} for piece in pieces]
    events.append({"delta": {}, "finish_reason": "stop"})
    lines = [_event(choice) for choice in events]
    return Answer(
        [Piece(line, delay) for line in (*lines, b"data: [DONE]\n\n")], headers={"content-type": "text/event-stream"}
    )


def complete_answer(text: str) -> Answer:
    """Return a text without streaming."""
    message = {"role": "assistant", "content": text}
    body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}  # fmt: skip
    return Answer([json.dumps(body).encode()], headers={"content-type": "application/json"})


def _event(choice: Mapping[str, object]) -> bytes:
    chunk = {
        "id": "1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, **choice}],
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def is_streamed(request: WireRequest) -> bool:
    return bool(json.loads(request.body).get("stream"))


# In this process


@contextmanager
def pipe_input(data: bytes) -> Iterator[None]:
    """Replace standard input."""
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(data))
    try:
        yield
    finally:
        sys.stdin = before


def run(*arguments: str, stdin: bytes = b"") -> Result:
    """Run a command in this process with captured output."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        with pipe_input(stdin):
            code = main(list(arguments))
    finally:
        sys.stdout, sys.stderr = before
    texts = [stream.buffer.getvalue().decode("utf-8") for stream in (out, err)]
    return Result(code, *texts)


def run_on_terminal(*arguments: str) -> tuple[int, bytes]:
    """Run a command in this process on a pseudo-terminal; return the exit code and all output bytes."""
    control, terminal = os.openpty()
    tty.setraw(terminal, termios.TCSANOW)
    got: list[bytes] = []

    def read() -> None:
        while True:
            try:
                data = os.read(control, 65536)
            except OSError:  # Linux: the other end is closed
                return
            if not data:
                return
            got.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    stream = io.TextIOWrapper(io.FileIO(terminal, "w"), "utf-8", write_through=True)
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = stream
    try:
        with pipe_input(b""):
            code = main(list(arguments))
    finally:
        sys.stdout, sys.stderr = before
        stream.close()
        reader.join(10)
        os.close(control)
    return code, b"".join(got)


# As a program


def environment(url: str | None = None, **more: str) -> dict[str, str]:
    """The environment of a program that calls a test server."""
    kept = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "TMPDIR", "LANG", "COVERAGE_PROCESS_START")
        if name in os.environ
    }
    asked = {} if url is None else {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-test"}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "LANG": "C.UTF-8", **asked, **more}


LOOK = 'before=$(stty -g); "$@"; code=$?; [ "$before" = "$(stty -g)" ] && echo "the terminal is as it was"; exit $code'


class Terminal:
    """A program on a pseudo-terminal, and its screen.

    Args:
        look: Whether to verify the terminal settings at the end.
    """

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str],
        columns: int = 60,
        lines: int = 20,
        look: bool = False,
        cwd: Path | None = None,
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        # A closed terminal loses its settings, so a shell compares them before it ends.
        command, *rest = ("bash", "-c", LOOK, "bash", *COMMAND, *arguments) if look else (*COMMAND, *arguments)
        self.program = pexpect.spawn(
            command, rest, env=dict(env), dimensions=(lines, columns), timeout=20, echo=False, cwd=cwd
        )

    def see(self, pattern: str) -> None:
        """Wait until this has been written."""
        self.program.expect(pattern)
        self._take(self.program.before + self.program.after)

    def end(self) -> int:
        """Wait for the program to end; its exit code, or minus the signal that ended it."""
        self.program.expect(pexpect.EOF)
        self._take(self.program.before)
        self.program.close()
        status = self.program.exitstatus
        return -int(self.program.signalstatus or 0) if status is None else int(status)

    def resize(self, columns: int, lines: int) -> None:
        self.program.setwinsize(lines, columns)
        self.screen.resize(lines, columns)

    @property
    def shown(self) -> str:
        """The screen as text."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def _take(self, data: bytes) -> None:
        self.raw += data
        self._stream.feed(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.program.close(force=True)
