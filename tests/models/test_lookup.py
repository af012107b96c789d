"""The model table: format, content, lookup by name, and the script that generates it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, models
from agent.models import ModelFacts, Prices, facts, list_models, register_model, restrict_capabilities
from agent.types import ProviderCapabilities

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "agent" / "models" / "models.json"
SCRIPT = ROOT / "scripts" / "model_facts.py"

FLAGS = {"tools", "vision", "documents", "audio", "native_schema", "thinking", "sampling", "sampling_with_thinking"}


@pytest.fixture(autouse=True)
def _nothing_stays_registered() -> Iterator[None]:
    yield
    models._registered.clear()
    models.facts.cache_clear()


def check_form(data: dict[str, Any]) -> None:
    assert set(data) == {"notice", "source", "models"}
    assert "Copyright (c) 2023 Berri AI" in data["notice"]
    for table, rows in data["models"].items():
        for name, row in rows.items():
            allowed = {"context_window", "max_input", "max_output", "makes", "retires", "yes", "no"}
            assert set(row) <= (allowed | {"prices"} if table == "local" else allowed)  # the only one that is free
            said = [*row.get("yes", "").split(), *row.get("no", "").split()]
            assert set(said) <= FLAGS
            assert len(said) == len(set(said)), "nothing is both true and false"
            assert facts(table, name).known
            assert row["context_window"] >= row.get("max_output", 0)


def test_the_table_is_small_and_every_row_can_be_read() -> None:
    text = TABLE.read_text("utf-8")
    assert len(text.encode()) < 150_000
    check_form(json.loads(text))


@pytest.mark.parametrize(
    ("provider", "model", "window", "output"),
    [
        # By hand, from the vendors' own pages.
        ("openai", "gpt-4o", 128_000, 16_384),
        ("openai", "gpt-4o-mini", 128_000, 16_384),
        ("openai", "gpt-4.1", 1_047_576, 32_768),
        ("openai", "gpt-5", 400_000, 128_000),
        ("openai", "gpt-5.1", 400_000, 128_000),
        ("openai", "gpt-5.4", 1_050_000, 128_000),
        ("openai", "o3", 200_000, 100_000),
        ("openai", "gpt-3.5-turbo", 16_385, 4_096),
        ("anthropic", "claude-sonnet-4-5", 200_000, 64_000),
        ("anthropic", "claude-haiku-4-5", 200_000, 64_000),
        ("anthropic", "claude-opus-4-1", 200_000, 32_000),
        ("anthropic", "claude-opus-4-7", 1_000_000, 128_000),
        ("anthropic", "claude-3-7-sonnet-20250219", 200_000, 64_000),
        ("anthropic", "claude-3-haiku-20240307", 200_000, 4_096),
        ("gemini", "gemini-2.5-pro", 1_048_576, 65_536),
        ("gemini", "gemini-2.5-flash", 1_048_576, 65_536),
        ("gemini", "gemini-2.0-flash", 1_048_576, 8_192),
        ("groq", "openai/gpt-oss-120b", 131_072, 65_536),
        ("groq", "llama-3.3-70b-versatile", 131_072, 32_768),
        ("xai", "grok-4", 256_000, None),
        ("mistral", "mistral-large-latest", 262_144, None),
    ],
)
def test_windows_of_well_known_models_are_right(provider: str, model: str, window: int, output: int | None) -> None:
    known = facts(provider, model)
    assert (known.context_window, known.max_output) == (window, output)


def test_an_input_limit_below_the_window_is_kept_apart() -> None:
    assert facts("openai", "gpt-5").longest_prompt == 272_000
    assert facts("openai", "gpt-4o").longest_prompt == 128_000


@pytest.mark.parametrize(
    ("provider", "model", "sampling"),
    [
        ("openai", "o3", False),
        ("openai", "o4-mini-2025-04-16", False),
        ("openai", "gpt-5", False),
        ("openai", "gpt-5-mini-2025-08-07", False),
        ("openai", "gpt-5.5", False),
        ("openai", "gpt-5-chat-latest", True),
        ("openai", "gpt-5.1", True),
        ("openai", "gpt-4o", None),
        ("anthropic", "claude-opus-4-7", False),
        ("anthropic", "claude-sonnet-5", False),
        ("anthropic", "claude-sonnet-4-5", None),
        ("gemini", "gemini-2.5-flash", None),
    ],
)
def test_who_refuses_temperature_is_known(provider: str, model: str, sampling: bool | None) -> None:
    assert facts(provider, model).sampling is sampling


def test_who_thinks_and_who_enforces_schemas_is_known() -> None:
    assert facts("openai", "gpt-4o").thinking is False
    assert facts("openai", "gpt-5").thinking is True
    assert facts("openai", "gpt-4o-2024-05-13").native_schema is False
    assert facts("anthropic", "claude-sonnet-4-5").native_schema is True
    assert facts("anthropic", "claude-3-5-haiku-20241022").native_schema is False
    assert facts("deepseek", "deepseek-chat").native_schema is False
    assert facts("openai", "gpt-5.1").sampling_with_thinking is False
    assert facts("openai", "gpt-4o-2024-08-06").retires == date(2027, 1, 14)


SAME = {
    ("openai", "gpt-5"): [
        ("openai-chat", "gpt-5"),
        ("openai-responses", "gpt-5"),
        ("azure", "gpt-5"),
        ("openrouter", "openai/gpt-5"),
        ("openrouter", "openai/gpt-5:nitro"),
        ("vercel", "openai/gpt-5"),
        ("openai", "GPT-5"),
    ],
    ("anthropic", "claude-sonnet-4-5"): [
        ("anthropic", "claude-sonnet-4-5-20250929"),
        ("anthropic", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
        ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
        ("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0"),
        ("vertex", "claude-sonnet-4-5@20250929"),
        ("openrouter", "anthropic/claude-sonnet-4.5"),
        ("vercel", "anthropic/claude-sonnet-4.5"),
    ],
    ("gemini", "gemini-2.5-flash"): [
        ("gemini", "models/gemini-2.5-flash"),
        ("gemini", "gemini-2.5-flash-001"),
        ("vertex", "publishers/google/models/gemini-2.5-flash"),
        ("vertex", "google/gemini-2.5-flash"),
        ("openrouter", "google/gemini-2.5-flash"),
        ("gemini-chat", "gemini-2.5-flash"),
    ],
    ("openai", "gpt-3.5-turbo"): [("azure", "gpt-35-turbo")],
    ("openai", "ft:gpt-4o-mini"): [("openai", "ft:gpt-4o-mini-2024-07-18:acme::abc123")],
    ("xai", "grok-4"): [("openrouter", "x-ai/grok-4"), ("xai", "grok-4-latest")],
    ("fireworks", "kimi-k3"): [("fireworks", "accounts/fireworks/models/kimi-k3")],
}


@pytest.mark.parametrize(
    ("provider", "name", "other_provider", "other_name"),
    [(*one, *other) for one, others in SAME.items() for other in others],
)
def test_a_model_is_found_under_all_its_names(provider: str, name: str, other_provider: str, other_name: str) -> None:
    one, other = facts(provider, name), facts(other_provider, other_name)
    assert one.known
    assert other.model_copy(update={"provider": provider, "model": name}) == one


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "my-deployment"),
        ("azure", "prod-chat"),
        ("vllm", "gpt-5"),
        ("scripted", "o3"),
        ("openrouter", "nobody/knows"),
        ("", ""),
        ("anthropic", "openai/gpt-5"),
    ],
)
def test_of_an_unknown_model_nothing_is_claimed(provider: str, model: str) -> None:
    assert facts(provider, model) == ModelFacts(provider=provider, model=model)
    assert not facts(provider, model).known


def test_what_is_registered_wins_and_the_rest_stays() -> None:
    before = facts("openai-chat", "gpt-4o")
    register_model(ModelFacts(provider="openai", model="gpt-4o", max_output=99, prices=Prices(input=1, output=2)))
    after = facts("openai-chat", "gpt-4o")
    assert (after.max_output, after.context_window) == (99, before.context_window)
    assert after.prices == Prices(input=1, output=2)
    assert facts("openai", "gpt-4o-2024-08-06").max_output == 99, "its versions, too"


def test_models_of_ones_own_can_be_added() -> None:
    register_model(ModelFacts(provider="vllm", model="Our-Model", context_window=4096, tools=True))
    assert facts("vllm", "our-model").context_window == 4096
    assert "our-model" in list_models("vllm")
    assert "vllm:our-model" in list_models()


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("fireworks", "accounts/fireworks/models/mine"),
        ("bedrock", "us.anthropic.mine"),
        ("gemini", "tunedModels/Mine"),
        ("vertex", "publishers/me/models/mine"),
    ],
)
def test_a_model_is_found_by_the_very_name_it_was_registered_by(provider: str, model: str) -> None:
    register_model(ModelFacts(provider=provider, model=model, context_window=7, prices=Prices(input=1, output=2)))
    found = facts(provider, model)
    assert (found.context_window, found.prices) == (7, Prices(input=1, output=2))
    assert facts(provider, "mine").context_window is None


def test_known_models_are_listed_by_provider_or_all_together() -> None:
    assert "gpt-5" in list_models("openai-chat")
    assert "claude-sonnet-4-5" in list_models("vertex")
    assert list_models("nobody") == []
    assert len(list_models()) > 300


def test_the_table_is_read_at_the_first_lookup_and_not_before() -> None:
    code = (
        "import agent, agent.models as l\n"
        "assert l._tables.cache_info().misses == 0\n"
        "l.facts('openai', 'gpt-5')\n"
        "assert l._tables.cache_info().misses == 1\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_capabilities_are_the_providers_as_far_as_the_model_has_them() -> None:
    can = Agent("openai-chat:gpt-3.5-turbo", api_key="k").capabilities
    assert can.tools
    assert not can.vision
    assert not can.native_schema_output
    assert (can.max_context_tokens, can.max_output_tokens) == (16_385, 4_096)
    assert Agent("openai-chat:o3", api_key="k").capabilities.thinking
    unknown = Agent("openai-chat:mystery", api_key="k")
    assert unknown.capabilities == unknown.provider.capabilities


def test_narrowing_never_adds_what_the_provider_cannot_carry() -> None:
    bare = ProviderCapabilities(streaming=True, max_context_tokens=1000)
    can = restrict_capabilities(bare, facts("gemini", "gemini-2.5-pro"))
    assert not can.vision
    assert not can.tools
    assert can.max_context_tokens == 1000


def test_the_script_makes_a_table_of_the_same_form(tmp_path: Path) -> None:
    both = {"mode": "chat", "max_input_tokens": 272_000, "max_output_tokens": 128_000}
    models = {
        "sample_spec": {"litellm_provider": "openai", "max_input_tokens": "words", "mode": "words"},
        "gpt-5": {"litellm_provider": "openai", "supports_reasoning": True, **both},
        "gpt-5-2025-08-07": {"litellm_provider": "openai", "supports_reasoning": True, **both},
        "text-embedding-3": {"litellm_provider": "openai", "mode": "embedding", "max_input_tokens": 8191},
        "gemini/gemini-9-pro": {
            "litellm_provider": "gemini",
            "supported_modalities": ["text", "audio"],
            "supports_vision": True,
            **both,
        },
        "claude-x-20300101": {"litellm_provider": "anthropic", "supports_sampling_params": False, **both},
    }
    source, target = tmp_path / "map.json", tmp_path / "models.json"
    source.write_text(json.dumps(models), "utf-8")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(source), "--target", str(target)], capture_output=True, text=True, check=True
    )
    assert "models" in done.stdout
    made = json.loads(target.read_text("utf-8"))
    assert set(made) == {"notice", "source", "models"}
    assert made["models"]["openai"] == {
        "gpt-5": {
            "context_window": 400_000,
            "max_input": 272_000,
            "max_output": 128_000,
            "yes": "thinking",
            "no": "tools vision audio native_schema sampling",
        }
    }
    assert made["models"]["gemini"]["gemini-9-pro"]["yes"] == "audio"
    assert "sampling" in made["models"]["anthropic"]["claude-x"]["no"]


def test_every_row_of_the_tables_is_what_pydantic_makes_of_it() -> None:
    """Facts are made from the tables without being checked, so they are checked here."""
    for table in models._tables():
        for name, row in models._index(table).items():
            read = ModelFacts(**{**row, "provider": table, "model": name})
            made = facts(table, name)
            assert read.model_dump(exclude={"provider", "model"}) == made.model_dump(exclude={"provider", "model"}), (
                name
            )
            assert read.model_fields_set == made.model_fields_set
