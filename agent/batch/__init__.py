"""Batches: many concurrent requests, their results, and a file runner that resumes after crashes.

```python
from agent.testing import scripted_agent

result = scripted_agent().batch(["one", "two", "three"], concurrency=2)
assert [response.text for response in result.unwrap()] == ["You said: one", "You said: two", "You said: three"]
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._missing_names import reject_names
from .files import FileReport, run_file
from .job_runs import run_file_job
from .jobs import BatchCounts, BatchJob
from .ledger import BatchAnswer, BatchFileError, read_answers
from .streams import AsyncBatchStream, BatchCancelled, BatchStream
from .values import BatchInputError, BatchInterrupted, BatchItem, BatchProgress, BatchResult

__all__ = [
    "AsyncBatchStream",
    "BatchAnswer",
    "BatchCancelled",
    "BatchCounts",
    "BatchFileError",
    "BatchInputError",
    "BatchInterrupted",
    "BatchItem",
    "BatchJob",
    "BatchProgress",
    "BatchResult",
    "BatchStream",
    "FileReport",
    "read_answers",
    "run_file",
    "run_file_job",
]

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, __all__)
