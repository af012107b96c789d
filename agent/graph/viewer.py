"""A conversation graph as one HTML page that opens from disk and asks nothing of any network.

The graph comes as the plain data that saved files hold. It goes into the page as JSON, in a block that no browser runs
and that nothing in it can end; the page's own scripts turn it into text nodes and paint on a canvas. The page's policy
lets exactly these scripts and styles work, by their digests, and nothing be loaded from anywhere.

This module knows how to put a page together. What the page does is in `viewer_assets`, which also holds the licences of
the two libraries that every page carries.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any

_STYLE = "viewer.css"
_SCRIPTS = (
    "cytoscape.min.js",
    "dagre.min.js",
    "reading.js",
    "folding.js",
    "layers.js",
    "arranging.js",
    "drawing.js",
    "panel.js",
    "viewer.js",
)
"""In the order in which they need each other."""
_NOTICES = ("NOTICE", "LICENSE-cytoscape.txt", "LICENSE-dagre.txt")

_PLACE = re.compile("@@([a-z]+)@@")
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*\n?", re.MULTILINE)
_SURROGATES = re.compile("[\ud800-\udfff]")
_NOT_IN_SCRIPTS = re.compile("[<>&\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]")
"""What could end a script block, open a comment in it, confuse whoever reads the source, or not be written as UTF-8."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def html_page(graph: Mapping[str, Any], *, title: str = "Conversation") -> str:
    """The page for a graph in the form of saved files. Write it as UTF-8; `DAG.save_html` does.

    Raises:
        ValueError: the graph holds something that JSON cannot, such as NaN.
    """
    static = _static_parts()
    parts = {
        **static,
        "policy": _policy(static["script_digests"], static["style_digests"], pictures=_has_pictures(graph)),
        "title": html.escape(_SURROGATES.sub("\ufffd", title)),
        "graph": _script_safe(graph),
    }
    # In one pass: what is put in is not looked through for places again.
    return _PLACE.sub(lambda place: parts[place[1]], _asset("page.html"))


def _script_safe(graph: Mapping[str, Any]) -> str:
    """The graph as JSON that can stand inside a script element, whatever it says."""
    try:
        text = json.dumps(graph, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"graph holds what JSON cannot ({error}); put finite numbers and plain data into it") from None
    return _NOT_IN_SCRIPTS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"graph holds a {type(value).__name__}; give the plain form that to_dict() has")


def _policy(scripts: str, styles: str, *, pictures: bool) -> str:
    """Nothing but our own scripts and styles, and pictures that the page holds itself, if it holds any."""
    rules = {
        "default-src": "'none'",
        "script-src": scripts,
        "script-src-attr": "'none'",
        "style-src": styles,
        "style-src-attr": "'none'",
        "img-src": "data:" if pictures else "'none'",
        "connect-src": "'none'",
        "frame-src": "'none'",
        "object-src": "'none'",
        "worker-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        # No text can become markup or code by any interface of the browser, not even by a mistake in our scripts.
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _has_pictures(graph: Mapping[str, Any]) -> bool:
    return any(
        part.get("type") in ("image", "image_url") and (part.get("media_type") or "image/png") in _PICTURES
        for node in graph.get("nodes", ())
        for part in _parts(node.get("data", {}))
    )


def _parts(data: Any) -> Iterator[Mapping[str, Any]]:
    """Every part of a node's content, and of the results in it."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield value
            waiting += (value.get("content"), value.get("result"))
        elif isinstance(value, list | tuple):
            waiting += value


@cache
def _static_parts() -> dict[str, str]:
    """What is the same on every page."""
    scripts = [_SOURCE_MAP.sub("", _asset(name)) for name in _SCRIPTS]
    style = _asset(_STYLE)
    return {
        "scripts": "\n".join(f"<script>{text}</script>" for text in scripts),
        # cytoscape adds a style element unless it finds one with this id. Our policy would refuse it.
        "style": f'<style id="__________cytoscape_stylesheet">{style}</style>',
        "script_digests": _digests(scripts),
        "style_digests": _digests([style]),
        "notices": "\n\n".join(_asset(name).strip() for name in _NOTICES),
    }


def _digests(texts: Sequence[str]) -> str:
    return " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts)


@cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / "viewer_assets" / name).read_text(encoding="utf-8")
