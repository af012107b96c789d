"""How pictures and documents come written: by address, by value, nested in one vocabulary's way or another's.

Dicts in, flat dicts out. The parts that are built from them live in `parts`; nothing here fetches or decodes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes


def read_image(given: dict[str, Any]) -> dict[str, Any]:
    """Into `image_url` or `image_data`, one of them exactly."""
    data = dict(given)
    if isinstance(source := data.get("source"), Mapping):
        data = _unpack_source(data, source)
    if isinstance(nested := data.get("image_url"), Mapping):
        data["image_url"] = nested.get("url")
        data.setdefault("detail", nested.get("detail"))
    address, content = data.pop("url", None), data.pop("data", None)
    if isinstance(content, str) and content.startswith(("http:", "https:", "data:")):
        address, content = content, None
    if data.get("image_url") is None:
        data["image_url"] = address
    elif address is not None and address != data["image_url"]:
        raise ValueError("image_url and url differ; give one of them")
    if data.get("image_data") is None:
        data["image_data"] = content
    url = data["image_url"]
    if isinstance(url, str) and url.startswith("data:") and data["image_data"] is None:
        data["image_url"] = None
        data["image_data"], media_type = _split_data_url(url)
        data["media_type"] = data.get("media_type") or media_type
    _require_one("an image", data, ("image_url", "image_data"))
    data["type"] = "image" if data["image_url"] is None else "image_url"
    return data


def read_document(given: dict[str, Any]) -> dict[str, Any]:
    """Into `url`, `data` or `text`, one of them exactly."""
    data = _unpack_source(given, given["source"]) if isinstance(given.get("source"), Mapping) else dict(given)
    url = data.get("url")
    if isinstance(url, str) and url.startswith("data:"):
        data["url"] = None
        data["data"], media_type = _split_data_url(url)
        data["media_type"] = data.get("media_type") or media_type
    _require_one("a document", data, ("url", "data", "text"))
    return data


def _split_data_url(url: str) -> tuple[str | bytes, str | None]:
    """The bytes (or their base64 text) and the media type that a `data:` URL holds."""
    header, comma, body = url.removeprefix("data:").partition(",")
    if not comma:
        raise ValueError("a data: URL without a comma holds no data")
    media_type, *options = header.split(";")
    if options and options[-1].strip().lower() == "base64":
        return unquote_to_bytes(body).decode("ascii", "replace"), media_type or None
    return unquote_to_bytes(body), media_type or None


def _unpack_source(data: dict[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """`{"source": {"type": "base64" | "url" | "text", …}}`, flattened into url, data or text."""
    flat = {key: value for key, value in data.items() if key != "source"}
    if (media_type := source.get("media_type")) is not None:
        flat["media_type"] = media_type
    match source.get("type"):
        case "url":
            flat["url"] = source.get("url")
        case "base64":
            flat["data"] = source.get("data")
        case "text":
            flat["text"] = source.get("data")
        case other:
            raise ValueError(f"source.type is {other!r}; expected 'base64', 'url' or 'text'")
    return flat


def _require_one(kind: str, given: Mapping[str, Any], names: tuple[str, ...]) -> None:
    present = [name for name in names if given.get(name) is not None]
    if len(present) != 1:
        found = " and ".join(present) if present else "none of them"
        raise ValueError(f"{kind} needs exactly one of {', '.join(names)}; got {found}")
