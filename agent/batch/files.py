"""`run_file` processes a batch file: requests in, responses out, resumable after any interruption.

The input is first read completely, to detect repeated ids and lines that changed since an earlier run. Invalid lines
are reported as failures.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from typing_extensions import Unpack, override

from ..errors import (
    AuthenticationError,
    BudgetExceededError,
    ConfigurationError,
    ModelNotFoundError,
    QuotaExceededError,
    RoutingError,
    TimeoutError,
    printable,
)
from ..types import AgentResponse
from .ledger import Ledger, Line, encode_failure, encode_response, read_lines
from .streams import BatchStream
from .values import (
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
    from ..types.options import BatchOptions, JsonSchema, OutputType

Readable: TypeAlias = "str | os.PathLike[str] | BinaryIO"
_MAX_LISTED = 5
_FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class FileReport:
    """Totals of a file batch, including earlier runs."""

    total: int
    """Lines of the input, without empty ones."""
    answered: int
    """Lines with a response."""
    failed: int
    """Lines with a failure."""
    progress: BatchProgress
    """Progress of this run only."""
    stopped: str | None = None
    """Why the run ended before the end of the input, or None."""
    repaired: bool = False
    """Whether a partial line from a crash was truncated."""

    @property
    def left(self) -> int:
        """Lines without an outcome. The next run sends them."""
        return self.total - self.answered - self.failed

    @override
    @printable
    def __str__(self) -> str:
        text = f"{self.answered} of {self.total} answered, {self.failed} failed"
        return f"{text}, {self.left} left" if self.left else text


def run_file(
    caller: Client,
    source: Readable,
    target: str | os.PathLike[str] | BinaryIO,
    *,
    failures: str | os.PathLike[str] | None = None,
    retry_failed: bool = False,
    schema: OutputType[Any] | JsonSchema | None = None,  # Any: outputs are written as JSON
    **options: Unpack[BatchOptions],
) -> FileReport:
    """Send every line of a file, and write each response when it arrives. A second run resumes.

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
        caller: The agent or router.
        source: A file of JSON lines, as a path or opened in binary mode. Each line is text, an object with the fields
            of an `AgentRequest` (`prompt` is an alias of `input`), or a line in the format of batch APIs. `custom_id`
            is optional.
        target: The output file, in order of completion. A stream also receives the failures, and cannot be resumed.
        failures: The file for failures. Defaults to one beside the target, such as `out.failed.jsonl`.
        retry_failed: Send lines again that failed in earlier runs.
        schema: Schema of every output.
        options: As for `batch`: options of every request, `concurrency`, `on_progress`, `max_cost` and other limits.

    An invalid API key, an exhausted quota or an unknown model stops the run, since every line would fail. The affected
    lines are sent by the next run; the report has the reason in `stopped`.

    Raises:
        ConfigurationError: Nothing was sent: an id is repeated, the input changed since the earlier run, or another
            process writes to the output.
        BatchFileError: The output cannot be written. Its lines are intact, and the next run resumes.
        BatchInterrupted: Ctrl-C. `result` is the report so far.
    """
    send, batch_options = read_options(caller, {**options, "schema": schema} if schema is not None else options)
    with ExitStack() as stack:
        file = stack.enter_context(open_input(source))
        ledger = open_ledger(source, target, failures)
        stack.callback(ledger.close)
        run = FileRun(send, file, ledger)
        run.check(retry_failed=retry_failed)
        return run.process(batch_options)


class FileRun:
    """One run over a file of requests."""

    def __init__(self, send: SendRequest, source: BinaryIO, ledger: Ledger) -> None:
        self._send_request = send
        self._source = source
        self._ledger = ledger
        self._total = 0
        self._last = 0
        """Number of the last checked line. Lines appended later belong to the next run."""

    def check(self, *, retry_failed: bool) -> None:
        """Read the whole input once and reject inconsistencies."""
        ledger = self._ledger
        numbers: dict[str, int] = {}
        repeated: list[str] = []
        changed: list[str] = []
        finished = 0
        for line in read_lines(self._source):
            self._total += 1
            self._last = line.number
            if line.custom_id is not None:
                first = numbers.setdefault(line.custom_id, line.number)
                if first != line.number:
                    repeated.append(f"{line.custom_id!r} on lines {first} and {line.number}")
            digest = ledger.answered.get(line.key)
            if digest is None and not retry_failed:
                digest = ledger.failed.get(line.key)
            if digest is not None:
                finished += 1
                if digest != line.digest:
                    changed.append(f"line {line.number}")
        if repeated:
            raise ConfigurationError(
                f"A custom_id occurs several times: {_format_list(repeated)}.",
                field="custom_id",
                fix="Use unique ids, or none.",
            )
        expected = len(ledger.answered) + (0 if retry_failed else len(ledger.failed))
        if changed or finished != expected:
            missing = expected - finished
            problem = f"changed: {_format_list(changed)}" if changed else f"missing lines: {missing}"
            raise ConfigurationError(
                f"The input differs from the one of the earlier run; {problem}.",
                field="source",
                fix="Restore it, or choose another output. With retry_failed, failed lines may be changed.",
            )
        if retry_failed:
            ledger.clear_failures()

    def process(self, options: Options) -> FileReport:
        """Send the lines without an outcome."""
        ledger = self._ledger
        earlier = ledger.answers + ledger.failures
        plan = BatchPlan(
            self._send,
            self._list_unanswered_lines(),
            replace(options, total=self._total, earlier=earlier),
            awaiting=False,
        )
        stream = BatchStream(plan)
        current: BatchItem | None = None
        written = 0
        try:
            with stream:
                for item in stream:
                    written = ledger.answers + ledger.failures
                    current = item
                    self._record(item, stream)
                    current = None
        except KeyboardInterrupt:
            unsaved = [current] if current is not None and ledger.answers + ledger.failures == written else []
            for item in (*unsaved, *stream.rest()):  # keep paid responses
                self._record(item, stream)
            ledger.sync()
            raise BatchInterrupted(self._report(stream)) from None
        ledger.sync()
        return self._report(stream)

    def _list_unanswered_lines(self) -> Iterator[Line]:
        for line in read_lines(self._source):
            if line.number > self._last:
                return
            if line.key not in self._ledger.answered and line.key not in self._ledger.failed:
                yield line

    async def _send(self, line: Line) -> AgentResponse:
        return await self._send_request(line.request())

    def _record(self, item: BatchItem, stream: BatchStream) -> None:
        """Write the outcome of a line.

        A problem that affects every line stops the run instead, and leaves the line unsent.
        """
        if item.error is not None:
            if stream.out_of_time and _is_deadline_error(item.error):
                return
            progress = stream.progress
            problem = _find_fatal_problem(
                item.error,
                names_model=item.request.names_model,
                others_answered=progress.done > progress.failed,
            )
            if problem is not None:
                stream.stop(f"{problem} (line {item.request.number})")
                return
            if stream.stopped is not None and _has_no_attempt(item.error):
                return
        self._write(item)

    def _write(self, item: BatchItem) -> None:
        line: Line = item.request
        try:
            written = encode_response(line, item.unwrap())
        except Exception as error:
            self._ledger.add_failure(encode_failure(line, error))
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


def _is_deadline_error(error: Exception) -> bool:
    return any(isinstance(cause, TimeoutError) and cause.deadline for cause in _causes(error))


def _has_no_attempt(error: Exception) -> bool:
    """Whether a router had no usable target."""
    return isinstance(error, RoutingError) and not error.errors


def _find_fatal_problem(error: Exception, *, names_model: bool, others_answered: bool) -> str | None:
    """Return the problem if every other line would fail too.

    Such problems are API keys, quotas, spend limits and the model name.
    """
    if _has_no_attempt(error) and getattr(error, "retryable", False):
        return str(error).partition("\n")[0]
    kinds: tuple[type[Exception], ...] = (AuthenticationError, QuotaExceededError, BudgetExceededError)
    if not names_model:
        kinds = (*kinds, ModelNotFoundError)
    causes = _causes(error)
    if not causes or not all(isinstance(cause, kinds) for cause in causes):
        return None
    forbidden = all(getattr(cause, "status_code", None) == _FORBIDDEN for cause in causes)
    if forbidden and (names_model or others_answered):
        return None  # the key works for other lines: this line or its model is forbidden
    return f"{type(causes[0]).__name__}: {causes[0]}"


def _format_list(items: list[str]) -> str:
    more = f" and {len(items) - _MAX_LISTED} more" if len(items) > _MAX_LISTED else ""
    return f"{', '.join(items[:_MAX_LISTED])}{more}"


def open_input(source: Readable) -> BinaryIO:
    """Open the input so that it can be read twice. Pipes are copied to a temporary file."""
    if isinstance(source, str | os.PathLike):
        try:
            file: BinaryIO = open(source, "rb")  # noqa: SIM115  # closed by the caller
        except OSError as error:
            raise ConfigurationError(
                f"{os.fspath(source)} cannot be read: {error.strerror or error}.",
                field="source",
                fix="Pass a readable file.",
            ) from None
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        with file:
            return _copy_to_temporary(file)
    if isinstance(source, io.TextIOBase):
        raise ConfigurationError(
            "The input is opened in text mode.", field="source", fix="Pass its path, or open it in binary mode."
        )
    return _copy_to_temporary(source)


def _copy_to_temporary(source: BinaryIO) -> BinaryIO:
    copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the caller
    shutil.copyfileobj(source, copy)
    return copy


def open_ledger(source: Readable, target: Any, failures: str | os.PathLike[str] | None) -> Ledger:
    if not isinstance(target, str | os.PathLike):
        if failures is not None:
            raise ConfigurationError(
                "With a stream as target, failures go to the stream too.", field="failures", fix="Remove it."
            )
        return Ledger.to_stream(target)
    answers = Path(os.fsdecode(target))
    if answers.is_dir():
        raise ConfigurationError(f"{answers} is a directory.", field="target", fix="Pass a file.")
    failing = Path(os.fsdecode(failures)) if failures is not None else default_failures_path(answers)
    names = {"target": answers, "failures": failing}
    if isinstance(source, str | os.PathLike):
        names = {"source": Path(source), **names}
    for (name, path), (other, there) in combinations(names.items(), 2):
        if _is_same_file(path, there):
            raise ConfigurationError(f"{name} and {other} are the same file.", field=other, fix="Choose another file.")
    return Ledger.open_files(answers, failing)


def default_failures_path(target: Path) -> Path:
    """Return the default file for failures: `out.failed.jsonl` for `out.jsonl`."""
    return target.with_name(f"{target.stem}.failed{target.suffix or '.jsonl'}")


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one does not exist yet
        return os.path.abspath(one) == os.path.abspath(other)
