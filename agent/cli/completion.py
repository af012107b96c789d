"""What bash asks when the tab key is pressed, put right for models, whose names have a colon in them.

To bash, `openai:gpt` is three words, and what it is given back takes the place of the last of these. So the words are
put together again, and of what they are completed to only the end is told.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout

INSTRUCTION = "_AGENT_COMPLETE"
"""The variable in which a shell says what it wants."""
_WORDS, _PLACE = "COMP_WORDS", "COMP_CWORD"


@contextmanager
def in_bash() -> Iterator[None]:
    """While a question of bash is answered. Other shells need none of this, and other bashes neither."""
    words = os.environ.get(_WORDS, "").split("\n")
    place = os.environ.get(_PLACE, "")
    if os.environ.get(INSTRUCTION) != "complete_bash" or not place.isdigit() or int(place) >= len(words):
        yield
        return
    whole, at = put_together(words, int(place))
    os.environ.update({_WORDS: "\n".join(whole), _PLACE: str(at)})
    answer = io.StringIO()
    try:
        with redirect_stdout(answer):
            yield
    finally:
        known = "" if len(whole) == len(words) else whole[at][: whole[at].rfind(":") + 1]
        for line in answer.getvalue().splitlines():
            sys.stdout.write(f"{line.removeprefix(known)}\n")


def put_together(words: Sequence[str], place: int) -> tuple[list[str], int]:
    """The words as they were typed, as far as can be told, up to the one in question; and where it is."""
    whole: list[str] = []
    open_end = False
    for word in words[: place + 1]:
        is_colon = bool(word) and set(word) == {":"}
        if len(whole) > 1 and (is_colon or open_end) and not word.startswith("-"):
            whole[-1] += word
        else:
            whole.append(word)
        open_end = is_colon
    return whole, len(whole) - 1
