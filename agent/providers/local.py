"""Models that run in this process. They are asked in the format of Chat Completions, as the engine knows it, and
always for a stream: only that can be stopped, and so what is streamed and what is not are the same by construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from typing_extensions import override

from .. import errors
from ..engine.wire import Reply, WireRequest, parse_json
from ..types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    AudioContent,
    DocumentContent,
    ImageContent,
    ProviderCapabilities,
    ToolSpec,
)
from .base import Provider, ProviderFactory
from .codec import SHAPE_ERRORS
from .encoding import EncodingContext, request_origin
from .openai_chat import ChatCodec, Dialect
from .openai_chat.dialect import Thinking

DEFAULT_MAX_TOKENS = 1024
"""Tokens, unless the request says how many. A small model that has lost the thread does not stop by itself."""
_DONE = b"data: [DONE]\n\n"
COUNT_FRAGMENT = "#count"
"""At the end of the address of a request whose tokens shall be counted, and which shall not be answered."""

DIALECT = Dialect(
    name="local",
    base_url="http://local.localhost",
    key_required=False,
    most_stops=64,
    thinking=(Thinking({}),),
    capabilities=ProviderCapabilities(
        streaming=True,
        tools=True,
        structured_output=True,
        json_mode=True,
        system_messages=True,
        native_schema_output=True,
        token_counting=True,
    ),
)


def provider(name: str) -> ProviderFactory:
    """The factory. Nothing is loaded before the first request."""
    dialect = replace(DIALECT, name=name)

    def make(config: AgentConfig) -> Provider:
        if config.base_url is not None:
            raise errors.ConfigurationError(
                "A local model runs in this process and has no address.",
                field="base_url",
                fix="Leave it out, or use llamacpp:… or ollama:… for a server.",
            )
        if not config.model:
            raise errors.ConfigurationError(
                "Which local model?", field="model", fix="Use local:smollm2, or local: and the path of a GGUF file."
            )
        return LocalCodec.from_config(config, dialect)

    return make


class LocalCodec(ChatCodec):
    """Chat Completions, answered in process."""

    transport = "local"
    schema_dialect = None

    @override
    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        self._check(request)
        return super().encode(_as_the_engine_takes_it(request), stream=True)

    def schema_with_tools(self, model: str) -> bool:
        """The engine begins to answer, and then fails to read what it has written."""
        return False

    def _check(self, request: AgentRequest) -> None:
        for message in request.messages:
            for part in message.parts:
                if isinstance(part, ImageContent | AudioContent) or (
                    isinstance(part, DocumentContent) and part.text is None
                ):
                    context = EncodingContext(request, request_origin(self.name, self.api, request.model or ""))
                    raise context.part_error(part, "in a message")
        if request.output_schema is not None and request.tools:
            raise errors.UnsupportedFeatureError(
                "The engine cannot both offer tools and enforce a schema.",
                field="output_mode",
                fix='Leave it out, or pass "tool".',
                provider=self.name,
                model=request.model,
            )

    @override
    def decode(self, reply: Reply, request: AgentRequest) -> AgentResponse:
        decoder = self.decoder(reply.headers, request)
        decoder.feed(reply.body)
        decoder.end()
        if decoder.failure is not None:
            raise decoder.failure
        if not decoder.done:
            raise self._protocol_error("the answer has no end", reply, request)
        return decoder.response().model_copy(update={"raw": _last_event(reply.body)})

    def encode_count(self, request: AgentRequest) -> WireRequest:
        wire = self.encode(request, stream=True)
        return replace(wire, url=wire.url + COUNT_FRAGMENT)

    def decode_count(self, reply: Reply, request: AgentRequest) -> int:
        try:
            count: int = parse_json(reply.body)["prompt_tokens"]
        except SHAPE_ERRORS:
            raise self._protocol_error("the answer holds no count", reply, request) from None
        return count

    @override
    def with_client(self, client: Any, headers: Mapping[str, str]) -> ChatCodec:
        raise errors.ConfigurationError(
            "A local model runs in this process, and no client can carry requests to it.",
            field="client",
            fix="Leave it out.",
        )


def _last_event(body: bytes) -> Any:
    """What the engine says at the end, its timings among it."""
    events = body.removesuffix(_DONE).rstrip().rpartition(b"\n\n")[2]
    return parse_json(events.removeprefix(b"data: "))


def _as_the_engine_takes_it(request: AgentRequest) -> AgentRequest:
    """With an end to every answer, and with schemas as they are: the engine enforces more of them than vendors do.

    It passes over a tool's name as a choice, so it is offered that tool alone.
    """
    changes: dict[str, Any] = {}
    if (schema := request.output_json_schema) is not None:
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        changes.update(output_schema=None, extra={"response_format": form, **request.extra})
    if request.max_tokens is None:
        changes["max_tokens"] = DEFAULT_MAX_TOKENS
    choice = request.tool_choice
    if choice not in (None, "auto", "none", "required"):
        wanted = tuple(tool for tool in request.tools if isinstance(tool, ToolSpec) and tool.name == choice)
        if wanted:
            changes.update(tools=wanted, tool_choice="required")
    return request.model_copy(update=changes) if changes else request
