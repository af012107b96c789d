"""Cache breakpoints: which blocks end a prefix that the vendor caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..encoding import EncodingContext, JsonDict
from .models import MAX_BREAKPOINTS
from .params import CacheControl

TOO_MANY_BREAKPOINTS = f"anthropic takes {MAX_BREAKPOINTS} cache marks; the first of them were left out"
NO_BREAKPOINT = "a cache mark on a part that cannot hold one was left out"
SHORTENED = "a cache mark for an hour cannot follow one for minutes; it was shortened"

CacheHint: TypeAlias = Literal["short", "long"]


@dataclass(slots=True)
class CacheSlot:
    """A block that has a cache breakpoint, or may get one."""

    block: JsonDict
    hint: CacheHint | None = None
    fixed: bool = False
    """The caller wrote the breakpoint in the vendor's form. It is sent unchanged, and counts."""


def fixed_slot(block: JsonDict, control: Any) -> CacheSlot:
    is_long = isinstance(control, Mapping) and control.get("ttl") == "1h"
    return CacheSlot(block, "long" if is_long else "short", fixed=True)


def add_breakpoints(context: EncodingContext, sections: Sequence[Sequence[CacheSlot]]) -> None:
    """Add `cache_control` to the blocks with hints, and with `request.cache` to the last block of each section.

    Args:
        context: The request.
        sections: The slots of tools, system prompt and messages, in the order in which the API reads them.
    """
    request = context.request
    for section in sections if request.cache is not None else ():
        if last := next((slot for slot in reversed(section) if not slot.fixed), None):
            last.hint = last.hint or request.cache
    slots = [slot for section in sections for slot in section if slot.hint is not None]
    if control := request.extra.get("cache_control"):
        slots.append(fixed_slot({}, control))
    slots = _limit(slots, context)
    _order(slots, context)
    for slot in slots:
        if not slot.fixed and slot.hint is not None:
            slot.block.setdefault("cache_control", _encode_cache_control(slot.hint))


def _limit(slots: list[CacheSlot], context: EncodingContext) -> list[CacheSlot]:
    """Drop the first hints if there are too many."""
    excess = len(slots) - MAX_BREAKPOINTS
    if excess <= 0:
        return slots
    dropped = [id(slot) for slot in slots if not slot.fixed][:excess]
    if dropped:
        context.warn(TOO_MANY_BREAKPOINTS)
    return [slot for slot in slots if id(slot) not in dropped]


def _order(slots: Sequence[CacheSlot], context: EncodingContext) -> None:
    """Change hints so that no long breakpoint follows a short one: those before a long one become long, too."""
    first_short = next((number for number, slot in enumerate(slots) if slot.fixed and slot.hint == "short"), len(slots))
    long_follows = False
    for number, slot in reversed([*enumerate(slots)]):
        if not slot.fixed:
            if long_follows:
                slot.hint = "long"
            if slot.hint == "long" and number > first_short:
                context.warn(SHORTENED)
                slot.hint = "short"
        long_follows = long_follows or (slot.hint == "long" and number < first_short)


def _encode_cache_control(hint: CacheHint) -> CacheControl:
    return {"type": "ephemeral", "ttl": "1h"} if hint == "long" else {"type": "ephemeral"}
