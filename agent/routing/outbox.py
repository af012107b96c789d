"""Outbox of a router with shared state: queued reports, and the availability of the store."""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from ..engine.locks import ForkSafe
from .router_state import Account, AdmitReply, AdmitRequest, Batch, HealthChange, RouterState, Settlement, Update

if TYPE_CHECKING:
    from .shared_state import SharedState

_RENEW_SECONDS = 20.0
SYNC_SECONDS = 1.0
"""Seconds between exchanges while nothing is settled, and between probes of a failed store."""
_GATHER_SECONDS = 0.02
"""Seconds in which settlements are gathered for one exchange."""
_WARNING_SECONDS = 60.0
"""Seconds between warnings about a store that cannot be used."""
_BATCH = 256
_MOST_QUEUED = 100_000
_MOST_EVENTS = 40
"""Events that a process reports each second: as many response times as a target remembers."""


class Outbox(ForkSafe):
    """Settlements, renewals and reports of one process, sent by a background thread.

    It also knows whether the store can be used. After a failure, calls do not touch the store until an exchange of the
    thread succeeds.
    """

    def __init__(self, shared: SharedState) -> None:
        super().__init__()
        self.store: RouterState = shared.store
        self.namespace: str = shared.namespace
        self.memory: Any = None
        """The router's memory of conversations."""
        self.epoch: str = ""
        self._shared = ref(shared)
        self._warned_at = -math.inf
        self._has_lost_data = False
        self._start_process()
        _outboxes.add(self)

    def _start_process(self) -> None:
        self._process = os.urandom(6).hex()
        self._number = 0
        self._ids = 0
        self._after = ""
        self._events_at = -math.inf
        self._settlements: deque[Settlement] = deque()
        self._changes: deque[HealthChange] = deque()
        self._events: deque[Any] = deque(maxlen=_MOST_EVENTS)
        self._limits: dict[str, Callable[[], list[Any]]] = {}
        """Remaining limits that the vendors of targets reported last."""
        self._batch: Batch | None = None
        """The batch that was sent, but not confirmed."""
        self.leases: dict[str, float] = {}
        """Leases of requests in flight, with the time of their latest renewal."""
        self.is_up: bool = True
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._exchanging = threading.Lock()

    def make_id(self) -> str:
        """Return the id of a new lease."""
        with self._lock:
            self._ids += 1
            return f"{self._process}:{self._ids}"

    # Calls

    def admit(self, request: AdmitRequest) -> AdmitReply | None:
        """Ask the store; None if it cannot be used."""
        self._notify(urgent=False)
        try:
            return self.store.admit(request)
        except Exception as error:
            self._fail(error)
            return None

    async def aadmit(self, request: AdmitRequest) -> AdmitReply | None:
        """Async version of `admit`."""
        self._notify(urgent=False)
        try:
            return await self.store.aadmit(request)
        except Exception as error:
            self._fail(error)
            return None

    def settle(self, settlement: Settlement) -> None:
        """Send a settlement in the background."""
        self.leases.pop(settlement.lease, None)
        if len(self._settlements) < _MOST_QUEUED:
            self._settlements.append(settlement)
        self._notify()

    def change(self, change: HealthChange) -> None:
        self._changes.append(change)
        self._notify()

    def add_event(self, event: Any) -> None:
        self._events.append(event)
        self._notify(urgent=False)

    def add_limits(self, name: str, read: Callable[[], list[Any]], *, urgent: bool) -> None:
        """Send the remaining limits of a target with the next events. Only the latest ones are read and sent."""
        self._limits[name] = read
        if urgent:
            self._events_at = -math.inf
        self._notify(urgent=urgent)

    def list_changed_targets(self) -> set[str]:
        """Targets with changes that the store does not know yet."""
        changes = [*list(self._changes), *(self._batch.changes if self._batch is not None else ())]
        return {change.target for change in changes}

    def restore(self, account: Account, spent: int) -> None:
        """Set the amount spent in an account. Raises if the store cannot be reached."""
        with self._exchanging:
            batch = self._make_batch(with_events=False)._replace(restored=(account, spent))
            self._apply(self.store.exchange(batch))

    def check_epoch(self, epoch: str) -> None:
        """Note the epoch. It changes when the store loses its data, and when they are restored."""
        if self.epoch and epoch != self.epoch and not epoch.startswith("restored"):
            if not self._has_lost_data:
                logging.getLogger("agent").warning("the shared state of a router lost its data")
            self._has_lost_data = self.store.policy == "fail_closed"
            if self._has_lost_data:
                return
        self.epoch, self._has_lost_data = epoch, False

    # Background

    def _notify(self, *, urgent: bool = True) -> None:
        if self.store.is_local:
            if urgent:
                self.flush()
            return
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._main, daemon=True, name="agent-shared-state")
                    self._thread.start()
        if urgent and not self._wake.is_set():
            self._wake.set()

    def _main(self) -> None:
        """Exchange until the router is gone and all settlements were sent."""
        wake, has_failed = self._wake, False
        while self._thread is threading.current_thread():
            if has_failed:
                time.sleep(SYNC_SECONDS)
            elif wake.wait(SYNC_SECONDS) and self.is_up:  # after a failed call, try at once
                time.sleep(_GATHER_SECONDS)
            wake.clear()
            has_failed = not self._flush(with_events=monotonic() >= self._events_at + SYNC_SECONDS)
            if self._shared() is None and (not self._has_work() or not self.is_up):
                self._thread = None
                return

    def _has_work(self) -> bool:
        return bool(self._settlements or self._changes or self._batch is not None)

    def flush(self) -> None:
        """Send everything now, unless the store cannot be used."""
        self._flush(with_events=True)

    def _flush(self, *, with_events: bool) -> bool:
        with self._exchanging:
            while self._exchange(with_events=with_events):
                if not self._has_work():
                    return True
            return False

    def _exchange(self, *, with_events: bool) -> bool:
        """Send one batch and apply the reply. An unconfirmed batch is sent again with its number."""
        batch = self._batch
        if batch is None:
            batch = self._batch = self._make_batch(with_events=with_events)
        now = monotonic()
        try:
            update = self.store.exchange(batch._replace(now=now))
        except Exception as error:
            self._fail(error)
            return False
        self._batch = None
        self._recover()
        self._apply(update)
        return True

    def _apply(self, update: Update) -> None:
        now = monotonic()
        self.check_epoch(update.epoch)
        shared = self._shared()
        if shared is not None:
            if update.health is not None:
                shared.apply_health(update.health, now)
            if self._after and update.events:
                shared.apply_events(update.events, self.memory, now)
        self._after = update.last or self._after

    def _make_batch(self, *, with_events: bool) -> Batch:
        now = monotonic()
        settlements = [self._settlements.popleft() for _ in range(min(_BATCH, len(self._settlements)))]
        changes = [self._changes.popleft() for _ in range(len(self._changes))]
        events = [self._events.popleft() for _ in range(len(self._events) if with_events else 0)]
        if with_events:
            self._events_at = now
            limits = [self._limits.popitem() for _ in range(len(self._limits))]
            events += [["l", name, *read()] for name, read in limits]
        renewals = [lease for lease, at in list(self.leases.items()) if now > at + _RENEW_SECONDS]
        for lease in renewals:
            if lease in self.leases:
                self.leases[lease] = now
        self._number += 1
        shared = self._shared()
        return Batch(
            self.namespace,
            self._process,
            self._number,
            tuple(settlements),
            tuple(renewals),
            tuple(changes),
            json.dumps(events) if events else "",
            self._after,
            0 if shared is None else shared._version,
            now,
        )

    def _fail(self, error: Exception) -> None:
        """Use the local state until an exchange succeeds."""
        self.is_up = False
        self._wake.set()
        if monotonic() > self._warned_at + _WARNING_SECONDS:
            self._warned_at = monotonic()
            logging.getLogger("agent").warning("the shared state of a router cannot be used: %s", type(error).__name__)

    def _recover(self) -> None:
        if not self.is_up:
            self.is_up = True
            logging.getLogger("agent").info("the shared state of a router can be used again")


_outboxes: WeakSet[Outbox] = WeakSet()


def flush_all() -> None:
    """Send what all routers of this process still have to report."""
    for outbox in list(_outboxes):
        with suppress(Exception):
            if outbox.is_up:
                outbox.flush()


def _after_fork() -> None:
    for outbox in list(_outboxes):
        outbox._start_process()  # the parent settles its own leases


atexit.register(flush_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
