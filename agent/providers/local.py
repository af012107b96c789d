"""Provider for embedded models, which run in this process and speak Chat Completions.

Every request is a stream, because only streams can be cancelled. A complete response is a decoded stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from typing_extensions import override

from .. import errors
from ..engine.wire import Reply, WireRequest, parse_json
from ..types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    AudioContent,
    DocumentContent,
    FileContent,
    ImageContent,
    ProviderCapabilities,
    ToolSpec,
    VideoContent,
)
from .base import Provider, ProviderFactory
from .encoding import EncodingContext, request_origin
from .openai_chat import ChatCodec, Dialect
from .openai_chat.dialect import Thinking

DEFAULT_MAX_TOKENS = 1024
"""Default output limit. A small model in a repetition loop does not stop by itself."""
COUNT_FRAGMENT = "#count"
"""URL fragment of requests whose tokens are counted, not answered."""
_DONE = b"data: [DONE]\n\n"

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
    """Factory for embedded models. Weights are loaded at the first request."""
    dialect = replace(DIALECT, name=name)

    def make(config: AgentConfig) -> Provider:
        if config.base_url is not None:
            raise errors.ConfigurationError(
                "A local model runs in this process and has no base_url.",
                field="base_url",
                fix="Remove it, or use llamacpp:… or ollama:… for a server.",
            )
        if not config.model:
            raise errors.ConfigurationError(
                "The local model is missing.", field="model", fix="Use local:smollm2, or local:PATH with a GGUF file."
            )
        return LocalCodec.from_config(config, dialect)

    return make


class LocalCodec(ChatCodec):
    """Codec for Chat Completions in process."""

    transport = "local"
    schema_dialect: ClassVar[str | None] = None
    count_key: ClassVar[str] = "prompt_tokens"

    @override
    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        self._check(request)
        return super().encode(_adapt_request(request), stream=True)

    def schema_with_tools(self, model: str) -> bool:
        return False  # llama.cpp starts to answer, and then fails to parse its own output

    def _check(self, request: AgentRequest) -> None:
        for message in request.messages:
            for part in message.parts:
                if isinstance(part, ImageContent | AudioContent | VideoContent | FileContent) or (
                    isinstance(part, DocumentContent) and part.text is None
                ):
                    context = EncodingContext(request, request_origin(self.name, self.api, request.model or ""))
                    raise context.part_error(part, "in a message")
        if request.output_schema is not None and request.tools:
            raise errors.UnsupportedFeatureError(
                "A local model cannot use tools and an output schema together.",
                field="output_mode",
                fix='Leave it out, or pass "tool".',
                provider=self.name,
                model=request.model,
            )

    @override
    def decode(self, reply: Reply, request: AgentRequest) -> AgentResponse:
        response = self._decode_stream(self.decoder(reply.headers, request), reply, request)
        last_event = reply.body.removesuffix(_DONE).rstrip().rpartition(b"\n\n")[2]  # with llama.cpp's timings
        return response.model_copy(update={"raw": parse_json(last_event.removeprefix(b"data: "))})

    def encode_count(self, request: AgentRequest) -> WireRequest:
        wire = self.encode(request, stream=True)
        return replace(wire, url=wire.url + COUNT_FRAGMENT)

    @override
    def with_client(self, client: Any, headers: Mapping[str, str]) -> ChatCodec:
        raise errors.ConfigurationError(
            "A local model runs in this process and does not use a client.", field="client", fix="Remove it."
        )


def _adapt_request(request: AgentRequest) -> AgentRequest:
    """Adapt a request to llama.cpp.

    It gets an output limit, and its schema unchanged: llama.cpp enforces more keywords than vendors do. For a named
    `tool_choice`, which llama.cpp ignores, only that tool is offered.
    """
    changes: dict[str, Any] = {}
    if (schema := request.output_json_schema) is not None:
        response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        changes.update(output_schema=None, extra={"response_format": response_format, **request.extra})
    if request.max_tokens is None:
        changes["max_tokens"] = DEFAULT_MAX_TOKENS
    choice = request.tool_choice
    if choice not in (None, "auto", "none", "required"):
        tools = tuple(tool for tool in request.tools if isinstance(tool, ToolSpec) and tool.name == choice)
        if tools:
            changes.update(tools=tools, tool_choice="required")
    return request.model_copy(update=changes) if changes else request
