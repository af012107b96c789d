"""Search of failures for secrets: in all frames, causes, attributes and pickles."""

from __future__ import annotations

import base64
import pickle
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any
from urllib.parse import quote

from agent import errors

KEY = "sk-canary/Zm9vYmFy+0123456789=abcdefghij"
RUN = 8
"""So many characters of the key in a row are already too many."""
_SPELLINGS = (
    {KEY, quote(KEY), quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode(), KEY.encode().hex()}
    | {KEY[start : start + RUN] for start in range(len(KEY) - RUN + 1)}
)  # fmt: skip


def traces_of_the_key(text: str) -> list[str]:
    return [trace for trace in _SPELLINGS if trace in text]


def assert_hidden(name: str, value: Any) -> None:
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    assert traces_of_the_key(text) == [], f"{name} shows the key"


def assert_no_trace(error: BaseException) -> None:
    """Assert that everything an error reporter could read can be printed, and hides the key."""
    for name, view in views_of(error):
        assert_hidden(name, view)


def views_of(error: BaseException) -> Iterator[tuple[str, Any]]:
    for each in chain_of(error):
        kind = type(each).__name__
        yield f"{kind}: str", str(each)
        yield f"{kind}: repr", repr(each)
        yield f"{kind}: args", repr(each.args)
        yield f"{kind}: vars", repr(vars(each))
        for frame in frames_of(each):
            for name, value in frame.f_locals.items():
                yield f"{kind}: local {name} of {frame.f_code.co_qualname} in {frame.f_code.co_filename}", repr(value)
        if isinstance(each, errors.AgentError):
            yield f"{kind}: pickle", pickle.dumps(each)
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    yield "the traceback", "".join(line for line in shown.format() if "/tests/" not in line)


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield all exceptions that one refers to, including suppressed ones."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        linked: list[Any] = [each.__cause__, each.__context__]
        if isinstance(each, errors.RoutingError):
            linked += each.errors
        elif isinstance(each, BaseExceptionGroup):
            linked += each.exceptions
        waiting += [other for other in linked if other is not None]


def frames_of(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames of an exception, except those of tests."""
    step = error.__traceback__
    while step is not None:
        if "/tests/" not in step.tb_frame.f_code.co_filename:
            yield step.tb_frame
        step = step.tb_next
