"""Figures of docs/conformance.md, counted from the recordings and compared with the page.

`python -m tests.providers.test_conformance` writes the page anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.support.corpus import APIS, Exchange, exchanges, needs_recordings
from tests.support.recording_checks import check_answer, check_replay, events_of, signatures_in, split_bytes

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def passes(check: Callable[[Exchange], None], exchange: Exchange) -> bool:
    try:
        check(exchange)
    except AssertionError:
        return False
    return True


def check_bytes(exchange: Exchange) -> None:
    """Byte by byte, the stream gives the events that it gives whole."""
    data = exchange.stream or b""
    assert events_of(exchange, split_bytes(data, iter(lambda: 1, 0))) == events_of(exchange, [data])


def figures() -> str:
    rows = [
        "| API | conversations | vendors | answers as expected | of these streamed | streams the same byte by byte "
        "| failures typed | sealed values kept and sent back |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for api in APIS:
        recorded = exchanges(api)
        answers = [exchange for exchange in recorded if exchange.expected["kind"] == "message"]
        right = [exchange for exchange in answers if passes(check_answer, exchange)]
        streams = [exchange for exchange in recorded if exchange.stream is not None]
        sealed = [exchange for exchange in answers if signatures_in(exchange)]
        replayed = [exchange for exchange in sealed if passes(check_replay, exchange)]
        kinds = Counter(exchange.expected["kind"] for exchange in recorded)
        rows.append(
            f"| `{api}` | {len({exchange.case for exchange in recorded})} "
            f"| {len({exchange.provider for exchange in recorded})} | {len(right)} of {len(answers)} "
            f"| {sum(exchange.stream is not None for exchange in right)} "
            f"| {sum(passes(check_bytes, exchange) for exchange in streams)} of {len(streams)} "
            f"| {kinds['error'] + kinds['stream_error']} "
            f"| {sum(len(signatures_in(exchange)) for exchange in replayed)} "
            f"of {sum(len(signatures_in(exchange)) for exchange in sealed)} |"
        )
    return "\n".join(rows) + "\n"


@needs_recordings
def test_the_page_about_conformance_says_what_is_counted_here() -> None:
    page = PAGE.read_text("utf-8")
    assert page[page.index(BEGIN) + len(BEGIN) : page.index(END)].strip() == figures().strip()


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{before}\n{figures()}\n{after}", "utf-8")
