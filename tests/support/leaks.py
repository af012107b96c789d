"""Search of failures for secrets: in all frames, causes, attributes and pickles."""

from __future__ import annotations

import base64
import io
import json
import logging
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
SPELLINGS = (
    {KEY, quote(KEY), quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode(), KEY.encode().hex()}
    | {KEY[start : start + RUN] for start in range(len(KEY) - RUN + 1)}
    | {json.dumps(KEY)[1:-1]}
)


def traces_of_the_key(text: str) -> list[str]:
    return [trace for trace in SPELLINGS if trace in text]


def assert_hidden(name: str, value: Any) -> None:
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    assert traces_of_the_key(text) == [], f"{name} shows the key"


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield all exceptions that can be reached from one, including suppressed ones."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        linked = [current.__cause__, current.__context__, *getattr(current, "errors", ()), *getattr(current, "exceptions", ())]
        waiting += [other for other in linked if isinstance(other, BaseException)]


def frames_of(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames of an exception, except those of tests."""
    step = error.__traceback__
    while step is not None:
        if not any(x in step.tb_frame.f_code.co_filename for x in ("/tests/", "/tmp/attack")):
            yield step.tb_frame
        step = step.tb_next


def views_of(error: BaseException) -> Iterator[tuple[str, Any]]:
    """Yield everything that an error reporter could show of a failure."""
    for each in chain_of(error):
        kind = type(each).__name__
        yield f"{kind}: str", str(each)
        yield f"{kind}: repr", repr(each)
        yield f"{kind}: args", repr(each.args)
        yield f"{kind}: vars", repr(vars(each))
        for frame in frames_of(each):
            for name, value in frame.f_locals.items():
                where = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_qualname}"
                try: v = repr(value)
                except Exception as err: v = f"UNPRINTABLE {KEY} {err!r}"
                yield f"{kind}: local {name} of {where}", v
        if isinstance(each, errors.AgentError):
            yield f"{kind}: pickle", pickle.dumps(each)
    try:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True, compact=False)
    except Exception as err:
        yield "the traceback UNPRINTABLE", KEY
    else: yield "the traceback", "".join(line for line in shown.format() if "/tests/" not in line)


class LogView(logging.Handler):
    """Collects log records with all their attributes."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.text = io.StringIO()

    def emit(self, record: logging.LogRecord) -> None:
        self.text.write(f"{record.getMessage()} {record.__dict__}\n")
