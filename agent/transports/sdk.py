"""Sends through a client of an official SDK that the caller brings: its address, key and proxies stay in use.

What it sends is the body that our codec wrote, and what comes back is read by our codec; the SDK neither retries nor
interprets. A blocking client works in a thread of its own, so that time limits and cancellation are exact, and so
serves `await`, too. A call that is left before its answer has begun cannot be interrupted there: its thread stays
behind, and hangs up as soon as the answer comes, or the attempt's timeout.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from typing_extensions import override

from .. import errors
from ..providers.brought import BroughtClient, kind_of
from ..wire import AsyncBody, Limits, Live, Reply, SyncBody, WireRequest
from .sdk_genai import GenaiPath
from .sdk_post import PostPath
from .sdk_shared import Opened, ours, refusal, unwrapper
from .threaded import Head, Stepper, Steps, acollect, aopen_body, collect, open_body


class SdkPath(Protocol):
    """One SDK's way to send a body that it did not write. A refusal by the vendor is raised as the SDK raises it."""

    def open(self, request: WireRequest, limits: Limits) -> Opened: ...

    async def aopen(self, request: WireRequest, limits: Limits) -> Opened: ...


_PATHS: dict[str, Callable[[Any], SdkPath]] = {"post": PostPath, "genai": GenaiPath}


class SdkTransport:
    """Carries requests through a brought client."""

    def __init__(self, client: Any) -> None:
        self._kind: BroughtClient = kind_of(client)
        self._path = _PATHS[self._kind.path](client)
        self._lock = threading.Lock()
        self._home: weakref.ref[Any] | None = None

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._kind.name})"

    @override
    def __reduce__(self) -> Any:
        raise TypeError("a client holds connections and credentials and cannot be pickled; make one over there")

    def send(self, request: WireRequest, limits: Limits, live: Live) -> Reply:
        return collect(self.open(request, limits, live), limits, live)

    def open(self, request: WireRequest, limits: Limits, live: Live) -> SyncBody:
        if not self._kind.blocking:
            raise errors.ConfigurationError(
                f"A client of type {self._kind.name} has to be awaited.",
                field="client",
                fix="Call the agent's async methods (acomplete, astream), or bring the blocking client of that SDK.",
            )
        return open_body(self._in_thread(request, limits), live)

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        return await acollect(await self.aopen(request, limits, []), limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        if not self._kind.awaiting or (self._kind.blocking and not self._is_home()):
            return await aopen_body(self._in_thread(request, limits), bodies)
        body = _AwaitedBody(_asteps(self._path, request, limits))
        bodies.append(body)
        try:
            await body.begin()
        except BaseException:
            bodies.remove(body)
            body.closed = True
            await body.aclose()
            raise
        return body

    def _is_home(self) -> bool:
        """Whether this is the loop that the client's async side was first used on: its connections belong to that one.

        Other loops get the blocking side, in a thread.
        """
        running = asyncio.get_running_loop()
        with self._lock:
            if self._home is None:
                self._home = weakref.ref(running)
            return self._home() is running

    def _in_thread(self, request: WireRequest, limits: Limits) -> Stepper:
        return Stepper(lambda stepper: _steps(self._path, request, limits, stepper), contextvars.copy_context())


def _steps(path: SdkPath, request: WireRequest, limits: Limits, stepper: Stepper) -> Steps:
    opened: Opened | None = None
    try:
        try:
            opened = path.open(request, limits)
        except Exception as error:
            yield from refusal(error)
            return
        stepper.interrupt = opened.hang_up()
        unwrap = unwrapper(opened.head)
        yield opened.head
        for chunk in opened.chunks():
            if piece := unwrap(chunk):
                yield piece
    except Exception as error:
        raise ours(error, request.target) from error
    finally:
        if opened is not None:
            opened.close()


async def _asteps(path: SdkPath, request: WireRequest, limits: Limits) -> AsyncGenerator[Head | bytes, None]:
    opened: Opened | None = None
    try:
        try:
            opened = await path.aopen(request, limits)
        except Exception as error:
            for step in refusal(error):
                yield step
            return
        unwrap = unwrapper(opened.head)
        yield opened.head
        async for chunk in opened.achunks():
            if piece := unwrap(chunk):
                yield piece
    except Exception as error:
        raise ours(error, request.target) from error
    finally:
        if opened is not None:
            await opened.aclose()


class _AwaitedBody(AsyncBody):
    """An async client's answer."""

    __slots__ = ("_steps",)

    def __init__(self, steps: AsyncGenerator[Head | bytes, None]) -> None:
        super().__init__(0, {})
        self._steps = steps

    async def begin(self) -> None:
        head = await anext(self._steps)
        assert isinstance(head, Head)
        self.status, self.headers = head

    @override
    async def read(self) -> bytes:
        step = await anext(self._steps, b"")
        assert isinstance(step, bytes)
        return step

    @override
    async def aclose(self) -> None:
        await self._steps.aclose()
