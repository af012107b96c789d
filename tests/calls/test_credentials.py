"""Keys that change: asked for before each attempt, renewed when they are refused, and never shown."""

from __future__ import annotations

import asyncio
import functools
import json
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr

from agent import Agent, RetryConfig, Router, errors
from agent.engine.context import ambient_deadline
from agent.engine.wire import Answer, WireRequest
from agent.middleware import Cache, Middleware
from agent.testing import LoopbackServer, Script, ScriptedTransport, Simulation, VendorScript, scripted_agent, simulate
from tests.middleware.spies import Spy
from tests.support.drivers import Driver
from tests.support.leaks import KEY, assert_hidden, assert_no_trace


class Vendor:
    """Takes some keys and refuses others."""

    def __init__(self, *good: str, lines: tuple[Any, ...] = ()) -> None:
        self.good = set(good)
        self.script = Script(*lines)
        self.keys: list[str] = []

    def __call__(self, request: WireRequest) -> Answer:
        key = dict(request.headers).get(b"authorization", b"").decode().removeprefix("Bearer ")
        self.keys.append(key)
        if key not in self.good:
            return Answer([json.dumps({"error": {"message": f"Incorrect API key: {key}"}}).encode()], status=401)
        return self.script(request)


def create_agent(get_api_key: Callable[..., Any], **options: Any) -> Callable[[str], Agent]:
    if "retry" not in options:
        options.setdefault("max_retries", 0)
    return lambda url: Agent("openai-chat:m", base_url=f"{url}/v1", get_api_key=get_api_key, **options)


class Vault:
    """Return the keys one after the other, then the last one; record the arguments."""

    def __init__(self, *keys: Any) -> None:
        self.keys = list(keys)
        self.asked: list[tuple[Any, ...]] = []

    def next(self, *args: Any) -> Any:
        self.asked.append(args)
        key = self.keys.pop(0) if len(self.keys) > 1 else self.keys[0]
        if isinstance(key, Exception):
            raise key
        return key

    def plain(self) -> Any:
        return self.next()

    def by_name(self, provider: str) -> Any:
        return self.next(provider)

    def refresh_key(self, provider: str, *, refresh: bool = False) -> Any:
        return self.next(provider, refresh)

    async def later(self, provider: str, refresh: bool = False) -> Any:
        return self.next(provider, refresh)


@pytest.mark.parametrize("way", ["plain", "by_name", "refresh_key", "later"])
def test_a_key_is_asked_for_before_each_call(drive: Driver, way: str) -> None:
    vendor, vault = Vendor("one", "two"), Vault("one", "two")
    get = getattr(vault, way)
    for ask in (drive.complete, drive.stream):
        assert ask(vendor, make=create_agent(get)).ok.text == "You said: hi"
    assert vendor.keys == ["one", "two"]
    assert vault.asked == [{"plain": (), "by_name": ("openai-chat",)}.get(way, ("openai-chat", False))] * 2


def test_a_refused_key_is_renewed_and_the_attempt_made_again_once(drive: Driver) -> None:
    for ask in (drive.complete, drive.stream):
        vendor, vault = Vendor("new"), Vault("old", "new")
        outcome = ask(vendor, make=create_agent(vault.refresh_key))
        assert outcome.ok.text == "You said: hi"
        assert vendor.keys == ["old", "new"]
        assert vault.asked == [("openai-chat", False), ("openai-chat", True)]
        assert [(attempt.error, attempt.status_code) for attempt in outcome.ok.route] == [
            ("AuthenticationError", 401), (None, None),
        ]  # fmt: skip
        assert outcome.ok.route[1].reason == "the vendor rejected the key, and there is a new one"
        if ask == drive.stream:
            assert [event.type for event in outcome.events].count("message_start") == 1


def test_a_function_that_knows_no_refresh_is_simply_asked_again(drive: Driver) -> None:
    vendor, vault = Vendor("new"), Vault("old", "new")
    assert drive.complete(vendor, make=create_agent(vault.by_name)).ok.text == "You said: hi"
    assert vault.asked == [("openai-chat",)] * 2


def test_a_key_that_stays_the_same_is_not_tried_again(drive: Driver) -> None:
    vendor, vault = Vendor("good"), Vault("old")
    outcome = drive.complete(vendor, make=create_agent(vault.refresh_key))
    assert isinstance(outcome.failed, errors.AuthenticationError)
    assert outcome.failed.status_code == 401
    assert vendor.keys == ["old"]
    assert vault.asked == [("openai-chat", False), ("openai-chat", True)]


def test_a_key_is_renewed_once_and_not_twice(drive: Driver) -> None:
    vendor, vault = Vendor(), Vault("a", "b", "c")
    outcome = drive.complete(vendor, make=create_agent(vault.refresh_key, max_retries=3))
    assert isinstance(outcome.failed, errors.AuthenticationError)
    assert vendor.keys == ["a", "b"]


def test_each_retry_asks_for_the_key_it_needs(drive: Driver) -> None:
    vendor = Vendor("a", "b", "c", lines=(errors.OverloadedError("busy"), errors.OverloadedError("busy"), "ok"))
    vault = Vault("a", "b", "c")
    retry = RetryConfig(max_retries=2, initial_delay=0.0)
    assert drive.complete(vendor, make=create_agent(vault.plain, retry=retry)).ok.text == "ok"
    assert vendor.keys == ["a", "b", "c"]


def test_other_failures_ask_for_no_other_key(drive: Driver) -> None:
    vendor, vault = Vendor("a", lines=(errors.BadRequestError("no"),)), Vault("a", "b")
    outcome = drive.complete(vendor, make=create_agent(vault.refresh_key))
    assert isinstance(outcome.failed, errors.BadRequestError)
    assert len(vault.asked) == 1


def test_a_router_does_the_same_at_each_target(drive: Driver) -> None:
    vendor, vault = Vendor("new"), Vault("old", "new")
    nobody = Vault("wrong")

    def make(url: str) -> Router:
        return Router(
            [create_agent(nobody.refresh_key)(url).with_config(model="x"), create_agent(vault.refresh_key)(url)]
        )

    for ask in (drive.complete, drive.stream):
        vault.keys[:] = ["old", "new"]
        outcome = ask(vendor, make=make)
        assert outcome.ok.text == "You said: hi"
        assert [attempt.error for attempt in outcome.ok.route] == ["AuthenticationError", "AuthenticationError", None]
    assert vendor.keys == ["wrong", "old", "new"] * 2


def test_a_function_that_fails_is_a_failure_of_authentication(drive: Driver) -> None:
    vendor = Vendor("a")
    for ask in (drive.complete, drive.stream):
        outcome = ask(vendor, make=create_agent(Vault(OSError("vault is sealed")).plain))
        assert isinstance(outcome.failed, errors.AuthenticationError)
        assert isinstance(outcome.failed.__cause__, OSError)
        assert outcome.failed.message == "get_api_key returned no key for 'openai-chat': it raised OSError."
        assert (outcome.failed.provider, outcome.failed.model, outcome.failed.retryable) == ("openai-chat", "m", False)
    assert vendor.keys == []


def test_a_failure_of_authentication_stays_the_one_it_is(drive: Driver) -> None:
    mine = errors.AuthenticationError("log in again")
    outcome = drive.complete(Vendor(), make=create_agent(Vault(mine).plain))
    assert outcome.failed is mine


def test_a_function_that_fails_to_renew_says_so(drive: Driver) -> None:
    outcome = drive.complete(Vendor(), make=create_agent(Vault("old", OSError("sealed")).refresh_key))
    assert isinstance(outcome.failed, errors.AuthenticationError)
    assert isinstance(outcome.failed.__cause__, OSError)


@pytest.mark.parametrize("wrong", [7, b"bytes", ["x"]])
def test_what_is_no_key_is_said(wrong: Any) -> None:
    agent = create_agent(Vault(wrong).plain)("http://127.0.0.1:9")
    with pytest.raises(errors.AuthenticationError, match="it raised TypeError") as caught:
        agent.complete("hi")
    assert "a key must be a string, not" in str(caught.value.__cause__)


def test_a_key_that_no_header_can_hold_is_refused_and_not_shown() -> None:
    agent = create_agent(Vault(f"{KEY}\r\nx: y").plain)("http://127.0.0.1:9")
    with pytest.raises(errors.ConfigurationError, match=r"api_key: .*control characters") as caught:
        agent.complete("hi")
    assert_no_trace(caught.value)


def test_secrets_and_line_ends_of_files_are_taken(drive: Driver) -> None:
    vendor = Vendor("one")
    for key in (SecretStr("one"), "one\n"):
        assert drive.complete(vendor, make=create_agent(Vault(key).plain)).ok.text == "You said: hi"


@pytest.mark.parametrize("nothing", [None, "", "  "])
def test_without_a_key_the_usual_one_is_used(drive: Driver, nothing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = Vendor("from-config", "from-environment")
    assert drive.complete(vendor, make=create_agent(Vault(nothing).plain, api_key="from-config")).ok.text
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    assert drive.complete(vendor, make=create_agent(Vault(nothing).plain)).ok.text
    assert vendor.keys == ["from-config", "from-environment"]


def test_without_any_key_the_call_fails_and_not_the_agent() -> None:
    agent = Agent("openai-chat:m", get_api_key=lambda: None)
    assert agent.capabilities.tools
    with pytest.raises(errors.AuthenticationError, match="There is no key"):
        agent.complete("hi")


def test_a_codec_is_made_once_for_a_key_and_two_are_kept() -> None:
    keys = ["a", "a", "b", "a", "b", "c", "a"]
    agent = Agent("scripted:m", transport=ScriptedTransport(Script()), get_api_key=Vault(*keys).plain)
    assert agent._keys is not None
    made_for: list[str] = []
    make = agent._keys._endpoint

    def record_key(key: Any) -> Any:
        made_for.append(key.get_secret_value())
        return make(key)

    agent._keys._endpoint = record_key
    for _ in keys:
        agent.complete("hi")
    assert made_for == ["a", "b", "c", "a"]
    assert len(agent._keys._kept) == 2


def test_tokens_are_counted_with_the_key_that_there_is() -> None:
    seen: list[bytes] = []
    script = VendorScript()

    def network(request: WireRequest) -> Answer:
        seen.append(dict(request.headers)[b"x-api-key"])
        return (
            Answer([b'{"type":"error","error":{"type":"authentication_error","message":"no"}}'], status=401)
            if seen[-1] == b"old"
            else script(request)
        )

    agent = Agent(
        "anthropic:claude-sonnet-5", transport=ScriptedTransport(network), get_api_key=Vault("old", "new").plain
    )
    assert agent.count_tokens("hi", exact=True).exact
    assert seen == [b"old", b"new"]


def test_a_blocking_function_does_not_hold_up_the_event_loop() -> None:
    gate = threading.Event()
    agent = scripted_agent("ok", get_api_key=lambda: "key" if gate.wait(10) else None)

    async def main() -> str | None:
        task = asyncio.create_task(agent.acomplete("hi"))
        await asyncio.sleep(0.01)
        gate.set()  # would never be reached
        return (await task).text

    assert asyncio.run(main()) == "ok"


def test_the_deadline_holds_for_asking_too() -> None:
    async def never() -> str:
        await asyncio.sleep(60)
        return "key"

    agent = scripted_agent("ok", get_api_key=never)
    with pytest.raises(errors.TimeoutError) as caught:
        agent.complete("hi", deadline=0.05)
    assert caught.value.deadline


def test_the_function_knows_how_long_it_may_take() -> None:
    left: list[float] = []

    def get() -> str:
        left.append(ambient_deadline.get())
        return "key"

    scripted_agent("ok", get_api_key=get).complete("hi", deadline=50.0)
    assert left[0] < float("inf")


def test_any_callable_will_do() -> None:
    class Callable_:
        async def __call__(self, *, refresh: bool = False) -> str:
            return "key"

    vault = Vault("key")

    def accept_anything(*args: Any, **kwargs: Any) -> str:
        vault.asked.append((args, kwargs))
        return "key"

    for get in (Callable_(), functools.partial(vault.by_name, "fixed"), lambda: vault.later("x"), accept_anything, str):
        agent = Agent("scripted:m", transport=ScriptedTransport(Script()), get_api_key=get)
        assert agent.complete("hi").text == "You said: hi"
    assert vault.asked == [("fixed",), ("x", False), (("scripted",), {})]


# Never shown


def echo_key(request: WireRequest) -> Answer:
    """A vendor that quotes the key that it refuses, and whatever else it was sent."""
    key = dict(request.headers)[b"authorization"].decode()
    body = {"error": {"message": f"Incorrect API key provided: {key}", "headers": str(request.headers)}}
    return Answer([json.dumps(body).encode()], status=401)


def test_no_failure_and_no_view_shows_the_key() -> None:
    spy = Spy("A", [])
    agent = Agent(
        "openai-chat:m",
        transport=ScriptedTransport(echo_key),
        get_api_key=Vault(KEY, KEY + "2").plain,
        middleware=[spy],
        max_retries=0,
    )
    with pytest.raises(errors.AuthenticationError) as caught:
        agent.complete("hi")
    assert_no_trace(caught.value)
    for view in (repr(agent), repr(vars(agent)), repr(agent._keys), repr(vars(agent._keys))):
        assert_hidden("a view", view)


def test_a_fingerprint_needs_no_key() -> None:
    cache = Cache()
    vault = Vault("one", "two")
    agent = Agent("scripted:m", transport=ScriptedTransport(Script("ok")), get_api_key=vault.plain, middleware=[cache])
    assert [agent.complete("hi").text for _ in range(2)] == ["ok", "ok"]
    assert (cache.stats.hits, len(vault.asked)) == (1, 1)


# Variants, pickles, what cannot work


def key_of_the_module() -> str:
    return "sk-module"


def test_a_function_of_a_module_travels_by_its_name() -> None:
    with LoopbackServer(Vendor("sk-module")) as server:
        agent = create_agent(key_of_the_module)(server.url)
        data = pickle.dumps(agent)
        assert b"sk-module" not in data
        there: Agent = pickle.loads(data)
        assert there.complete("hi").text == "You said: hi"
        routed: Router = pickle.loads(pickle.dumps(Router([agent])))
        assert routed.complete("hi").text == "You said: hi"


@pytest.mark.parametrize(
    "get",
    [lambda: "sk-inline", Vault("sk-vault").plain, functools.partial(str, "sk-partial")],
    ids=["lambda", "method", "partial"],
)
def test_what_may_hold_a_key_does_not_travel(get: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="can only be pickled if"):
        pickle.dumps(Agent("openai-chat:m", get_api_key=get))


def test_a_variant_asks_the_same_function() -> None:
    vault = Vault("key")
    agent = Agent("scripted:m", transport=ScriptedTransport(Script()), get_api_key=vault.plain)
    agent.with_config(temperature=0.5).complete("hi")
    Router([agent]).with_config(temperature=0.5).complete("hi")
    assert len(vault.asked) == 2


def test_a_client_has_its_own_key() -> None:
    with pytest.raises(errors.ConfigurationError, match="client and get_api_key exclude each other"):
        Agent("openai-chat:m", client=object(), get_api_key=lambda: "x")


def test_something_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match="get_api_key is a str"):
        Agent("openai-chat:m", get_api_key="sk-test")  # type: ignore[arg-type]


def test_a_plain_http_address_is_refused_as_with_any_key() -> None:
    agent = Agent("openai-chat:m", base_url="http://elsewhere.example/v1", get_api_key=lambda: KEY)
    with pytest.raises(errors.ConfigurationError, match="unencrypted"):
        agent.complete("hi")


def test_agents_that_share_a_function_share_its_troubles() -> None:
    getters = [key_of_the_module, key_of_the_module, lambda: "x"]
    one, two, other = (Agent("openai-chat:m", get_api_key=get).identity() for get in getters)
    assert one == two
    assert one != other


def test_middleware_sees_one_call_however_often_the_key_is_renewed() -> None:
    log: list[str] = []
    spies: list[Middleware] = [Spy("A", log)]
    vendor = Vendor("new")
    agent = create_agent(Vault("old", "new").plain, middleware=spies)("http://127.0.0.1")
    simulate(Simulation(vendor), agent, "hi")
    assert log == ["A.before", "A.after"]
