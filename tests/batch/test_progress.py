"""Progress reports and results of batches."""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
from collections.abc import Iterator

import pytest
from typing_extensions import override

from agent import errors
from agent.batch import BatchItem, BatchProgress
from agent.engine.wire import WireRequest
from agent.testing import Answer, Script, scripted_agent
from agent.types import AgentResponse
from tests.batch.ways import Blocking, Way, create_observed_agent, create_priced_script, echo_texts, echoes, last_text


def test_progress_adds_up(way: Way) -> None:
    def network(request: WireRequest) -> Answer:
        return (Script(errors.BadRequestError("no")) if int(last_text(request)) % 3 == 0 else Script())(request)

    told: list[BatchProgress] = []
    agent, _ = create_observed_agent(script=network)
    result = way.batch(agent, map(str, range(9)), total=9, concurrency=4, on_progress=told.append)
    assert [progress.done for progress in told] == list(range(1, 10))
    assert told[-1].failed == 3 == len(result.failed)
    assert all(a.elapsed <= b.elapsed and a.failed <= b.failed for a, b in itertools.pairwise(told))
    assert all(progress.total == 9 and progress.left == 9 - progress.done for progress in told)
    assert told[-1].eta == 0.0


@pytest.mark.parametrize(
    ("progress", "eta", "text"),
    [
        (BatchProgress(), None, "0 done, $0.0000, 0.0/s"),
        (BatchProgress(done=10, elapsed=5.0), None, "10 done, $0.0000, 2.0/s"),
        (BatchProgress(done=10, total=40, elapsed=5.0), 15.0, "10 of 40 done, $0.0000, 2.0/s, 0:15 left"),
        (
            BatchProgress(done=10, total=40, elapsed=5.0, earlier=20, failed=1, known_cost=0.5, unpriced=2),
            5.0,
            "30 of 40 done, 1 failed, $0.5000 and 2 without a price, 2.0/s, 0:05 left",
        ),
        (BatchProgress(done=1, total=7201, elapsed=1.0), 7200.0, "1 of 7201 done, $0.0000, 1.0/s, 2:00:00 left"),
    ],
    ids=["nothing", "unknown total", "known total", "resumed", "long"],
)
def test_the_end_is_foretold_from_what_is_done(progress: BatchProgress, eta: float | None, text: str) -> None:
    assert progress.eta == eta
    assert str(progress) == text


def test_a_display_that_breaks_costs_no_answers(way: Way) -> None:
    def broken(progress: BatchProgress) -> None:
        raise ZeroDivisionError("the bar")

    with pytest.warns(RuntimeWarning, match="on_progress is disabled.*ZeroDivisionError: the bar"):
        result = way.batch(scripted_agent(), ["a", "b"], on_progress=broken)
    assert echoes(result) == echo_texts("a", "b")


def test_a_progress_bar_shows_cost_and_failures(way: Way, capsys: pytest.CaptureFixture[str]) -> None:
    agent = scripted_agent(errors.BadRequestError("no"), "ok", max_retries=0)
    heard: list[BatchProgress] = []
    way.batch(agent, ["a", "b"], progress=True, concurrency=1, on_progress=heard.append)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "1 failed · $0.0000" in shown
    assert len(heard) == 2


def test_a_terminal_that_has_gone_away_costs_no_answers(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        @override
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Gone())
    assert echoes(way.batch(scripted_agent(), ["a", "b"], progress=True)) == echo_texts("a", "b")


def test_without_rich_a_bar_is_refused_before_anything_is_sent(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "rich.console", None)
    agent, transport = create_observed_agent()
    with pytest.raises(errors.ConfigurationError, match=r"pip install .agent-llm-router\[cli\]"):
        way.batch(agent, ["a"], progress=True)
    assert transport.begun == 0
    assert way.batch(agent, ["a"]).ok


# Values


def test_an_item_has_a_response_or_raises() -> None:
    response = AgentResponse(text="x")
    assert BatchItem(0, "q", response).unwrap() is response
    with pytest.raises(errors.Aborted):
        BatchItem(0, "q", error=errors.Aborted("x")).unwrap()


def test_what_was_handed_out_is_not_kept(way: Way) -> None:
    import tracemalloc

    agent, _ = create_observed_agent(script=create_priced_script(0.0))
    sizes: list[int] = []

    def measure(progress: BatchProgress) -> None:
        if progress.done in (150, 500):
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])

    def prompts() -> Iterator[str]:
        for number in range(520):
            yield f"{number} " * 500

    tracemalloc.start()
    try:
        if isinstance(way, Blocking):
            for _ in agent.batch_stream(prompts(), concurrency=8, on_progress=measure):
                pass
        else:

            async def main() -> None:
                async for _ in agent.abatch_stream(prompts(), concurrency=8, on_progress=measure):
                    pass

            asyncio.run(main())
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 100_000  # 350 prompts of 2 kB would be 700 kB
