"""A file of requests in, a file of answers out: as often as it is interrupted, every line gets one outcome.

Before anything is asked, the input is read once: two lines of one custom_id, and lines that were changed since they
were answered, are found then. Bad lines are no such error: they are reported among the failures.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from typing_extensions import override

from ..errors import (
    AuthenticationError,
    BudgetExceededError,
    ConfigurationError,
    ModelNotFoundError,
    QuotaExceededError,
    RoutingError,
    TimeoutError,
)
from ..types import AgentResponse
from .ledger import Ledger
from .records import Line, answered, failed, lines_of
from .streams import BatchStream
from .values import (
    CONCURRENCY,
    BatchInterrupted,
    BatchItem,
    BatchPlan,
    BatchProgress,
    Options,
    SendRequest,
    read_options,
)

if TYPE_CHECKING:
    from ..client import Client

Readable: TypeAlias = "str | os.PathLike[str] | BinaryIO"
_SHOWN = 5
_FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class FileReport:
    """What a file of requests has come to, in this run and in those before it."""

    total: int
    """Lines of the input, without the empty ones."""
    answered: int
    """How many of them have an answer."""
    failed: int
    """How many are among the failures."""
    progress: BatchProgress
    """Of this run alone."""
    stopped: str | None = None
    """Why it ended before the end of the input; None if it did not."""
    repaired: bool = False
    """Whether a crash had left half a line behind, which was cut off."""

    @property
    def left(self) -> int:
        """How many lines have no outcome yet. Run the same again, and they are asked."""
        return self.total - self.answered - self.failed

    @override
    def __str__(self) -> str:
        said = f"{self.answered} of {self.total} answered, {self.failed} failed"
        return f"{said}, {self.left} left" if self.left else said


def run_file(
    caller: Client,
    source: Readable,
    target: str | os.PathLike[str] | BinaryIO,
    *,
    failures: str | os.PathLike[str] | None = None,
    retry_failed: bool = False,
    concurrency: int = CONCURRENCY,
    on_progress: Callable[[BatchProgress], object] | None = None,
    **options: Any,
) -> FileReport:
    """Ask every line of a file, and write each answer as soon as it is there. Run again, it goes on where it stopped.

    ```python
    from pathlib import Path

    from agent.batch import read_answers, run_file
    from agent.testing import scripted_agent

    Path("in.jsonl").write_text('"one"\\n{"custom_id": "b", "prompt": "two"}\\n')
    report = run_file(scripted_agent(), "in.jsonl", "out.jsonl")
    assert (report.total, report.answered, report.failed) == (2, 2, 0)
    assert {answer.custom_id for answer in read_answers("out.jsonl")} == {None, "b"}
    ```

    Args:
        caller: An agent or a router.
        source: A file of JSON lines, or an open one. Each is text, an object with the fields of an `AgentRequest`
            (`prompt` is another name for `input`), or a line of the vendors' batch APIs; `custom_id` is yours.
        target: Where answers go, in the order in which they come. A stream is possible, too; then failures go there as
            well, and nothing can be resumed.
        failures: Where failures go; by default beside the target, as in `out.failed.jsonl`.
        retry_failed: Ask again what failed in earlier runs.
        concurrency: How many requests are under way at a time.
        on_progress: Called after each request.
        options: As for `batch`: fields of every request, `progress`, `max_failures`, `max_cost`, `max_seconds`.

    A key that is refused, an account without credit and a model that does not exist end the run: they say nothing about
    the line, which stays to be asked. The report has the reason in `stopped`.

    Raises:
        ConfigurationError: Nothing was asked: an id is there twice, the input is not the one that was answered before,
            another process writes to the output.
        BatchFileError: The output cannot be written any more. What is there is whole; run it again later.
        BatchInterrupted: Ctrl-C. `result` is the report so far.
    """
    ask, ours = read_options(caller, {**options, "concurrency": concurrency, "on_progress": on_progress})
    with ExitStack() as stack:
        given = stack.enter_context(_opened(source))
        ledger = _ledger(source, target, failures)
        stack.callback(ledger.close)
        run = _Run(ask, given, ledger)
        run.check(retry_failed=retry_failed)
        return run.go(ours)


class _Run:
    """One run over a file."""

    def __init__(self, ask: SendRequest, source: BinaryIO, ledger: Ledger) -> None:
        self._ask_model = ask
        self._source = source
        self._ledger = ledger
        self._total = 0
        self._last = 0
        """The number of the last line that was checked; what somebody adds behind it is for the next run."""

    def check(self, *, retry_failed: bool) -> None:
        """Read the whole input once, and refuse what cannot be right."""
        ledger = self._ledger
        numbers: dict[str, int] = {}
        twice: list[str] = []
        changed: list[str] = []
        found = 0
        for line in lines_of(self._source):
            self._total += 1
            self._last = line.number
            if line.custom_id is not None:
                first = numbers.setdefault(line.custom_id, line.number)
                if first != line.number:
                    twice.append(f"{line.custom_id!r} on lines {first} and {line.number}")
            digest = ledger.answered.get(line.key)
            if digest is None and not retry_failed:
                digest = ledger.failed.get(line.key)
            if digest is not None:
                found += 1
                if digest != line.digest:
                    changed.append(f"line {line.number}")
        if twice:
            raise ConfigurationError(
                f"A custom_id is there more than once: {_some(twice)}.",
                field="custom_id",
                fix="Give each line an id of its own, or none.",
            )
        expected = len(ledger.answered) + (0 if retry_failed else len(ledger.failed))
        if changed or found != expected:
            gone = expected - found
            what = f"changed: {_some(changed)}" if changed else f"{gone} that have an outcome are not there any more"
            raise ConfigurationError(
                f"The input is not the one that was asked before; of its lines, {what}.",
                field="source",
                fix="Restore it, or choose another output. Lines that failed may be changed with retry_failed.",
            )
        if retry_failed:
            ledger.forget_failures()

    def go(self, options: Options) -> FileReport:
        """Ask what has no outcome yet."""
        ledger = self._ledger
        earlier = ledger.answers + ledger.failures
        plan = BatchPlan(
            self._ask, self._pending(), replace(options, total=self._total, earlier=earlier), awaiting=False
        )
        stream = BatchStream(plan)
        settling: BatchItem | None = None
        written = 0
        try:
            with stream:
                for item in stream:
                    written = ledger.answers + ledger.failures
                    settling = item
                    self._settle(item, stream)
                    settling = None
        except KeyboardInterrupt:
            cut_short = [settling] if settling is not None and ledger.answers + ledger.failures == written else []
            for item in (*cut_short, *stream.rest()):  # paid for, so kept
                self._settle(item, stream)
            ledger.sync()
            raise BatchInterrupted(self._report(stream)) from None
        ledger.sync()
        return self._report(stream)

    def _pending(self) -> Iterator[Line]:
        for line in lines_of(self._source):
            if line.number > self._last:
                return
            if line.key not in self._ledger.answered and line.key not in self._ledger.failed:
                yield line

    async def _ask(self, line: Line) -> AgentResponse:
        return await self._ask_model(line.request())

    def _settle(self, item: BatchItem, stream: BatchStream) -> None:
        """Write down what became of a line, unless it was not the line's doing: then it stays to be asked."""
        if item.error is not None:
            if stream.out_of_time and _ran_out_of_time(item.error):
                return
            progress = stream.progress
            trouble = _trouble_of_all(
                item.error,
                names_model=item.request.names_model,
                others_answered=progress.done > progress.failed,
            )
            if trouble is not None:
                stream.stop(f"{trouble} (line {item.request.number})")
                return
            if stream.stopped is not None and _nobody_was_asked(item.error):
                return
        self._write(item)

    def _write(self, item: BatchItem) -> None:
        line: Line = item.request
        try:
            written = answered(line, item.unwrap())
        except Exception as error:
            self._ledger.add_failure(failed(line, error))
        else:
            self._ledger.add_answer(written)

    def _report(self, stream: BatchStream) -> FileReport:
        ledger = self._ledger
        return FileReport(
            total=self._total,
            answered=ledger.answers,
            failed=ledger.failures,
            progress=stream.progress,
            stopped=stream.stopped,
            repaired=ledger.repaired,
        )


def _causes(error: Exception) -> Sequence[Exception]:
    return error.errors if isinstance(error, RoutingError) else (error,)


def _ran_out_of_time(error: Exception) -> bool:
    return any(isinstance(cause, TimeoutError) and cause.deadline for cause in _causes(error))


def _nobody_was_asked(error: Exception) -> bool:
    """As by a router all of whose targets have just proved useless."""
    return isinstance(error, RoutingError) and not error.errors


def _trouble_of_all(error: Exception, *, names_model: bool, others_answered: bool) -> str | None:
    """What failed here and would fail for every other line: a key, an account, a limit, the name of the model.

    It is not the fault of the line, which keeps its right to be asked.
    """
    if _nobody_was_asked(error) and getattr(error, "retryable", False):
        return str(error).partition("\n")[0]
    kinds: tuple[type[Exception], ...] = (AuthenticationError, QuotaExceededError, BudgetExceededError)
    if not names_model:
        kinds = (*kinds, ModelNotFoundError)
    causes = _causes(error)
    if not causes or not all(isinstance(cause, kinds) for cause in causes):
        return None
    forbidden = all(getattr(cause, "status_code", None) == _FORBIDDEN for cause in causes)
    if forbidden and (names_model or others_answered):
        return None  # the key is good for others: it is this line, or its model, that is refused
    return f"{type(causes[0]).__name__}: {causes[0]}"


def _some(found: list[str]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{', '.join(found[:_SHOWN])}{more}"


def _opened(source: Readable) -> BinaryIO:
    """The input, such that it can be read twice: what comes from a pipe is copied first."""
    if isinstance(source, str | os.PathLike):
        try:
            file: BinaryIO = open(source, "rb")  # noqa: SIM115  # closed by the caller
        except OSError as error:
            raise ConfigurationError(
                f"{os.fspath(source)} cannot be read: {error.strerror or error}.", field="source", fix="Name a file."
            ) from None
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        with file:
            return _copied(file)
    if isinstance(source, io.TextIOBase):
        raise ConfigurationError(
            "The input is open as text.", field="source", fix="Pass its path, or open it in binary mode."
        )
    return _copied(source)


def _copied(source: BinaryIO) -> BinaryIO:
    copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the caller
    shutil.copyfileobj(source, copy)
    return copy


def _ledger(source: Readable, target: Any, failures: str | os.PathLike[str] | None) -> Ledger:
    if not isinstance(target, str | os.PathLike):
        if failures is not None:
            raise ConfigurationError(
                "Answers go to a stream, and failures with them.", field="failures", fix="Leave it out."
            )
        return Ledger.on_stream(target)
    answers = Path(target)
    if answers.is_dir():
        raise ConfigurationError(f"{answers} is a folder.", field="target", fix="Name a file.")
    failing = Path(failures) if failures is not None else failures_beside(answers)
    names = {"target": answers, "failures": failing}
    if isinstance(source, str | os.PathLike):
        names = {"source": Path(source), **names}
    for (name, path), (other, there) in combinations(names.items(), 2):
        if _same(path, there):
            raise ConfigurationError(f"{name} and {other} are one file.", field=other, fix="Name another one.")
    return Ledger.in_files(answers, failing)


def failures_beside(target: Path) -> Path:
    """Where failures go if nobody says: `out.failed.jsonl` for `out.jsonl`."""
    return target.with_name(f"{target.stem}.failed{target.suffix or '.jsonl'}")


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there yet
        return os.path.abspath(one) == os.path.abspath(other)
