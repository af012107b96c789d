"""Catalog of faults. `Chaos` and `FaultyTransport` inject them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import TypeAlias

from ... import errors
from . import http, responses, streams
from .fault import Fault, FaultContext, as_received

__all__ = ["FAULTS", "Fault", "FaultContext", "FaultLike", "as_received", "is_common", "select_faults"]

FaultLike: TypeAlias = "Fault | str"


def _faults_in(module: ModuleType) -> Iterator[Fault]:
    for value in vars(module).values():
        yield from (item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, Fault))


FAULTS: Mapping[str, Fault] = MappingProxyType(
    {fault.name: fault for module in (http, responses, streams) for fault in _faults_in(module)}
)
"""Every fault, by its name."""


def is_common(fault: Fault) -> bool:
    """Whether a fault is neither heavy nor harmless."""
    return not fault.heavy and fault.harmless != fault.forms


def select_faults(faults: Iterable[FaultLike] | None) -> tuple[Fault, ...]:
    """Return the given faults; by default the common ones that are not slow."""
    if faults is None:
        return tuple(fault for fault in FAULTS.values() if is_common(fault) and not fault.slow)
    selected = []
    for fault in [faults] if isinstance(faults, str | Fault) else faults:
        if isinstance(fault, str) and fault not in FAULTS:
            raise errors.ConfigurationError(
                f"There is no fault named {fault!r}.",
                field="faults",
                fix="Pass names from agent.testing.FAULTS, or Fault objects.",
            )
        selected.append(FAULTS[fault] if isinstance(fault, str) else fault)
    return tuple(selected)
