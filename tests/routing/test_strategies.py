"""Built-in strategies rank as documented."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from agent import Agent, Router, Target
from agent.engine.wire import Answer, Network, WireRequest
from agent.models import ModelFacts, Prices, register_model
from agent.testing import Script, Simulation, scripted_agent, simulate, start
from agent.types import AgentRequest, AgentResponse, Message, ThinkingLevel, ToolSpec, Usage
from tests.routing.fleet import Fleet, busy


def answer_slowly(seconds: float, text: str = "fine", delay: float = 0.0) -> Network:
    """A vendor that takes its time."""
    script = Script(*[text] * 10_000, delay=delay)

    def answer(request: WireRequest) -> Answer:
        good = script(request)
        return Answer(good.pieces, after=seconds, headers=good.headers)

    return answer


def tally(simulation: Simulation, router: Router, fleet: Fleet, requests: int, **options: Any) -> Counter[str]:
    """Whom requests go to that come one after the other."""
    fleet.asked.clear()
    for _ in range(requests):
        simulate(simulation, router, "hi", **options)
    return Counter(fleet.asked)


# Turns


def test_round_robin_takes_turns_by_weight() -> None:
    fleet = Fleet(a=answer_slowly(0), b=answer_slowly(0), c=answer_slowly(0))
    router = fleet.router(strategy="round_robin", each={"a": {"weight": 3}, "b": {"weight": 2}})
    assert tally(Simulation(fleet), router, fleet, 600) == {"a": 300, "b": 200, "c": 100}


def test_round_robin_spreads_its_turns_instead_of_giving_them_in_a_row() -> None:
    fleet = Fleet(a=answer_slowly(0), b=answer_slowly(0))
    router = fleet.router(strategy="round_robin", each={"a": {"weight": 3}})
    tally(Simulation(fleet), router, fleet, 40)
    assert "bb" not in "".join(fleet.asked)
    assert "aaaa" not in "".join(fleet.asked)


def test_who_was_away_does_not_catch_up_on_missed_turns() -> None:
    fleet = Fleet(a=answer_slowly(0), b=answer_slowly(0))
    router = fleet.router(strategy="round_robin")
    simulation = Simulation(fleet)
    router.targets[0].health.cooldown.extend(50.0, "exclude_unavailable")
    assert tally(simulation, router, fleet, 100) == {"b": 100}
    simulation.now = 60.0
    counted = tally(simulation, router, fleet, 20)
    assert abs(counted["a"] - counted["b"]) <= 2


# Speed


def test_the_fastest_gets_most_requests_and_the_others_are_tried_now_and_then() -> None:
    fleet = Fleet(slow=answer_slowly(2.0), quick=answer_slowly(0.2), middling=answer_slowly(1.0))
    router = fleet.router(strategy="fastest")
    simulation = Simulation(fleet, seed=4)
    tally(simulation, router, fleet, 50)
    counted = tally(simulation, router, fleet, 400)
    assert counted["quick"] >= 340
    assert 0 < counted["slow"] + counted["middling"] <= 60


def test_a_target_nobody_has_heard_of_is_not_stampeded() -> None:
    """All at once, before any has answered: the unheard one gets one of them, not all."""
    fleet = Fleet(known=answer_slowly(1.0), unheard=answer_slowly(1.0))
    router = fleet.router(strategy="fastest")
    simulation = Simulation(fleet, seed=1)
    router.targets[0].timings.observe(0.0, 1.0, None, 10)
    for _ in range(100):
        start(simulation, router, "hi")
    simulation.finish()
    assert fleet.asked[:100].count("unheard") <= 1


def test_who_becomes_slow_is_found_out_and_who_recovers_too() -> None:
    pace = {"a": 0.2, "b": 1.0}

    def vendor(name: str) -> Any:
        return lambda request: answer_slowly(pace[name])(request)

    fleet = Fleet(a=vendor("a"), b=vendor("b"))
    router = fleet.router(strategy="fastest")
    simulation = Simulation(fleet, seed=2)
    tally(simulation, router, fleet, 100)
    pace.update(a=5.0, b=1.0)
    tally(simulation, router, fleet, 100)
    assert tally(simulation, router, fleet, 100)["b"] >= 85
    pace.update(a=0.1)
    tally(simulation, router, fleet, 400)
    assert tally(simulation, router, fleet, 100)["a"] >= 85


def test_long_answers_do_not_make_a_stream_look_slow_nor_its_pace_a_slow_start_quick() -> None:
    quick_start = answer_slowly(0.1, "word " * 40, delay=0.1)
    slow_start = answer_slowly(3.0, "word", delay=0.0)
    fleet = Fleet(slow=slow_start, quick=quick_start)
    router = fleet.router(strategy="fastest")
    simulation = Simulation(fleet, seed=3)
    tally(simulation, router, fleet, 40, streaming=True)
    timings = {target.name: target.timings for target in router.targets}
    slow, quick = (timings[name].estimate_seconds(simulation.now, streaming=True) for name in ("slow", "quick"))
    assert slow is not None
    assert quick is not None
    assert slow == pytest.approx(3.0, abs=0.2)
    assert quick == pytest.approx(0.1 + 40 * 0.1, abs=0.6)


def test_failures_count_as_time_lost() -> None:
    good = answer_slowly(0.3)
    calls = {"n": 0}

    def flaky(request: WireRequest) -> Answer:
        calls["n"] += 1
        return Script(busy())(request) if calls["n"] % 2 else answer_slowly(0.2)(request)

    fleet = Fleet(flaky=flaky, good=good)
    router = fleet.router(strategy="fastest")
    simulation = Simulation(fleet, seed=5)
    tally(simulation, router, fleet, 60)
    assert tally(simulation, router, fleet, 100)["good"] >= 80


# Races


@pytest.mark.parametrize("streaming", [False, True])
def test_in_a_race_the_first_to_say_something_wins_and_the_losers_are_billed(streaming: bool) -> None:
    fleet = Fleet(slow=answer_slowly(5.0), quick=answer_slowly(0.5), slower=answer_slowly(9.0))
    router = fleet.router(strategy="fastest", race=True)
    simulation = Simulation(fleet)
    response = simulate(simulation, router, "hi", streaming=streaming)
    assert simulation.now < 1.0
    assert sorted(fleet.asked) == ["quick", "slow", "slower"]
    outcome = {attempt.target: attempt.error for attempt in response.route}
    assert outcome == {"quick": None, "slow": "Cancelled", "slower": "Cancelled"}
    lost = [attempt.usage for attempt in response.route if attempt.error is not None]
    assert all(usage is not None and usage.prompt_tokens > 0 and usage.estimated for usage in lost)
    assert response.usage is not None
    assert response.usage.total_tokens == sum(a.usage.total_tokens for a in response.route if a.usage is not None)
    assert simulation.open_bodies == 0
    assert [target.in_flight for target in router.targets] == [0, 0, 0]


def test_a_race_goes_on_without_those_who_fail() -> None:
    fleet = Fleet(broken=[busy()], quick=answer_slowly(0.5))
    response = simulate(Simulation(fleet), fleet.router(race=True), "hi")
    assert response.text == "fine"
    assert [attempt.error for attempt in response.route] == ["OverloadedError", None]


def test_a_race_may_be_for_some_only() -> None:
    fleet = Fleet(a=answer_slowly(1.0), b=answer_slowly(0.5), c=answer_slowly(0.1))
    simulate(Simulation(fleet), fleet.router(race=2), "hi")
    assert sorted(fleet.asked) == ["a", "b"]


# Hedges


def test_a_second_target_is_asked_when_the_first_takes_longer_than_it_usually_does() -> None:
    pace = {"a": 0.2}
    fleet = Fleet(a=lambda request: answer_slowly(pace["a"])(request), b=answer_slowly(0.3))
    router = fleet.router(hedge=True)
    simulation = Simulation(fleet)
    assert tally(simulation, router, fleet, 20) == {"a": 20}, "no hedges without slow targets"
    pace["a"] = 30.0
    before = simulation.now
    response = simulate(simulation, router, "hi")
    assert simulation.now - before < 1.0
    assert [(a.target, a.error, a.reason) for a in response.route] == [
        ("a", "Cancelled", "in order"),
        ("b", None, "hedge: the first target was slow"),
    ]


def test_hedges_keep_to_their_own_budget() -> None:
    fleet = Fleet(a=answer_slowly(1.0), b=answer_slowly(1.0))
    from agent.types import HedgeConfig

    router = fleet.router(hedge=HedgeConfig(delay=0.1, max_share=0.05))
    simulation = Simulation(fleet)
    for call in range(1, 201):
        simulate(simulation, router, "hi")
        hedged = fleet.asked.count("b")
        assert hedged == call // 20, f"{hedged} of {call} calls were hedged"


def test_a_stream_is_hedged_by_its_first_token() -> None:
    from agent.types import HedgeConfig

    fleet = Fleet(a=answer_slowly(9.0), b=answer_slowly(0.1, "word " * 5, delay=1.0))
    router = fleet.router(hedge=HedgeConfig(delay=0.5, max_share=1.0))
    simulation = Simulation(fleet)
    response = simulate(simulation, router, "hi", streaming=True)
    assert response.text == "word " * 5
    assert fleet.asked == ["a", "b"]


# Money


def test_the_cheapest_is_cheapest_for_this_request_and_free_is_cheapest_of_all() -> None:
    facts = {
        "short": Prices(input=10.0, output=1.0),
        "long": Prices(input=1.0, output=30.0),
        "free": Prices(input=0.0, output=0.0),
    }
    for name, prices in facts.items():
        register_model(ModelFacts(provider="openai-chat", model=name, prices=prices))
    fleet = Fleet(short=answer_slowly(0), long=answer_slowly(0), unpriced=answer_slowly(0))
    router = fleet.router(strategy="cheapest")
    assert router.explain("hi", max_tokens=300).order == ["short", "long", "unpriced"], "the answer is what costs"
    assert router.explain("many words " * 2000, max_tokens=5).order == ["long", "short", "unpriced"]
    with_free = Fleet(long=answer_slowly(0), free=answer_slowly(0)).router(strategy="cheapest")
    assert with_free.explain("hi").order == ["free", "long"]
    assert "about $0.000000" in (with_free.explain("hi").candidates[0].reason or "")


def test_what_the_vendor_has_cached_makes_it_cheaper() -> None:
    register_model(
        ModelFacts(provider="openai-chat", model="caching", prices=Prices(input=3.0, output=1.0, cache_read=0.1))
    )
    register_model(ModelFacts(provider="openai-chat", model="plain", prices=Prices(input=2.0, output=1.0)))
    long = "many words " * 2000
    answer = AgentResponse(text="fine", usage=Usage(prompt_tokens=4000, completion_tokens=3))
    fleet = Fleet(caching=[answer] * 5, plain=[answer] * 5)
    router = fleet.router(strategy="cheapest")
    assert router.explain(long).order == ["plain", "caching"]
    simulation = Simulation(fleet, now=time.monotonic())  # an explanation is for now
    simulate(simulation, router, long, model="caching")
    conversation = [Message.user(long), Message.assistant("fine"), Message.user("and now?")]
    assert router.explain(conversation).order == ["caching", "plain"]
    assert "tokens cached" in (router.explain(conversation).candidates[0].reason or "")


# Capabilities


def test_what_a_request_could_use_decides() -> None:
    for name, thinks in (("plain", False), ("deep", True)):
        register_model(ModelFacts(provider="openai-chat", model=name, thinking=thinks, native_schema=thinks))
    router = Fleet(plain="x", deep="y").router(strategy="capability")
    assert router.explain("hi").order == ["plain", "deep"]
    assert router.explain("hi", thinking=ThinkingLevel.HIGH).order == ["deep", "plain"]
    assert router.explain("hi", schema=dict[str, int]).order == ["deep", "plain"]


@pytest.mark.parametrize("strategy", ["fallback", "round_robin", "fastest", "cheapest", "least_busy", "sticky"])
def test_who_cannot_do_it_is_left_out_whatever_the_strategy(strategy: str) -> None:
    register_model(ModelFacts(provider="openai-chat", model="clumsy", tools=False))
    router = Fleet(clumsy="x", handy="y").router(strategy=strategy)
    explanation = router.explain("hi", tools=[ToolSpec(name="f")])
    assert explanation.order == ["handy"]
    assert explanation.excluded == {"clumsy": "does not support tools"}


# Load


def test_the_least_busy_is_asked_and_cancelled_requests_do_not_count() -> None:
    fleet = Fleet(a=answer_slowly(10.0), b=answer_slowly(10.0))
    router = fleet.router(strategy="least_busy", each={"b": {"weight": 2}})
    simulation = Simulation(fleet)
    runs = [start(simulation, router, "hi") for _ in range(6)]
    while len(fleet.asked) != 6:
        assert simulation.step()
    assert Counter(fleet.asked) == {"a": 2, "b": 4}
    for run in runs:
        simulation.cancel(run)
    assert [target.in_flight for target in router.targets] == [0, 0]


# Conversations


def _turns(turns: int, opening: str = "Tell me about Rome") -> list[Message]:
    messages = [Message.user(opening)]
    for turn in range(turns):
        messages += [Message.assistant(f"Answer {turn}"), Message.user(f"RequestProfile {turn}")]
    return messages


def test_all_turns_of_a_conversation_go_to_the_same_target_in_every_process() -> None:
    names = [f"t{number}" for number in range(5)]
    routers = [Fleet(**dict.fromkeys(names, "x")).router(strategy="sticky") for _ in range(2)]
    first = {router.explain(_turns(turn)).order[0] for turn in range(10) for router in routers}
    assert len(first) == 1
    by_session = {routers[0].explain(f"hi {n}", session_id="s").order[0] for n in range(10)}
    assert len(by_session) == 1


def test_conversations_are_spread_by_weight_and_few_move_when_a_target_is_added() -> None:
    names = ["a", "b", "c"]
    router = Fleet(**dict.fromkeys(names, "x")).router(strategy="sticky", each={"a": {"weight": 2}})
    larger = Fleet(**dict.fromkeys([*names, "d"], "x")).router(strategy="sticky", each={"a": {"weight": 2}})
    placed = [router.explain(f"conversation {number}").order[0] for number in range(1000)]
    counted = Counter(placed)
    assert counted["a"] == pytest.approx(500, abs=70)
    assert counted["b"] == pytest.approx(250, abs=60)
    moved = [larger.explain(f"conversation {number}").order[0] for number in range(1000)]
    assert all(new in (old, "d") for old, new in zip(placed, moved, strict=True)), (
        "conversations only move to the new target"
    )


def test_a_conversation_whose_target_fails_moves_and_stays_where_it_went() -> None:
    fleet = Fleet(a=[busy(), *["from a"] * 9], b=[busy(), *["from b"] * 9], c=["from c"] * 9)
    router = fleet.router(strategy="sticky")
    simulation = Simulation(fleet)
    opening = next(f"try {n}" for n in range(99) if router.explain(f"try {n}").order[0] == "a")
    moved_to = simulate(simulation, router, opening).route[-1].target
    assert moved_to != "a"
    later = [simulate(simulation, router, _turns(turn, opening)).route[0].target for turn in range(1, 4)]
    assert set(later) == {moved_to}


# Shadows


def test_a_shadow_is_asked_and_cannot_touch_the_answer() -> None:
    heard: list[Any] = []
    fleet = Fleet(main=["fine"] * 5, dark=[busy(), "from the dark"])
    router = fleet.router()
    shadowed = Router([router.targets[0]], shadow=[(fleet.agent("dark", "http://127.0.0.1"), 1.0, heard.append)])
    simulation = Simulation(fleet)
    for _ in range(2):
        response = simulate(simulation, shadowed, "hi")
        assert response.text == "fine"
        assert [attempt.target for attempt in response.route] == ["main"]
    simulation.finish()
    assert Counter(fleet.asked) == {"main": 2, "dark": 2}
    assert sorted(type(one).__name__ for one in heard) == ["AgentResponse", "OverloadedError"]


def test_a_shadow_that_hangs_or_whose_listener_breaks_changes_nothing() -> None:
    def breaks(outcome: Any) -> None:
        raise RuntimeError("no")

    fleet = Fleet(main=["fine"] * 5, hanging=answer_slowly(1e6), dark=["x"] * 5)
    agents = [fleet.agent(name, "http://127.0.0.1") for name in ("main", "hanging", "dark")]
    router = Router([agents[0]], shadow=[(agents[1],), (agents[2], 1.0, breaks)])
    simulation = Simulation(fleet)
    assert simulate(simulation, router, "hi").text == "fine"
    assert simulation.now < 1.0
    simulation.finish()
    assert simulation.open_bodies == 0


def test_a_shadow_gets_its_share_of_the_requests() -> None:
    fleet = Fleet(main=answer_slowly(0), dark=answer_slowly(0))
    router = Router([fleet.agent("main", "http://127.0.0.1")], shadow=[(fleet.agent("dark", "http://127.0.0.1"), 0.2)])
    simulation = Simulation(fleet, seed=6)
    counted = tally(simulation, router, fleet, 500)
    assert counted["main"] == 500
    assert counted["dark"] == pytest.approx(100, abs=30)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_shadows_run_on_real_drivers_too(face: str) -> None:
    import asyncio
    import threading

    heard = threading.Event()
    router = Router(
        [scripted_agent("fine", model="main")],
        shadow=[(scripted_agent("dark", model="dark"), 1.0, lambda outcome: heard.set())],
    )
    if face == "sync":
        assert router.complete("hi").text == "fine"
        assert heard.wait(5)
        return

    async def main() -> None:
        assert (await router.acomplete("hi")).text == "fine"
        for _ in range(500):
            if heard.is_set():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the shadow was never heard")

    asyncio.run(main())


def test_agents_with_transports_of_their_own_can_be_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real socket, a scripted transport and a function, in one router."""
    from agent import providers, register_provider
    from agent.testing import LoopbackServer

    monkeypatch.setattr(providers, "_registered", {})
    register_provider("seeing-double", function=lambda request: (_ for _ in ()).throw(ValueError("no")))
    with LoopbackServer(Script("from the socket")) as server:
        router = Router(
            [
                Agent("seeing-double:m"),
                scripted_agent(busy(), model="script"),
                Target(Agent("openai-chat:m", api_key="k", base_url=f"{server.url}/v1"), name="socket"),
            ]
        )
        response = router.complete(AgentRequest(input="hi"))
    assert response.text == "from the socket"
    assert [attempt.target for attempt in response.route][-1] == "socket"
