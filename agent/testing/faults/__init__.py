"""Fault injection: `Chaos` for scripts, `FaultyTransport` for transports, and the catalog of faults.

The same seed breaks the same requests, and the record of a run can be replayed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Generic, TypeAlias, TypeVar
from urllib.parse import urlsplit

from ... import errors
from ...engine.wire import Answer, AsyncBody, Limits, Network, Reply, RunTimeout, SyncBody, Transport, WireRequest
from ...transports.scripted import ScriptedTransport
from . import http, responses, streams
from .fault import Fault, FaultContext, as_received, response_form

__all__ = [
    "FAULTS",
    "Chaos",
    "Fault",
    "FaultContext",
    "FaultLike",
    "FaultyTransport",
    "InjectedFault",
    "is_common",
    "select_faults",
]

FaultLike: TypeAlias = "Fault | str"
WrappedT = TypeVar("WrappedT")


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


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """Record of an injected fault."""

    number: int
    """Number of the request, counted from 0."""
    fault: Fault
    url: str
    """URL of the request."""


class _FaultInjector(Generic[WrappedT]):
    """Assigns faults to requests. The fault depends only on the seed and the request's number."""

    def __init__(
        self,
        wrapped: WrappedT,
        faults: Iterable[FaultLike] | None = None,
        *,
        share: float = 0.05,
        seed: int = 0,
        plan: Mapping[int, FaultLike] | None = None,
    ) -> None:
        if not 0 <= share <= 1:
            raise errors.ConfigurationError("share must be between 0 and 1.", field="share", fix="Pass 0.05 for 5 %.")
        self._wrapped = wrapped
        self._faults = select_faults(faults)
        self._share = share
        self._seed = seed
        self._plan = None if plan is None else {number: select_faults([fault])[0] for number, fault in plan.items()}
        self._lock = threading.Lock()
        self._count = 0
        self._injected: list[InjectedFault] = []

    @property
    def injected(self) -> list[InjectedFault]:
        """Injected faults, in order."""
        return list(self._injected)

    @property
    def plan(self) -> dict[int, str]:
        """Injected faults as a `plan` that replays them: names by request number."""
        return {injected.number: injected.fault.name for injected in self.injected}

    def _choose(self, request: WireRequest, *, at_server: bool = False) -> tuple[int, Fault | None]:
        """Return the number of the request, and its fault."""
        with self._lock:
            number = self._count
            self._count += 1
        return number, self._choose_fault(number, request, at_server=at_server)

    def _choose_fault(self, number: int, request: WireRequest, *, at_server: bool) -> Fault | None:
        if self._plan is not None:
            return self._plan.get(number)
        rng = random.Random(f"{self._seed}/{number}")
        if rng.random() >= self._share:
            return None
        possible = [fault for fault in self._faults if not (at_server and fault.kind == "client")]
        applicable = [fault for fault in possible if response_form(request) in fault.forms]
        return rng.choice(applicable) if applicable else None

    def _inject(self, answer: Answer, number: int, fault: Fault, request: WireRequest) -> Answer:
        """Return the broken response and record the fault. A response that is an error already is not changed."""
        broken = fault(answer, request)
        if broken is not answer:
            self._injected.append(InjectedFault(number, fault, request.url))
        return broken


class Chaos(_FaultInjector[Network]):
    """Network that breaks some responses, for a `LoopbackServer`, a `Simulation` or a `ScriptedTransport`.

    Args:
        wrapped: Answers the requests, such as a `VendorScript`. A fault that replaces the response does not call it.
        faults: Faults to choose from, by name or as objects. By default, all that are neither slow, heavy nor harmless.
        share: Share of the requests to break, from 0 to 1.
        seed: Seed of the random choice. The same seed breaks the same requests in the same way.
        plan: Faults by request number, counted from 0, instead of a random choice. The `plan` of a run replays it.
    """

    def __call__(self, request: WireRequest) -> Answer:
        at_server = not urlsplit(request.url).scheme  # a server sees paths, a client whole addresses
        number, fault = self._choose(request, at_server=at_server)
        if fault is None:
            return self._wrapped(request)
        answer = Answer() if fault.replaces else self._wrapped(request)
        broken = self._inject(answer, number, fault, request)
        return broken if at_server else as_received(broken)


class FaultyTransport(_FaultInjector[Transport]):
    """Transport that breaks some responses. Pass it as `transport=` of an agent.

    A response is read to its end before it is broken, so a broken stream begins later than usual. A fault that
    replaces the response sends no request.

    Args:
        wrapped: Transport that sends the requests, such as `agent.transports.get_transport("http")`.
        faults: As for `Chaos`.
        share: As for `Chaos`.
        seed: As for `Chaos`.
        plan: As for `Chaos`.
    """

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply:
        return self._select_transport(request, limits, timeout).send(request, limits, timeout)

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        return self._select_transport(request, limits, timeout).open(request, limits, timeout)

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        return await (await self._aselect_transport(request, limits)).asend(request, limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        return await (await self._aselect_transport(request, limits)).aopen(request, limits, bodies)

    def _select_transport(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Transport:
        """Return the transport itself, or one that replays a broken response."""
        number, fault = self._choose(request)
        if fault is None:
            return self._wrapped
        reply = None if fault.replaces else self._wrapped.send(request, limits, timeout)
        return self._replay(reply, number, fault, request)

    async def _aselect_transport(self, request: WireRequest, limits: Limits) -> Transport:
        number, fault = self._choose(request)
        if fault is None:
            return self._wrapped
        reply = None if fault.replaces else await self._wrapped.asend(request, limits)
        return self._replay(reply, number, fault, request)

    def _replay(self, reply: Reply | None, number: int, fault: Fault, request: WireRequest) -> ScriptedTransport:
        answer = Answer() if reply is None else Answer([reply.body], status=reply.status, headers=reply.headers)
        broken = as_received(self._inject(answer, number, fault, request))
        return ScriptedTransport(lambda _: broken)
