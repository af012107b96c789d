"""Searching: words are found, and no sign means anything."""

from __future__ import annotations

from typing import Any

from .trial import Trial, case, node, same


@case
async def words_are_found(trial: Trial) -> None:
    store = await trial.store()
    parts = [
        {"type": "text", "text": "The weather is fine."},
        {"type": "tool_call", "id": "c", "name": "get_weather", "arguments": {"city": "Reykjavik"}},
    ]
    result = [{"type": "tool_result", "tool_call_id": "c", "content": "Wind from the Faroe Islands"}]
    await store.create("a", title="A trip")
    rows = [
        node("n1", text="Shall we go to Paris tomorrow?"),
        {**node("n2", "n1"), "data": {"role": "assistant", "content": parts}},
        {**node("n3", "n2"), "data": {"role": "tool", "content": result}},
    ]
    await store.append("a", rows, expected_version=1)
    await store.create(
        "b", title="Another", rows=[node("n1", text="PARIS in spring, 東京 in autumn. naïve")], heads=["n1"]
    )

    async def found(text: str, **options: Any) -> list[tuple[str, str]]:
        return [(hit.session_id, hit.node_id) for hit in await store.search(text, **options)]

    for text, expected in (
        ("paris", [("b", "n1"), ("a", "n1")]),
        ("Paris tomorrow", [("a", "n1")]),
        ("tomorrow PARIS", [("a", "n1")]),
        ("tomor", [("a", "n1")]),
        ("weather fine", [("a", "n2")]),
        ("faroe", [("a", "n3")]),
        ("東京", [("b", "n1")]),
        ("paris xylophone", []),
        ("xylophone", []),
    ):
        same(await found(text), expected, f"the hits for {text!r}")
    same(await found("paris", limit=1), [("b", "n1")], "the newest hit")
    (hit,) = await store.search("tomorrow")
    same(hit.title, "A trip", "the title of a hit")
    assert "Paris tomorrow" in hit.excerpt, f"the excerpt does not show what was found: {hit.excerpt!r}"
    version = await store.append("a", [node("n4", "n3", text="And then to Lisbon")], expected_version=2)
    same((version, await found("lisbon")), (3, [("a", "n4")]), "a node that was added after a search")


_SIGNS = (
    "", " ", '"', "'", "''", '""', '"paris', "paris\"", "*", "paris*", "**", "(", ")", "((", "-", "-paris", "^paris",
    "+", "NOT", "AND", "OR", "NOT paris", "paris AND", "paris OR", "NEAR(", "NEAR(paris tomorrow, 2)", "text:paris",
    "{text}: x", "%", "_", "p%s", "\\", "\\%", ";", "; DROP TABLE nodes", "'; DROP TABLE nodes; --", "' OR '1'='1",
    "paris' --", "a\0b", "\0", "\x1a", "\ud800", "👩‍👩‍👧", "日", "?", "?1", ":a", "$a", "@a", "#", "~", "/", "|", "&",
    "<", ">", "=", "[", "]", "{", "}", "`", "a" * 10_000, "a " * 5_000, "\u202e", "\ufeff", "İ", "ß",
)  # fmt: skip


@case
async def no_text_to_search_for_is_an_error(trial: Trial) -> None:
    store = await trial.store()
    signs = 'C++ costs 100% of "nothing"; a_b (x) \\ it\'s'
    await store.create("a", rows=[node("n1", text="Paris"), node("n2", text=signs)], heads=["n1"])
    for text in _SIGNS:
        hits = await store.search(text)
        assert all(hit.session_id == "a" for hit in hits), f"the hits for {text!r}: {hits}"
    for text in ("", " ", "\0"):
        same(list(await store.search(text)), [], f"the hits for {text!r}, which has no words")
    for text in ("p%s", "p_ris", "' OR '1'='1", "zzz OR paris", "-paris zzz", "c++x"):
        same(list(await store.search(text)), [], f"the hits for {text!r}, in which no sign may have a meaning")
    for text in ("c++", "100%", '"nothing"', "a_b", "it's"):
        same([hit.node_id for hit in await store.search(text)], ["n2"], f"the hits for {text!r}")
    same((await store.load("a")).node_count, 2, "nodes after all that")
