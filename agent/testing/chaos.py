"""Faults at random, in front of a script or around a transport: the same seed breaks the same requests.

`Chaos` wraps what a server, a simulation or a scripted transport plays. `FaultyTransport` wraps what carries requests,
so that a program can be tried against its real vendors. Both write down what they did, and can do it again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from .. import errors
from ..engine.wire import Answer, AsyncBody, Limits, Network, Reply, RunTimeout, SyncBody, Transport, WireRequest
from ..transports.scripted import ScriptedTransport
from .faults import Fault, FaultLike, chosen, in_process


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault that was injected: into which request, counted from 0, and where that was sent."""

    number: int
    fault: Fault
    url: str


class _Dice:
    """Which request gets which fault. The draw for a request depends on the seed and its number, on nothing else."""

    def __init__(
        self, faults: Iterable[FaultLike] | None, share: float, seed: int, plan: Mapping[int, FaultLike] | None
    ) -> None:
        if not 0 <= share <= 1:
            raise errors.ConfigurationError("share is not between 0 and 1.", field="share", fix="Pass 0.05 for 5 %.")
        self._faults = chosen(faults)
        self._share = share
        self._seed = seed
        self._plan = None if plan is None else {number: chosen([fault])[0] for number, fault in plan.items()}
        self._lock = threading.Lock()
        self._count = 0
        self.injected: list[Injected] = []

    @property
    def plan(self) -> dict[int, str]:
        return {injected.number: injected.fault.name for injected in list(self.injected)}

    def throw(self, request: WireRequest, *, at_server: bool) -> tuple[int, Fault | None]:
        """The number of this request, and what shall become of it."""
        with self._lock:
            number = self._count
            self._count += 1
        return number, self._drawn(number, request, at_server=at_server)

    def _drawn(self, number: int, request: WireRequest, *, at_server: bool) -> Fault | None:
        if self._plan is not None:
            return self._plan.get(number)
        die = random.Random(f"{self._seed}/{number}")
        if die.random() >= self._share:
            return None
        possible = [fault for fault in self._faults if not (at_server and fault.kind == "client")]
        fitting = [fault for fault in possible if fault.fits(request)]
        return die.choice(fitting) if fitting else None

    def broken(self, good: Answer, number: int, fault: Fault, request: WireRequest) -> Answer:
        """The broken answer, now on record. One that had gone wrong by itself is left alone."""
        answer = fault(good, request)
        if answer is not good:
            self.injected.append(Injected(number, fault, request.url))
        return answer


class _OnRecord:
    """What both have: dice, and a record of what they decided."""

    _dice: _Dice

    @property
    def injected(self) -> list[Injected]:
        """What was injected so far, in order."""
        return list(self._dice.injected)

    @property
    def plan(self) -> dict[int, str]:
        """The same, to be replayed: pass it as `plan`."""
        return self._dice.plan


class Chaos(_OnRecord):
    """A network in which some answers are broken; for a `LoopbackServer`, a `Simulation` or a `ScriptedTransport`.

    Args:
        network: Who answers, such as a `VendorScript`. It is not asked where a fault stands in an answer's place.
        faults: Those to choose from, by name or as they are. By default all that are quick and of ordinary size.
        share: How many of the requests are broken, from 0 to 1.
        seed: The same seed breaks the same requests in the same way.
        plan: Instead of chance: which request, counted from 0, gets which fault. Another one's `plan` replays it.
    """

    def __init__(
        self,
        network: Network,
        faults: Iterable[FaultLike] | None = None,
        *,
        share: float = 0.05,
        seed: int = 0,
        plan: Mapping[int, FaultLike] | None = None,
    ) -> None:
        self._network = network
        self._dice = _Dice(faults, share, seed, plan)

    def __call__(self, request: WireRequest) -> Answer:
        at_server = not urlsplit(request.url).scheme  # a server sees paths, a client whole addresses
        number, fault = self._dice.throw(request, at_server=at_server)
        if fault is None:
            return self._network(request)
        good = Answer() if fault.replaces else self._network(request)
        broken = self._dice.broken(good, number, fault, request)
        return broken if at_server else in_process(broken)


class FaultyTransport(_OnRecord):
    """A transport that loses some of what it carries; pass it as `transport=` of an agent.

    An answer that is to be broken is read to its end first, so a broken stream begins later than a whole one would. A
    fault that stands in an answer's place sends nothing, and costs nothing.

    Args:
        transport: What carries the requests, such as `agent.transports.shared_transport("http")`.
        faults: As for `Chaos`.
        share: As for `Chaos`.
        seed: As for `Chaos`.
        plan: As for `Chaos`.
    """

    def __init__(
        self,
        transport: Transport,
        faults: Iterable[FaultLike] | None = None,
        *,
        share: float = 0.05,
        seed: int = 0,
        plan: Mapping[int, FaultLike] | None = None,
    ) -> None:
        self._transport = transport
        self._dice = _Dice(faults, share, seed, plan)

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply:
        number, fault = self._dice.throw(request, at_server=False)
        if fault is None:
            return self._transport.send(request, limits, timeout)
        reply = None if fault.replaces else self._transport.send(request, limits, timeout)
        return self._played(reply, number, fault, request).send(request, limits, timeout)

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        number, fault = self._dice.throw(request, at_server=False)
        if fault is None:
            return self._transport.open(request, limits, timeout)
        reply = None if fault.replaces else self._transport.send(request, limits, timeout)
        return self._played(reply, number, fault, request).open(request, limits, timeout)

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        number, fault = self._dice.throw(request, at_server=False)
        if fault is None:
            return await self._transport.asend(request, limits)
        reply = None if fault.replaces else await self._transport.asend(request, limits)
        return await self._played(reply, number, fault, request).asend(request, limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        number, fault = self._dice.throw(request, at_server=False)
        if fault is None:
            return await self._transport.aopen(request, limits, bodies)
        reply = None if fault.replaces else await self._transport.asend(request, limits)
        return await self._played(reply, number, fault, request).aopen(request, limits, bodies)

    def _played(self, reply: Reply | None, number: int, fault: Fault, request: WireRequest) -> ScriptedTransport:
        """The broken answer, from a transport that has nothing else to tell."""
        good = Answer() if reply is None else Answer([reply.body], status=reply.status, headers=reply.headers)
        broken = in_process(self._dice.broken(good, number, fault, request))
        return ScriptedTransport(lambda _: broken)
