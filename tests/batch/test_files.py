"""Files of requests: every line gets one outcome, whatever happens in between."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import override

import agent.batch.files as files
import agent.batch.ledger as ledger
from agent import Router, errors
from agent.batch import BatchInterrupted, BatchProgress, read_answers, run_file
from agent.engine.wire import WireRequest
from agent.middleware import Middleware
from agent.testing import Answer, Script, scripted_agent
from agent.types import AgentRequest, AgentResponse, ToolCall
from tests.batch.desk import Files, echo, read_records, reject_bad_requests
from tests.batch.ways import create_observed_agent, delay_responses, last_text


def test_every_line_is_answered_or_reported(files: Files) -> None:
    report = files.run()
    assert (report.total, report.answered, report.failed, report.left) == (10, 7, 3, 0)
    assert str(report) == "7 of 10 answered, 3 failed"
    files.check()
    by_line = {record["line"]: record["error"] for record in read_records(files.failures)}
    assert by_line[4]["type"] == "ConfigurationError"
    assert by_line[4]["message"].startswith("Line 4 of the input is invalid: it is not JSON")
    assert by_line[5] == {
        "type": "BadRequestError", "message": "refused", "provider": "scripted", "model": "watched",
        "status_code": 400, "code": "invalid_request_error", "retryable": False, "attempts": by_line[5]["attempts"],
    }  # fmt: skip


def test_what_was_written_can_be_read_again(files: Files) -> None:
    files.run()
    answers = {answer.line: answer for answer in read_answers(files.target)}
    assert answers[1].custom_id == "id-1"
    assert answers[1].response is not None
    assert answers[1].response.text == "You said: question 1"
    assert answers[1].response.usage is not None
    failures = list(read_answers(files.failures))
    assert {failure.error["type"] for failure in failures if failure.error} == {"ConfigurationError", "BadRequestError"}
    with pytest.raises(errors.ConfigurationError, match="Line 1 of"):
        list(read_answers(files.source))


def test_an_outcome_is_one_line_for_everybody(tmp_path: Path) -> None:
    odd = "a\u2028b\u2029c\x85d\x1ce\x0bf\rg\nh"
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(odd) + "\n" + json.dumps(f"bad {odd}", ensure_ascii=False) + "\n", "utf-8")
    run_file(echo(), source, tmp_path / "out.jsonl")
    (record,) = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines())
    assert record["response"]["text"] == f"You said: {odd}"
    assert len((tmp_path / "out.failed.jsonl").read_text("utf-8").splitlines()) == 1


def test_an_error_that_cannot_be_shown_is_reported_all_the_same(tmp_path: Path) -> None:
    class Mute(Exception):
        @override
        def __str__(self) -> str:
            raise ZeroDivisionError

    class Breaks(Middleware):
        @override
        def before(self, request: AgentRequest, call: Any) -> None:
            raise Mute if request.input == "mute" else OSError("no file named \udcff")

    source = tmp_path / "in.jsonl"
    source.write_text('"mute"\n"half a character"\n', "utf-8")
    caller = scripted_agent(middleware=[Breaks()])
    assert run_file(caller, source, tmp_path / "out.jsonl", concurrency=1).failed == 2
    mute, half = (failure.error for failure in read_answers(tmp_path / "out.failed.jsonl"))
    assert mute is not None
    assert mute["type"] == "Mute"
    assert half == {"type": "OSError", "message": "OSError: no file named \\udcff"}
    assert run_file(caller, source, tmp_path / "out.jsonl").left == 0


def test_an_answer_that_cannot_be_written_is_a_failure_with_its_text(tmp_path: Path) -> None:
    class Odd(Middleware):
        @override
        def after(self, response: AgentResponse, call: Any) -> AgentResponse:
            return response.model_copy(update={"output": "half a character: \ud800"})

    source = tmp_path / "in.jsonl"
    source.write_text('"a"\n', "utf-8")
    assert run_file(scripted_agent(middleware=[Odd()]), source, tmp_path / "out.jsonl").failed == 1
    (record,) = read_records(tmp_path / "out.failed.jsonl")
    assert record["error"]["type"] == "SchemaValidationError"
    assert record["error"]["message"].startswith("The output is not JSON serializable")
    assert record["error"]["text"] == "You said: a"


@pytest.mark.parametrize("depth", [59, 61, 63, 64])
def test_an_answer_as_deep_as_a_vendor_may_send_it_is_known_again(tmp_path: Path, depth: int) -> None:
    deep: Any = "x"
    for _ in range(depth):
        deep = [deep]
    source = tmp_path / "in.jsonl"
    source.write_text('"a"\n', "utf-8")
    call = ToolCall(id="call_1", name="f", arguments={"deep": deep})
    assert run_file(scripted_agent(call), source, tmp_path / "out.jsonl").answered == 1
    agent, transport = create_observed_agent()
    assert run_file(agent, source, tmp_path / "out.jsonl").answered == 1
    assert transport.begun == 0
    (answer,) = read_answers(tmp_path / "out.jsonl")
    assert answer.response is not None
    assert answer.response.tool_calls[0].name == "f"


def test_a_second_run_asks_nothing_again(files: Files) -> None:
    files.run()
    agent, transport = create_observed_agent()
    report = files.run(agent)
    assert transport.begun == 0
    assert (report.answered, report.failed) == (7, 3)
    assert (report.progress.done, report.progress.earlier, report.progress.total) == (0, 10, 10)


def test_lines_may_be_added_at_the_end(files: Files) -> None:
    files.run()
    with files.source.open("a") as file:
        file.write('"one more"\n')
    agent, transport = create_observed_agent()
    assert files.run(agent).answered == 8
    assert transport.begun == 1


def test_what_failed_is_asked_again_if_wanted(files: Files) -> None:
    files.run()
    agent, transport = create_observed_agent()
    report = files.run(agent, retry_failed=True)
    assert (report.answered, report.failed) == (9, 1)  # the line that is no JSON is none again
    assert transport.begun == 2
    assert {record["line"] for record in read_records(files.failures)} == {4}
    files.check()


def test_a_line_that_failed_may_be_mended(files: Files) -> None:
    files.run()
    files.source.write_text(files.source.read_text("utf-8").replace("{not json", '{"prompt": "question 4"}'), "utf-8")
    with pytest.raises(errors.ConfigurationError, match="changed: line 4"):
        files.run()
    assert files.run(retry_failed=True).answered == 8
    files.check()


def test_a_change_of_what_was_answered_is_refused(files: Files) -> None:
    files.run()
    before = files.target.read_bytes()
    original = files.source.read_text("utf-8")
    agent, transport = create_observed_agent()
    for text, said in (
        (original.replace("question 2", "question two"), "changed: line 2"),
        (original.replace("question 3", "question three"), "changed: line 3"),
        ("".join(original.splitlines(keepends=True)[:-2]), "missing lines: 2"),
        (original.replace("id-3", "id-three"), "missing lines: 1"),
    ):
        files.source.write_text(text, "utf-8")
        for retry_failed in (False, True):
            with pytest.raises(errors.ConfigurationError, match="differs from the one of the earlier run") as caught:
                files.run(agent, retry_failed=retry_failed)
            if not retry_failed:
                assert said in str(caught.value)
    assert transport.begun == 0
    assert files.target.read_bytes() == before
    files.source.write_text(original, "utf-8")
    files.run(agent)
    files.check()


def test_lines_with_ids_may_change_places(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    lines = [json.dumps({"custom_id": f"c{n}", "prompt": f"q{n}"}) for n in range(6)]
    source.write_text("\n".join(lines[:3]), "utf-8")
    assert run_file(scripted_agent(), source, tmp_path / "out.jsonl").answered == 3
    source.write_text("\n".join(reversed(lines)), "utf-8")
    agent, transport = create_observed_agent()
    assert run_file(agent, source, tmp_path / "out.jsonl").answered == 6
    assert transport.begun == 3


def test_two_read_lines_one_id_are_refused_with_their_numbers(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    lines = [json.dumps({"custom_id": f"c{n % 7}", "prompt": f"q{n}"}) for n in range(20)]
    source.write_text("\n".join(lines), "utf-8")
    agent, transport = create_observed_agent()
    with pytest.raises(errors.ConfigurationError) as caught:
        run_file(agent, source, tmp_path / "out.jsonl")
    assert "'c0' on lines 1 and 8, 'c1' on lines 2 and 9" in str(caught.value)
    assert "and 8 more" in str(caught.value)
    assert transport.begun == 0


# Ends before the end


def test_ctrl_c_keeps_what_is_done_and_can_be_resumed(files: Files) -> None:
    def interrupt(progress: BatchProgress) -> None:
        if progress.done == 7:
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    with pytest.raises(BatchInterrupted) as caught:
        files.run(
            create_observed_agent(
                script=delay_responses(
                    lambda text: 30.0 if text.endswith(("6", "7", "8")) else 0.0, reject_bad_requests
                )
            )[0],
            concurrency=10,
            on_progress=interrupt,
        )
    assert caught.value.result.left == 3
    files.check(complete=False)
    assert len(read_records(files.target)) + len(read_records(files.failures)) == 7
    files.run()
    files.check()


def test_ctrl_c_keeps_also_what_has_come_and_was_not_written_yet(files: Files) -> None:
    def interrupt(progress: BatchProgress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(BatchInterrupted) as caught:
        files.run(concurrency=1, on_progress=interrupt)
    assert caught.value.result.left == 7
    assert len(read_records(files.target)) == 3
    files.run()
    files.check()


def test_a_limit_in_time_is_no_failure_of_a_line(files: Files) -> None:
    report = files.run(
        create_observed_agent(
            script=delay_responses(lambda text: 30.0 if text.endswith(("6", "7", "8")) else 0.0, reject_bad_requests)
        )[0],
        concurrency=4,
        max_seconds=0.3,
    )
    assert report.stopped == "max_seconds: 0.3 seconds have passed"
    assert report.left == 10 - report.answered - report.failed > 0
    assert {record["line"] for record in read_records(files.failures)} <= {4, 5, 10}  # bad in themselves
    files.run()
    files.check()


@pytest.mark.parametrize(
    "error",
    [
        errors.AuthenticationError("invalid key"),
        errors.QuotaExceededError("no money"),
        errors.ModelNotFoundError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_wrong_with_every_line_ends_the_run_and_blames_none(files: Files, error: Exception) -> None:
    agent, transport = create_observed_agent(script=Script(*[error] * 50))
    for caller in (agent, Router([agent])):
        report = files.run(caller, concurrency=2)
        assert report.stopped is not None
        assert type(error).__name__ in report.stopped
        assert report.answered == 0
        assert {record["line"] for record in read_records(files.failures)} <= {4}
    assert transport.begun <= 10
    files.run()
    files.check()


def test_a_model_that_one_line_names_is_the_business_of_that_line(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a", "model": "nonesuch"}\n"b"\n', "utf-8")

    def network(request: WireRequest) -> Answer:
        wrong = json.loads(request.body)["model"] == "nonesuch"
        return (Script(errors.ModelNotFoundError("no such model")) if wrong else Script())(request)

    report = run_file(create_observed_agent(script=network)[0], source, tmp_path / "out.jsonl", concurrency=1)
    assert (report.answered, report.failed, report.stopped) == (1, 1, None)


def forbid(request: WireRequest) -> Answer:
    """As the guard in front of some vendors: it does not like one of the prompts."""
    if "select * from" in last_text(request):
        return Answer([b'{"error": {"message": "blocked"}}'], status=403)
    return Script()(request)


def test_a_line_that_is_forbidden_does_not_stop_those_that_are_not(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('"a"\n"select * from users"\n"b"\n', "utf-8")
    report = run_file(create_observed_agent(script=forbid)[0], source, target, concurrency=1)
    assert (report.answered, report.failed, report.stopped) == (2, 1, None)


def test_where_nothing_is_answered_a_refusal_is_taken_for_the_keys(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('"select * from users"\n"a"\n"b"\n', "utf-8")
    report = run_file(create_observed_agent(script=forbid)[0], source, target, concurrency=1)
    assert report.failed == 0
    assert report.left >= 2  # the second line was on its way when the first one came back
    assert str(report.stopped).startswith("AuthenticationError: ")
    assert str(report.stopped).endswith("(line 1)")
    source.write_text('{"prompt": "select * from users", "model": "mine"}\n"a"\n"b"\n', "utf-8")
    report = run_file(create_observed_agent(script=forbid)[0], source, target, concurrency=1)
    assert (report.answered, report.failed) == (2, 1)  # it asked for a model of its own


def test_money_ends_the_run_and_the_rest_is_for_the_next(files: Files) -> None:
    report = files.run(concurrency=1, max_cost=1.0)
    assert "the price of this model is unknown" in str(report.stopped)
    assert report.left == 9
    files.run()
    files.check()


# Other places


def test_standard_output_gets_answers_and_failures(files: Files) -> None:
    out = io.BytesIO()
    report = run_file(echo(), files.source, out)
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(records) == 10
    assert sum("error" in record for record in records) == report.failed == 3
    with pytest.raises(errors.ConfigurationError) as caught:
        run_file(echo(), files.source, out, failures=files.failures)
    assert caught.value.field == "failures"


def test_an_input_may_come_through_a_pipe(files: Files, tmp_path: Path) -> None:
    assert run_file(echo(), io.BytesIO(files.source.read_bytes()), files.target).total == 10
    files.check()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(files.source.read_bytes()))
    writer.start()
    assert run_file(echo(), pipe, tmp_path / "second.jsonl").answered == 7
    writer.join()


def test_an_output_of_ones_own_type_is_written(tmp_path: Path) -> None:
    class City(BaseModel):
        name: str

    source = tmp_path / "in.jsonl"
    source.write_text('"a"\n', "utf-8")
    run_file(scripted_agent({"name": "Rome"}), source, tmp_path / "out.jsonl", schema=City)
    (record,) = read_records(tmp_path / "out.jsonl")
    assert record["response"]["output"] == {"name": "Rome"}


def wrong_places(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    files = Files(folder)
    yield "source", lambda: run_file(echo(), folder / "none.jsonl", files.target)
    yield "source", lambda: run_file(echo(), folder, files.target)
    yield "source", lambda: run_file(echo(), io.StringIO("x"), files.target)  # type: ignore[arg-type]
    yield "target", lambda: run_file(echo(), files.source, files.source)
    yield "failures", lambda: run_file(echo(), files.source, files.target, failures=files.target)
    yield "target", lambda: run_file(echo(), files.source, folder / "none" / "out.jsonl")
    yield "target", lambda: run_file(echo(), files.source, "/dev/null")
    yield "target", lambda: run_file(echo(), files.source, ".")
    yield "temperature", lambda: run_file(echo(), files.source, files.target, temperature=9)


def test_wrong_places_are_refused_by_name(tmp_path: Path) -> None:
    for field, call in wrong_places(tmp_path):
        with pytest.raises(errors.ConfigurationError) as caught:
            call()
        assert caught.value.field == field, caught.value
    assert not (tmp_path / "out.jsonl").exists()


def test_answers_are_on_the_disk_every_second_and_at_the_end(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(ledger, "sync", lambda descriptor: synced.append(descriptor))
    files.run()
    assert len(synced) == 2  # both files, at the end
    monkeypatch.setattr(ledger, "SYNC_SECONDS", 0.0)
    files.target.unlink()
    files.failures.unlink()
    files.run()
    assert len(synced) == 2 + 10


def test_an_interrupt_while_an_answer_is_written_down_does_not_lose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_text('"one"\n"two"\n"three"\n', "utf-8")
    write, times = files.FileRun._write, 0

    def interrupt(run: files.FileRun, item: Any) -> None:
        nonlocal times
        times += 1
        if times == 2:
            raise KeyboardInterrupt
        write(run, item)

    monkeypatch.setattr(files.FileRun, "_write", interrupt)
    with pytest.raises(BatchInterrupted) as caught:
        run_file(scripted_agent(), tmp_path / "in.jsonl", tmp_path / "out.jsonl", concurrency=1)
    numbers = [json.loads(line)["line"] for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert {1, 2} <= set(numbers)
    assert len(numbers) == len(set(numbers)) == caught.value.result.answered, "each is there once"
