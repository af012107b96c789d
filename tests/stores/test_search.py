"""Searching: with the index, without it, and in languages that it cannot read."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typing_extensions import override

from agent.stores import MemoryStore, SearchTerms, SqliteStore, Store, extract_text, search
from tests.conftest import SEED
from tests.stores.turns import row


class WithoutIndex(sqlite3.Connection):
    """A SQLite that was built without FTS5."""

    @override
    def execute(self, statement: str, *args: Any) -> Any:
        if "fts5" in statement:
            error = sqlite3.OperationalError("no such module: fts5")
            error.sqlite_errorcode = sqlite3.SQLITE_ERROR
            raise error
        return super().execute(statement, *args)


@pytest.fixture(params=["memory", "index", "no index"])
def store(request: pytest.FixtureRequest, ram: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    if request.param == "no index":
        real = sqlite3.connect
        monkeypatch.setattr(
            sqlite3, "connect", lambda *args, **options: real(*args, **{**options, "factory": WithoutIndex})
        )
    made: Store = MemoryStore() if request.param == "memory" else SqliteStore(ram / "s.db")
    yield made
    made.close()


TEXTS = {
    "paris": "Shall we go to Paris, or to Orléans? C++ and snake_case, 100%.",
    "tokyo": "東京タワーはどこですか",
    "thai": "สวัสดีครับ",
    "greek": "Η ΑΘΉΝΑ είναι εδώ. ΣΊΣΥΦΟΣ",
    "emoji": "well done 🎉🎉",
    "german": "Die STRASSE und die Straße",
}

FOUND = {
    "paris": "paris", "PAR": "paris", "orleans": "paris", "ORLÉANS": "paris", "c++": "paris", "snake_case": "paris",
    "100%": "paris", "to go": "paris", "東京": "tokyo", "タワー": "tokyo", "สวัสดี": "thai", "αθηνα": "greek",
    "σίσυφος": "greek", "🎉": "emoji", "strasse": "german", "straße": "german", "paris, or": "paris",
}  # fmt: skip


def test_words_are_found_in_any_script(store: Store) -> None:
    store.create("s", rows=[row(id, text=text) for id, text in TEXTS.items()], heads=["paris"])
    for _ in range(2):
        for text, id in FOUND.items():
            hits: Any = store.search(text)
            assert [hit.node_id for hit in hits] == [id], text
        for text in ("xparis", "c++x", "paris tokyo", "101%", "京東", "paris -orléans", "paris a\ud800"):
            assert store.search(text) == [], text


def test_an_excerpt_shows_the_text_around_a_word(store: Store) -> None:
    text = "far " * 100 + "away\nthere is\ta Needle in" + " the hay" * 100
    store.create("s", title="T", rows=[row("n", text=text), row("short", text="a needle")], heads=["n"])
    hits: Any = store.search("needle")
    assert hits[0].excerpt == "a needle"
    excerpt = hits[1].excerpt
    assert "away there is a Needle in the hay" in excerpt
    assert excerpt.startswith("…")
    assert excerpt.endswith("…")
    assert len(excerpt) < 200


def test_what_was_said_is_text_and_what_was_not_is_not() -> None:
    parts = [
        {"type": "text", "text": "said"},
        {"type": "thinking", "thinking": "thought", "signature": "c2lnbmVk"},
        {"type": "image", "image_data": "aW1hZ2U=", "media_type": "image/png"},
        {"type": "tool_call", "id": "call", "name": "tool", "arguments": {"text": "argument"}},
        {"type": "tool_result", "tool_call_id": "call", "content": [{"type": "text", "text": "result"}]},
        {"type": "refusal", "refusal": "refused"},
        {"type": "code", "code": "coded", "language": "python"},
        "plain",
        7,
    ]
    assert extract_text({"data": {"role": "assistant", "content": parts}}) == "said\nresult\nrefused\ncoded\nplain"
    assert extract_text({"data": {"type": "system_prompt", "content": "prompt"}}) == "prompt"
    for nothing in ({}, {"data": None}, {"data": "x"}, {"data": {"type": "stop_reason"}}, {"data": {"content": None}}):
        assert extract_text(nothing) == ""


def test_the_index_and_a_search_without_it_find_the_same(ram: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    syllables = ["pa", "ris", "Ka", "to", "é", "ß", "x1", "-", "_", " ", " ", " "]
    texts = ["".join(rng.choices(syllables, k=20)) for _ in range(300)]
    rows = [row(str(number), text=text) for number, text in enumerate(texts)]
    memory = MemoryStore()
    memory.create("s", rows=rows, heads=["0"])
    with SqliteStore(ram / "s.db") as store:
        store.create("s", rows=rows, heads=["0"])
        found = 0
        for _ in range(200):
            word = rng.choice(rng.choice(texts).split() or ["pa"])
            text = word[: rng.randrange(1, len(word) + 1)]
            with_index = {hit.node_id for hit in store.search(text, limit=1000)}
            without = {hit.node_id for hit in memory.search(text, limit=1000)}
            assert with_index <= without, text
            # At the beginning of words the index finds all there is.
            beginnings = {
                str(number)
                for number, said in enumerate(texts)
                if any(part.casefold().startswith(text.casefold()) for part in said.split())
            }
            if text[0].isalnum():
                assert beginnings <= with_index, text
            found += len(with_index)
        assert found > 1000


def test_the_index_catches_up_in_pieces_with_what_others_wrote(ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_BATCH", 7)
    with SqliteStore(ram / "s.db") as store, SqliteStore(ram / "s.db") as other:
        version = store.create("s").version
        for count in (0, 1, 6, 7, 8, 30):
            rows = [row(f"{version}-{number}", text="needle") for number in range(count)]
            version = other.append("s", rows, heads=[], expected_version=version)
            assert len(store.search("needle", limit=1000)) == store.load("s").node_count
        other.create("t", rows=[row("x", text="needle")], heads=["x"])
        other.delete("t")
        assert len(store.search("needle", limit=1000)) == 52
        assert store._transact("BEGIN", search.is_index_behind) is False


def test_an_index_that_claims_too_much_is_made_anew(ram: Path) -> None:
    with SqliteStore(ram / "s.db") as store:
        store.create("s", rows=[row("x", text="needle")], heads=["x"])
        assert len(store.search("needle")) == 1
        for claim in ("99", "-1", "nonsense"):
            assert store._connection is not None
            store._connection.execute("UPDATE about SET value = ? WHERE key = 'indexed'", (claim,))
            store._connection.execute("DELETE FROM search")
            assert len(store.search("needle")) == 1


@given(st.text(), st.text())
@example('"', "")
@example('a"b', "")
@example('"paris', "")
@example('a" OR "b', "")
@example("NEAR(a b)", "")
@example("a\0b", "")
def test_no_query_is_an_error_and_quotes_cannot_be_left(text: str, said: str) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE search USING fts5 (text, columnsize = 0, tokenize = 'unicode61')")
    words = SearchTerms(text)
    if words and search.is_indexable(words):
        connection.execute(
            "SELECT rowid FROM search WHERE search MATCH ?", (search.format_match_query(words),)
        ).fetchall()
    assert words.are_in(text + said)
    words.excerpt(said)
    connection.close()
