"""Web pages as text that a model can read: no markup, no scripts, links beside their words.

Strangers write these pages, so none may take longer to read than its length allows. The standard library's parser can
be made to; this one goes through the page once and never back. It is content with less: what is not quite right in a
page is text.
"""

from __future__ import annotations

import html
import re

_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "title", "textarea"})
# fmt: off
_BLOCKS = frozenset({
    "p", "div", "section", "article", "header", "footer", "main", "aside", "nav", "ul", "ol", "li", "table", "tr",
    "h1", "h2", "h3", "h4", "h5", "h6", "br", "hr", "pre", "blockquote", "dl", "dt", "dd", "form", "figure",
    "figcaption",
})
_TEXTUAL = frozenset({
    "json", "xml", "javascript", "x-javascript", "ecmascript", "yaml", "x-yaml", "toml", "x-ndjson", "graphql", "sql",
})
# fmt: on
_CHARSET = re.compile(rb"""charset\s{0,5}=\s{0,5}["']?([\w.:-]{1,40})""", re.I)
_NAME = re.compile(r"(/?)([a-zA-Z][a-zA-Z0-9:-]{0,40})")
_LINK = re.compile(r"""\shref\s{0,5}=\s{0,5}(?:"([^"]*)"|'([^']*)'|([^\s>"']+))""", re.I)
_SMALL = {number: number + 32 for number in range(ord("A"), ord("Z") + 1)}
_LONGEST = 500


class _Page:
    """What was read of a page so far."""

    def __init__(self, page: str) -> None:
        self._page = page
        self._small = page.translate(_SMALL)  # not lower(), which can change the length
        self._pieces: list[str] = []
        self._links: list[str] = []
        self._title = ""

    def read(self) -> str:
        at = 0
        while at < len(self._page):
            start = self._page.find("<", at)
            if start < 0:
                start = len(self._page)
            self._say(at, start)
            at = self._markup(start)
        lines = [re.sub(r"[ \t]+", " ", line).strip() for line in "".join(self._pieces).split("\n")]
        words = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
        return f"# {self._title}\n\n{words}" if self._title else words

    def _say(self, start: int, end: int) -> None:
        if start < end:
            self._pieces.append(re.sub(r"\s+", " ", _characters(self._page[start:end])))

    def _markup(self, start: int) -> int:
        """Where to go on after what begins with `<`."""
        page = self._page
        if page.startswith("<!--", start):
            return self._after("-->", start + 4)
        if page.startswith(("<!", "<?"), start):
            return self._after(">", start + 2)
        named = _NAME.match(page, start + 1)
        if named is None:
            self._pieces.append(page[start : start + 1])
            return start + 1
        end = self._end_of_tag(start)
        name, closing = named[2].translate(_SMALL), bool(named[1])
        if name in _BLOCKS:
            self._pieces.append("\n- " if name == "li" and not closing else "\n")
        elif name == "a":
            self._link(page[start:end], closing)
        elif name in _SILENT and not closing:
            return self._silence(name, end)
        return end

    def _after(self, mark: str, start: int) -> int:
        found = self._page.find(mark, start)
        return len(self._page) if found < 0 else found + len(mark)

    def _end_of_tag(self, start: int) -> int:
        """After its `>`. One between quotes does not count, but nobody looks for the right one for long."""
        end = self._after(">", start)
        for _ in range(4):
            if self._page.count('"', start, end) % 2 == 0:
                break
            end = self._after(">", end)
        return end

    def _silence(self, name: str, start: int) -> int:
        """Skip what is not for reading, to its end or the page's."""
        end = self._small.find(f"</{name}", start)
        if end < 0:
            return len(self._page)
        if name == "title" and not self._title:
            self._title = " ".join(_characters(self._page[start:end]).split())[:_LONGEST]
        return self._after(">", end)

    def _link(self, tag: str, closing: bool) -> None:
        if not closing:
            found = _LINK.search(tag[:5000])
            self._links.append(_characters(found[1] or found[2] or found[3] or "") if found else "")
        elif self._links:
            target = self._links.pop()
            if target.startswith(("http:", "https:", "/")):
                self._pieces.append(f" ({target[:_LONGEST]})")


def _characters(text: str) -> str:
    """With characters in place of their names."""
    try:
        return html.unescape(text)
    except ValueError:  # a number with thousands of digits
        return text


def read_html(page: str) -> str:
    return _Page(page).read()


def read_body(body: bytes, content_type: str) -> str | None:
    """Text, or None for what is none."""
    kind = content_type.split(";")[0].strip().lower()
    if not (kind.startswith("text/") or kind.endswith(("+json", "+xml")) or kind.rpartition("/")[2] in _TEXTUAL):
        return None
    named = _CHARSET.search(content_type.encode("latin-1", "replace")) or _CHARSET.search(body[:2048])
    try:
        decoded = body.decode(named[1].decode("ascii") if named else "utf-8", "replace")
    except (LookupError, UnicodeError):  # no such encoding, or one that is none of text
        decoded = body.decode("utf-8", "replace")
    return read_html(decoded) if kind in ("text/html", "application/xhtml+xml") else decoded
