"""Data engines: requests in the rows of a dataset, with a ledger of answered rows.

It works with Ray, Daft, Dask and Spark, and every other engine that calls a function with columns.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json, to_jsonable_python
from typing_extensions import Unpack

from ..agent import Agent
from ..batch.ledger import FileOutput
from ..batch.values import BatchItem, BatchProgress, check_configuration, list_usages, sum_costs
from ..calls.requests import read_request
from ..client import Client
from ..engine.drivers.user_code import LoopThread
from ..errors import ConfigurationError
from ..types import AgentRequest
from ..types.options import CompleteOptions, JsonSchema, OutputType

__all__ = ["ColumnRunner", "RowLedger"]

FACTS = ("error", "model", "input_tokens", "output_tokens", "cost")
"""Output columns besides the answer."""


class ColumnRunner:
    """Sends a request per row: columns in, the same columns and the answers out.

    It is picklable and holds no keys: every process creates its own client, which reads keys from its environment.

    ```python
    from agent.integrations import ColumnRunner

    runner = ColumnRunner("scripted:test", "question")
    table = runner({"id": [1, 2], "question": ["one", "two"]})
    assert table["answer"] == ["You said: one", "You said: two"]
    ```

    Args:
        client: `provider:model`, or a function that returns an agent or a router.
        text_column: Column with the text of the request.
        messages_column: Column with conversations, as lists of dicts, instead of text.
        key_column: Column that tells rows with equal requests apart. Without it, they share an answer in the ledger.
        schema: Schema of the output, which becomes the column `output`: a dict, or a JSON value.
        ledger: Folder for answered rows. A restarted job repeats only the requests that were in flight.
        concurrency: Maximum number of requests in flight per process.
        prefix: Text before the names of the output columns.
        options: Options of every request, as for `complete`.
    """

    def __init__(
        self,
        client: str | Callable[[], Client],
        text_column: str | None = None,
        *,
        messages_column: str | None = None,
        key_column: str | None = None,
        schema: OutputType[Any] | JsonSchema | None = None,  # Any: the output becomes JSON
        ledger: str | os.PathLike[str] | None = None,
        concurrency: int = 64,
        prefix: str = "",
        **options: Unpack[CompleteOptions],
    ) -> None:
        if not (isinstance(client, str) or callable(client)):
            raise ConfigurationError(
                f"client is of type {type(client).__name__}.",
                field="client",
                fix='Pass "provider:model", or a function that returns the agent or router: each process calls it.',
            )
        if (text_column is None) == (messages_column is None):
            raise ConfigurationError(
                "A row needs one column with its request.",
                field="text_column",
                fix="Pass either text_column= or messages_column=.",
            )
        if concurrency < 1:
            raise ConfigurationError(
                f"concurrency is {concurrency}.", field="concurrency", fix="Use a whole number of at least 1."
            )
        for name in ("api_key", "headers"):
            if options.get(name):
                raise ConfigurationError(
                    f"{name} would be stored with the job.",
                    field=name,
                    fix=f"Pass a function as client, which sets {name} in each process.",
                )
        self._client = client
        self._source = text_column or messages_column or ""
        self._key = key_column
        self._ledger = ledger
        self._prefix = prefix
        self._options: dict[str, Any] = {**options} if schema is None else {**options, "schema": schema}
        self._id = uuid.uuid4().hex
        self.concurrency: int = concurrency
        request = read_request("", self._options)  # raises for invalid options
        settings = {"client": client if isinstance(client, str) else client.__qualname__}
        self._digest = _digest(settings, request.copy_with(output_schema=request.output_json_schema))
        answer = ("answer",) if schema is None else ("answer", "output")
        self.columns: tuple[str, ...] = tuple(prefix + name for name in (*answer, *FACTS))
        """Names of the output columns."""

    def __call__(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:  # Any: arrays of every library
        """Return the columns with those of the answers. An error of a row is in its column `error`."""
        rows = self._read_rows(columns)
        worker = _get_worker(self)
        pending = worker.thread.submit(worker.answer_all(rows), contextvars.copy_context())
        try:
            pending.done.wait()
        except BaseException:
            pending.cancel()
            raise
        answers: list[dict[str, Any]] = pending.result()
        names = [name.removeprefix(self._prefix) for name in self.columns]
        added = {self._prefix + name: [answer[name] for answer in answers] for name in names}
        return {**{name: columns[name] for name in columns}, **added}

    @property
    def ledger(self) -> RowLedger | None:
        """The ledger, opened in this process."""
        return None if self._ledger is None else RowLedger(self._ledger)

    def create_client(self) -> Client:
        """Create the client of this process. Raises for errors that would affect every row."""
        client = Agent(self._client) if isinstance(self._client, str) else self._client()
        if not isinstance(client, Client):
            raise ConfigurationError(
                f"The function returned a {type(client).__name__}.", field="client", fix="Return an agent or a router."
            )
        check_configuration(client)
        return client

    def _read_rows(self, columns: Mapping[str, Sequence[Any]]) -> list[_Row]:
        names = list(columns)
        for needed in (self._source, self._key):
            if needed is not None and needed not in names:
                raise ConfigurationError(
                    f"There is no column {needed!r}.",
                    field=needed,
                    fix=f"The columns are {', '.join(map(str, names))}.",
                )
        if taken := sorted({*names} & {*self.columns}):
            raise ConfigurationError(
                f"The data already has a column {taken[0]!r}.",
                field="prefix",
                fix="Pass a prefix, such as prefix='llm_'.",
            )
        keys = _to_list(columns[self._key]) if self._key is not None else None
        return [
            _Row(content, _digest(self._digest, content, None if keys is None else keys[index]))
            for index, content in enumerate(_to_list(columns[self._source]))
        ]


class _Row(NamedTuple):
    content: Any
    """The text or the messages of the request."""
    key: str
    """The key in the ledger."""


class _Worker:
    """Client, ledger, event loop and concurrency, which all copies of a runner share in one process."""

    def __init__(self, runner: ColumnRunner) -> None:
        self._client = runner.create_client()
        self._options = runner._options
        self._has_output = "schema" in runner._options
        self._ledger = runner.ledger
        self._slots = asyncio.Semaphore(runner.concurrency)
        self.thread = LoopThread()

    async def answer_all(self, rows: Sequence[_Row]) -> list[dict[str, Any]]:
        if self._ledger is not None:
            self._ledger.refresh()
        answers = await asyncio.gather(*map(self._answer, rows))
        if self._ledger is not None:
            self._ledger.sync()
        return answers

    async def _answer(self, row: _Row) -> dict[str, Any]:
        if self._ledger is not None and (found := self._ledger.find(row.key)) is not None:
            return found
        async with self._slots:
            item = await self._send(row.content)
            columns = self._to_columns(item)
            if self._ledger is not None:
                self._ledger.append(row.key, columns, failed=item.error is not None)
        return columns

    async def _send(self, content: Any) -> BatchItem[Any]:
        try:
            request = content if isinstance(content, str) else [dict(message) for message in _to_list(content)]
            return BatchItem(0, None, await self._client.acomplete(request, **self._options))
        except Exception as error:  # also one of the user's code: other rows are not affected
            return BatchItem(0, None, error=error)

    def _to_columns(self, item: BatchItem[Any]) -> dict[str, Any]:
        response, error = item.response, item.error
        cost, _, unpriced = sum_costs(item)
        usages = list_usages(item)
        output = (
            {"output": None if response is None else to_jsonable_python(response.output)} if self._has_output else {}
        )
        return {
            "answer": None if response is None else response.text,
            **output,
            "error": None if error is None else f"{type(error).__name__}: {error}",
            "model": None if response is None else response.model,
            "input_tokens": sum(usage.prompt_tokens for usage in usages) if usages else None,
            "output_tokens": sum(usage.completion_tokens for usage in usages) if usages else None,
            "cost": None if unpriced or not usages else cost,
        }


_workers: dict[tuple[int, str], _Worker] = {}
"""The workers of this process, by process id and runner."""
_creating = threading.Lock()


def _get_worker(runner: ColumnRunner) -> _Worker:
    with _creating:
        place = os.getpid(), runner._id
        if place not in _workers:
            _workers[place] = _Worker(runner)
        return _workers[place]


def _to_list(values: Any) -> list[Any]:
    """Return a list, also of the arrays of numpy, pandas and Arrow."""
    for method in ("to_pylist", "tolist"):
        if hasattr(values, method):
            return list(getattr(values, method)())
    return list(values)


def _digest(*values: Any) -> str:
    encoded = [
        value.model_dump_json().encode() if isinstance(value, AgentRequest) else to_json(value, fallback=str)
        for value in values
    ]
    return hashlib.sha256(b"\0".join(encoded)).hexdigest()[:32]


# Ledger


class RowLedger:
    """Rows that are answered, by a key.

    Every process appends to a file of its own and reads those of the others, so the folder may be on a shared file
    system. A row that a killed process was writing is incomplete, and is ignored.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder: Path = Path(folder)
        self._name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self._file: FileOutput | None = None
        self._size = 0
        self._read_until: dict[str, int] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self._failed: set[str] = set()
        self._cost = 0.0
        self._unpriced = self._tokens = 0
        self._lock = threading.Lock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"{self.folder} cannot be created: {error.strerror or error}.",
                field="ledger",
                fix="Use another folder.",
            ) from None

    def refresh(self) -> None:
        """Read what other processes have added."""
        with self._lock:
            for path in sorted(self.folder.glob("*.jsonl")):
                if path.name != self._name:
                    self._read(path)

    def find(self, key: str) -> dict[str, Any] | None:  # Any: columns of every type
        """Return the output columns of an answered row, or None."""
        place = self._places.get(key)
        if place is None:
            return None
        name, offset = place
        with open(self.folder / name, "rb") as file:
            file.seek(offset)
            columns: dict[str, Any] = from_json(file.readline())["columns"]
        return columns

    def append(self, key: str, columns: Mapping[str, Any], *, failed: bool) -> None:  # Any: columns of every type
        """Add an answered or failed row. Failed rows are counted, and sent again by the next run."""
        line = to_json({"key": key, "failed": failed, "columns": dict(columns)}) + b"\n"
        with self._lock:
            if self._file is None:
                self._file = FileOutput(self.folder / self._name, "ledger")
            self._file.append(line)
            offset, self._size = self._size, self._size + len(line)
            self._add(self._name, offset, from_json(line))

    def sync(self) -> None:
        """Flush to the disk."""
        with self._lock:
            if self._file is not None:
                self._file.sync()

    @property
    def progress(self) -> BatchProgress:
        """Rows, cost and tokens of all processes, as of the last `refresh`."""
        with self._lock:
            failed = len(self._failed - self._places.keys())
            return BatchProgress(
                done=len(self._places) + failed,
                failed=failed,
                known_cost=self._cost,
                unpriced=self._unpriced,
                tokens=self._tokens,
            )

    def _read(self, path: Path) -> None:
        offset = self._read_until.get(path.name, 0)
        with open(path, "rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    self._add(path.name, offset, from_json(line))
                except (ValueError, KeyError, TypeError):
                    raise ConfigurationError(
                        f"{path} has a line at byte {offset} that no ledger wrote.",
                        field="ledger",
                        fix="Use another folder, or remove the file.",
                    ) from None
                offset += len(line)
        self._read_until[path.name] = offset

    def _add(self, name: str, offset: int, row: dict[str, Any]) -> None:
        key, columns = row["key"], row["columns"]
        if row["failed"]:
            self._failed.add(key)
        else:
            self._places[key] = name, offset
        cost = columns["cost"]
        self._cost += cost or 0.0
        self._unpriced += cost is None and bool(columns["input_tokens"])
        self._tokens += (columns["input_tokens"] or 0) + (columns["output_tokens"] or 0)
