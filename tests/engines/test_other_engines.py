"""One thousand rows on Daft, Dask and Spark: the recipes of the guide with a real server."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.integrations import ColumnRunner
from agent.testing import LoopbackServer
from tests.engines.workload import ADDRESS, Upstream, connect

ROWS = 1_000
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore"),  # of the engines
]


def needs(engine: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(engine) is None, reason=f"{engine} is not installed")


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    network = Upstream()
    with LoopbackServer(network) as server:
        monkeypatch.setenv(ADDRESS, f"{server.url}/v1")
        # Worker processes of Spark import this package from here.
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]))
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        yield network


def check(upstream: Upstream, answers: dict[int, str]) -> None:
    assert answers == {number: f"You said: row {number}" for number in range(ROWS)}
    assert set(upstream.sent.values()) == {1}


@needs("daft")
def test_daft_answers_each_row_once(upstream: Upstream, tmp_path: Path) -> None:
    import daft

    runner = ColumnRunner(connect, "question", ledger=tmp_path)

    def answer(question: daft.Series) -> list[str]:
        answers: list[str] = runner({"question": question})["answer"]
        return answers

    add_answer = daft.func.batch(return_dtype=daft.DataType.string())(answer)
    frame = daft.from_pydict({"id": list(range(ROWS)), "question": [f"row {number}" for number in range(ROWS)]})
    rows = frame.with_column("answer", add_answer(frame["question"])).to_pydict()
    check(upstream, dict(zip(rows["id"], rows["answer"], strict=True)))


@needs("dask")
def test_dask_answers_each_row_once(upstream: Upstream, tmp_path: Path) -> None:
    import dask.dataframe
    import pandas

    runner = ColumnRunner(connect, "question", ledger=tmp_path)

    def answer(part: pandas.DataFrame) -> pandas.DataFrame:
        return pandas.DataFrame(runner(part), index=part.index)

    rows = pandas.DataFrame({"id": range(ROWS), "question": [f"row {number}" for number in range(ROWS)]})
    frame = dask.dataframe.from_pandas(rows, npartitions=4)
    answered = frame.map_partitions(answer, meta=answer(rows.head(0))).compute()
    check(upstream, dict(zip(answered["id"], answered["answer"], strict=True)))


@needs("pyspark")
def test_spark_answers_each_row_once(upstream: Upstream, tmp_path: Path) -> None:
    import pyarrow
    from pyspark.sql import SparkSession

    runner = ColumnRunner(connect, "question", ledger=tmp_path)

    def answer(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            table = runner({name: batch.column(name) for name in batch.schema.names})
            yield pyarrow.RecordBatch.from_pydict({"id": table["id"], "answer": table["answer"]})

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        rows = spark.createDataFrame([(number, f"row {number}") for number in range(ROWS)], "id long, question string")
        answered = rows.mapInArrow(answer, "id long, answer string").collect()
    finally:
        spark.stop()
    check(upstream, {row["id"]: row["answer"] for row in answered})
