"""Data engines: requests in the rows of a dataset, with Ray, Daft, Dask and Spark."""

from __future__ import annotations

from .columns import ColumnRunner, RowLedger

__all__ = ["ColumnRunner", "RowLedger"]
