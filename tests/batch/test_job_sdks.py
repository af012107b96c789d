"""Batch jobs against the official SDKs and a table of prices."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types.messages.batch_create_params import BatchCreateParams as ClaudeParams
from google import genai
from google.genai import types as gemini
from google.oauth2.credentials import Credentials
from openai.types.batch_create_params import BatchCreateParams as OpenAIParams
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatParams
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming as ResponsesParams

from agent.batch import BatchJob
from agent.models.prices import ServiceTier, price
from agent.providers import load_provider
from agent.providers.batches import get_batch_api
from agent.types import AgentConfig, AgentRequest, Usage
from tests.batch.job_desk import FORMS, KEY, TOKEN, Desk, desk
from tests.providers.sdk_oracles import sdk_types

__all__ = ["desk"]


def submit(desk: Desk, target: str) -> BatchJob[Any]:
    requests = [
        AgentRequest(input="one", system="Be brief.", max_tokens=100),
        AgentRequest(input="a bad one", output_schema={"type": "object", "properties": {"a": {"type": "string"}}}),
    ]
    return desk.agent(target).submit_batch(requests, folder=desk.folder)


@pytest.mark.parametrize("target", ["openai:gpt-4.1-mini", "openai-chat:gpt-4o"])
def test_the_openai_sdk_agrees(target: str, desk: Desk) -> None:
    job = submit(desk, target)
    sdk_types(OpenAIParams).validate_python(desk.vendor.bodies[0])
    (file,) = desk.vendor.files.values()
    lines = [json.loads(line) for line in file["content"].splitlines()]
    for line in lines:
        assert line.keys() == {"custom_id", "method", "url", "body"}
        assert line["url"] == desk.vendor.bodies[0]["endpoint"]
        sdk_types(ChatParams if "chat" in line["url"] else ResponsesParams).validate_python(line["body"])

    client = openai.OpenAI(base_url=f"{desk.server.url}/v1", api_key=KEY, max_retries=0)
    uploaded = client.files.create(file=(file["filename"], file["content"]), purpose="batch")
    own = client.batches.create(
        input_file_id=uploaded.id,
        endpoint=desk.vendor.bodies[0]["endpoint"],
        completion_window="24h",
        metadata={"agent_batch": f"{job.id}-0"},
    )
    sent = {**desk.vendor.bodies[1], "input_file_id": desk.vendor.bodies[0]["input_file_id"]}
    assert sent == desk.vendor.bodies[0], "the SDK creates the same batch"
    assert desk.vendor.files[uploaded.id]["content"] == file["content"], "and uploads the same file"
    assert {batch.id for batch in client.batches.list()} == {own.id, job.parts[0]}
    assert [each.filename for each in client.files.list()] == [file["filename"]] * 2

    desk.vendor.end()
    batch = client.batches.retrieve(job.parts[0] or "")
    assert (batch.status, batch.request_counts and batch.request_counts.total) == ("completed", 2)
    contents = [client.files.content(name).text for name in (batch.output_file_id, batch.error_file_id) if name]
    read = [json.loads(line) for text in contents for line in text.splitlines()]
    items = {f"{job.id}-{item.index}": item for item in job.poll().results()}
    assert items.keys() == {line["custom_id"] for line in read}
    for line in read:
        assert items[line["custom_id"]].ok is (line["response"]["status_code"] == 200)
    assert client.batches.cancel(own.id).id == own.id
    job.delete()
    assert client.files.delete(uploaded.id).deleted


def test_the_anthropic_sdk_agrees(desk: Desk) -> None:
    job = submit(desk, "anthropic:claude-sonnet-4-5")
    sdk_types(ClaudeParams).validate_python(desk.vendor.bodies[0])
    client = anthropic.Anthropic(base_url=desk.server.url, api_key=KEY, max_retries=0)
    own = client.messages.batches.create(requests=desk.vendor.bodies[0]["requests"])
    assert desk.vendor.bodies[0] == desk.vendor.bodies[1]
    assert {batch.id for batch in client.messages.batches.list(limit=1)} == {own.id, job.parts[0]}
    desk.vendor.end()
    name = job.parts[0] or ""
    batch = client.messages.batches.retrieve(name)
    assert (batch.processing_status, batch.request_counts.succeeded) == ("ended", 1)
    items = {f"{job.id}-{item.index}": item for item in job.poll().results()}
    for result in client.messages.batches.results(name):
        assert items[result.custom_id].ok is (result.result.type == "succeeded")
    client.messages.batches.cancel(own.id)
    assert client.messages.batches.delete(own.id).id == own.id


def test_the_google_sdk_agrees(desk: Desk) -> None:
    job = submit(desk, "gemini:gemini-2.5-flash")
    client = genai.Client(api_key=KEY, http_options=gemini.HttpOptions(base_url=desk.server.url, api_version="v1beta"))
    own = client.batches.create(
        model="gemini-2.5-flash",
        src=[
            gemini.InlinedRequest(
                contents="one",
                metadata={"key": f"{job.id}-0"},
                config=gemini.GenerateContentConfig(system_instruction="Be brief.", max_output_tokens=100),
            )
        ],
        config=gemini.CreateBatchJobConfig(display_name=f"{job.id}-0"),
    )
    ours, theirs = (body["batch"] for body in desk.vendor.bodies)
    assert ours["displayName"] == theirs["displayName"]
    first, second = (each["inputConfig"]["requests"]["requests"][0] for each in (ours, theirs))
    assert first["metadata"] == second["metadata"]
    for request in (first["request"], second["request"]):
        request["systemInstruction"].pop("role", None)
    assert first["request"] == second["request"]
    assert {batch.name for batch in client.batches.list()} == {own.name, job.parts[0]}
    desk.vendor.end()
    batch = client.batches.get(name=job.parts[0] or "")
    assert (batch.display_name, batch.done) == (f"{job.id}-0", True)
    responses = (batch.dest and batch.dest.inlined_responses) or []
    items = list(job.poll().results())
    assert [item.ok for item in items] == [response.error is None for response in responses] == [True, False]
    client.batches.cancel(name=own.name or "")
    client.batches.delete(name=own.name or "")


def test_the_google_sdk_agrees_on_vertex_ai(desk: Desk) -> None:
    job = submit(desk, "vertex:gemini-2.5-flash")
    ours = desk.vendor.bodies[0]
    (source,) = ours["inputConfig"]["gcsSource"]["uris"]
    assert source == f"gs://bucket/folder/{job.id}-0.jsonl"
    lines = [json.loads(line) for line in desk.vendor.files[source]["content"].splitlines()]
    for index, line in enumerate(lines):
        assert line["request"].pop("labels") == {"agent-item": f"{job.id}-{index}"}
        gemini.InlinedRequest.model_validate({"contents": line["request"]["contents"]})

    client = genai.Client(
        vertexai=True,
        project="p",
        location="global",
        credentials=Credentials(TOKEN),  # type: ignore[no-untyped-call]
        http_options=gemini.HttpOptions(base_url=desk.server.url, api_version="v1"),
    )
    own = client.batches.create(
        model="gemini-2.5-flash",
        src=gemini.BatchJobSource(format="jsonl", gcs_uri=[source]),
        config=gemini.CreateBatchJobConfig(
            display_name=f"{job.id}-0",
            dest=gemini.BatchJobDestination(format="jsonl", gcs_uri=source.removesuffix(".jsonl")),
        ),
    )
    assert desk.vendor.bodies[1] == ours, "the SDK creates the same job"
    assert {batch.name for batch in client.batches.list()} == {own.name, job.parts[0]}
    desk.vendor.end()
    batch = client.batches.get(name=job.parts[0] or "")
    assert (batch.display_name, batch.state) == (f"{job.id}-0", gemini.JobState.JOB_STATE_SUCCEEDED)
    stats = batch.completion_stats
    items = list(job.poll().results())
    assert stats is not None
    assert (stats.successful_count, stats.failed_count) == (job.counts.succeeded, job.counts.failed) == (1, 1)
    assert [item.ok for item in items] == [True, False]
    client.batches.cancel(name=own.name or "")


# Prices

TOKENS = 100_000
USAGE = Usage(prompt_tokens=TOKENS, completion_tokens=TOKENS, total_tokens=2 * TOKENS)
BATCH_PRICES = {
    "openai:gpt-4o": 1.25 + 5.00,
    "openai:gpt-4.1-mini": 0.20 + 0.80,
    "azure:gpt-4o": 1.25 + 5.00,
    "anthropic:claude-sonnet-4-5": 1.50 + 7.50,
    "anthropic:claude-haiku-4-5": 0.50 + 2.50,
    "gemini:gemini-2.5-flash": 0.15 + 1.25,
    "groq:llama-3.3-70b-versatile": 0.295 + 0.395,
    "groq:llama-3.1-8b-instant": 0.025 + 0.04,
    "mistral:mistral-large-2512": 0.25 + 0.75,
    "mistral:codestral-2508": 0.15 + 0.45,
}
"""Dollars for a million tokens in and out, by list prices that were entered by hand."""


@pytest.mark.parametrize("target", BATCH_PRICES)
def test_batches_cost_what_the_table_of_list_prices_says(target: str) -> None:
    provider, _, model = target.partition(":")
    config = AgentConfig(provider=provider, model=model, api_key=KEY, base_url="http://localhost")
    discount = get_batch_api(load_provider(provider)(config)).discount
    cost = price(USAGE, provider=provider, models=(model,), tier=ServiceTier.BATCH, batch_discount=discount)
    assert cost is not None
    assert cost.dollars == pytest.approx(BATCH_PRICES[target] * TOKENS / 1e6)
    standard = price(USAGE, provider=provider, models=(model,))
    assert standard is not None
    assert cost.dollars == pytest.approx(standard.dollars / 2)


def test_a_discount_that_depends_on_the_model_leaves_the_cost_unknown(desk: Desk) -> None:
    job = desk.agent("together:Qwen/Qwen3.5-9B").submit_batch(["one"], folder=desk.folder)
    desk.vendor.end()
    (item,) = job.poll().results()
    assert item.unwrap().cost_estimate is None


@pytest.mark.parametrize("target", FORMS)
def test_responses_have_the_cost_of_the_batch(target: str, desk: Desk) -> None:
    job = desk.agent(target).submit_batch(["one"], folder=desk.folder)
    desk.vendor.end()
    (item,) = job.poll().results()
    response = item.unwrap()
    provider, _, model = target.partition(":")
    standard = price(response.usage, provider=provider, models=(model,))
    assert standard is not None
    assert response.cost_estimate == pytest.approx(standard.dollars / 2)
    assert item.attempts[0].cost == response.cost_estimate
