"""The HTML page of a graph as text: its content, and resistance to injection."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from agent.graph.diagrams import html_page
from tests.graph.viewer_page import chain, document, hostile, talk
from tests.graph.xss_payloads import PAYLOADS

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "agent" / "graph" / "viewer_assets"
SINKS = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\(|srcdoc|DOMParser|localStorage|\.href"


class Outline(HTMLParser):
    """The elements of a page with their attributes, and the texts of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self._inside = ""
        self.feed(page)
        self.close()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag in self.texts:
            self.texts[tag].append("")

    @override
    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    @override
    def handle_data(self, data: str) -> None:
        if self._inside in self.texts:
            self.texts[self._inside][-1] += data

    @property
    def policy(self) -> dict[str, str]:
        [content] = [found["content"] for tag, found in self.elements if found.get("http-equiv")]
        assert content is not None
        return dict(rule.partition(" ")[::2] for rule in content.split("; "))

    @property
    def graph(self) -> Any:
        return json.loads(self.texts["script"][0])


def without_policy(page: str) -> list[tuple[str, dict[str, str | None]]]:
    return [(tag, found) for tag, found in Outline(page).elements if not found.get("http-equiv")]


def test_the_page_carries_the_graph_as_it_is() -> None:
    assert Outline(html_page(talk(), title="A talk")).graph == talk()


def test_the_policy_names_exactly_the_scripts_and_styles_that_are_there() -> None:
    outline = Outline(html_page(talk()))
    for kind, texts in (("script-src", outline.texts["script"][1:]), ("style-src", outline.texts["style"])):
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert outline.policy[kind].split() == [f"'sha256-{digest}'" for digest in digests]


def test_the_policy_allows_nothing_else() -> None:
    policy = Outline(html_page(chain(2))).policy
    assert {name for name, value in policy.items() if value != "'none'"} == {
        "script-src",
        "style-src",
        "require-trusted-types-for",
    }
    assert policy["default-src"] == "'none'"
    assert {"base-uri", "form-action", "connect-src", "frame-src", "img-src", "object-src"} <= set(policy)
    assert "unsafe" not in str(policy)


@pytest.mark.parametrize(
    ("part", "rule"),
    [
        ({"type": "image", "image_data": "AAAA", "media_type": "image/png"}, "data:"),
        ({"type": "image", "image_data": "AAAA", "media_type": None}, "data:"),
        ({"type": "tool_result", "content": [{"type": "image", "image_data": "AAAA"}]}, "data:"),
        ({"type": "image", "image_data": "AAAA", "media_type": "image/svg+xml"}, "'none'"),
        ({"type": "image", "image_data": "AAAA", "media_type": ["image/png"]}, "'none'"),
        ({"type": "text", "text": "image/png"}, "'none'"),
    ],
)
def test_pictures_are_allowed_only_where_the_graph_carries_some(part: dict[str, Any], rule: str) -> None:
    graph = document([{"id": "a", "parents": [], "data": {"role": "user", "content": [part]}}])
    assert Outline(html_page(graph)).policy["img-src"] == rule


def test_no_payload_changes_what_elements_the_page_has() -> None:
    page = html_page(hostile(PAYLOADS), title=" ".join(PAYLOADS))
    assert without_policy(page) == without_policy(html_page(document([])))


def test_every_payload_comes_out_of_the_block_as_it_went_in() -> None:
    assert len(PAYLOADS) >= 200
    assert Outline(html_page(hostile(PAYLOADS))).graph == json.loads(json.dumps(hostile(PAYLOADS)))


def test_the_block_of_a_hostile_graph_holds_nothing_that_a_parser_or_a_reader_could_stumble_over() -> None:
    block = Outline(html_page(hostile(PAYLOADS))).texts["script"][0]
    assert not re.search("[<>&\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]", block)


def test_a_page_can_always_be_written_as_utf_8() -> None:
    html_page(hostile(["\ud800", "\udfff\ud800"]), title="\ud83d lone").encode()


@pytest.mark.parametrize("payload", ["</title><script>x</script>", '"><img src=x>', "&lt;b&gt;", "@@graph@@", "\ud800"])
def test_a_title_is_text(payload: str) -> None:
    outline = Outline(html_page(document([]), title=payload))
    assert "".join(outline.texts["title"]) == payload.replace("\ud800", "\ufffd")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_lacks_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="cannot be encoded as JSON"):
        html_page(document([{"id": "a", "parents": [], "metadata": {"cost": value}, "data": {}}]))


def test_a_graph_that_contains_itself_is_refused() -> None:
    graph: dict[str, Any] = document([])
    graph["self"] = graph
    with pytest.raises(ValueError, match="cannot be encoded as JSON"):
        html_page(graph)


def test_the_page_names_no_address_to_load_from() -> None:
    page = html_page(talk())
    outline = Outline(page)
    loading = {"src", "href", "srcset", "action", "data", "poster", "background"}
    assert not [found for _, found in outline.elements if loading & set(found)]
    assert "sourceMappingURL" not in page
    assert "@import" not in page


def test_our_scripts_make_no_markup_of_text() -> None:
    for path in ASSETS.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"</script|<!--|<script", text, re.IGNORECASE), path.name
        if not path.name.endswith(".min.js"):
            assert not re.search(SINKS, text), path.name


def test_licences_go_with_the_libraries() -> None:
    page = html_page(document([]))
    for licence in ASSETS.glob("LICENSE-*.txt"):
        assert licence.read_text(encoding="utf-8").strip() in page
        assert licence.name in (ASSETS / "NOTICE").read_text(encoding="utf-8")
    assert "--" not in "".join(
        path.read_text(encoding="utf-8") for path in (*ASSETS.glob("LICENSE-*"), ASSETS / "NOTICE")
    )


def test_the_libraries_are_the_ones_that_were_pinned(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("vendor_viewer", ROOT / "scripts" / "vendor_viewer.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.wrong_files() == []
    notice = (ASSETS / "NOTICE").read_text(encoding="utf-8")
    assert all(
        f"{name} {package.version}" in notice for package in script.PACKAGES if "/" not in (name := package.name)
    )
    (tmp_path / "cytoscape.min.js").write_text("something else")
    assert "cytoscape.min.js" in script.wrong_files(tmp_path)


def test_a_page_of_a_small_talk_is_not_much_larger_than_its_libraries() -> None:
    libraries = sum(path.stat().st_size for path in ASSETS.glob("*.min.js"))
    assert len(html_page(talk()).encode()) < libraries + 90_000
