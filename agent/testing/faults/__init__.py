"""Faults by name: what goes wrong between a client and a vendor, ready to be injected.

Each is a `Fault`: called with a good answer and its request, it returns the broken one, at the wire, in whichever of
the four APIs the request was written. `Chaos` and `FaultyTransport` inject them for you.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import TypeAlias

from ... import errors
from . import connections, events, framing, responses
from .fault import BrokenWire, Exchange, Fault, form_of, in_process

__all__ = ["FAULTS", "BrokenWire", "Exchange", "Fault", "FaultLike", "chosen", "form_of", "in_process", "is_usual"]

FaultLike: TypeAlias = "Fault | str"


def _faults_in(module: ModuleType) -> Iterator[Fault]:
    for value in vars(module).values():
        if isinstance(value, Fault):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Fault))


def _catalog(*modules: ModuleType) -> Mapping[str, Fault]:
    found = [fault for module in modules for fault in _faults_in(module)]
    named = {fault.name: fault for fault in found}
    assert len(named) == len(found), "two faults have one name"
    return MappingProxyType(named)


FAULTS: Mapping[str, Fault] = _catalog(connections, framing, responses, events)
"""Every fault, by its name."""


def is_usual(fault: Fault) -> bool:
    """Whether a fault is one to expect any day: not one of many megabytes, and not one that nobody notices."""
    return not fault.heavy and fault.harmless != fault.forms


def chosen(faults: Iterable[FaultLike] | None) -> tuple[Fault, ...]:
    """The faults that were named; by default the usual ones that do not keep the client waiting."""
    if faults is None:
        return tuple(fault for fault in FAULTS.values() if is_usual(fault) and not fault.slow)
    found = []
    for fault in [faults] if isinstance(faults, str | Fault) else faults:
        if isinstance(fault, str) and fault not in FAULTS:
            raise errors.ConfigurationError(
                f"There is no fault named {fault!r}.", field="faults", fix="See the keys of agent.testing.FAULTS."
            )
        found.append(FAULTS[fault] if isinstance(fault, str) else fault)
    return tuple(found)
