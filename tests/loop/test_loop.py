"""Runs: tool calls, results, limits and costs, under every driver."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from pydantic import BaseModel

from agent import Agent, Hooks, Router, ToolContext, ToolError, errors, tool
from agent.loop import Allow, Change, Deny
from agent.loop.results import RunResult
from agent.testing import Answer, Script, ScriptedTransport, TimedTool, VendorScript, scripted_agent
from agent.tools import AgentTool, AgentToolResult
from agent.types import (
    AgentRequest,
    AgentResponse,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolLoopConfig,
    ToolSpec,
    Usage,
)
from tests.loop.stories import check_history
from tests.support.drivers import Driver


def call(id: str, name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool
async def greet(name: str) -> str:
    """Greets."""
    await asyncio.sleep(0)
    return f"Hello, {name}!"


def results(result: RunResult) -> list[str]:
    return [message.text for message in result.messages if message.role == "tool"]


@pytest.fixture(params=["run", "arun", "run_stream", "arun_stream"])
def ways(request: pytest.FixtureRequest) -> Any:
    """All four ways to run, as one function."""

    def run(agent: Agent | Router, asked: Any, **options: Any) -> RunResult:
        match request.param:
            case "run":
                return agent.run(asked, **options)
            case "arun":
                return asyncio.run(agent.arun(asked, **options))
            case "run_stream":
                return agent.run_stream(asked, **options).collect()
            case _:

                async def collect() -> RunResult:
                    return await agent.arun_stream(asked, **options).collect()

                return asyncio.run(collect())

    return run


# The conversation


def test_sync_and_async_tools_run_and_the_model_gets_their_results(ways: Any) -> None:
    script = Script([call("c1", "add", a=2, b=3), call("c2", "greet", name="Ada")], "Done.")
    agent = Agent("scripted:m", transport=ScriptedTransport(script), tools=[add, greet])
    result = ways(agent, "Go.")
    assert result.text == "Done."
    assert result.turns == 2
    assert results(result) == ["5", "Hello, Ada!"]
    second = script.requests[1]["messages"]
    assert [message["role"] for message in second] == ["user", "assistant", "tool", "tool"]
    assert second[0]["content"] == "Go."  # every request has the prompt
    check_history(list(result.messages))


def test_the_result_has_the_usage_cost_and_route_of_all_turns(drive: Driver) -> None:
    first = AgentResponse(content=[call("c1", "add", a=1, b=1)], usage=Usage(prompt_tokens=10, completion_tokens=5))
    second = AgentResponse(text="2", usage=Usage(prompt_tokens=20, completion_tokens=1))
    ran = drive.run(Script(first, second), agent="openai-chat:gpt-4o", tools=[add])
    usage = ran.ok.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (30, 6)
    assert ran.ok.cost_estimate == pytest.approx(30 * 2.5e-6 + 6 * 10e-6)
    assert len(ran.ok.route) == 2
    starts = [attempt.started for attempt in ran.ok.route]
    assert starts == sorted(starts, key=lambda start: start or 0.0)


def test_retries_of_the_model_do_not_run_tools_again(drive: Driver) -> None:
    counted = TimedTool("count", "Counts.")
    script = Script(call("c1", "count"), errors.OverloadedError("busy"), "Done.")
    ran = drive.run(script, tools=[counted], max_retries=2)
    assert ran.ok.text == "Done."
    assert counted.calls == 1
    assert [attempt.error for attempt in ran.ok.route] == [None, "OverloadedError", None]


def test_a_router_runs_the_tools_of_whichever_agent_answers(ways: Any) -> None:
    first = scripted_agent(errors.AuthenticationError("no"), errors.AuthenticationError("no"), model="a")
    second = scripted_agent(call("c1", "add", a=1, b=2), "Three.", model="b", tools=[add])
    result = ways(Router([first, second]), "Go.")
    assert result.text == "Three."
    assert results(result) == ["3"]
    assert [attempt.target for attempt in result.route if attempt.error is None] == ["scripted:b", "scripted:b"]


def test_a_conversation_goes_on_from_messages(ways: Any) -> None:
    script = Script("Fine.")
    agent = Agent("scripted:m", transport=ScriptedTransport(script))
    result = ways(agent, [Message.user("Hi"), Message.assistant("Hello"), Message.user("How are you?")])
    assert [message.text for message in result.messages] == ["Fine."]  # only what the run added
    assert len(script.requests[0]["messages"]) == 3


def test_a_request_is_never_changed(ways: Any) -> None:
    request = AgentRequest(input="Go.", tools=[add], messages=[Message.user("before")])
    before = request.model_dump_json()
    ways(scripted_agent(call("c1", "add", a=1, b=2), "Three."), request)
    assert request.model_dump_json() == before


def test_tools_of_one_run_are_not_offered_in_the_next(ways: Any) -> None:
    script = Script("One.", "Two.")
    agent = Agent("scripted:m", transport=ScriptedTransport(script))
    ways(agent, "Go.", tools=[add])
    ways(agent, "Go.")
    assert "tools" in script.requests[0]
    assert "tools" not in script.requests[1]


def test_plain_functions_are_tools(ways: Any) -> None:
    def double(x: int) -> int:
        return 2 * x

    assert results(ways(scripted_agent(call("c1", "double", x=4), "8"), "Go.", tools=[double])) == ["8"]


def test_a_spec_with_a_function_is_a_tool_and_its_schema_is_checked(ways: Any) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    spec = ToolSpec(name="double", parameters=schema, function=lambda x: 2 * x)
    agent = scripted_agent([call("c1", "double", x=4), call("c2", "double", x="four")], "8", tools=[spec])
    good, bad = results(ways(agent, "Go."))
    assert good == "8"
    assert "x" in bad
    assert "integer" in bad


def test_typed_output_comes_at_the_end_of_the_loop(ways: Any) -> None:
    class Sum(BaseModel):
        value: int

    agent = scripted_agent(call("c1", "add", a=2, b=2), {"value": 4}, tools=[add])
    assert ways(agent, "Go.", schema=Sum).output == Sum(value=4)


def test_a_forced_tool_is_forced_once(ways: Any) -> None:
    script = Script(call("c1", "add", a=2, b=2), "4")
    agent = Agent("scripted:m", transport=ScriptedTransport(script), tools=[add])
    assert ways(agent, "Go.", tool_choice="required").text == "4"
    assert [body.get("tool_choice") for body in script.requests] == ["required", None]


def test_pictures_a_tool_returns_reach_the_model(ways: Any) -> None:
    @tool
    def chart() -> list[Any]:
        return [TextContent(text="Here:"), ImageContent(image_data=b"\x89PNG\r\n\x1a\n", media_type="image/png")]

    agent = scripted_agent(call("c1", "chart"), "A chart.", tools=[chart])
    result = ways(agent, "Go.")
    part = next(message for message in result.messages if message.role == "tool").parts[0]
    assert [piece.type for piece in part.content] == ["text", "image"]


def test_reasoning_goes_back_with_its_turn(ways: Any) -> None:
    agent = scripted_agent([ThinkingContent(thinking="hm"), call("c1", "add", a=1, b=1)], "2", tools=[add])
    result = ways(agent, "Go.")
    assert result.messages[1].parts[0] == ThinkingContent(thinking="hm", origin=result.messages[1].parts[0].origin)


def test_a_vendors_pause_is_continued(drive: Driver) -> None:
    paused = AgentResponse(text="Searching…", stop_reason="pause")
    ran = drive.run(VendorScript(paused, "Found."), agent="anthropic:claude-sonnet-4-5")
    assert ran.ok.text == "Found."
    assert ran.ok.turns == 2


# Tool context


def test_a_tool_gets_its_context_and_the_model_never_sees_that_parameter(ways: Any) -> None:
    seen: list[ToolContext[str]] = []

    @tool
    def look(where: str, context: ToolContext[str]) -> str:
        seen.append(context)
        return f"{context.deps} looked {where}"

    assert list(look.spec.parameters["properties"]) == ["where"]
    agent = scripted_agent(call("c1", "look", where="north"), "Done.", tools=[look])
    result = ways(agent, "Go.", deps="Ada", run_id="run-7")
    assert results(result) == ["Ada looked north"]
    context = seen[0]
    assert (context.call_id, context.tool_name, context.run_id, context.turn) == ("c1", "look", "run-7", 1)
    assert [message.role.value for message in context.messages] == ["user", "assistant"]
    assert 0 < context.seconds_left() <= 30


def test_details_are_for_the_interface_and_not_for_the_model(ways: Any) -> None:
    async def execute(tool_call_id: str, params: dict[str, Any], signal: Any, on_update: Any) -> AgentToolResult:
        on_update(AgentToolResult(content=[TextContent(text="half")], details={"percent": 50}))
        return AgentToolResult(content=[TextContent(text=f"{tool_call_id} {params['x']}")], details={"secret": 1})

    lookup = AgentTool("lookup", "Looks up.", {"type": "object"}, label="Look up", execute=execute)
    script = Script(call("c1", "lookup", x=3), "Done.")
    agent = Agent("scripted:m", transport=ScriptedTransport(script), tools=[lookup])
    result = ways(agent, "Go.")
    assert results(result) == ["c1 3"]
    part = next(message for message in result.messages if message.role == "tool").parts[0]
    assert part.details == {"secret": 1}
    assert "secret" not in json.dumps(list(script.requests))


def test_partial_results_are_events() -> None:
    @tool
    def count(context: ToolContext[None]) -> str:
        for number in range(3):
            context.report(f"{number}")
        return "counted"

    run = scripted_agent(call("c1", "count"), "Done.", tools=[count]).run_stream("Go.")
    updates = [event.partial_result.content for event in run if event.type == "tool_execution_update"]  # type: ignore[union-attr]
    assert [content[0]["text"] for content in updates] == ["0", "1", "2"]  # type: ignore[index]


def test_a_tools_own_words_reach_the_model_and_nothing_else_does(ways: Any) -> None:
    @tool
    def careful() -> str:
        raise ToolError("Say please.")

    @tool
    def careless() -> str:
        return open("/etc/no/such/directory/secrets.txt").read()

    agent = scripted_agent([call("c1", "careful"), call("c2", "careless")], "Oh.", tools=[careful, careless])
    polite, rude = results(ways(agent, "Go."))
    assert polite == "Say please."
    assert rude.startswith("FileNotFoundError")
    assert "secrets.txt" in rude
    assert "/etc" not in rude
    assert "Traceback" not in rude


# Limits


def test_calls_beyond_the_cap_are_answered(ways: Any) -> None:
    calls = [call(f"c{number}", "add", a=number, b=0) for number in range(5)]
    agent = scripted_agent(calls, "Done.", tools=[add])
    result = ways(agent, "Go.", loop=ToolLoopConfig(max_tool_calls_per_iteration=3))
    answers = results(result)
    assert answers[:3] == ["0", "1", "2"]
    assert all("at most 3" in answer for answer in answers[3:])
    check_history(list(result.messages))


def test_a_run_that_does_not_end_is_ended(ways: Any) -> None:
    lines = [call(f"c{number}", "add", a=number, b=0) for number in range(5)]
    agent = scripted_agent(*lines, tools=[add])
    with pytest.raises(errors.BudgetExceededError, match="max_iterations") as caught:
        ways(agent, "Go.", loop={"max_iterations": 3})
    result = caught.value.result
    assert result.turns == 3
    assert result.usage.total_tokens > 0
    assert len(result.route) == 3
    check_history(list(result.messages))
    assert "not executed" in results(result)[-1]  # its result would be unused


def test_the_same_call_with_the_same_result_is_not_made_for_ever(ways: Any) -> None:
    agent = scripted_agent(*(call(f"c{number}", "add", a=1, b=1) for number in range(9)), tools=[add])
    with pytest.raises(errors.BudgetExceededError, match="3 times") as caught:
        ways(agent, "Go.")
    assert caught.value.result.turns == 3


def test_polling_is_not_repetition(ways: Any) -> None:
    answers = iter(("queued", "queued", "running", "running", "done"))
    poll = TimedTool("poll", "Polls.", result=lambda arguments: next(answers))
    agent = scripted_agent(*(call(f"c{number}", "poll") for number in range(5)), "Done.", tools=[poll])
    assert ways(agent, "Go.").text == "Done."


def test_token_and_cost_budgets_end_a_run(drive: Driver) -> None:
    used = Usage(prompt_tokens=1000, completion_tokens=1000)
    script = [AgentResponse(content=[call(f"c{n}", "add", a=n, b=n)], usage=used) for n in range(5)]
    for budget in ({"token_budget": 3000}, {"cost_budget": 0.02}):
        ran = drive.run(Script(*script), agent="openai-chat:gpt-4o", tools=[add], asked={"loop": budget})
        assert isinstance(ran.failed, errors.BudgetExceededError)
        assert next(iter(budget)) in str(ran.failed)
        assert ran.failed.result.turns == 2
        check_history(list(ran.failed.result.messages))


def test_a_final_answer_over_budget_is_still_an_answer(drive: Driver) -> None:
    answer = AgentResponse(text="Dear.", usage=Usage(prompt_tokens=10_000, completion_tokens=1))
    assert drive.run(Script(answer), asked={"loop": {"token_budget": 5}}).ok.text == "Dear."


def test_the_time_budget_holds_for_the_whole_run(drive: Driver) -> None:
    hang = TimedTool("hang", "Hangs.", after=60.0)
    ran = drive.run(
        Script(call("c1", "hang")), tools=[hang], asked={"loop": {"time_budget": 0.2, "timeout_per_tool": 50.0}}
    )
    assert isinstance(ran.failed, errors.TimeoutError)
    assert ran.failed.deadline
    assert ran.seconds < 2.0
    check_history(list(ran.failed.result.messages))


def test_a_tool_that_takes_too_long_is_answered_and_the_run_goes_on(drive: Driver) -> None:
    slow = TimedTool("slow", "Slow.", after=60.0, timeout=0.05)
    ran = drive.run(Script([call("c1", "slow"), call("c2", "add", a=1, b=1)], "Done."), tools=[slow, add])
    late, sibling = results(ran.ok)
    assert "0.05 seconds" in late
    assert sibling == "2"
    assert ran.seconds < 2.0


def test_a_model_that_cannot_call_is_stopped(ways: Any) -> None:
    agent = scripted_agent(*(call(f"c{n}", "add", a="x", b=n) for n in range(9)), tools=[add])
    with pytest.raises(errors.ToolExecutionError, match="no valid tool call in 3 turns"):
        ways(agent, "Go.")


def test_a_tool_is_run_again_after_it_raised_if_it_says_so(ways: Any) -> None:
    tries: list[int] = []

    @tool(retries=2)
    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("not yet")
        return "at last"

    assert results(ways(scripted_agent(call("c1", "flaky"), "Done.", tools=[flaky]), "Go.")) == ["at last"]
    assert len(tries) == 3


def test_a_sequential_tool_runs_alone(ways: Any) -> None:
    running: list[str] = []

    def exclusive(name: str) -> str:
        assert not running
        running.append(name)
        time.sleep(0.01)
        running.remove(name)
        return name

    one = tool(exclusive, name="one", sequential=True)
    agent = scripted_agent([call("c1", "one", name="a"), call("c2", "one", name="b")], "Done.", tools=[one])
    assert results(ways(agent, "Go.")) == ["a", "b"]


def test_parallel_tools_run_beside_each_other(ways: Any) -> None:
    meeting = threading.Barrier(3, timeout=5)

    @tool
    def meet(name: str) -> str:
        meeting.wait()
        return name

    calls = [call(f"c{name}", "meet", name=name) for name in "abc"]
    assert results(ways(scripted_agent(calls, "Done.", tools=[meet]), "Go.")) == ["a", "b", "c"]


def test_a_call_that_was_cut_off_is_not_made(drive: Driver) -> None:
    counted = TimedTool("count", "Counts.")
    cut = AgentResponse(content=[call("c1", "count"), call("c2", "count")], stop_reason="length")
    ran = drive.run(Script(cut, "Done."), tools=[counted])
    whole, half = results(ran.ok)
    assert whole == "done"
    assert "cut off" in half
    assert counted.calls == 1


# Control


def test_running_code_is_denied_unless_it_is_allowed(ways: Any) -> None:
    @tool(risk="exec")
    def shell(command: str) -> str:
        return f"ran {command}"

    lines = (call("c1", "shell", command="ls"), "Done.")
    assert "needs approval" in results(ways(scripted_agent(*lines, tools=[shell]), "Go."))[0]
    allowed = ToolLoopConfig(allowed_risks=frozenset(("read", "write", "network", "exec")))
    assert results(ways(scripted_agent(*lines, tools=[shell]), "Go.", loop=allowed)) == ["ran ls"]
    assert results(ways(scripted_agent(*lines, tools=[shell]), "Go.", before_tool_call=lambda *_: True)) == ["ran ls"]


def test_a_hook_denies_changes_and_allows(ways: Any) -> None:
    def before(called: ToolCall, context: ToolContext[Any]) -> Any:
        match called.arguments["a"]:
            case 1:
                return Deny("Not with a one.")
            case 2:
                return Change({"a": 20, "b": 20})
            case 3:
                return Change({"a": "not a number", "b": 1})
            case _:
                return Allow()

    calls = [call(f"c{n}", "add", a=n, b=n) for n in (1, 2, 3, 4)]
    answers = results(ways(scripted_agent(calls, "Done.", tools=[add]), "Go.", before_tool_call=before))
    assert answers[0] == "Not with a one."
    assert answers[1] == "40"
    assert "a:" in answers[2]
    assert answers[3] == "8"


def test_hooks_may_be_async_and_belong_to_an_agent(ways: Any) -> None:
    async def before(called: ToolCall, context: ToolContext[Any]) -> bool:
        await asyncio.sleep(0)
        return False

    async def after(called: ToolCall, result: Any, context: ToolContext[Any]) -> str:
        return "replaced"

    hooks = Hooks(before_tool_call=before)
    agent = scripted_agent(call("c1", "add", a=1, b=1), "Done.", tools=[add], hooks=hooks)
    assert results(ways(agent, "Go.")) == ["The call was denied."]
    agent = scripted_agent(call("c1", "add", a=1, b=1), "Done.", tools=[add])
    assert results(ways(agent, "Go.", after_tool_call=after)) == ["replaced"]


def test_a_hook_that_says_nonsense_or_raises_ends_the_run(ways: Any) -> None:
    def broken(called: ToolCall, context: ToolContext[Any]) -> bool:
        raise RuntimeError("oops")

    agent = scripted_agent(call("c1", "add", a=1, b=1), "Done.", tools=[add])
    with pytest.raises(errors.ToolExecutionError, match="before_tool_call failed: RuntimeError: oops"):
        ways(agent, "Go.", before_tool_call=broken)
    agent = scripted_agent(call("c1", "add", a=1, b=1), "Done.", tools=[add])
    with pytest.raises(errors.ConfigurationError, match="before_tool_call returned str") as caught:
        ways(agent, "Go.", before_tool_call=lambda *_: "yes")
    assert caught.value.field == "before_tool_call"


def test_the_context_can_be_transformed_for_the_model_alone(ways: Any) -> None:
    script = Script("Done.")
    agent = Agent("scripted:m", transport=ScriptedTransport(script))
    long = [Message.user("old"), Message.assistant("older"), Message.user("new")]
    result = ways(agent, long, transform_context=lambda messages: messages[-1:])
    assert [message["content"] for message in script.requests[0]["messages"]] == ["new"]
    assert result.text == "Done."


# Sub-agents


def test_an_agent_is_a_tool_and_its_bill_is_part_of_the_callers(drive: Driver) -> None:
    asked = AgentResponse(
        content=[call("c1", "research", task="Find it.")], usage=Usage(prompt_tokens=1, completion_tokens=1)
    )
    found = AgentResponse(text="Found.", usage=Usage(prompt_tokens=100, completion_tokens=10))
    done = AgentResponse(text="Done.", usage=Usage(prompt_tokens=1, completion_tokens=1))
    # One network for both: the sub-agent is a model of its own behind the same address.
    script = Script(asked, found, done)

    def make(url: str) -> Agent:
        inner = Agent("openai-chat:small", base_url=f"{url}/v1", api_key="k", max_retries=0)
        outer = Agent("openai-chat:large", base_url=f"{url}/v1", api_key="k", max_retries=0)
        return Agent(outer.config, tools=[inner.as_tool("research", "Researches.")], api_key="k")

    ran = drive.run(script, "Go.", make=make, base_url="http://127.0.0.1")
    assert ran.ok.text == "Done."
    assert results(ran.ok) == ["Found."]
    assert ran.ok.usage is not None
    assert ran.ok.usage.prompt_tokens == 102
    assert [attempt.model for attempt in ran.ok.route] == ["large", "small", "large"]
    shown = [event for event in ran.events if event.type == "tool_execution_update"]
    assert shown[0].partial_result.details["event"].type == "agent_start"


def test_a_sub_agent_ends_with_its_caller(drive: Driver) -> None:
    def network(request: Any) -> Any:
        return Answer(after=60.0) if json.loads(request.body)["model"] == "small" else script(request)

    script = Script(call("c1", "research", task="Find it."), "Gave up.")

    def make(url: str) -> Agent:
        inner = Agent("openai-chat:small", base_url=f"{url}/v1", api_key="k")
        tools = [inner.as_tool("research", "Researches.", timeout=0.2)]
        return Agent("openai-chat:large", base_url=f"{url}/v1", api_key="k", tools=tools)

    ran = drive.run(network, "Go.", make=make, base_url="http://127.0.0.1")
    assert ran.ok.text == "Gave up."
    assert "0.2 seconds" in results(ran.ok)[0]
    assert ran.seconds < 5.0


def test_agents_call_agents_that_have_tools_themselves(ways: Any) -> None:
    inner = scripted_agent(call("i1", "add", a=2, b=2), "Four.", tools=[add])
    outer = scripted_agent(
        call("o1", "calculator", task="2 + 2"), "It is four.", tools=[inner.as_tool("calculator", "Calculates.")]
    )
    result = ways(outer, "Go.")
    assert result.text == "It is four."
    assert results(result) == ["Four."]
    assert len(result.route) == 4


# Streams


def test_a_stream_of_a_run_is_closed_when_it_is_left() -> None:
    agent = scripted_agent(call("c1", "add", a=1, b=1), "Done.", tools=[add])
    with agent.run_stream("Go.") as run:
        for event in run:
            if event.type == "tool_execution_start":
                break
    with pytest.raises(errors.ConfigurationError, match="not ended"):
        _ = run.result
    with pytest.raises(errors.ConfigurationError, match="iterated before"):
        list(run)


def test_an_abort_from_another_thread_ends_a_hanging_tool_at_once() -> None:
    release = threading.Event()

    @tool
    def hang() -> str:
        release.wait(30)
        return "late"

    run = scripted_agent(call("c1", "hang"), tools=[hang]).run_stream("Go.")
    started = time.monotonic()
    for event in run:
        if event.type == "tool_execution_start":
            threading.Timer(0.05, run.abort).start()
    assert time.monotonic() - started < 2
    assert run.wait_for_idle(0)
    with pytest.raises(errors.Aborted) as caught:
        _ = run.result
    check_history(list(caught.value.result.messages))
    release.set()


def test_an_abort_from_another_task_ends_a_hanging_tool_at_once() -> None:
    @tool
    async def hang() -> str:
        await asyncio.sleep(30)
        return "late"

    async def main() -> list[str]:
        run = scripted_agent(call("c1", "hang"), tools=[hang]).arun_stream("Go.")
        asyncio.get_running_loop().call_later(0.05, run.abort)
        seen: list[str] = [event.type async for event in run]
        await run.wait_for_idle()
        assert isinstance(run.error, errors.Aborted)
        return seen

    started = time.monotonic()
    assert asyncio.run(main())[-1] == "agent_end"
    assert time.monotonic() - started < 3


def test_a_run_can_be_watched_while_it_goes_on() -> None:
    run = scripted_agent(call("c1", "add", a=1, b=1), "Done.", tools=[add]).run_stream("Go.", run_id="seven")
    assert run.run_id == "seven"
    assert not run.is_streaming
    pending: list[set[str]] = []
    spoken: list[str] = []
    for event in run:
        assert run.is_streaming
        if event.type == "tool_execution_start":
            pending.append(run.pending_tool_calls)
        if event.type == "message_update" and run.stream_message is not None:
            spoken.append(run.stream_message.text)
    assert pending == [{"c1"}]
    assert spoken[-1] == "Done."
    assert not run.is_streaming
    assert len(run.messages) == 4


def test_the_blocking_api_works_inside_a_tool_of_an_async_run() -> None:
    @tool
    def inner(text: str) -> str:
        return scripted_agent("Inside.").run(text).text or ""

    agent = scripted_agent(call("c1", "inner", text="x"), "Outside.", tools=[inner])
    result = asyncio.run(agent.arun("Go."))
    assert results(result) == ["Inside."]


@pytest.mark.parametrize("asked", [{"loop": 3}, {"loop": {"max_iterations": 0}}, {"tools": "add"}, {"nonsense": 1}])
def test_what_cannot_work_is_refused_before_anything_is_sent(asked: dict[str, Any]) -> None:
    script = Script("never")
    agent = Agent("scripted:m", transport=ScriptedTransport(script))
    with pytest.raises((errors.ConfigurationError, ValueError)):
        agent.run("Go.", **asked)
    assert not script.requests
