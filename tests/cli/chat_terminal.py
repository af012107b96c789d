"""Run chats in a pseudo-terminal with an emulated screen, against a loopback vendor."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyte

from agent import errors
from agent.engine.wire import Answer, Piece, WireRequest
from agent.testing import LoopbackServer, VendorScript
from agent.types import ToolCall

from .payloads import combine_payloads
from .runner import stream_chunks

ROOT = Path(__file__).parents[2]
ATTACH = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""Ctrl-C is a signal for those whose terminal it is."""

PAYLOADS = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x1bc\x9b2J\x90q\x9c\x1bP1$r\x1b\\\x1b]52;c;b3duZWQ=\x1b\\"
    "\x1b[5n\x1b]8;;http://evil.example\x07link\x1b]8;;\x07\x08\x08\x0b\x0c\r\x00\x7f\u202eevil\u202c\x1b[?1049h"
)
"""Titles, screens, colours, resets, queries, the clipboard, links, overwriting, and text from right to left."""


class Vendor:
    """Chooses its answer by the last message; `seen` has the conversations received."""

    def __init__(self) -> None:
        self.seen: list[list[dict[str, Any]]] = []

    def __call__(self, request: WireRequest) -> Answer:
        body = json.loads(request.body)
        self.seen.append(body["messages"])
        last = body["messages"][-1]
        text = last["content"] if isinstance(last["content"], str) else last["content"][-1]["text"]
        if last["role"] == "tool":
            return VendorScript(f"The tool said {text}.")(request)
        if text.startswith("slow"):
            return VendorScript("word " * 400, delay=0.03)(request)
        if text.startswith("count"):
            return stream_chunks([f"number{number} " for number in range(40)], delay=0.02)
        if text.startswith("hostile"):
            return stream_chunks(combine_payloads())
        if text.startswith("break"):
            whole = list(VendorScript("Half an answer, and then ")(request).iter_pieces())
            return Answer(
                [*whole[:3], Piece(errors.ConnectionError("reset"))], headers={"content-type": "text/event-stream"}
            )
        if text.startswith("refuse"):
            return VendorScript(errors.BadRequestError(f"no such luck {PAYLOADS}"))(request)
        if text.startswith("evil"):
            return VendorScript(f"before {PAYLOADS} after")(request)
        if text.startswith("tool"):
            return VendorScript(ToolCall(id="call_1", name="launch", arguments={"what": PAYLOADS}))(request)
        return VendorScript(f"You said: {text}")(request)

    def questions(self) -> list[str]:
        """Return the user messages of the last conversation."""
        return [message["content"] for message in self.seen[-1] if message["role"] == "user"]


@contextlib.contextmanager
def vendor_and_environment(home: Path) -> Iterator[tuple[Vendor, dict[str, str]]]:
    vendor = Vendor()
    with LoopbackServer(vendor) as server:
        yield vendor, environment(home, server)


def environment(home: Path, server: LoopbackServer) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "AGENT_HOME": str(home / "data"),
        "AGENT_MODEL": "openai-chat:gpt-4o-mini",
        "OPENAI_API_KEY": "sk-secret-canary",
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "NO_COLOR": "1",
        "PYTHONPATH": str(ROOT),
    }


class Terminal:
    """`agent …` in a terminal. `expect` waits for text that has not been expected before."""

    def __init__(
        self, *arguments: str, env: dict[str, str], columns: int = 80, lines: int = 24, shows_output: bool = True
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=1000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = bytearray()
        self._at = 0
        self._fd, other = pty.openpty()
        self._tty = other  # kept open: a terminal without an open descriptor loses its modes
        self._modes = termios.tcgetattr(other)
        self.resize(columns, lines)
        self._process = subprocess.Popen(
            [sys.executable, "-c", ATTACH, sys.executable, "-m", "agent", *arguments],
            stdin=other,
            stdout=other if shows_output else subprocess.DEVNULL,
            stderr=other,
            env=env,
            start_new_session=True,
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._fd)
        os.close(self._tty)

    @property
    def is_as_it_was(self) -> bool:
        """Whether the terminal is left as it was found: the modes of its line, and those of what is pasted."""
        return termios.tcgetattr(self._tty) == self._modes and not self._marks_pastes

    @property
    def _marks_pastes(self) -> bool:
        return self.raw.rfind(b"\x1b[?2004h") > self.raw.rfind(b"\x1b[?2004l")

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def say(self, text: str) -> None:
        self.type(f"{text}\r")

    def paste(self, text: str) -> None:
        """Paste text as terminals do: bracketed if the program enabled that, otherwise as typed keys."""
        typed = text.replace("\n", "\r")
        self.type(f"\x1b[200~{typed}\x1b[201~" if self._marks_pastes else typed)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def expect(self, text: str, within: float = 20.0) -> str:
        """Wait for the text, and return the output before it."""
        wanted = text.encode()
        end = time.monotonic() + within
        while (found := self.raw.find(wanted, self._at)) < 0:
            if not self._read(end):
                shown = bytes(self.raw[self._at :]).decode("utf-8", "replace")
                raise AssertionError(f"{text!r} did not come, but {shown!r}")
        before = bytes(self.raw[self._at : found]).decode("utf-8", "replace")
        self._at = found + len(wanted)
        return before

    def is_ready(self) -> None:
        """Wait for the prompt: a key that is pressed before it means something else."""
        self.expect("> ")

    def press(self, key: str, text: str) -> None:
        """A key, until it has the effect: between writing a prompt and reading, Python does not hear Ctrl-C."""
        for _ in range(10):
            self.type(key)
            with contextlib.suppress(AssertionError):
                self.expect(text, within=2)
                return
        raise AssertionError(f"{key!r} does not lead to {text!r}")

    def exit_code(self, key: str = "") -> int:
        """Wait for its end, with a key that leads there."""
        for _ in range(10):
            self.type(key)
            end = time.monotonic() + (2 if key else 20)
            while self._read(end):
                pass
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(0.2)
        raise AssertionError("it does not end")

    def _read(self, end: float) -> bool:
        while time.monotonic() < end:
            over = self._process.poll() is not None
            if select.select([self._fd], [], [], 0.05)[0]:
                chunk = os.read(self._fd, 65536)
                self.raw += chunk
                self._stream.feed(chunk)
                return True
            if over:
                return False
        return False
