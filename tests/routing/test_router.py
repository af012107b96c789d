"""Router: fallback, strategies, routes, explanations and errors."""

from __future__ import annotations

from typing import Any

import pytest

from agent import Agent, RetryConfig, Router, Target, errors
from agent.testing import Script, ScriptedTransport, scripted_agent
from agent.types import AgentRequest, Message, RouteResult, ToolSpec
from tests.routing.fleet import Fleet, broken, busy
from tests.support.drivers import Driver

QUICK = RetryConfig(max_retries=3, initial_delay=0.01, throttle_delay=0.01, max_delay=0.02)


def test_when_one_fails_the_next_is_asked_at_once(drive: Driver) -> None:
    fleet = Fleet(a=busy(), b="from b")
    outcome = drive.complete(fleet, make=fleet.make())
    assert outcome.ok.text == "from b"
    assert fleet.asked == ["a", "b"]
    assert [(attempt.target, attempt.error, attempt.waited) for attempt in outcome.ok.route] == [
        ("a", "OverloadedError", None),
        ("b", None, None),
    ]


def test_a_stream_that_fails_before_its_first_event_goes_on_elsewhere(drive: Driver) -> None:
    from agent.engine.wire import Answer

    fleet = Fleet(a=[Answer([])], b="from b")
    outcome = drive.stream(fleet, make=fleet.make())
    assert outcome.text == "from b"
    assert "restart" not in [event.type for event in outcome.events]
    assert fleet.asked == ["a", "b"]


def test_four_attempts_in_all_and_no_more(drive: Driver) -> None:
    fleet = Fleet(a=[busy()] * 9, b=[busy()] * 9)
    outcome = drive.complete(fleet, make=fleet.make(retry=QUICK))
    assert isinstance(outcome.failed, errors.RoutingError)
    assert fleet.asked == ["a", "b", "a", "b"] or sorted(fleet.asked) == ["a", "a", "b", "b"]
    assert len(outcome.failed.attempts) == 4
    assert [type(error) for error in outcome.failed.errors] == [errors.OverloadedError] * 4
    assert outcome.failed.retryable


def test_the_agents_own_retries_are_not_used(drive: Driver) -> None:
    fleet = Fleet(a=[busy()] * 9, b="from b")
    drive.complete(fleet, make=fleet.make(each={"a": {"max_retries": 9}}))
    assert fleet.asked == ["a", "b"]


NO_ADDRESS = [
    errors.BadRequestError("no"),
    errors.ContentFilterError("no"),
]
ELSEWHERE = [
    errors.AuthenticationError("no"),
    errors.QuotaExceededError("no"),
    errors.ModelNotFoundError("no"),
    errors.RateLimitError("no", retry_after=30.0),
    errors.OverloadedError("no"),
]


@pytest.mark.parametrize("error", NO_ADDRESS, ids=lambda error: type(error).__name__)
def test_what_would_be_refused_everywhere_goes_nowhere(drive: Driver, error: errors.AgentError) -> None:
    fleet = Fleet(a=error, b="never")
    outcome = drive.complete(fleet, make=fleet.make())
    assert type(outcome.failed) is type(error)
    assert fleet.asked == ["a"]


@pytest.mark.parametrize("error", ELSEWHERE, ids=lambda error: type(error).__name__)
def test_what_is_one_targets_trouble_is_asked_of_another(drive: Driver, error: errors.AgentError) -> None:
    fleet = Fleet(a=[error, "back"], b=["from b", "again from b"])
    outcome = drive.complete(fleet, make=fleet.make())
    assert outcome.ok.text == "from b"
    assert fleet.asked == ["a", "b"]


@pytest.mark.parametrize(
    "error",
    [errors.AuthenticationError("no"), errors.QuotaExceededError("no"), errors.ModelNotFoundError("no")],
    ids=lambda error: type(error).__name__,
)
def test_what_waiting_does_not_mend_is_sent_once_and_remembered(drive: Driver, error: errors.AgentError) -> None:
    fleet = Fleet(a=[error, "never"])
    routers: list[Router] = []

    def make(base_url: str) -> Router:
        if not routers:
            routers.append(fleet.router(base_url))
        return routers[0]

    first = drive.complete(fleet, make=make)
    assert [type(one) for one in _routing(first.failed).errors] == [type(error)]
    second = drive.complete(fleet, make=make)
    assert fleet.asked == ["a"], "the second call sent nothing"
    assert isinstance(second.failed, errors.RoutingError)
    routers[0].reset_health("a")
    assert drive.complete(fleet, make=make).ok.text == "never"


def _routing(error: errors.AgentError) -> errors.RoutingError:
    assert isinstance(error, errors.RoutingError)
    return error


def test_a_filters_refusal_goes_elsewhere_only_if_asked_to(drive: Driver) -> None:
    fleet = Fleet(a=errors.ContentFilterError("no"), b="from b")
    assert drive.complete(fleet, make=fleet.make(on_content_filter="fallback")).ok.text == "from b"


def test_an_answer_that_a_filter_ended_goes_elsewhere_only_if_asked_to(drive: Driver) -> None:
    from agent.types import AgentResponse

    def fleet() -> Fleet:
        return Fleet(a=AgentResponse(text="I am", stop_reason="content_filter"), b="from b")

    kept = fleet()
    assert drive.complete(kept, make=kept.make()).ok.stop_reason == "content_filter"
    left = fleet()
    response = drive.complete(left, make=left.make(on_content_filter="fallback")).ok
    assert response.text == "from b"
    assert left.asked == ["a", "b"]


def test_an_answer_that_every_filter_ends_is_still_the_answer(drive: Driver) -> None:
    from agent.types import AgentResponse

    filtered = AgentResponse(text="I am", stop_reason="content_filter")
    fleet = Fleet(a=filtered, b=filtered)
    response = drive.complete(fleet, make=fleet.make(on_content_filter="fallback")).ok
    assert response.stop_reason == "content_filter"
    assert fleet.asked == ["a", "b"]


def test_what_is_too_long_goes_only_where_there_is_more_room(drive: Driver) -> None:
    too_long = errors.ContextLengthError("too long")
    from agent.models import ModelFacts, register_model

    for name, window in (("small", 8_000), ("same", 8_000), ("large", 32_000)):
        register_model(ModelFacts(provider="openai-chat", model=name, context_window=window))
    fleet = Fleet(small=too_long, same="never", large="from large")
    outcome = drive.complete(fleet, make=fleet.make())
    assert outcome.ok.text == "from large"
    assert fleet.asked == ["small", "large"]


def test_a_target_without_a_key_does_not_hide_that_a_request_was_too_long() -> None:
    router = Router([scripted_agent(errors.ContextLengthError("too long"), model="a"), "deepseek:deepseek-chat"])
    with pytest.raises(errors.RoutingError) as caught:
        router.complete("hi")
    assert [type(error) for error in caught.value.errors] == [errors.ContextLengthError]


def test_a_request_that_cannot_fit_a_window_is_not_sent_there(drive: Driver) -> None:
    from agent.models import ModelFacts, register_model

    register_model(ModelFacts(provider="openai-chat", model="tiny", context_window=1_000))
    register_model(ModelFacts(provider="openai-chat", model="vast", context_window=100_000))
    fleet = Fleet(tiny="never", vast="from vast")
    response = drive.complete(fleet, "many words " * 3_000, make=fleet.make()).ok
    assert response.text == "from vast"
    (excluded,) = [one for one in response.route.candidates if one.place is None]
    assert excluded.target == "tiny"
    assert "window" in (excluded.reason or "")


def test_each_target_gets_its_own_prompt_sampling_and_tools_and_the_request_stays_as_it_was(drive: Driver) -> None:
    import json

    seen: list[dict[str, Any]] = []

    def observe(script: Script) -> Any:
        def answer(request: Any) -> Any:
            seen.append(json.loads(request.body))
            return script(request)

        return answer

    fleet = Fleet(a=observe(Script(busy())), b=observe(Script("from b")))
    request = AgentRequest(input="hi")
    before = request.model_dump_json()

    def make(base_url: str) -> Router:
        a = fleet.agent("a", base_url, default_system="You are a.", temperature=0.1, tools=[ToolSpec(name="only_a")])
        b = fleet.agent("b", base_url, default_system="You are b.", temperature=0.9)
        return Router([a, b])

    drive.complete(fleet, request, make=make)
    assert [body["messages"][0]["content"] for body in seen] == ["You are a.", "You are b."]
    assert [body["temperature"] for body in seen] == [0.1, 0.9]
    assert "tools" in seen[0]
    assert "tools" not in seen[1]
    assert request.model_dump_json() == before


def test_a_target_that_cannot_take_the_request_costs_no_attempt(drive: Driver) -> None:
    """Tools chosen by name that only one target offers: the others find out before anything is sent."""
    fleet = Fleet(a="never", b="never", c="never", d="never", e="from e")

    def make(base_url: str) -> Router:
        tool = ToolSpec(name="lookup")
        return Router([fleet.agent(name, base_url, tools=[tool] if name == "e" else []) for name in fleet.vendors])

    outcome = drive.complete(fleet, AgentRequest(input="hi", tool_choice="lookup"), make=make)
    assert outcome.ok.text == "from e"
    assert fleet.asked == ["e"]


def test_output_that_does_not_fit_its_schema_is_asked_of_another(drive: Driver) -> None:
    fleet = Fleet(a=["no json"] * 3, b='{"x": 1}')
    request = AgentRequest(input="x?", output_schema=dict[str, int])
    outcome = drive.complete(fleet, request, make=fleet.make())
    assert outcome.ok.output == {"x": 1}
    assert fleet.asked == ["a", "a", "a", "b"], "two retries, then the other target"
    spent = [one.usage.total_tokens for one in outcome.ok.route if one.usage is not None]
    assert outcome.ok.usage is not None
    assert outcome.ok.usage.total_tokens == sum(spent)


# Levels, groups, routers in routers, one request's own way


def test_levels_are_asked_in_order_and_the_strategy_rules_inside() -> None:
    def choose_last(request: AgentRequest, targets: Any) -> Any:
        return list(reversed(targets))

    agents = {name: scripted_agent(busy(), "later", model=name) for name in "abcd"}
    router = Router([[agents["a"], agents["b"]], [agents["c"], agents["d"]]], strategy=choose_last, retry=QUICK)
    assert router.explain("hi").order == ["scripted:b", "scripted:a", "scripted:d", "scripted:c"]


def test_a_router_can_be_a_target_and_attempts_count_together(drive: Driver) -> None:
    fleet = Fleet(a=[busy()] * 9, b=[busy()] * 9, c=[busy()] * 9, d=[busy()] * 9, e="never")

    def make(base_url: str) -> Router:
        inner = Router([fleet.agent("a", base_url), fleet.agent("b", base_url)], name="inner", retry=QUICK)
        other = Router([fleet.agent("c", base_url), fleet.agent("d", base_url)], name="other", retry=QUICK)
        return Router([inner, other, fleet.agent("e", base_url)], retry=QUICK)

    outcome = drive.complete(fleet, make=make)
    assert isinstance(outcome.failed, errors.RoutingError)
    assert len(fleet.asked) == 4
    assert "e" not in fleet.asked


def test_a_router_inside_a_router_answers(drive: Driver) -> None:
    fleet = Fleet(a=busy(), b="from b", c="never")

    def make(base_url: str) -> Router:
        return Router([Router([fleet.agent("a", base_url), fleet.agent("b", base_url)]), fleet.agent("c", base_url)])

    outcome = drive.stream(fleet, make=make)
    assert outcome.text == "from b"
    assert [attempt.error for attempt in outcome.ok.route] == ["OverloadedError", None]


def test_one_request_can_have_its_own_way(drive: Driver) -> None:
    fleet = Fleet(a=["from a", "from a"], b=["from b", "from b"])
    router = fleet.router()
    assert router.explain("hi", route={"only": ["b"]}).order == ["b"]
    assert router.explain("hi", route={"strategy": lambda request, targets: targets[::-1]}).order == ["b", "a"]
    assert router.explain("hi", model="b").order == ["b"]
    with pytest.raises(errors.ConfigurationError, match="route has no option 'tempo'"):
        router.explain("hi", route={"tempo": 1})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(errors.ConfigurationError, match="has no target"):
        router.explain("hi", model="unheard-of")
    outcome = drive.complete(fleet, AgentRequest(input="hi", model="b"), make=fleet.make())
    assert outcome.ok.text == "from b"


def test_a_request_may_allow_itself_one_attempt_only(drive: Driver) -> None:
    fleet = Fleet(a=busy(), b="never")

    def make(base_url: str) -> Router:
        return fleet.router(base_url).with_config(retry=RetryConfig(max_retries=0))

    drive.complete(fleet, make=make)
    assert fleet.asked == ["a"]


def test_a_changed_router_remembers_what_the_first_one_learnt() -> None:
    router = Router([scripted_agent(errors.AuthenticationError("no"), model="a"), scripted_agent("b", "b", model="b")])
    router.complete("hi")
    assert router.with_config(strategy="round_robin").explain("hi").order == ["scripted:b"]
    warmer = router.with_config(temperature=0.9)
    assert warmer.explain("hi").order == ["scripted:b"]
    assert [target.agent.config.temperature for target in warmer.targets] == [0.9, 0.9]
    assert [target.agent.config.temperature for target in router.targets] == [None, None]


def test_one_key_refused_is_refused_for_all_its_models() -> None:
    way = ScriptedTransport(Script(errors.AuthenticationError("no"), "from c"))
    keys = {"a": "sk-1", "b": "sk-1", "c": "sk-2"}
    agents = [Agent(f"scripted:{name}", transport=way, api_key=key) for name, key in keys.items()]
    response = Router(agents).complete("hi")
    assert response.text == "from c"
    assert [attempt.target for attempt in response.route] == ["scripted:a", "scripted:c"]


# Results of custom strategies


@pytest.mark.parametrize(
    ("choose", "order"),
    [
        (lambda request, targets: targets[1], ["b"]),
        (lambda request, targets: [targets[2], targets[0]], ["c", "a"]),
        (lambda request, targets: "b", ["b"]),
        (lambda request, targets: targets[1].agent, ["b"]),
        (lambda request, targets: RouteResult(agent=targets[2].agent, reason="a hunch"), ["c"]),
        (lambda request, targets: sorted(targets, key=lambda target: target.name, reverse=True), ["c", "b", "a"]),
        (lambda request, targets: None, []),
    ],
)
def test_a_function_of_the_callers_may_choose(choose: Any, order: list[str]) -> None:
    explanation = Fleet(a="a", b="b", c="c").router(strategy=choose).explain("hi")
    assert explanation.order == order
    assert {"a", "b", "c"} - set(order) == set(explanation.excluded)


def test_what_a_function_says_about_its_choice_is_in_the_route() -> None:
    router = Router([scripted_agent("a", model="a")], strategy=lambda r, t: RouteResult(agent=t[0], reason="a hunch"))
    assert [attempt.reason for attempt in router.complete("hi").route] == ["a hunch"]


def test_a_function_that_chooses_a_stranger_is_an_error() -> None:
    router = Router([scripted_agent("a", model="a")], strategy=lambda request, targets: "elsewhere")
    with pytest.raises(errors.ConfigurationError, match="elsewhere"):
        router.complete("hi")


# Targets


def test_routers_are_made_from_many_things() -> None:
    router = Router(
        [
            "scripted:one",
            Target("scripted:two", name="second", weight=2),
            scripted_agent("x", model="one"),
            Router(["scripted:three"], name="inner"),
        ]
    )
    assert [target.name for target in router.targets] == ["scripted:one", "second", "scripted:one#2", "inner"]
    assert repr(router) == "Router([scripted:one, second, scripted:one#2, inner])"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Router([]), "targets"),
        (lambda: Router("scripted:a"), "targets"),
        (lambda: Router([3]), "targets"),  # type: ignore[list-item]
        (lambda: Router(["scripted:a"], strategy="best"), "strategy"),  # type: ignore[arg-type]
        (lambda: Router(["scripted:a"], strategy=3), "strategy"),  # type: ignore[arg-type]
        (lambda: Router(["scripted:a"], on_partial="ignore"), "on_partial"),  # type: ignore[arg-type]
        (lambda: Router(["scripted:a"], on_content_filter="ignore"), "on_content_filter"),  # type: ignore[arg-type]
        (lambda: Router(["scripted:a", "scripted:b"], race=1), "race"),
        (lambda: Router([Target("scripted:a", weight=0)]), "weight"),
        (lambda: Router([Target("scripted:a", name="x"), Target("scripted:b", name="x")]), "targets"),
        (lambda: Router(["scripted:a"], shadow=[("scripted:b", 2)]), "shadow"),
        (lambda: Router(["unknown:a"]), "provider"),
        (lambda: Router(["scripted:a"]).complete(""), "input"),
        (lambda: Router(["scripted:a"]).complete("hi", temprature=1), "temprature"),  # type: ignore[call-overload]
        (lambda: Router(["scripted:a"]).json("hi"), "schema"),  # type: ignore[call-overload]
    ],
)
def test_bad_input_is_refused_by_name_before_anything_is_sent(make: Any, field: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        make()
    assert caught.value.field == field


# Routes and explanations


def test_the_route_prints_as_a_table_of_candidates_and_attempts() -> None:
    response = Router(
        [scripted_agent(busy(), model="a"), scripted_agent("b", model="b")], strategy="fallback"
    ).complete("hi")
    told = str(response.route)
    for words in ("place", "scripted:a", "ok", "in order", "attempt", "OverloadedError 503", "ok"):
        assert words in told
    assert [candidate.place for candidate in response.route.candidates] == [1, 2]


def test_an_error_prints_who_was_considered_and_tried() -> None:
    with pytest.raises(errors.RoutingError) as caught:
        Router([scripted_agent(errors.AuthenticationError("no"), model="a")]).complete("hi")
    told = str(caught.value)
    for words in ("No target answered", "AuthenticationError", "place", "attempt", "scripted:a"):
        assert words in told


def test_an_explanation_asks_nobody_and_takes_nobodys_turn() -> None:
    fleet = Fleet(a="a", b="b")
    router = fleet.router(strategy="round_robin")
    first = router.explain("hi")
    assert router.explain("hi") == first
    assert fleet.asked == []
    assert "place" in str(first)


def test_what_a_request_needs_is_told() -> None:
    from agent.types import ContentPart

    router = Router(["scripted:a", Agent("deepseek:deepseek-chat", api_key="k")])
    request = AgentRequest(messages=[Message.user([ContentPart.image_url_part("https://example.com/x.png")])])
    explanation = router.explain(request)
    assert explanation.needs == ("vision",)
    assert "does not support images" in explanation.excluded["deepseek:deepseek-chat"]
    assert "needs: vision" in str(explanation)


def test_a_router_travels_to_another_process_without_keys_and_without_grudges() -> None:
    import pickle

    agents = [Agent(f"openai-chat:{name}", api_key="sk-very-secret", base_url="http://127.0.0.1:1/v1") for name in "ab"]
    router = Router([Target(agents[0], name="first", weight=2, rpm=5), agents[1]], strategy="round_robin")
    router.targets[0].health.cooldown.extend(1e12, "a grudge")
    sent = pickle.dumps(router)
    assert b"very-secret" not in sent
    arrived = pickle.loads(sent)
    assert repr(arrived) == repr(router)
    assert arrived.explain("hi").order == ["first", "openai-chat:b"]
    assert [target.weight for target in arrived.targets] == [2, 1]


def test_routers_have_the_whole_interface_of_agents() -> None:
    ours = {name for name in dir(Router) if not name.startswith("_")}
    theirs = {name for name in dir(Agent) if not name.startswith("_")}
    by_id = {"submit", "retrieve", "cancel", "asubmit", "aretrieve", "acancel", "submit_batch", "asubmit_batch"}
    """An id is that of one target's vendor."""
    assert theirs - ours <= {"provider", "output_plan", *by_id}


def test_a_target_without_a_key_is_left_out_and_the_others_answer() -> None:
    response = Router(["deepseek:deepseek-chat", scripted_agent("from b", model="b")]).complete("hi")
    assert response.text == "from b"
    (excluded,) = [one for one in response.route.candidates if one.place is None]
    assert "DEEPSEEK_API_KEY" in (excluded.reason or "")


def test_checks_and_counts_are_those_of_the_first_target() -> None:
    router = Router([scripted_agent("a", model="a"), scripted_agent("b", model="b")])
    assert router.check("hi").target == "scripted:a"
    assert router.count_tokens("hello there").tokens > 0
    assert router.capabilities.streaming


# Streams


def test_a_broken_stream_is_an_error_unless_asked_otherwise(drive: Driver) -> None:
    fleet = Fleet(a=broken("Hel"), b="never")
    outcome = drive.stream(fleet, make=fleet.make())
    assert isinstance(outcome.failed, errors.StreamInterrupted)
    assert outcome.failed.partial is not None
    assert outcome.failed.partial.text == "Hel"
    assert fleet.asked == ["a"]


def test_a_broken_stream_may_begin_again_and_says_so(drive: Driver) -> None:
    fleet = Fleet(a=broken("Hel", "lo"), b="Good day")
    outcome = drive.stream(fleet, make=fleet.make(on_partial="restart"))
    types = [event.type for event in outcome.events]
    assert types.index("restart") > types.index("text_delta")
    after = [event.text for event in outcome.events[types.index("restart") :] if event.type == "text_delta"]
    assert "".join(text or "" for text in after) == "Good day"
    assert outcome.ok.text == "Good day"
    assert [attempt.error for attempt in outcome.ok.route] == ["StreamInterrupted", None]
    spent = [attempt.usage for attempt in outcome.ok.route]
    assert outcome.ok.usage is not None
    assert outcome.ok.usage.total_tokens == sum(usage.total_tokens for usage in spent if usage is not None)
    assert outcome.ok.usage.estimated, "the broken attempt is estimated"


def test_a_broken_stream_may_be_continued_by_another(drive: Driver) -> None:
    import json

    bodies: list[dict[str, Any]] = []

    def on(request: Any) -> Any:
        bodies.append(json.loads(request.body))
        return Script("and good night")(request)

    fleet = Fleet(a=broken("Good day ", "to you "), b=on)
    outcome = drive.stream(fleet, make=fleet.make(on_partial="continue"))
    assert outcome.ok.text == "Good day to you and good night"
    assert any("broke off" in warning for warning in outcome.ok.warnings)
    asked = bodies[0]["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "user"]
    assert asked[1]["content"] == "Good day to you "
    types = [event.type for event in outcome.events]
    assert "restart" in types
    since = [event.text or "" for event in outcome.events[types.index("restart") :] if event.type == "text_delta"]
    assert "".join(since) == "Good day to you and good night", "text since the restart event is complete"


def test_a_call_of_a_broken_attempt_is_never_taken(drive: Driver) -> None:
    from agent.engine.wire import Answer

    call = (
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function",'
        '"function":{"name":"transfer","arguments":"{\\"amount\\": 100}"}}]}}]}\n\n'
    )
    for how in ("restart", "continue"):
        fleet = Fleet(a=Answer([call.encode()]), b="No need to")
        request = AgentRequest(input="pay", tools=[ToolSpec(name="transfer")])
        outcome = drive.stream(fleet, request, make=fleet.make(on_partial=how))
        assert outcome.ok.tool_calls == []
        assert outcome.ok.text == "No need to"


def test_what_fits_a_schema_comes_from_one_attempt(drive: Driver) -> None:
    fleet = Fleet(a=broken('{\\"x\\": '), b='{"x": 2}')
    request = AgentRequest(input="x?", output_schema=dict[str, int])
    outcome = drive.stream(fleet, request, make=fleet.make(on_partial="continue"))
    assert outcome.ok.output == {"x": 2}


def test_when_nobody_can_begin_again_the_error_says_that_words_were_handed_out(drive: Driver) -> None:
    fleet = Fleet(a=broken("Hel"), b=errors.AuthenticationError("no"))
    outcome = drive.stream(fleet, make=fleet.make(on_partial="restart", retry=RetryConfig(max_retries=1)))
    assert isinstance(outcome.failed, errors.RoutingError)
    assert outcome.failed.committed
    assert outcome.events[-1].type == "error"


def test_values_arrive_piece_by_piece_from_whoever_answers() -> None:
    router = Router([scripted_agent(busy(), model="a"), scripted_agent('{"x": [1, 2, 3]}', model="b")])
    stream = router.stream_json("x?", schema=dict[str, list[int]])
    partials = list(stream)
    assert partials[-1] == {"x": [1, 2, 3]}
    assert stream.output == {"x": [1, 2, 3]}
