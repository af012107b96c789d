"""What is wrong with a call's arguments, in words for the model that made it: each field and the reason, no values.

The words are pydantic's. Here they lose what only its users understand, and what repeats the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

_MOST_FIELDS = 10
_LONGEST_REASON = 300
_LONGEST_PLACE = 200

_WITHOUT_INPUT = {
    "uuid_parsing": "Input should be a valid UUID",
    "bytes_invalid_encoding": "Data should be valid base64",
    "json_invalid": "Input is nested too deeply",  # it was written as JSON by ourselves: nothing else can be wrong
}
"""Problems in whose usual description a piece of the input is quoted."""


def explained(error: ValidationError, given: Mapping[str, Any], names: Sequence[str], rest: str | None) -> str:
    """All that is wrong.

    Args:
        given: The arguments.
        names: The parameters that there are.
        rest: Where in `given` the arguments are that have no parameter of their own name.
    """
    reasons: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False, include_input=False):
        place = _place(problem["loc"], given, problem["type"])
        if rest is not None and place[:1] == [rest]:
            place = place[1:]
        listed = reasons.setdefault(".".join(place)[:_LONGEST_PLACE] or "arguments", [])
        if (reason := _reason(problem, names)) not in listed:
            listed.append(reason)
    # Several reasons in one place are the variants of a union, of which none fits.
    lines = [f"{place}: {' or '.join(listed)}" for place, listed in reasons.items()]
    if len(lines) > _MOST_FIELDS:
        lines[_MOST_FIELDS:] = [f"and {len(lines) - _MOST_FIELDS} more fields"]
    return "; ".join(lines)


def _place(location: Sequence[str | int], given: Any, kind: str) -> list[str]:
    """The way to the problem in the arguments. pydantic's own also names the variants of unions it has tried."""
    place: list[str] = []
    for number, step in enumerate(location, 1):
        match given:
            case dict() if step in given:
                given = given[step]
            case list() if isinstance(step, int) and step < len(given):
                given = given[step]
            case _ if kind.startswith("missing") and number == len(location):
                pass
            case _:
                continue
        place.append(str(step))
    return place


def _reason(problem: Any, names: Sequence[str]) -> str:
    kind, about = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden" and len(problem["loc"]) == 1:
        return f"no such parameter; it takes {', '.join(names) or 'none'}"
    if kind == "union_tag_invalid":
        return f"{about['discriminator']} should be one of {about['expected_tags']}"
    return _WITHOUT_INPUT.get(kind) or str(problem["msg"])[:_LONGEST_REASON]
