"""Files and piped input as parts of a request.

What a file is decides what it begins with, not what it is called: a name can be wrong, and piped input has none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent.types import AgentRequest, AudioContent, DocumentContent, ImageContent, Message, TextContent

from .exit_codes import Problem

MOST_TEXT = 4_000_000
MOST_MEDIA = 20_000_000

_BEGINNINGS: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF87a", 0, "image/gif"),
    (b"GIF89a", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"%PDF-", 0, "application/pdf"),
    (b"WAVE", 8, "audio/wav"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"\xff\xf3", 0, "audio/mpeg"),
    (b"OggS", 0, "audio/ogg"),
    (b"fLaC", 0, "audio/flac"),
)
"""What a file of a kind begins with, and where."""


_ADDRESS = re.compile("https?://", re.IGNORECASE)
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")


def request(words: Sequence[str] | None, files: Sequence[str] | None = None) -> AgentRequest:
    """The request that arguments, attached files and piped input make together."""
    attached = list(files or ())
    prompt = " ".join(words or ())
    piped = "" if "-" in attached else _piped(asked=prompt == "-" or not prompt)
    texts = [] if prompt == "-" else [prompt]
    text = "\n\n".join(part for part in (*texts, piped.strip("\n")) if part)
    if not text and not attached:
        raise Problem("There is nothing to ask.", fix='Write a prompt: agent run "What is 2 + 2?"')
    parts = [part_of(name) for name in attached]
    if not parts:
        return AgentRequest(input=text)
    said = [*parts, TextContent(text=text)] if text else parts
    return AgentRequest(messages=(Message.user(said),))


def part_of(name: str) -> Any:
    """The content part for a file; `-` is standard input."""
    if is_address(name):
        return _at(name)
    data = _read(name)
    kind = media_type(data)
    shown = "standard input" if name == "-" else Path(name).name
    if kind is None:
        return TextContent(text=f"File {shown}:\n\n{_text(data, name)}")
    if len(data) > MOST_MEDIA:
        raise _too_large(name, len(data), MOST_MEDIA)
    if kind.startswith("image/"):
        return ImageContent(image_data=data, media_type=kind)
    if kind.startswith("audio/"):
        return AudioContent(data=data, media_type=kind)
    return DocumentContent(data=data, media_type=kind, title=shown)


def is_address(name: str) -> bool:
    """Whether it names something on the web, which the vendor fetches itself."""
    return _ADDRESS.match(name) is not None


def _at(address: str) -> Any:
    """The content part for an address. Nothing is fetched here, so what it is, its name has to say."""
    ending = Path(urlsplit(address).path).suffix.lower()
    if ending == ".pdf":
        return DocumentContent(url=address, media_type="application/pdf")
    if ending in _PICTURES:
        return ImageContent(image_url=address)
    raise Problem(
        f"{address} does not say what it is.", fix="Download it, and attach the file: by address go images and PDFs."
    )


def media_type(data: bytes) -> str | None:
    """The kind of a file that is not text, as far as it is known here."""
    return next((kind for mark, at, kind in _BEGINNINGS if data.startswith(mark, at)), None)


def _read(name: str) -> bytes:
    if name == "-":
        if sys.stdin is None:
            raise Problem("There is no standard input to read: it is closed.", fix="Name a file after -a.")
        return sys.stdin.buffer.read(MOST_MEDIA + 1)
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            raise Problem(f"{name} is a folder.", fix="Attach the files in it one by one.")
        with path.open("rb") as file:
            size = path.stat().st_size
            if size > MOST_MEDIA:
                raise _too_large(name, size, MOST_MEDIA)
            return file.read(MOST_MEDIA + 1)
    except OSError as error:
        raise Problem(f"{name} cannot be read: {error.strerror or error}.", fix="Check the path.") from None


def _text(data: bytes, name: str) -> str:
    if len(data) > MOST_TEXT:
        raise _too_large(name, len(data), MOST_TEXT)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise Problem(
            f"{name} is neither UTF-8 text nor an image, PDF or sound of a known kind.",
            fix="Convert it to text, PNG, JPEG, GIF, WebP, PDF, WAV, MP3, Ogg or FLAC.",
        )
    return text


def _too_large(name: str, size: int, most: int) -> Problem:
    return Problem(
        f"{name} is too large: {size / 1e6:.1f} MB, and {most / 1e6:.0f} MB is the most.",
        fix="Attach a smaller part of it.",
    )


def _piped(*, asked: bool) -> str:
    """What was piped in. A terminal is read only by those who ask with nothing else, and they are told so."""
    if sys.stdin is None or sys.stdin.isatty():
        if asked and sys.stdin is not None:
            raise Problem("There is nothing to ask.", fix='Write a prompt: agent run "What is 2 + 2?"')
        return ""
    data = sys.stdin.buffer.read(MOST_TEXT + 1)
    if media_type(data) is not None:
        raise Problem("What is piped in is not text.", fix="Add -a - to send it as a file.")
    return _text(data, "standard input")
