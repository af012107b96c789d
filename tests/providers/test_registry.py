"""Providers by name: built in, registered, or found by their entry point."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from agent import Agent, AgentConfig, errors, providers, register_provider, transports
from agent.providers import Provider
from agent.providers.base import resolve_address
from agent.providers.scripted import provider as scripted


@pytest.fixture(autouse=True)
def _forget_what_is_registered() -> Iterator[None]:
    before = dict(providers._registered)
    yield
    providers._registered.clear()
    providers._registered.update(before)


def third_party(config: AgentConfig) -> Provider:
    return scripted("acme")(config)


def test_a_registered_provider_answers_under_its_name() -> None:
    register_provider("acme", third_party)
    response = Agent("acme:m").complete("hi")
    assert (response.provider, response.text) == ("acme", "You said: hi")
    assert "acme" in providers.list_providers()


def test_a_built_in_provider_may_be_replaced() -> None:
    register_provider("openai", third_party)
    assert Agent("openai:m").complete("hi").provider == "acme"


def test_an_entry_point_is_found_and_loaded_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("acme", f"{__name__}:third_party", "agent.providers")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == "agent.providers" else [])
    monkeypatch.setattr(EntryPoint, "load", lambda self: third_party)
    assert Agent("acme:m").complete("hi").provider == "acme"
    assert "acme" in providers.list_providers()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(errors.ConfigurationError, match=r"groq, .*openai-chat, .*scripted"):
        Agent("acme:m")


def test_a_provider_without_an_address_asks_for_one() -> None:
    config = AgentConfig(provider="acme", model="m")
    with pytest.raises(errors.ConfigurationError) as caught:
        resolve_address(config, default_base_url=None, key_variables=())
    assert caught.value.field == "base_url"


@pytest.mark.parametrize("url", ["http://[::1", "api.acme.example/v1", "https://me:secret@acme.example", "https://a b"])
def test_an_address_from_the_environment_is_checked_as_if_it_had_been_passed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_BASE_URL", url)
    config = AgentConfig(provider="acme", model="m", api_key="sk-test")
    with pytest.raises(errors.ConfigurationError) as caught:
        resolve_address(config, default_base_url=None, key_variables=(), base_url_variables=("ACME_BASE_URL",))
    assert caught.value.field == "base_url"
    assert "secret" not in str(caught.value)


def test_an_unknown_transport_is_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match="carrier-pigeon"):
        transports.get_transport("carrier-pigeon")


def test_an_agent_says_what_its_provider_can_do() -> None:
    capabilities = Agent("scripted:m").capabilities
    assert capabilities.streaming
    assert capabilities.tools
