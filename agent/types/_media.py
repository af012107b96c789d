"""Normalize image and document dicts: URLs, data URLs, base64 data, nested `source` objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes


def read_image(fields: dict[str, Any]) -> dict[str, Any]:
    """Normalize image fields to exactly one of `image_url` and `image_data`."""
    data = dict(fields)
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


def read_document(fields: dict[str, Any]) -> dict[str, Any]:
    """Normalize document fields to exactly one of `url`, `data` and `text`."""
    data = _unpack_source(fields, fields["source"]) if isinstance(fields.get("source"), Mapping) else dict(fields)
    url = data.get("url")
    if isinstance(url, str) and url.startswith("data:"):
        data["url"] = None
        data["data"], media_type = _split_data_url(url)
        data["media_type"] = data.get("media_type") or media_type
    _require_one("a document", data, ("url", "data", "text"))
    return data


def _split_data_url(url: str) -> tuple[str | bytes, str | None]:
    """Return the data (bytes or base64 text) and the media type of a `data:` URL."""
    header, comma, body = url.removeprefix("data:").partition(",")
    if not comma:
        raise ValueError("invalid data: URL: the comma before the data is missing")
    media_type, *options = header.split(";")
    if options and options[-1].strip().lower() == "base64":
        return unquote_to_bytes(body).decode("ascii", "replace"), media_type or None
    return unquote_to_bytes(body), media_type or None


def _unpack_source(data: dict[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten `{"source": {"type": "base64" | "url" | "text", …}}` into url, data or text."""
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


def _require_one(kind: str, fields: Mapping[str, Any], names: tuple[str, ...]) -> None:
    present = [name for name in names if fields.get(name) is not None]
    if len(present) != 1:
        received = " and ".join(present) if present else "none of them"
        raise ValueError(f"{kind} needs exactly one of {', '.join(names)}; got {received}")
