"""Every codec says of every request field how it is sent, left out or refused."""

from __future__ import annotations

from importlib import import_module

import pytest

from agent.types import AgentRequest

CODECS = ("anthropic", "bedrock", "gemini", "openai_chat", "openai_responses")


@pytest.mark.parametrize("codec", CODECS)
def test_every_request_field_is_in_the_codecs_table(codec: str) -> None:
    fields = import_module(f"agent.providers.{codec}.fields")
    known = fields.FIELDS.keys() | fields.ENCODED_ELSEWHERE
    for field in AgentRequest.model_fields:
        assert field in known, f"{codec}: FIELDS has no row for the request field {field!r}"
    for field in known:
        assert field in AgentRequest.model_fields, f"{codec}: FIELDS has a row for {field!r}, which no request has"


@pytest.mark.parametrize("codec", CODECS)
def test_no_request_field_is_encoded_twice(codec: str) -> None:
    fields = import_module(f"agent.providers.{codec}.fields")
    assert not fields.FIELDS.keys() & fields.ENCODED_ELSEWHERE
