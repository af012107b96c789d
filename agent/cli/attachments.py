"""Prompts, attached files and piped input as the messages of a request.

The type of a file is detected from its content: names can be wrong, and piped input has none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent.types import AgentRequest, AudioContent, DocumentContent, ImageContent, Message, TextContent

from .errors import CommandError

MAX_TEXT_BYTES = 4_000_000
MAX_MEDIA_BYTES = 20_000_000

_SIGNATURES: tuple[tuple[bytes, int, str], ...] = (
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
"""File signatures: bytes, their offset, and the media type."""

_URL = re.compile("https?://", re.IGNORECASE)
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp")


def read_prompt(prompt: Sequence[str] | None, files: Sequence[str] | None = None) -> AgentRequest:
    """Build a request from prompt arguments, attached files and piped input."""
    files = list(files or ())
    text = " ".join(prompt or ())
    piped = "" if "-" in files else _read_piped_text(required=text in ("", "-"))
    text = "\n\n".join(part for part in ("" if text == "-" else text, piped.strip("\n")) if part)
    if not text and not files:
        raise _empty_prompt()
    parts = [read_attachment(name) for name in files]
    if not parts:
        return AgentRequest(input=text)
    return AgentRequest(messages=(Message.user([*parts, TextContent(text=text)] if text else parts),))


def _empty_prompt() -> CommandError:
    return CommandError("The prompt is empty.", fix='Write a prompt: agent run "What is 2 + 2?"')


def read_attachment(name: str) -> Any:
    """Return the content part for a file or a URL; `-` is standard input."""
    if is_url(name):
        return _url_part(name)
    data = _read_bytes(name)
    media_type = detect_media_type(data)
    title = "standard input" if name == "-" else Path(name).name
    if media_type is None:
        return TextContent(text=f"File {title}:\n\n{_decode_text(data, name)}")
    if len(data) > MAX_MEDIA_BYTES:
        raise _too_large(name, len(data), MAX_MEDIA_BYTES)
    if media_type.startswith("image/"):
        return ImageContent(image_data=data, media_type=media_type)
    if media_type.startswith("audio/"):
        return AudioContent(data=data, media_type=media_type)
    return DocumentContent(data=data, media_type=media_type, title=title)


def is_url(name: str) -> bool:
    return _URL.match(name) is not None


def _url_part(url: str) -> Any:
    """Return the content part for a URL. The vendor fetches it, so the type is taken from the suffix."""
    suffix = Path(urlsplit(url).path).suffix.lower()
    if suffix == ".pdf":
        return DocumentContent(url=url, media_type="application/pdf")
    if suffix in _IMAGE_SUFFIXES:
        return ImageContent(image_url=url)
    raise CommandError(
        f"The URL {url} has no suffix of an image or a PDF.", fix="Download the file, and attach it by its path."
    )


def detect_media_type(data: bytes) -> str | None:
    """Return the media type of a known binary format; None for anything else, such as text."""
    return next((media_type for mark, offset, media_type in _SIGNATURES if data.startswith(mark, offset)), None)


def _read_bytes(name: str) -> bytes:
    if name == "-":
        if sys.stdin is None:
            raise CommandError("Standard input is closed.", fix="Name a file after -a.")
        return sys.stdin.buffer.read(MAX_MEDIA_BYTES + 1)
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            raise CommandError(f"{name} is a folder.", fix="Attach its files one by one.")
        with path.open("rb") as file:
            size = path.stat().st_size
            if size > MAX_MEDIA_BYTES:
                raise _too_large(name, size, MAX_MEDIA_BYTES)
            return file.read(MAX_MEDIA_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror or error}.", fix="Check the path.") from None


def _decode_text(data: bytes, name: str) -> str:
    if len(data) > MAX_TEXT_BYTES:
        raise _too_large(name, len(data), MAX_TEXT_BYTES)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise CommandError(
            f"{name} is neither UTF-8 text nor a supported image, PDF or audio file.",
            fix="Convert it to text, PNG, JPEG, GIF, WebP, PDF, WAV, MP3, Ogg or FLAC.",
        )
    return text


def _too_large(name: str, size: int, limit: int) -> CommandError:
    return CommandError(
        f"{name} is too large: {size / 1e6:.1f} MB; the limit is {limit / 1e6:.0f} MB.",
        fix="Attach a smaller part of it.",
    )


def _read_piped_text(*, required: bool) -> str:
    """Read piped input; empty if standard input is a terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        if required and sys.stdin is not None:
            raise _empty_prompt()
        return ""
    data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
    if detect_media_type(data) is not None:
        raise CommandError("The piped input is not text.", fix="Add -a - to attach it as a file.")
    return _decode_text(data, "standard input")
