"""Dialects of the compatible vendors: addresses, keys and request differences."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from agent import AgentConfig, errors, providers
from agent.providers.compatible import DIALECTS, ROWS
from agent.providers.openai_chat import Dialect
from agent.providers.openai_chat.dialect import OPENAI, UNKNOWN
from agent.providers.openai_chat.response import read_usage
from agent.types import (
    AgentRequest,
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    RefusalContent,
    Role,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    ToolCall,
    ToolResult,
    ToolSpec,
    VendorContent,
)
from tests.providers.chat_helpers import decode_both_ways, encode

TOOL = ToolSpec(name="look", parameters={"type": "object", "properties": {"x": {"type": "string"}}})


def test_the_names_are_those_that_the_package_knows_without_loading_the_rows() -> None:
    assert providers._COMPATIBLE.split() == [row.name for row in ROWS]
    assert {row.name for row in ROWS} <= set(providers.list_providers())
    code = "import sys, agent; agent.AgentConfig(provider='groq'); print('agent.providers.compatible' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


# name: environment, address, key's header
ADDRESSES: dict[str, tuple[dict[str, str], str, str]] = {
    "alibaba": ({"DASHSCOPE_API_KEY": "k"}, "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "authorization"),
    "avian": ({"AVIAN_API_KEY": "k"}, "https://api.avian.io/v1", "authorization"),
    "azure": (
        {"AZURE_OPENAI_API_KEY": "k", "AZURE_OPENAI_ENDPOINT": "https://res.openai.azure.com/"},
        "https://res.openai.azure.com/openai/v1",
        "api-key",
    ),
    "baseten": ({"BASETEN_API_KEY": "k"}, "https://inference.baseten.co/v1", "authorization"),
    "cerebras": ({"CEREBRAS_API_KEY": "k"}, "https://api.cerebras.ai/v1", "authorization"),
    "cloudflare": (
        {"CLOUDFLARE_API_TOKEN": "k", "CLOUDFLARE_ACCOUNT_ID": "acc"},
        "https://api.cloudflare.com/client/v4/accounts/acc/ai/v1",
        "authorization",
    ),
    "crusoe": ({"CRUSOE_API_KEY": "k"}, "https://api.inference.crusoecloud.com/v1", "authorization"),
    "databricks": (
        {"DATABRICKS_TOKEN": "k", "DATABRICKS_HOST": "https://adb-1.azuredatabricks.net"},
        "https://adb-1.azuredatabricks.net/serving-endpoints",
        "authorization",
    ),
    "deepinfra": ({"DEEPINFRA_API_KEY": "k"}, "https://api.deepinfra.com/v1/openai", "authorization"),
    "deepseek": ({"DEEPSEEK_API_KEY": "k"}, "https://api.deepseek.com", "authorization"),
    "fireworks": ({"FIREWORKS_API_KEY": "k"}, "https://api.fireworks.ai/inference/v1", "authorization"),
    "gemini-chat": (
        {"GEMINI_API_KEY": "k"},
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "authorization",
    ),
    "github-models": ({"GITHUB_TOKEN": "k"}, "https://models.github.ai/inference", "authorization"),
    "gpustack": ({"GPUSTACK_BASE_URL": "http://localhost:80/v1"}, "http://localhost:80/v1", ""),
    "groq": ({"GROQ_API_KEY": "k"}, "https://api.groq.com/openai/v1", "authorization"),
    "huggingface": ({"HF_TOKEN": "k"}, "https://router.huggingface.co/v1", "authorization"),
    "hyperbolic": ({"HYPERBOLIC_API_KEY": "k"}, "https://api.hyperbolic.xyz/v1", "authorization"),
    "llamacpp": ({}, "http://localhost:8080/v1", ""),
    "lmstudio": ({}, "http://localhost:1234/v1", ""),
    "minimax": ({"MINIMAX_API_KEY": "k"}, "https://api.minimax.io/v1", "authorization"),
    "mistral": ({"MISTRAL_API_KEY": "k"}, "https://api.mistral.ai/v1", "authorization"),
    "moonshot": ({"MOONSHOT_API_KEY": "k"}, "https://api.moonshot.ai/v1", "authorization"),
    "nebius": ({"NEBIUS_API_KEY": "k"}, "https://api.tokenfactory.nebius.com/v1", "authorization"),
    "novita": ({"NOVITA_API_KEY": "k"}, "https://api.novita.ai/openai/v1", "authorization"),
    "nvidia": ({"NVIDIA_API_KEY": "k"}, "https://integrate.api.nvidia.com/v1", "authorization"),
    "ollama": ({}, "http://localhost:11434/v1", ""),
    "openrouter": ({"OPENROUTER_API_KEY": "k"}, "https://openrouter.ai/api/v1", "authorization"),
    "perplexity": ({"PERPLEXITY_API_KEY": "k"}, "https://api.perplexity.ai", "authorization"),
    "sambanova": ({"SAMBANOVA_API_KEY": "k"}, "https://api.sambanova.ai/v1", "authorization"),
    "siliconflow": ({"SILICONFLOW_API_KEY": "k"}, "https://api.siliconflow.com/v1", "authorization"),
    "snowflake": (
        {"SNOWFLAKE_PAT": "k", "SNOWFLAKE_ACCOUNT": "myorg-acc"},
        "https://myorg-acc.snowflakecomputing.com/api/v2/cortex/v1",
        "authorization",
    ),
    "together": ({"TOGETHER_API_KEY": "k"}, "https://api.together.xyz/v1", "authorization"),
    "vercel": ({"AI_GATEWAY_API_KEY": "k"}, "https://ai-gateway.vercel.sh/v1", "authorization"),
    "vllm": (
        {"VLLM_BASE_URL": "https://gpu.example/v1", "VLLM_API_KEY": "k"},
        "https://gpu.example/v1",
        "authorization",
    ),
    "xai": ({"XAI_API_KEY": "k"}, "https://api.x.ai/v1", "authorization"),
    "zai": ({"ZAI_API_KEY": "k"}, "https://api.z.ai/api/paas/v4", "authorization"),
}


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in ROWS:
        variables = re.findall(r"\{([A-Z_]+)\}", row.base_url or "")
        for variable in (*row.key_variables, *row.base_url_variables, *variables, row.version_variable):
            if variable:
                monkeypatch.delenv(variable, raising=False)


def codec(name: str, **config: Any) -> providers.Provider:
    return providers.load_provider(name)(AgentConfig(provider=name, model="m", **config))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_vendor_is_found_by_its_environment(row: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, base_url, header = ADDRESSES[row.name]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    found = codec(row.name)
    wire = found.encode(AgentRequest(input="hi", model="m"), stream=False)
    assert wire.url == f"{base_url}/chat/completions"
    sent = dict(wire.headers)
    keys = {name: sent[name] for name in (b"authorization", b"api-key") if name in sent}
    prefix = b"" if header == "api-key" else b"Bearer "
    assert keys == ({header.encode(): prefix + b"k"} if header else {})
    assert (found.name, found.api) == (row.name, "openai-chat")
    assert found.capabilities.streaming


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("azure", "AZURE_OPENAI_ENDPOINT"),
        ("databricks", "DATABRICKS_HOST"),
        ("cloudflare", "CLOUDFLARE_ACCOUNT_ID"),
        ("snowflake", "SNOWFLAKE_ACCOUNT"),
    ],
)
def test_an_address_that_nobody_told_is_asked_for_by_name(name: str, variable: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=variable) as caught:
        codec(name, api_key="k")
    assert caught.value.field == "base_url"
    with pytest.raises(errors.ConfigurationError, match="base_url"):
        codec("gpustack")


@pytest.mark.parametrize("row", [row for row in ROWS if row.key_required], ids=lambda row: row.name)
def test_a_key_that_is_missing_is_asked_for_by_its_variable(row: Dialect) -> None:
    with pytest.raises(errors.AuthenticationError, match=row.key_variables[0]):
        codec(row.name, base_url="https://somewhere.example/v1")


def test_a_bare_host_is_completed_where_the_vendor_has_one_for_each_customer() -> None:
    request = AgentRequest(input="hi", model="m")
    for name, host, path in (
        ("azure", "https://res.services.ai.azure.com", "/openai/v1/chat/completions"),
        ("azure", "https://res.openai.azure.com/openai/v1", "/chat/completions"),
        ("databricks", "https://adb-1.azuredatabricks.net/", "/serving-endpoints/chat/completions"),
        ("snowflake", "https://acc.snowflakecomputing.com", "/api/v2/cortex/v1/chat/completions"),
        ("groq", "https://proxy.example", "/chat/completions"),
    ):
        wire = codec(name, base_url=host, api_key="k").encode(request, stream=False)
        assert wire.url == host.rstrip("/") + path


def test_azures_dated_api_has_the_model_in_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_VERSION", "2024-12-01-preview")
    azure = codec("azure", base_url="https://res.openai.azure.com", api_key="k")
    wire = azure.encode(AgentRequest(input="hi", model="my gpt"), stream=False)
    host = "https://res.openai.azure.com/openai/deployments"
    assert wire.url == f"{host}/my%20gpt/chat/completions?api-version=2024-12-01-preview"
    monkeypatch.setenv("AZURE_OPENAI_API_VERSION", "preview")
    azure = codec("azure", base_url="https://res.openai.azure.com", api_key="k")
    assert azure.encode(AgentRequest(input="hi", model="m"), stream=False).url.endswith("/openai/v1/chat/completions")


def test_what_the_environment_says_is_checked_like_what_is_passed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "res.openai.azure.com")
    with pytest.raises(errors.ConfigurationError, match="http"):
        codec("azure", api_key="k")
    monkeypatch.setenv("VLLM_BASE_URL", "http://gpu.example/v1")
    with pytest.raises(errors.ConfigurationError, match="unencrypted"):
        codec("vllm", api_key="k")


# row, model, level, what is sent, whether a warning says that it is not quite that
ON, OFF = {"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}}
TEMPLATE_ON = {"chat_template_kwargs": {"enable_thinking": True}}
TEMPLATE_OFF = {"chat_template_kwargs": {"enable_thinking": False}}
THINKING: list[tuple[str, str, str, dict[str, Any], bool]] = [
    ("alibaba", "qwen3-max", "high", {"enable_thinking": True, "thinking_budget": 16384}, False),
    ("alibaba", "qwen3-max", "off", {"enable_thinking": False}, False),
    ("avian", "kimi", "low", {"reasoning_effort": "low"}, False),
    ("azure", "gpt-5", "minimal", {"reasoning_effort": "minimal"}, False),
    ("azure", "my-deployment", "off", {"reasoning_effort": "none"}, False),
    ("baseten", "x", "off", TEMPLATE_OFF, False),
    ("cerebras", "gpt-oss-120b", "off", {}, True),
    ("cerebras", "zai-glm-4.7", "off", {"reasoning_effort": "none"}, False),
    ("cloudflare", "@cf/openai/gpt-oss-120b", "high", {"reasoning_effort": "high"}, False),
    ("cloudflare", "@cf/meta/llama", "high", {}, True),
    ("crusoe", "qwen", "off", TEMPLATE_OFF, False),
    (
        "databricks",
        "databricks-claude-sonnet-4-5",
        "low",
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        False,
    ),
    ("databricks", "databricks-gpt-5", "minimal", {"reasoning_effort": "minimal"}, False),
    ("deepinfra", "x", "off", {"reasoning_effort": "none"}, False),
    ("deepseek", "deepseek-v4-pro", "off", OFF, False),
    ("deepseek", "deepseek-v4-pro", "xhigh", {**ON, "reasoning_effort": "max"}, False),
    ("deepseek", "deepseek-v4-pro", "medium", {**ON, "reasoning_effort": "high"}, True),
    ("fireworks", "glm", "off", {"reasoning_effort": "none"}, False),
    ("fireworks", "gpt-oss-20b", "off", {}, True),
    ("gemini-chat", "gemini-2.5-flash", "off", {"reasoning_effort": "none"}, False),
    ("gemini-chat", "gemini-3-pro-preview", "off", {}, True),
    ("github-models", "openai/o4-mini", "high", {"reasoning_effort": "high"}, False),
    ("gpustack", "qwen3", "off", {"enable_thinking": False}, False),
    ("groq", "openai/gpt-oss-20b", "medium", {"reasoning_effort": "medium"}, False),
    ("groq", "qwen/qwen3-32b", "medium", {"reasoning_effort": "default", "reasoning_format": "parsed"}, False),
    ("groq", "qwen/qwen3-32b", "off", {"reasoning_effort": "none"}, False),
    ("groq", "llama-3.3-70b-versatile", "off", {}, False),
    ("huggingface", "openai/gpt-oss-120b", "low", {"reasoning_effort": "low"}, False),
    ("hyperbolic", "qwen3", "medium", TEMPLATE_ON, False),
    ("llamacpp", "gpt-oss-20b", "high", {"reasoning_effort": "high"}, False),
    ("lmstudio", "x", "high", {"reasoning_effort": "high"}, False),
    ("minimax", "MiniMax-M2", "medium", {"reasoning_split": True}, False),
    ("minimax", "MiniMax-M2", "off", {}, True),
    ("mistral", "mistral-small-latest", "high", {"reasoning_effort": "high"}, False),
    ("mistral", "mistral-small-latest", "low", {"reasoning_effort": "high"}, True),
    ("mistral", "mistral-small-latest", "off", {"reasoning_effort": "none"}, False),
    ("mistral", "magistral-medium-2509", "high", {}, True),
    ("moonshot", "kimi-k2.6", "off", OFF, False),
    ("moonshot", "kimi-k2.7-code", "off", {}, True),
    ("moonshot", "kimi-k3", "xhigh", {"reasoning_effort": "max"}, False),
    ("nebius", "openai/gpt-oss-120b", "low", {"reasoning_effort": "low"}, False),
    ("novita", "x", "off", {"enable_thinking": False}, False),
    ("nvidia", "x", "off", TEMPLATE_OFF, False),
    ("ollama", "qwen3", "off", {"reasoning_effort": "none"}, False),
    ("ollama", "gpt-oss:20b", "off", {}, True),
    ("openrouter", "x/y", "xhigh", {"reasoning": {"effort": "xhigh"}}, False),
    ("openrouter", "x/y", "off", {"reasoning": {"enabled": False}}, False),
    ("perplexity", "sonar-deep-research", "low", {"reasoning_effort": "low"}, False),
    ("perplexity", "sonar", "low", {}, True),
    ("sambanova", "gpt-oss-120b", "low", {"reasoning_effort": "low"}, False),
    ("siliconflow", "x", "off", {"enable_thinking": False}, False),
    ("snowflake", "claude-sonnet-4-6", "low", {"reasoning": {"effort": "low"}}, False),
    ("snowflake", "openai-gpt-5", "minimal", {"reasoning_effort": "minimal"}, False),
    ("together", "openai/gpt-oss-120b", "high", {"reasoning_effort": "high"}, False),
    ("together", "zai-org/GLM-5.1", "off", {"reasoning": {"enabled": False}}, False),
    ("vercel", "anthropic/claude-x", "low", {"reasoning": {"effort": "low"}}, False),
    ("vllm", "qwen3", "off", TEMPLATE_OFF, False),
    ("xai", "grok-3-mini", "high", {"reasoning_effort": "high"}, False),
    ("xai", "grok-3-mini", "medium", {"reasoning_effort": "high"}, True),
    ("xai", "grok-4.3", "off", {"reasoning_effort": "none"}, False),
    ("xai", "grok-4.5", "off", {}, True),
    ("xai", "grok-4-fast-reasoning", "high", {}, True),
    ("zai", "glm-4.7", "off", OFF, False),
    ("zai", "glm-5.3", "xhigh", {**ON, "reasoning_effort": "max"}, False),
]


@pytest.mark.parametrize(
    ("name", "model", "level", "sent", "warned"), THINKING, ids=[" ".join(case[:3]) for case in THINKING]
)
def test_thinking_is_told_in_the_vendors_way(
    name: str, model: str, level: str, sent: dict[str, Any], warned: bool
) -> None:
    body, warnings = encode(AgentRequest(input="x", model=model, thinking=ThinkingLevel(level)), DIALECTS[name])
    assert {key: value for key, value in body.items() if key not in ("model", "messages")} == sent
    assert bool(warnings) is warned
    if warned:
        assert warnings[0].startswith(f"thinking={level!r}")


def test_every_row_is_told_how_to_think_here() -> None:
    assert {case[0] for case in THINKING} == {row.name for row in ROWS} == ADDRESSES.keys()


ALL_SETTINGS = AgentRequest(
    input="x",
    model="some-model",
    temperature=0.5,
    top_p=0.5,
    seed=7,
    stop=["a", "b"],
    logprobs=2,
    max_tokens=9,
    tools=[TOOL],
    tool_choice="required",
    parallel_tool_calls=False,
    session_id="s1",
    output_schema={"type": "object", "properties": {"a": {"type": "string"}}},
)
USUAL: dict[str, Any] = {
    "max_tokens": 9,
    "seed": 7,
    "stop": ["a", "b"],
    "logprobs": True,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "session": None,
    "output": "strict",
}
GONE = None

# How the settings of a row differ from what most vendors take.
DIFFERENCES: dict[str, dict[str, Any]] = {
    "alibaba": {"tool_choice": GONE, "output": "json_schema"},
    "avian": {},
    "azure": {"max_completion_tokens": 9, "max_tokens": GONE, "session": {"prompt_cache_key": "s1"}},
    "baseten": {},
    "cerebras": {"max_completion_tokens": 9, "max_tokens": GONE},
    "cloudflare": {"logprobs": GONE, "parallel_tool_calls": GONE},
    "crusoe": {},
    "databricks": {"seed": GONE, "parallel_tool_calls": GONE},
    "deepinfra": {},
    "deepseek": {"seed": GONE, "parallel_tool_calls": GONE, "output": "json_object"},
    "fireworks": {},
    "gemini-chat": {"seed": GONE, "logprobs": GONE, "parallel_tool_calls": GONE},
    "github-models": {},
    "gpustack": {},
    "groq": {"max_completion_tokens": 9, "max_tokens": GONE, "logprobs": GONE},
    "huggingface": {},
    "hyperbolic": {},
    "llamacpp": {},
    "lmstudio": {"logprobs": GONE, "parallel_tool_calls": GONE},
    "minimax": {"seed": GONE, "stop": GONE, "logprobs": GONE, "parallel_tool_calls": GONE},
    "mistral": {
        "random_seed": 7,
        "seed": GONE,
        "logprobs": GONE,
        "tool_choice": "any",
        "session": {"prompt_cache_key": "s1"},
    },
    "moonshot": {
        "max_completion_tokens": 9,
        "max_tokens": GONE,
        "seed": GONE,
        "logprobs": GONE,
        "parallel_tool_calls": GONE,
        "tool_choice": GONE,
        "session": {"prompt_cache_key": "s1"},
        "output": "json_schema",
    },
    "nebius": {},
    "novita": {},
    "nvidia": {"logprobs": GONE, "parallel_tool_calls": GONE},
    "ollama": {"tool_choice": GONE, "parallel_tool_calls": GONE, "output": "json_schema"},
    "openrouter": {"session": {"session_id": "s1"}},
    "sambanova": {"seed": GONE, "logprobs": GONE},
    "siliconflow": {"logprobs": GONE, "parallel_tool_calls": GONE},
    "snowflake": {
        "max_completion_tokens": 9,
        "max_tokens": GONE,
        "seed": GONE,
        "logprobs": GONE,
        "parallel_tool_calls": GONE,
    },
    "together": {"parallel_tool_calls": GONE},
    "vercel": {},
    "vllm": {},
    "xai": {"max_completion_tokens": 9, "max_tokens": GONE},
    "zai": {
        "seed": GONE,
        "stop": ["a"],
        "logprobs": GONE,
        "parallel_tool_calls": GONE,
        "tool_choice": GONE,
        "output": "json_object",
    },
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_settings_are_called_as_the_vendor_calls_them_or_left_out_with_a_warning(name: str) -> None:
    wanted = {**USUAL, **DIFFERENCES[name]}
    output, session = wanted.pop("output"), wanted.pop("session")
    body, warnings = encode(ALL_SETTINGS, DIALECTS[name])
    assert {key: body.get(key) for key in wanted} == wanted
    form = body["response_format"]
    assert form["type"] == ("json_object" if output == "json_object" else "json_schema")
    if output != "json_object":
        assert form["json_schema"].get("strict", False) is (output == "strict")
    kept = {key: body[key] for key in ("prompt_cache_key", "session_id") if key in body}
    assert kept == (session or {})
    left_out = [key for key in ("seed", "stop", "logprobs", "parallel_tool_calls", "tool_choice") if key not in body]
    for key in left_out:
        assert (name == "mistral" and key == "seed") or any(key in warning for warning in warnings)
    assert body["temperature"] == 0.5


def test_every_row_but_one_is_told_its_settings_here() -> None:
    assert DIFFERENCES.keys() | {"perplexity"} == {row.name for row in ROWS}


def test_a_vendor_without_tools_says_so_before_anything_is_sent() -> None:
    with pytest.raises(errors.UnsupportedFeatureError, match="does not support tools") as caught:
        encode(ALL_SETTINGS, DIALECTS["perplexity"])
    assert caught.value.field == "tools"
    plain = ALL_SETTINGS.model_copy(update={"tools": (), "tool_choice": None, "parallel_tool_calls": None})
    body, warnings = encode(plain, DIALECTS["perplexity"])
    assert body.keys() == {"model", "messages", "temperature", "top_p", "max_tokens", "response_format"}
    assert len(warnings) == 3


def test_a_model_that_samples_by_itself_is_not_told_how() -> None:
    body, warnings = encode(ALL_SETTINGS.model_copy(update={"model": "kimi-k2.6"}), DIALECTS["moonshot"])
    assert not {"temperature", "top_p"} & body.keys()
    assert sum("temperature" in warning or "top_p" in warning for warning in warnings) == 2


def test_reasoning_models_of_xai_take_no_stop_sequences() -> None:
    body, _ = encode(AgentRequest(input="x", model="grok-4.3", stop="a"), DIALECTS["xai"])
    assert "stop" not in body


def test_tools_that_may_not_be_called_are_not_offered_where_that_cannot_be_said() -> None:
    request = AgentRequest(input="x", tools=[TOOL], tool_choice="none")
    assert encode(request, DIALECTS["zai"])[0].keys() == {"model", "messages"}
    assert encode(request, DIALECTS["groq"])[0]["tool_choice"] == "none"


def turn(name: str, *parts: Any, model: str = "m") -> AgentRequest:
    """A turn with a thought of the vendor's own model, a call, and its result."""
    origin = Origin(provider=name, api="openai-chat", model=model)
    thought = ThinkingContent(thinking="hm", origin=origin)
    call = ToolCall(id="toolu_01 A/é", name="look")
    result = ToolResult(tool_call_id="toolu_01 A/é", name="look", content=[TextContent(text="seen"), *parts])
    return AgentRequest(
        model=model, messages=[Message.assistant([thought, call]), Message(Role.TOOL, [result])], input="?"
    )


@pytest.mark.parametrize(
    ("names", "form"),
    [
        ("azure github-models", r"[!-~]{1,40}"),
        ("mistral", r"[a-zA-Z0-9]{9}"),
        ("openrouter vercel databricks snowflake", r"[a-zA-Z0-9_-]{1,64}"),
        ("groq deepseek xai", r"[!-~]{1,128}"),
    ],
)
def test_ids_of_calls_fit_and_stay_together(names: str, form: str) -> None:
    for name in names.split():
        messages = encode(turn(name), DIALECTS[name])[0]["messages"]
        id = messages[0]["tool_calls"][0]["id"]
        assert re.fullmatch(form, id)
        assert messages[1]["tool_call_id"] == id


def test_reasoning_goes_back_under_the_name_the_vendor_has_for_it() -> None:
    wanted = {
        "reasoning_content": "alibaba avian deepseek fireworks gpustack llamacpp moonshot xai zai",
        "reasoning": "cerebras crusoe ollama vllm",
    }
    named = {name: key for key, names in wanted.items() for name in names.split()}
    for row in ROWS:
        said = encode(turn(row.name), row)[0]["messages"][0]
        sent = {key: said[key] for key in ("reasoning_content", "reasoning") if key in said}
        assert sent == ({named[row.name]: "hm"} if row.name in named else {}), row.name
    content = encode(turn("mistral"), DIALECTS["mistral"])[0]["messages"][0]["content"]
    assert content == [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]


def test_a_turn_with_calls_and_no_reasoning_has_what_stands_for_it() -> None:
    request = AgentRequest(messages=[Message.assistant([ToolCall(id="c", name="f")])], model="m")
    for name, filler in (("deepseek", ""), ("moonshot", " ")):
        said = encode(request, DIALECTS[name])[0]["messages"][0]
        assert said["reasoning_content"] == filler
    assert "reasoning_content" not in encode(request, DIALECTS["zai"])[0]["messages"][0]


def test_reasoning_of_another_model_does_not_go_along() -> None:
    for row in ROWS:
        body, warnings = encode(turn(row.name).model_copy(update={"model": "another"}), row)
        assert "hm" not in json.dumps(body)
        assert "reasoning of another model was left out" in warnings


def test_sealed_reasoning_goes_back_to_a_gateway() -> None:
    details = [{"type": "reasoning.encrypted", "data": "sealed"}]
    for name in ("openrouter", "vercel", "snowflake"):
        origin = Origin(provider=name, api="openai-chat", model="m")
        thought = ThinkingContent(thinking="", provider_data={"reasoning_details": details}, origin=origin)
        request = AgentRequest(messages=[Message.assistant([thought, TextContent(text="4")])], model="m")
        assert encode(request, DIALECTS[name])[0]["messages"][0]["reasoning_details"] == details


def test_images_of_results_go_where_the_vendor_looks_for_them() -> None:
    image = ImageContent(image_url="https://example.com/a.png")
    inside = encode(turn("ollama", image), DIALECTS["ollama"])[0]["messages"]
    assert [message["role"] for message in inside] == ["assistant", "tool", "user"]
    assert [block["type"] for block in inside[1]["content"]] == ["text", "image_url"]
    after = encode(turn("groq", image), DIALECTS["groq"])[0]["messages"]
    assert [message["role"] for message in after] == ["assistant", "tool", "user", "user"]
    apart = encode(turn("mistral", image), DIALECTS["mistral"])[0]["messages"]
    assert [message["role"] for message in apart] == ["assistant", "tool", "assistant", "user", "user"]
    assert apart[2]["content"] == "OK"
    plain = encode(turn("mistral"), DIALECTS["mistral"])[0]["messages"]
    assert [message["role"] for message in plain] == ["assistant", "tool", "assistant", "user"]


def test_documents_are_fetched_by_those_who_fetch_them() -> None:
    document = DocumentContent(url="https://example.com/a.pdf", title="a.pdf")
    request = AgentRequest(messages=[Message.user([document])])
    (message,) = encode(request, DIALECTS["openrouter"])[0]["messages"]
    assert message["content"][0]["file"] == {"filename": "a.pdf", "file_data": "https://example.com/a.pdf"}
    with pytest.raises(errors.UnsupportedFeatureError, match="by URL"):
        encode(request, DIALECTS["vercel"])


def test_a_refusal_is_a_field_or_text() -> None:
    request = AgentRequest(messages=[Message.assistant([RefusalContent(refusal="No.")])])
    assert encode(request, DIALECTS["azure"])[0]["messages"][0]["refusal"] == "No."
    assert encode(request, DIALECTS["groq"])[0]["messages"] == [{"role": "assistant", "content": "No."}]


def test_names_of_speakers_are_left_out_where_they_are_refused() -> None:
    request = AgentRequest(messages=[Message.user("hi", name="Ann")])
    for name, kept in (("groq", False), ("mistral", False), ("zai", False), ("together", True)):
        body, warnings = encode(request, DIALECTS[name])
        assert ("name" in body["messages"][0]) is kept
        assert bool(warnings) is not kept


def test_gateways_pass_marks_for_the_cache_on() -> None:
    kept = {"type": "ephemeral"}
    request = AgentRequest(system="s", messages=[Message.user("a"), Message.assistant("b")], input="c", cache="short")
    for name in ("openrouter", "vercel"):
        messages = encode(request, DIALECTS[name])[0]["messages"]
        assert messages[0]["content"] == [{"type": "text", "text": "s", "cache_control": kept}]
        assert messages[1:3] == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        assert messages[3]["content"] == [{"type": "text", "text": "c", "cache_control": kept}]
    longer = AgentRequest(messages=[Message.user([TextContent(text="a", cache="long")])], input="c")
    messages = encode(longer, DIALECTS["openrouter"])[0]["messages"]
    assert messages[0]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert messages[1] == {"role": "user", "content": "c"}
    assert "cache_control" not in json.dumps(encode(request, DIALECTS["groq"])[0])


def test_of_too_many_marks_the_last_are_kept() -> None:
    turns = [Message.user([TextContent(text=str(number), cache="short")]) for number in range(6)]
    request = AgentRequest(messages=turns, cache="short", model="m")
    for _ in range(2):
        body, warnings = encode(request, DIALECTS["openrouter"])
        marked = [message["content"] for message in body["messages"] if "cache_control" in json.dumps(message)]
        assert [content[0]["text"] for content in marked] == ["2", "3", "4", "5"]
        assert "cache breakpoints" in warnings[0]


def test_the_same_turn_is_marked_while_it_is_the_last_and_no_longer() -> None:
    first = Message.user("a")
    request = AgentRequest(messages=[first], cache="short", model="m")
    row = DIALECTS["openrouter"]
    assert "cache_control" in json.dumps(encode(request, row)[0])
    later = encode(request.with_messages(Message.assistant("b"), Message.user("c")), row)[0]["messages"]
    assert later[0] == {"role": "user", "content": "a"}
    assert "cache_control" in json.dumps(later[2])


def test_files_and_images_of_a_gateways_answer_go_back_to_it() -> None:
    row = DIALECTS["openrouter"]
    note = {"type": "file", "file": {"hash": "h", "name": "a.pdf"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}}
    request = AgentRequest(input="x", model="m")
    whole, streamed = decode_both_ways({"content": "Hi", "annotations": [note], "images": [image]}, request, row)
    assert whole == streamed
    assert [type(part) for part in whole.content] == [TextContent, ImageContent, VendorContent]
    (said,) = encode(AgentRequest(messages=[whole.message], model="m"), row)[0]["messages"]
    assert said["annotations"] == [note]
    assert said["images"] == [image]


@pytest.mark.parametrize(
    ("usage", "billed"),
    [
        ({"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.0002448}, 0.0002448),  # openrouter, avian, vercel
        ({"cost": {"input_tokens_cost": 1e-05, "request_cost": 0.005, "total_cost": 0.00501}}, 0.00501),  # perplexity
        ({"cost_in_usd_ticks": 5596400}, 0.00055964),  # xai
        ({"cost": 0.0001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.004}}, 0.0041),
        ({"cost": 0.0001, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.0001}}, 0.0001),
        ({"cost": "free"}, None),
        ({"cost": 0}, 0.0),
        ({"prompt_tokens": 1}, None),
    ],
)
def test_what_was_charged_is_read_in_every_currency(usage: dict[str, Any], billed: float | None) -> None:
    found = read_usage(usage)
    assert found is not None
    assert found.billed == (None if billed is None else pytest.approx(billed))


def test_xais_ticks_are_its_prices_times_its_tokens() -> None:
    """grok-code-fast-1, as recorded: 0.20 dollars per million tokens read, 0.02 from cache, 1.50 written."""
    dollars = ((466 - 192) * 0.20 + 192 * 0.02 + (68 + 266) * 1.50) / 1e6
    found = read_usage({"prompt_tokens": 466, "completion_tokens": 68, "cost_in_usd_ticks": 5596400})
    assert found is not None
    assert found.billed == pytest.approx(dollars)


def test_what_else_is_counted_has_a_name() -> None:
    found = read_usage(
        {
            "prompt_tokens": 50,
            "completion_tokens": 20,
            "prompt_tokens_details": {"audio_tokens": 7, "cached_tokens": 3, "image_tokens": 0},
            "completion_tokens_details": {"audio_tokens": 5, "reasoning_tokens": 4},
            "num_search_queries": 2,
            "num_sources_used": 3,
            "citation_tokens": 6,
        }
    )
    assert found is not None
    assert found.details == {
        "input_audio_tokens": 7,
        "output_audio_tokens": 5,
        "web_searches": 2,
        "web_sources": 3,
        "output_citation_tokens": 6,
    }
    assert (found.cache_read_tokens, found.reasoning_tokens) == (3, 4)


def test_streams_that_lack_something_are_those_of_known_vendors() -> None:
    assert {row.name for row in ROWS if not row.finish_reasons} == {"snowflake"}
    assert {row.name for row in ROWS if not row.stream_usage} == {"databricks", "mistral"}


def test_every_field_of_a_row_is_used_by_one() -> None:
    usual = Dialect()
    for field in fields(Dialect):
        assert any(getattr(row, field.name) != getattr(usual, field.name) for row in (OPENAI, UNKNOWN, *ROWS)), (
            field.name
        )
