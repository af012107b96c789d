"""The HTML page of a graph in a real browser, offline: content, speed, and resistance to injection.

In every test, the page must log nothing, violate no policy, send no requests, and open nothing.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from tests.graph.browser import Looking, chromium
from tests.graph.viewer_page import assign_numbers, chain, diamond, document, hostile, layers_of, talk, tangle
from tests.graph.xss_payloads import PAYLOADS

pytestmark = [pytest.mark.alone, pytest.mark.timing]  # double clicks are a matter of time


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Looking]:
    """A browser shared by all tests; while it is open, no other event loop can run in this thread."""
    with chromium() as browser:
        yield Looking(browser, tmp_path_factory.mktemp("pages"))


@pytest.fixture
def look(window: Looking) -> Iterator[Looking]:
    yield window
    window.judge()


# Content


def test_a_click_shows_a_node_exactly(look: Looking) -> None:
    seen = look(talk())
    seen.click("It rains")
    assert seen.page.text_content("#details h2") == "assistant"
    assert seen.page.text_content("#details pre") == "It rains in Paris: take an umbrella.\n\n  And boots."
    facts = seen.facts()
    assert facts["Cost"] == "$0.02"
    assert facts["Took"] == "1.1 s"
    assert facts["Tokens"] == "120 in, 30 out"
    assert facts["Time"] == "2025-11-16 13:33:27.000Z"


def test_every_part_of_a_turn_is_shown_with_who_said_it(look: Looking) -> None:
    seen = look(talk())
    seen.click("Let me see.")
    assert seen.page.locator("#details section h3").all_text_contents() == ["thinking", "text", "call of look"]
    texts = seen.page.locator("#details section pre").all_text_contents()
    assert texts[:2] == ["I should look.", "Let me see."]
    assert texts[2] == '{\n  "place": "Paris",\n  "ticket": 12345678901234567890\n}'
    facts = seen.facts()
    assert (facts["Model"], facts["Provider"], facts["request_id"]) == ("claude-sonnet-4-5", "anthropic", "req_7")
    assert "cache_read_tokens 20" in facts["Usage"]


def test_pictures_by_value_are_shown_and_those_by_address_are_named(look: Looking) -> None:
    seen = look(talk())
    seen.click("image/png")
    picture = seen.page.locator("#details img")
    assert picture.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") == 1
    seen.click("evil.invalid")
    assert picture.count() == 0
    assert seen.page.text_content("#details pre") == "https://evil.invalid/x.png"
    assert seen.page.locator("a").count() == 0


def test_branches_are_summed_from_root_to_head(look: Looking) -> None:
    branches = look(talk()).page.locator(".branch")
    assert branches.count() == 2
    sunny, rain = branches.all_inner_texts()
    sums = "Nodes|8|Tokens|240 in, 60 out|Cost|$0.0225|Time in calls|2.8 s|From first to last|6.0 s"
    assert sunny.split("\n") == ["stop: end_turn", *sums.split("|")]
    assert "Nodes\n10\n" in rain
    assert "Cost\n$0.0325\n" in rain


def test_a_stop_counts_what_no_turn_says(look: Looking) -> None:
    """The usage of a stop reason repeats that of its turns."""
    graph = talk()
    for node in graph["nodes"]:
        if node["data"].get("role"):
            node["data"].pop("usage", None)
    assert "120 in, 30 out" in look(graph).page.locator(".branch").first.inner_text()


def test_two_branches_stand_side_by_side(look: Looking) -> None:
    seen = look(talk())
    seen.page.click("#tab-compare")
    seen.page.click("#do-compare")
    assert seen.page.inner_text(".shared").startswith("6 nodes in common")
    left, right = seen.page.locator(".column").all()
    assert left.locator("pre").all_text_contents() == ["It is sunny in Paris.", "end_turn"]
    assert right.locator("pre").first.text_content() == "It rains in Paris: take an umbrella.\n\n  And boots."
    classes = {item["label"].split("\n")[1]: set(item["classes"]) for item in seen.geometry()}
    assert "common" in classes["How is the weather?"]
    assert "left" in classes["It is sunny in Paris."]
    assert "right" in classes["It rains in Paris: take an um…"]
    seen.page.keyboard.press("Escape")
    assert not any({"common", "left", "right"} & set(item["classes"]) for item in seen.geometry())


def test_a_branch_can_be_followed(look: Looking) -> None:
    seen = look(talk())
    seen.page.locator(".branch button").first.click()
    faded = {item["label"].split("\n")[0] for item in seen.geometry() if "faded" in item["classes"]}
    assert len([item for item in seen.geometry() if "faded" in item["classes"]]) == 4
    assert faded == {"assistant", "user"}


# Searching


def test_a_search_counts_marks_and_goes_round(look: Looking) -> None:
    seen = look(talk())
    seen.page.fill("#search", "PARIS")
    seen.page.wait_for_function("() => document.getElementById('found').textContent === '3 found'")
    assert len([item for item in seen.geometry() if "match" in item["classes"]]) == 3
    for expected in ("1 of 3", "2 of 3", "3 of 3", "1 of 3"):
        seen.page.press("#search", "Enter")
        assert seen.page.inner_text("#found") == expected
        assert seen.page.locator("#details mark").first.text_content() == "Paris"
    seen.page.press("#search", "Shift+Enter")
    assert seen.page.inner_text("#found") == "3 of 3"
    seen.page.click("#previous")
    assert seen.page.inner_text("#found") == "2 of 3"
    seen.page.fill("#search", "nowhere (at all")
    seen.page.wait_for_function("() => document.getElementById('found').textContent === '0 found'")
    assert seen.page.is_disabled("#next")


def test_a_search_opens_what_hides_its_match(look: Looking) -> None:
    seen = look(chain(2000))
    assert seen.read_text() == 3
    seen.page.fill("#search", "number 1234 ")
    seen.page.press("#search", "Enter")
    assert seen.page.inner_text("#found") == "1 of 1"
    assert seen.page.text_content("#details pre") == "turn number 1234 about the weather"
    assert 3 < seen.read_text() < 200
    assert "current" in seen.find_by_label("number 1234")["classes"]


# Folding


def test_runs_fold_and_unfold(look: Looking) -> None:
    seen = look(diamond(4, 10))
    assert seen.read_text() == 42
    seen.page.click("#fold")
    assert seen.read_text() == 2 + 4 * 3
    run = next(item for item in seen.geometry() if "run" in item["classes"])
    assert run["label"].startswith("8 nodes in a row\n$0.008 · 4.0 s")
    seen.page.mouse.dblclick(run["x"], run["y"])
    assert seen.read_text() == 2 + 3 * 3 + 10
    seen.page.click("text=Fold this run")
    assert seen.read_text() == 14
    seen.page.click("#unfold")
    assert seen.read_text() == 42


def test_a_long_run_opens_in_pieces(look: Looking) -> None:
    seen = look(chain(1000))
    assert seen.read_text() == 3
    seen.click("998 nodes in a row", times=2)
    assert seen.read_text() == 2 + 32
    piece = seen.geometry()[1]
    assert piece["label"].startswith("32 nodes in a row")
    seen.page.mouse.dblclick(piece["x"], piece["y"])
    assert seen.read_text() == 2 + 31 + 32


def test_a_subtree_folds_behind_its_root(look: Looking) -> None:
    seen = look(talk())
    seen.click("tool result", times=2)
    assert seen.read_text() == 6
    assert seen.find_by_label("tool result")["label"].startswith("tool result · +6 folded")
    seen.page.click("text=Open what follows")
    assert seen.read_text() == 12


def test_what_another_branch_leads_to_stays_when_a_subtree_folds(look: Looking) -> None:
    seen = look(assign_numbers([[], [0], [0], [1], [3, 2], [4]]))
    seen.click("number 1 ", times=2)
    labels = [item["label"].split("\n")[1] for item in seen.geometry()]
    assert sorted(label.split(" ")[2] for label in labels) == ["0", "1", "2", "4", "5"]


# Keys and colours


def test_everything_can_be_done_with_keys(look: Looking) -> None:
    seen = look(talk())
    page = seen.page
    page.focus("#picture")
    heads = []
    for _ in range(4):
        page.keyboard.press("ArrowDown")
        heads.append(page.inner_text("#details h2"))
    assert heads == ["system", "tools", "user", "assistant"]
    page.keyboard.press("ArrowUp")
    assert page.inner_text("#details h2") == "user"
    page.keyboard.press("Enter")
    assert seen.read_text() == 3
    page.keyboard.press("Enter")
    assert seen.read_text() == 12
    for _ in range(4):
        page.keyboard.press("ArrowDown")
    first = page.inner_text("#details pre")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    second = page.inner_text("#details pre")
    page.keyboard.press("ArrowLeft")
    assert {first, second, page.inner_text("#details pre")} >= {"It is sunny in Paris."}
    assert page.inner_text("#status").startswith("assistant: It")
    page.keyboard.press("/")
    page.keyboard.type("boots")
    page.keyboard.press("Enter")
    assert page.inner_text("#found") == "1 of 1"
    page.focus("#tab-details")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#compare")
    for control in page.locator("button, input, select, [tabindex='0'][role]").all():
        names = control.inner_text() or control.get_attribute("aria-label") or control.evaluate("e => e.labels.length")
        assert names, control.evaluate("element => element.outerHTML")


@pytest.mark.parametrize("system", ["light", "dark"])
def test_colours_follow_the_system_and_the_button(look: Looking, system: Literal["light", "dark"]) -> None:
    fills = {"light": {"rgb(225,245,254)", "rgb(232,245,233)"}, "dark": {"rgb(11,58,85)", "rgb(20,64,26)"}}
    other: Literal["light", "dark"] = "dark" if system == "light" else "light"
    seen = look(talk(), colours=system)
    assert {item["fill"] for item in seen.geometry()} == fills[system]
    before = seen.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    seen.page.click("#theme")
    assert {item["fill"] for item in seen.geometry()} == fills[other]
    assert seen.page.evaluate("() => getComputedStyle(document.body).backgroundColor") != before
    seen.page.click("#theme")
    seen.page.emulate_media(color_scheme=other)
    assert {item["fill"] for item in seen.geometry()} == fills[system], "the requested scheme applies"


# The picture itself

REGIONS = """async ([picture, colours]) => {
    const bytes = Uint8Array.from(atob(picture), (character) => character.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const { data, width, height } = context.getImageData(0, 0, image.width, image.height);
    const near = (at, colour) => colour.every((value, part) => Math.abs(data[at + part] - value) < 4);
    const seen = new Uint8Array(width * height);
    const regions = [];
    for (let start = 0; start < seen.length; start++) {
        const side = Object.keys(colours).find((name) => near(4 * start, colours[name]));
        if (seen[start] || !side) continue;
        const region = { side, left: width, right: 0, top: height, bottom: 0, area: 0 };
        const waiting = [start];
        seen[start] = 1;
        while (waiting.length) {
            const at = waiting.pop();
            const [x, y] = [at % width, Math.floor(at / width)];
            region.left = Math.min(region.left, x); region.right = Math.max(region.right, x);
            region.top = Math.min(region.top, y); region.bottom = Math.max(region.bottom, y);
            region.area++;
            for (const next of [x && at - 1, x < width - 1 && at + 1, at - width, at + width]) {
                if (next > 0 && next < seen.length && !seen[next] && near(4 * next, colours[side])) {
                    seen[next] = 1;
                    waiting.push(next);
                }
            }
        }
        if (region.area > 400) regions.push(region);
    }
    return regions;
}"""
"""Areas of these colors in a screenshot, measured without knowledge of the page."""


@pytest.mark.parametrize(
    "grow", [talk, lambda: diamond(3, 3), lambda: layers_of(4, 5)], ids=["talk", "diamond", "layers"]
)
def test_a_screenshot_has_the_structure_of_the_graph(look: Looking, grow: Callable[[], dict[str, Any]]) -> None:
    graph = grow()
    seen = look(graph)
    seen.page.click("#fit")
    seen.page.wait_for_timeout(100)  # for the next frame
    area = seen.page.locator("#picture").bounding_box()
    assert area is not None
    picture = base64.b64encode(seen.page.screenshot(clip={**area, "width": area["width"] - 1})).decode()
    regions = seen.page.evaluate(REGIONS, [picture, {"user": [225, 245, 254], "assistant": [232, 245, 233]}])
    assert len(regions) == len(graph["nodes"]), "one area for each node, and nothing else"
    places: dict[str, dict[str, Any]] = {}
    for node, item in zip(graph["nodes"], seen.geometry(), strict=True):
        x, y = item["x"] - area["x"], item["y"] - area["y"]
        [region] = [
            region
            for region in regions
            if region["left"] < x < region["right"] and region["top"] < y < region["bottom"]
        ]
        places[node["id"]] = region
        assistant = node["data"].get("role") == "assistant" or node["data"].get("type") == "stop_reason"
        assert region["side"] == ("assistant" if assistant else "user")
        assert region["right"] - region["left"] == pytest.approx(item["width"], abs=5)
        assert region["bottom"] - region["top"] == pytest.approx(item["height"], abs=5)
        assert all(places[parent]["bottom"] < region["top"] for parent in node["parents"]), "time runs downward"


# Size


@pytest.mark.timing
@pytest.mark.parametrize(
    ("grow", "arrangement"),
    [
        (lambda: chain(2000), "dagre"),
        (lambda: diamond(50, 40), "layers"),
        (lambda: layers_of(40, 50), "layers"),
        (lambda: tangle(2000, 1), "layers"),
    ],
    ids=["chain", "diamond", "layers", "tangle"],
)
def test_two_thousand_nodes_open_in_three_seconds(
    look: Looking, grow: Callable[[], dict[str, Any]], arrangement: str
) -> None:
    seen = look(grow())
    start = time.perf_counter()
    assert seen.page.evaluate("() => GraphViewer.arrangement()") == arrangement
    seen.page.fill("#search", "number 1999 ")
    seen.page.press("#search", "Enter")
    assert seen.page.text_content("#details pre") == "turn number 1999 about the weather"
    answered = time.perf_counter() - start
    assert seen.loading < 3, f"ready after {seen.loading:.2f} s"
    assert answered < 3, f"searched in {answered:.2f} s"
    seen.page.wait_for_selector("html[data-complete]")
    assert len(seen.geometry()) == seen.read_text(), "hidden nodes are drawn afterwards"


@pytest.mark.timing
def test_ten_thousand_nodes_open_too(look: Looking) -> None:
    seen = look(tangle(10_000, 2))
    seen.page.click("#fold")
    assert seen.read_text() > 9000
    assert seen.loading < 6, f"ready after {seen.loading:.2f} s"


@pytest.mark.parametrize(
    "graph",
    [
        document([]),
        document([{"id": "a", "parents": [], "data": {}}]),
        document([{"id": "a", "parents": ["b"], "data": {}}, {"id": "b", "parents": ["a", "a", "c"]}], ["a", "x"]),
        {"heads": None, "nodes": [{"id": 1, "parents": None, "data": 7, "timestamp": 1e300, "metadata": []}]},
        {"nodes": [{"id": "a"}, {"id": "a"}, {"data": {"role": "user", "content": [[[]], 3, None, {"type": []}]}}]},
    ],
    ids=["nothing", "one", "a circle", "wrong types", "no ids"],
)
def test_odd_graphs_are_shown_as_far_as_they_go(look: Looking, graph: dict[str, Any]) -> None:
    seen = look(graph)
    nodes = graph["nodes"]
    assert seen.read_text() == len(nodes)
    for at in range(len(nodes)):
        seen.page.evaluate("(at) => GraphViewer.choose(at)", at)
        assert seen.page.locator("#details article").count() == 1


# Nothing comes alive

OUR_TAGS = """
    html head meta title style body header main aside h1 h2 h3 h4 div span p input button output select option label
    noscript script canvas article section details summary dl dt dd ul li pre mark img
"""
OUR_ATTRIBUTES = """
    charset http-equiv content name lang id class type role dir tabindex hidden disabled for value placeholder
    autocomplete spellcheck data-theme data-ready data-complete style width height data-id alt src
"""
"""`style` is what cytoscape writes on its canvases; `src` only ever holds a picture by value, which a test looks at."""

EVERY_NODE = """() => {
    const graph = JSON.parse(document.getElementById('graph-data').textContent);
    const wanting = [];
    for (let at = 0; at < GraphViewer.size; at++) {
        GraphViewer.choose(at);
        const shown = document.getElementById('details').textContent;
        const { id, metadata } = graph.nodes[at];
        if (!shown.includes(id) || !shown.includes(metadata.model)) wanting.push(at);
        for (const image of document.images) {
            if (!image.src.startsWith('data:image/png;base64,')) wanting.push(image.src);
        }
    }
    return wanting;
}"""


def test_no_payload_in_any_field_comes_alive(look: Looking) -> None:
    scripts = look(document([])).page.locator("script").count()
    page = look(hostile(PAYLOADS), title=" ".join(PAYLOADS)).page
    assert page.evaluate(EVERY_NODE) == [], "every text is shown as it is"
    page.fill("#search", "<script")
    page.press("#search", "Enter")
    assert " of " in page.inner_text("#found")
    for tab in ("branches", "compare"):
        page.click(f"#tab-{tab}")
    page.click("#do-compare")
    page.click("#unfold")
    page.click("#fit")
    page.wait_for_selector("html[data-complete]")
    tags, attributes = page.evaluate("() => [window.__tags, window.__attributes]")
    assert set(tags) <= set(OUR_TAGS.split())
    assert {name for name in attributes if not name.startswith("aria-")} <= set(OUR_ATTRIBUTES.split())
    assert tags["script"] == page.locator("script").count() == scripts
    assert page.evaluate("() => ({}).polluted ?? null") is None
    assert page.evaluate("() => document.title.length") > 1000


def test_the_page_refuses_what_a_mistake_of_ours_would_let_in(look: Looking) -> None:
    """Defense in depth: injected markup would neither run nor load, and cannot be created from text."""
    seen = look(talk())
    attempts = seen.page.evaluate(
        """async () => {
            const outcomes = {};
            try { document.body.innerHTML += '<img src=x onerror=1>'; outcomes.markup = 'made'; }
            catch { outcomes.markup = 'refused'; }
            // Deferred: scripts of the test driver may evaluate anything, scripts of the page may not.
            outcomes.code = await new Promise((done) => setTimeout(() => {
                try { done((0, eval)('window.__pwned = 1')); } catch { done('refused'); }
            }));
            try { outcomes.request = await fetch('http://evil.invalid/'); } catch { outcomes.request = 'refused'; }
            const button = document.createElement('button');
            try { button.setAttribute('onclick', 'window.__pwned = 1'); } catch { outcomes.handler = 'refused'; }
            document.body.append(button);
            button.click();
            const image = new Image();
            outcomes.image = await new Promise((done) => {
                image.onload = () => done('loaded');
                image.onerror = () => done('refused');
                image.src = 'http://evil.invalid/x.png';
            });
            await new Promise((done) => setTimeout(done));
            return [outcomes, window.__violations.map((text) => text.split(' ')[0]), window.__pwned ?? null];
        }"""
    )
    outcomes, violations, pwned = attempts
    assert outcomes == dict.fromkeys(("markup", "code", "request", "handler", "image"), "refused")
    assert pwned is None
    assert set(violations) == {"require-trusted-types-for", "connect-src", "img-src"}
    seen.page.evaluate("() => { window.__violations = []; }")
    seen.wrong.clear()
