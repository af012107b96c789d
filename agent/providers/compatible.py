"""OpenAI-compatible vendors of Chat Completions, one `Dialect` each.

Fields that a row leaves out have the usual value. For other vendors, pass a `Dialect` to `register_provider`, or use
`openai-chat` with a base_url.
"""

from __future__ import annotations

import re
from typing import get_args

from ..types import ProviderCapabilities, ThinkingLevel
from .base import ProviderFactory
from .openai_chat import ChatCodec, Dialect
from .openai_chat.dialect import (
    OPAQUE_KEYS,
    OPENAI,
    OPENAI_REASONING,
    OPENAI_REFUSALS,
    OPENAI_THINKING,
    STRICT_IDS,
    BatchDialect,
    CacheMarks,
    CallIds,
    Fragment,
    OptionalField,
    Thinking,
    efforts,
    switch,
)

_NONE: Fragment = {"reasoning_effort": "none"}
_ENABLED: Fragment = {"thinking": {"type": "enabled"}}
_DISABLED: Fragment = {"thinking": {"type": "disabled"}}
_LOW_TO_HIGH = efforts("low medium high")
_TEMPLATE = switch(
    {"chat_template_kwargs": {"enable_thinking": True}}, {"chat_template_kwargs": {"enable_thinking": False}}
)
_GATEWAY = efforts(
    "minimal low medium high xhigh",
    key="reasoning.effort",
    off={"reasoning": {"enabled": False}},
    budget=lambda tokens: {"reasoning": {"max_tokens": tokens}},
)
"""Gateways accept one form for all models behind them."""
_EPHEMERAL = CacheMarks(
    short={"cache_control": {"type": "ephemeral"}}, long={"cache_control": {"type": "ephemeral", "ttl": "1h"}}
)
"""Claude's cache breakpoints, which gateways pass on."""
_ROUTED_KEYS = frozenset((*OPAQUE_KEYS, "annotations", "images"))


def _can(**differences: bool) -> ProviderCapabilities:
    names = ("streaming", "tools", "structured_output", "json_mode", "vision", "native_schema_output", "thinking")
    return ProviderCapabilities(**{**dict.fromkeys(names, True), **differences})


_JSON_ONLY = _can(native_schema_output=False)
_TEXT_ONLY = _can(vision=False)


_PENALTIES = "frequency_penalty presence_penalty"


def _fields(names: str) -> frozenset[OptionalField]:
    return frozenset(field for field in get_args(OptionalField) if field in names.split())


def _budget(tokens: int) -> Fragment:
    return {"enable_thinking": True, "thinking_budget": tokens}


ROWS: tuple[Dialect, ...] = (
    Dialect(
        name="alibaba",
        caches=True,
        optional=_fields("presence_penalty n top_k"),
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        base_url_variables=("DASHSCOPE_BASE_URL",),
        key_variables=("DASHSCOPE_API_KEY", "ALIBABA_API_KEY"),
        thinking=(
            Thinking(
                {
                    ThinkingLevel.OFF: {"enable_thinking": False},
                    ThinkingLevel.MINIMAL: _budget(1024),
                    ThinkingLevel.LOW: _budget(4096),
                    ThinkingLevel.MEDIUM: _budget(8192),
                    ThinkingLevel.HIGH: _budget(16384),
                    ThinkingLevel.XHIGH: _budget(32768),
                },
                budget=_budget,
            ),
        ),
        reasoning_key="reasoning_content",
        tool_choices=frozenset(("auto", "none", "named")),
        strict=False,
        video_urls=True,
        capabilities=_can(audio=True),
    ),
    Dialect(
        name="avian",
        base_url="https://api.avian.io/v1",
        key_variables=("AVIAN_API_KEY",),
        reasoning_key="reasoning_content",
        thinking=(_LOW_TO_HIGH,),
    ),
    Dialect(
        name="azure",
        caches=True,
        optional=OPENAI.optional,
        user_key=OPENAI.user_key,
        long_caches=OPENAI.long_caches,
        base_url="{AZURE_OPENAI_ENDPOINT}",
        resource_path="/openai/v1",
        dated_path="/openai/deployments/{model}/chat/completions?api-version={version}",
        version_variable="AZURE_OPENAI_API_VERSION",
        key_variables=("AZURE_OPENAI_API_KEY",),
        key_header="api-key",
        key_prefix="",
        max_tokens_key="max_completion_tokens",
        refused=OPENAI_REFUSALS,
        thinking=OPENAI_THINKING,
        developer_models=OPENAI.developer_models,
        metadata=True,
        session_key="prompt_cache_key",
        call_ids=OPENAI.call_ids,
        refusals=True,
        capabilities=_can(documents=True, audio=True),
        batch=BatchDialect(max_requests=100_000),
    ),
    Dialect(
        name="baseten",
        base_url="https://inference.baseten.co/v1",
        key_variables=("BASETEN_API_KEY",),
        thinking=(_TEMPLATE,),
    ),
    Dialect(
        name="cerebras",
        caches=True,
        optional=_fields("service_tier user"),
        base_url="https://api.cerebras.ai/v1",
        key_variables=("CEREBRAS_API_KEY",),
        max_tokens_key="max_completion_tokens",
        thinking=(efforts("low medium high", models="gpt-oss"), efforts("low medium high", off=_NONE)),
        reasoning_key="reasoning",
        capabilities=_TEXT_ONLY,
    ),
    Dialect(
        name="cloudflare",
        optional=_fields("frequency_penalty presence_penalty top_k"),
        base_url="https://api.cloudflare.com/client/v4/accounts/{CLOUDFLARE_ACCOUNT_ID}/ai/v1",
        key_variables=("CLOUDFLARE_API_TOKEN", "CLOUDFLARE_API_KEY"),
        thinking=(efforts("low medium high", models="gpt-oss"), Thinking({})),
        refused=(("", frozenset(("logprobs", "parallel_tool_calls"))),),
    ),
    Dialect(
        name="crusoe",
        base_url="https://api.inference.crusoecloud.com/v1",
        key_variables=("CRUSOE_API_KEY",),
        reasoning_key="reasoning",
        thinking=(efforts("low medium high", models="gpt-oss"), _TEMPLATE),
    ),
    Dialect(
        name="databricks",
        optional=_fields("n top_k"),
        base_url="https://{DATABRICKS_HOST}",
        resource_path="/serving-endpoints",
        key_variables=("DATABRICKS_TOKEN",),
        thinking=(
            Thinking(
                {
                    ThinkingLevel.LOW: {"thinking": {"type": "enabled", "budget_tokens": 2048}},
                    ThinkingLevel.MEDIUM: {"thinking": {"type": "enabled", "budget_tokens": 8192}},
                    ThinkingLevel.HIGH: {"thinking": {"type": "enabled", "budget_tokens": 16384}},
                    ThinkingLevel.OFF: _DISABLED,
                },
                models="claude",
                budget=lambda tokens: {"thinking": {"type": "enabled", "budget_tokens": tokens}},
            ),
            efforts("minimal low medium high", off=_NONE),
        ),
        stream_usage=False,
        call_ids=STRICT_IDS,
        refused=(("", frozenset(("seed", "parallel_tool_calls"))), ("claude", frozenset(("logprobs",)))),
    ),
    Dialect(
        name="deepinfra",
        optional=_fields("frequency_penalty presence_penalty n top_k user"),
        base_url="https://api.deepinfra.com/v1/openai",
        key_variables=("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN"),
        thinking=(efforts("low medium high", off=_NONE),),
    ),
    Dialect(
        name="deepseek",
        caches=True,
        optional=_fields(_PENALTIES),
        base_url="https://api.deepseek.com",
        key_variables=("DEEPSEEK_API_KEY",),
        thinking=(efforts("low high xhigh=max", on=_ENABLED, off=_DISABLED),),
        reasoning_key="reasoning_content",
        reasoning_filler="",
        strict=False,
        most_stops=16,
        refused=(("", frozenset(("seed", "parallel_tool_calls"))),),
        capabilities=_can(native_schema_output=False, vision=False),
    ),
    Dialect(
        name="fireworks",
        caches=True,
        base_url="https://api.fireworks.ai/inference/v1",
        key_variables=("FIREWORKS_API_KEY",),
        thinking=(
            efforts("low medium high", models="gpt-oss|kimi-k2-thinking|minimax"),
            efforts("low medium high xhigh", off=_NONE),
        ),
        reasoning_key="reasoning_content",
    ),
    Dialect(
        name="gemini-chat",
        caches=True,
        optional=_fields("frequency_penalty presence_penalty n"),
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        thinking=(
            efforts("minimal low medium high", off=_NONE, models=r"gemini-2\.5-flash"),
            efforts("low medium high"),
        ),
        refused=(("", frozenset(("logprobs", "seed", "parallel_tool_calls"))),),
        capabilities=_can(audio=True),
    ),
    Dialect(
        name="github-models",
        optional=_fields("frequency_penalty presence_penalty modalities"),
        base_url="https://models.github.ai/inference",
        key_variables=("GITHUB_TOKEN", "GITHUB_API_KEY"),
        completion_models=OPENAI_REASONING,
        thinking=OPENAI_THINKING,
        refused=OPENAI_REFUSALS,
        call_ids=OPENAI.call_ids,
    ),
    Dialect(
        name="gpustack",
        base_url_variables=("GPUSTACK_BASE_URL", "GPUSTACK_API_BASE"),
        key_variables=("GPUSTACK_API_KEY",),
        key_required=False,
        thinking=(switch({"enable_thinking": True}, {"enable_thinking": False}),),
        reasoning_key="reasoning_content",
    ),
    Dialect(
        name="groq",
        caches=True,
        optional=_fields("frequency_penalty presence_penalty service_tier user"),
        base_url="https://api.groq.com/openai/v1",
        key_variables=("GROQ_API_KEY",),
        max_tokens_key="max_completion_tokens",
        thinking=(
            efforts("low medium high", models="gpt-oss"),
            switch({"reasoning_effort": "default", "reasoning_format": "parsed"}, _NONE, models="qwen"),
            Thinking({}),
        ),
        refused=(("", frozenset(("logprobs", "name"))),),
        batch=BatchDialect(max_bytes=100_000_000),
    ),
    Dialect(
        name="huggingface",
        optional=_fields(_PENALTIES),
        base_url="https://router.huggingface.co/v1",
        key_variables=("HF_TOKEN", "HUGGINGFACE_API_KEY"),
        thinking=(_LOW_TO_HIGH,),
    ),
    Dialect(
        name="hyperbolic",
        base_url="https://api.hyperbolic.xyz/v1",
        key_variables=("HYPERBOLIC_API_KEY",),
        thinking=(efforts("low medium high", models="gpt-oss"), _TEMPLATE),
    ),
    Dialect(
        name="llamacpp",
        caches=True,
        optional=_fields("frequency_penalty presence_penalty logit_bias top_k"),
        base_url="http://localhost:8080/v1",
        base_url_variables=("LLAMACPP_BASE_URL",),
        key_variables=("LLAMACPP_API_KEY",),
        key_required=False,
        thinking=(efforts("low medium high", models="gpt-oss"), _TEMPLATE),
        reasoning_key="reasoning_content",
    ),
    Dialect(
        name="lmstudio",
        caches=True,
        optional=_fields("frequency_penalty presence_penalty logit_bias top_k"),
        base_url="http://localhost:1234/v1",
        base_url_variables=("LMSTUDIO_BASE_URL",),
        key_variables=("LMSTUDIO_API_KEY",),
        key_required=False,
        thinking=(_LOW_TO_HIGH,),
        refused=(("", frozenset(("logprobs", "parallel_tool_calls"))),),
    ),
    Dialect(
        name="minimax",
        optional=_fields(""),
        base_url="https://api.minimax.io/v1",
        key_variables=("MINIMAX_API_KEY",),
        thinking=(Thinking({ThinkingLevel.MEDIUM: {"reasoning_split": True}}),),
        refused=(("", frozenset(("seed", "logprobs", "stop", "parallel_tool_calls"))),),
        capabilities=_TEXT_ONLY,
    ),
    Dialect(
        name="mistral",
        caches=True,
        optional=_fields("frequency_penalty presence_penalty n"),
        base_url="https://api.mistral.ai/v1",
        key_variables=("MISTRAL_API_KEY",),
        seed_key="random_seed",
        required_word="any",
        stream_usage=False,
        thinking=(
            Thinking({}, models="magistral"),
            Thinking({ThinkingLevel.HIGH: {"reasoning_effort": "high"}, ThinkingLevel.OFF: _NONE}),
        ),
        call_ids=CallIds(re.compile(r"[a-zA-Z0-9]{9}"), 9),
        reasoning_key="content",
        user_after_tool=False,
        session_key="prompt_cache_key",
        refused=(("", frozenset(("logprobs", "name"))),),
        batch=BatchDialect(batches_path="/batch/jobs", job_form=True),
    ),
    Dialect(
        name="moonshot",
        caches=True,
        optional=_fields("frequency_penalty presence_penalty n"),
        base_url="https://api.moonshot.ai/v1",
        base_url_variables=("MOONSHOT_BASE_URL",),
        key_variables=("MOONSHOT_API_KEY", "MOONSHOTAI_API_KEY", "KIMI_API_KEY"),
        max_tokens_key="max_completion_tokens",
        thinking=(
            efforts("low high xhigh=max", models="kimi-k3"),
            switch(_ENABLED, None, models=r"kimi-k2\.7|kimi-k2-thinking"),
            switch(_ENABLED, _DISABLED, models=r"kimi-k2\.\d"),
            Thinking({}),
        ),
        tool_choices=frozenset(("auto", "none")),
        strict=False,
        reasoning_key="reasoning_content",
        reasoning_filler=" ",
        session_key="prompt_cache_key",
        refused=(
            ("", frozenset(("seed", "logprobs", "parallel_tool_calls"))),
            (r"kimi-k\d", frozenset(("temperature", "top_p"))),
        ),
        capabilities=_can(documents=False),
    ),
    Dialect(
        name="nebius",
        base_url="https://api.tokenfactory.nebius.com/v1",
        key_variables=("NEBIUS_API_KEY",),
        thinking=(efforts("low medium high", models="gpt-oss"), _TEMPLATE),
    ),
    Dialect(
        name="novita",
        optional=_fields("frequency_penalty presence_penalty logit_bias n top_k"),
        base_url="https://api.novita.ai/openai/v1",
        key_variables=("NOVITA_API_KEY",),
        thinking=(switch({"enable_thinking": True}, {"enable_thinking": False}),),
    ),
    Dialect(
        name="nvidia",
        optional=_fields(_PENALTIES),
        base_url="https://integrate.api.nvidia.com/v1",
        base_url_variables=("NVIDIA_BASE_URL",),
        key_variables=("NVIDIA_API_KEY",),
        thinking=(efforts("low medium high", models="gpt-oss"), _TEMPLATE),
        refused=(("", frozenset(("logprobs", "parallel_tool_calls"))),),
    ),
    Dialect(
        name="ollama",
        caches=True,
        optional=_fields(_PENALTIES),
        base_url="http://localhost:11434/v1",
        base_url_variables=("OLLAMA_BASE_URL",),
        key_variables=("OLLAMA_API_KEY",),
        key_required=False,
        thinking=(efforts("low medium high", models="gpt-oss"), efforts("low medium high", off=_NONE)),
        tool_choices=frozenset(("auto",)),
        reasoning_key="reasoning",
        result_images=True,
        strict=False,
        refused=(("", frozenset(("parallel_tool_calls",))),),
    ),
    Dialect(
        name="openrouter",
        search_models="",
        optional=_fields("frequency_penalty presence_penalty logit_bias modalities service_tier top_k user verbosity"),
        base_url="https://openrouter.ai/api/v1",
        key_variables=("OPENROUTER_API_KEY",),
        thinking=(_GATEWAY,),
        session_key="session_id",
        cache_marks=_EPHEMERAL,
        call_ids=STRICT_IDS,
        replayed=_ROUTED_KEYS,
        document_urls=True,
        video_urls=True,
        capabilities=_can(documents=True, audio=True),
    ),
    Dialect(
        name="perplexity",
        search_models="",
        optional=_fields("frequency_penalty presence_penalty top_k"),
        base_url="https://api.perplexity.ai",
        key_variables=("PERPLEXITY_API_KEY", "PPLX_API_KEY"),
        thinking=(efforts("minimal low medium high", models="deep-research|reasoning"), Thinking({})),
        refused=(("", frozenset(("seed", "logprobs", "stop", "parallel_tool_calls", "name"))),),
        strict=False,
        capabilities=_can(tools=False),
    ),
    Dialect(
        name="sambanova",
        optional=_fields("frequency_penalty presence_penalty top_k"),
        base_url="https://api.sambanova.ai/v1",
        key_variables=("SAMBANOVA_API_KEY",),
        thinking=(efforts("low medium high", models="gpt-oss"), _TEMPLATE),
        refused=(("", frozenset(("seed", "logprobs"))),),
    ),
    Dialect(
        name="siliconflow",
        optional=_fields("frequency_penalty n top_k"),
        base_url="https://api.siliconflow.com/v1",
        key_variables=("SILICONFLOW_API_KEY",),
        thinking=(switch({"enable_thinking": True}, {"enable_thinking": False}, budget=_budget),),
        refused=(("", frozenset(("logprobs", "parallel_tool_calls"))),),
    ),
    Dialect(
        name="snowflake",
        optional=_fields(_PENALTIES),
        base_url="https://{SNOWFLAKE_ACCOUNT}.snowflakecomputing.com",
        resource_path="/api/v2/cortex/v1",
        key_variables=("SNOWFLAKE_PAT", "SNOWFLAKE_TOKEN"),
        max_tokens_key="max_completion_tokens",
        thinking=(
            efforts("low medium high", key="reasoning.effort", models="claude"),
            efforts("minimal low medium high"),
        ),
        finish_reasons=False,
        call_ids=STRICT_IDS,
        refused=(("", frozenset(("seed", "logprobs", "parallel_tool_calls"))), ("claude", frozenset(("stop",)))),
    ),
    Dialect(
        name="together",
        optional=_fields("frequency_penalty presence_penalty logit_bias n top_k"),
        base_url="https://api.together.xyz/v1",
        key_variables=("TOGETHER_API_KEY",),
        thinking=(
            efforts("low medium high", models="gpt-oss"),
            switch({"reasoning": {"enabled": True}}, {"reasoning": {"enabled": False}}),
        ),
        refused=(("", frozenset(("parallel_tool_calls",))),),
        batch=BatchDialect(
            max_bytes=100_000_000,
            discount=None,  # half the price for some models only
            upload_path="/files/upload",
            purpose="batch-api",
            named_files=True,
            metadata=False,
        ),
    ),
    Dialect(
        name="vercel",
        optional=_fields("frequency_penalty presence_penalty modalities"),
        base_url="https://ai-gateway.vercel.sh/v1",
        key_variables=("AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN"),
        thinking=(_GATEWAY,),
        cache_marks=_EPHEMERAL,
        call_ids=STRICT_IDS,
        replayed=_ROUTED_KEYS,
        capabilities=_can(documents=True),
    ),
    Dialect(
        name="vllm",
        caches=True,
        base_url="http://localhost:8000/v1",
        base_url_variables=("VLLM_BASE_URL",),
        key_variables=("VLLM_API_KEY",),
        key_required=False,
        thinking=(efforts("low medium high", models="gpt-oss"), _TEMPLATE),
        reasoning_key="reasoning",
        video_urls=True,
        capabilities=_can(audio=True),
    ),
    Dialect(
        name="xai",
        caches=True,
        optional=_fields("frequency_penalty presence_penalty n user"),
        base_url="https://api.x.ai/v1",
        key_variables=("XAI_API_KEY",),
        max_tokens_key="max_completion_tokens",
        thinking=(
            efforts("low high", models="grok-3-mini"),
            efforts("low medium high xhigh", off=_NONE, models=r"grok-4\.3"),
            efforts("low medium high", models=r"grok-4\.[5-9]|grok-[5-9]|grok-latest"),
            Thinking({}),
        ),
        reasoning_key="reasoning_content",
        refused=((r"grok-[4-9]|grok-code|grok-build|grok-3-mini", _fields(_PENALTIES) | {"stop"}),),
    ),
    Dialect(
        name="zai",
        caches=True,
        optional=_fields(""),
        base_url="https://api.z.ai/api/paas/v4",
        base_url_variables=("ZAI_BASE_URL",),
        key_variables=("ZAI_API_KEY", "GLM_API_KEY", "ZHIPUAI_API_KEY"),
        thinking=(
            efforts("low high xhigh=max", models=r"glm-5\.[2-9]|glm-[6-9]", on=_ENABLED, off=_DISABLED),
            switch(_ENABLED, _DISABLED),
        ),
        tool_choices=frozenset(("auto",)),
        strict=False,
        most_stops=1,
        reasoning_key="reasoning_content",
        refused=(("", frozenset(("seed", "logprobs", "parallel_tool_calls", "name"))),),
        capabilities=_JSON_ONLY,
    ),
)

DIALECTS = {dialect.name: dialect for dialect in ROWS}


def provider(name: str) -> ProviderFactory:
    dialect = DIALECTS[name]
    return lambda config: ChatCodec.from_config(config, dialect)
