"""A page in a real browser, offline, and everything it does that no page of ours should.

Debian's chromium, driven by playwright. Opening a page fails if the page logs anything,
violates its own policy, sends a request, or opens a window.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from agent.graph.diagrams import html_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Frame, Page, Request

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WATCH = """
window.__violations = [];
window.__tags = {};
window.__attributes = {};
document.addEventListener('securitypolicyviolation', (event) => window.__violations.push(
    [event.violatedDirective, event.blockedURI, event.sourceFile, event.lineNumber].join(' ')));
const known = new WeakSet();
const note = (node) => {
    if (node.nodeType !== 1 || known.has(node)) return;
    known.add(node);
    window.__tags[node.localName] = (window.__tags[node.localName] ?? 0) + 1;
    for (const { name } of node.attributes) window.__attributes[name] = node.localName;
    node.childNodes.forEach(note);
};
new MutationObserver((records) => records.forEach((record) => {
    record.addedNodes.forEach(note);
    if (record.type === 'attributes') window.__attributes[record.attributeName] = record.target.localName;
})).observe(document, { childList: true, attributes: true, subtree: true });
"""
"""Runs before anything else on a page: keeps every element and attribute that was ever there, even for a moment."""


@contextmanager
def chromium() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `dev`)")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on the PATH (Debian: apt install chromium)")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@dataclass
class Seen:
    """A page, and what it did that no page of ours should."""

    page: Page
    address: str
    wrong: list[str] = field(default_factory=list)
    loading: float = 0.0
    """Seconds until it was ready."""

    def read_text(self) -> int:
        return int(self.page.inner_text("#shown").split(" ")[0].replace(",", ""))

    def geometry(self) -> list[dict[str, Any]]:
        """The nodes that are drawn, in the graph's order."""
        found: list[dict[str, Any]] = self.page.evaluate("() => GraphViewer.geometry()")
        return sorted(found, key=lambda item: int(item["key"][1:].split("-")[0]))

    def find_by_label(self, words: str) -> dict[str, Any]:
        [found] = [item for item in self.geometry() if words in item["label"]]
        return found

    def click(self, words: str, times: int = 1) -> None:
        """Click at the node whose label has these words, where it is on the screen."""
        found = self.find_by_label(words)
        self.page.mouse.click(found["x"], found["y"], click_count=times)

    def facts(self) -> dict[str, str]:
        names = self.page.locator("#details dt").all_inner_texts()
        return dict(zip(names, self.page.locator("#details dd").all_inner_texts(), strict=True))


class Looking:
    """Opens pages of graphs, one after the other in the same window, and judges each."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._folder = folder
        self._page = browser.new_context(offline=True, viewport={"width": 1200, "height": 800}).new_page()
        self._page.set_default_timeout(10_000)
        self._page.add_init_script(WATCH)
        self._opened = 0
        self._seen: Seen | None = None
        self._watch()

    def __call__(
        self, graph: dict[str, Any], *, title: str = "Conversation", colours: Literal["light", "dark"] = "light"
    ) -> Seen:
        self.judge()
        path = self._folder / f"page-{self._opened}.html"
        self._opened += 1
        path.write_text(html_page(graph, title=title), encoding="utf-8")
        self._page.emulate_media(color_scheme=colours)
        seen = self._seen = Seen(self._page, path.as_uri())
        start = time.perf_counter()
        self._page.goto(seen.address)
        self._page.wait_for_selector("html[data-ready]")
        seen.loading = time.perf_counter() - start
        return seen

    def _watch(self) -> None:
        def note(what: str) -> None:
            if self._seen is not None:
                self._seen.wrong.append(what)

        def list_requests(request: Request) -> None:
            if self._seen is None or request.url != self._seen.address:
                note(f"request {request.url[:200]}")

        def navigate(frame: Frame) -> None:
            if self._seen is None or frame.url != self._seen.address:
                note(f"navigated to {frame.url}")

        def answer(dialog: Dialog) -> None:
            note(f"dialog {dialog.message}")
            dialog.dismiss()

        page = self._page
        page.context.on("request", list_requests)
        page.on("popup", lambda popup: note(f"window {popup.url}"))
        page.on("worker", lambda worker: note(f"worker {worker.url}"))
        page.on("websocket", lambda socket: note(f"socket {socket.url}"))
        page.on("console", lambda message: note(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: note(f"error {error}"))
        page.on("download", lambda download: note(f"download {download.url}"))
        page.on("dialog", answer)
        page.on("framenavigated", navigate)

    def judge(self) -> None:
        """Fail if the page that is open did anything it should not have."""
        if self._seen is None:
            return
        seen, self._seen = self._seen, None
        violations, pwned = seen.page.evaluate("() => [window.__violations, window.__pwned ?? null]")
        found = (seen.wrong, violations, pwned, len(seen.page.context.pages))
        assert found == ([], [], None, 1), found
