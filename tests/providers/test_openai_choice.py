"""Which API the name `openai` means, and where its requests go."""

from __future__ import annotations

import json

import pytest

from agent import Agent, errors
from agent.providers import load_provider
from agent.providers.openai_chat import ChatCodec
from agent.providers.openai_responses import ResponsesCodec
from agent.testing import LoopbackServer, Script
from agent.types import AgentConfig, AgentRequest, Message, TextContent, ThinkingContent

RESPONSES = (
    None,
    "https://api.openai.com/v1",
    "https://api.openai.com/v1/",
    "https://eu.api.openai.com/v1",
    "https://resource.openai.azure.com/openai/v1",
    "https://resource.openai.azure.com/openai/v1/",
    "https://resource.services.ai.azure.com/openai/v1",
    "https://resource.cognitiveservices.azure.com/openai/v1/",
)
CHAT = (
    "http://127.0.0.1:8000/v1",
    "http://localhost:11434/v1",
    "https://openrouter.ai/api/v1",
    "https://api.openai.com.evil.example/v1",
    "https://notapi.openai.com/v1",
    "https://evil-api.openai.com/v1",
    "https://resource.services.ai.azure.com/models",
    "https://resource.openai.azure.com/openai/deployments/gpt-4o",
)


def config(base_url: str | None, provider: str = "openai") -> AgentConfig:
    return AgentConfig(provider=provider, model="m", api_key="sk-test", base_url=base_url)


@pytest.mark.parametrize("base_url", RESPONSES)
def test_openai_and_azure_are_asked_through_the_responses_api(base_url: str | None) -> None:
    codec = load_provider("openai")(config(base_url))
    assert isinstance(codec, ResponsesCodec)
    assert (codec.name, codec.api) == ("openai", "openai-responses")
    url = codec.encode(AgentRequest(input="hi", model="m"), stream=False).url
    assert url == f"{(base_url or 'https://api.openai.com/v1').rstrip('/')}/responses"


@pytest.mark.parametrize(
    ("base_url", "path"),
    [
        ("https://api.openai.com", "/v1"),
        ("https://eu.api.openai.com/", "/v1"),
        ("https://resource.openai.azure.com", "/openai/v1"),
        ("https://resource.openai.azure.com/", "/openai/v1"),
        ("https://resource.cognitiveservices.azure.com", "/openai/v1"),
        ("https://resource.services.ai.azure.com", "/openai/v1"),
    ],
)
def test_the_name_of_the_host_is_address_enough(base_url: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure's portal shows no more of it."""
    request = AgentRequest(input="hi", model="m")
    wanted = f"{base_url.rstrip('/')}{path}"
    assert load_provider("openai")(config(base_url)).encode(request, stream=False).url == f"{wanted}/responses"
    chat = load_provider("openai-chat")(config(base_url, "openai-chat"))
    assert chat.encode(request, stream=False).url == f"{wanted}/chat/completions"
    responses = load_provider("openai-responses")(config(base_url, "openai-responses"))
    assert responses.encode(request, stream=False).url == f"{wanted}/responses"
    monkeypatch.setenv("OPENAI_BASE_URL", base_url)
    assert load_provider("openai")(config(None)).encode(request, stream=False).url == f"{wanted}/responses"


@pytest.mark.parametrize("base_url", CHAT)
def test_everybody_else_is_asked_through_chat_completions(base_url: str) -> None:
    codec = load_provider("openai")(config(base_url))
    assert isinstance(codec, ChatCodec)
    assert (codec.name, codec.api) == ("openai", "openai-chat")


def test_an_address_in_the_environment_decides_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gateway.example/v1")
    assert load_provider("openai")(config(None)).api == "openai-chat"
    assert load_provider("openai")(config("https://api.openai.com/v1")).api == "openai-responses"
    monkeypatch.setenv("OPENAI_BASE_URL", " https://us.api.openai.com/v1 ")
    assert load_provider("openai")(config(None)).api == "openai-responses"


@pytest.mark.parametrize("name", ["openai", "openai-chat", "openai-responses"])
def test_an_address_in_the_environment_is_checked_like_one_that_is_passed_in(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "  ")
    url = load_provider(name)(config(None, name)).encode(AgentRequest(input="hi", model="m"), stream=False).url
    assert url.startswith("https://api.openai.com/v1/")
    for wrong in ("http://[::1", "https://me:pass@api.openai.com", "https://api.openai.com/v1?a=b"):
        monkeypatch.setenv("OPENAI_BASE_URL", wrong)
        with pytest.raises(errors.ConfigurationError, match="base_url"):
            load_provider(name)(config(None, name))


def test_the_responses_api_can_be_had_anywhere() -> None:
    codec = load_provider("openai-responses")(config("http://127.0.0.1:8000/v1", "openai-responses"))
    assert (codec.name, codec.api) == ("openai-responses", "openai-responses")
    assert codec.encode(AgentRequest(input="hi", model="m"), stream=False).url == "http://127.0.0.1:8000/v1/responses"


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = AgentConfig(provider="openai", model="m")
    with pytest.raises(errors.AuthenticationError, match="OPENAI_API_KEY"):
        load_provider("openai")(bare)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    wire = load_provider("openai")(bare).encode(AgentRequest(input="hi", model="m"), stream=False)
    assert dict(wire.headers)[b"authorization"] == b"Bearer sk-env"


def test_foreign_thinking_is_treated_as_the_configuration_says() -> None:
    turn = Message.assistant([ThinkingContent(thinking="hm"), TextContent(text="a")])
    request = AgentRequest(model="m", messages=[turn], input="go on")
    told = load_provider("openai")(config(None).with_overrides(foreign_thinking="text")).encode(request, stream=False)
    assert json.loads(told.body)["input"][0]["content"] == "<thinking>\nhm\n</thinking>\na"


def test_an_agent_at_another_address_speaks_chat_completions() -> None:
    with LoopbackServer(Script("hello")) as server:
        response = Agent("openai:m", base_url=f"{server.url}/v1").complete("hi")
        assert server.requests[0].url.endswith("/chat/completions")
    assert (response.text, response.provider) == ("hello", "openai")
