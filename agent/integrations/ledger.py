"""Ledger of answered rows: a folder of append-only files, one per process."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from ..batch.ledger import FileOutput
from ..batch.values import BatchProgress
from ..errors import ConfigurationError


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
