"""HTML viewer: a self-contained page that shows a graph without network access.

The graph is embedded as JSON in an inert script block. The content security policy allows the page's own scripts and
styles only, by hash, and no network requests. `viewer_assets` contains the scripts, styles and licenses.
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
"""In dependency order."""
_NOTICES = ("NOTICE", "LICENSE-cytoscape.txt", "LICENSE-dagre.txt")

_PLACE = re.compile("@@([a-z]+)@@")
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*\n?", re.MULTILINE)
_SURROGATES = re.compile("[\ud800-\udfff]")
_NOT_IN_SCRIPTS = re.compile("[<>&\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]")
"""Characters that could end a script block, start a comment, mislead readers of the source, or break UTF-8."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def html_page(graph: Mapping[str, Any], *, title: str = "Conversation") -> str:
    """Return the HTML page for a graph in its saved form. Write it as UTF-8.

    Raises:
        ValueError: The graph contains values that JSON cannot represent, such as NaN.
    """
    static = _static_parts()
    parts = {
        **static,
        "policy": _policy(static["script_digests"], static["style_digests"], pictures=_has_pictures(graph)),
        "title": html.escape(_SURROGATES.sub("\ufffd", title)),
        "graph": _script_safe(graph),
    }
    # A single pass, so that inserted content is not searched for placeholders.
    return _PLACE.sub(lambda place: parts[place[1]], _asset("page.html"))


def _script_safe(graph: Mapping[str, Any]) -> str:
    """Encode the graph as JSON that is safe inside a script element."""
    try:
        text = json.dumps(graph, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the graph cannot be encoded as JSON ({error}); use finite numbers and plain data") from None
    return _NOT_IN_SCRIPTS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"the graph contains a {type(value).__name__}; pass the output of to_dict()")


def _policy(scripts: str, styles: str, *, pictures: bool) -> str:
    """Return the content security policy: only the page's own scripts and styles, and embedded images."""
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
        # Blocks DOM injection even if the scripts had a bug.
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
    """Iterate over all content parts of a node."""
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
    """Return the parts that are the same on every page."""
    scripts = [_SOURCE_MAP.sub("", _asset(name)) for name in _SCRIPTS]
    style = _asset(_STYLE)
    return {
        "scripts": "\n".join(f"<script>{text}</script>" for text in scripts),
        # cytoscape would add a style element without this id, which the policy forbids.
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
