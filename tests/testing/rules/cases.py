"""Helpers of the tables of invalid requests."""

from __future__ import annotations

from typing import Any, NamedTuple

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GEMINI_2, GEMINI_3 = (
    "/v1beta/models/gemini-2.5-pro:generateContent",
    "/v1beta/models/gemini-3-pro-preview:streamGenerateContent?alt=sse",
)


class Bad(NamedTuple):
    what: str
    path: str
    body: Any
    says: str
    """Words of the refusal."""
    at: str | None = None
    """Field in the error, if the API reports it."""


USER = {"role": "user", "content": "Hi"}
OBJECT = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLOSED = {**OBJECT, "additionalProperties": False}


def valid(path: str) -> dict[str, Any]:
    """A plain request that the API takes."""
    match path:
        case "/v1/chat/completions":
            return {"model": "gpt-4o", "messages": [USER]}
        case "/v1/responses":
            return {"model": "gpt-4o", "input": "Hi"}
        case "/v1/messages":
            return {"model": "claude-sonnet-4-5", "max_tokens": 4096, "messages": [USER]}
        case _:
            return {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}


PATTERN = "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
