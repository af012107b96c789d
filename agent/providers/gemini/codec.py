"""The codec: requests to bytes, answers to responses, failures to errors, and tokens counted by the vendor.

The model stands in the address, so each request has its own. An answer without candidates is a response only if the
vendor says why it would not take the question.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from typing_extensions import override

from ... import errors
from ...types import AgentConfig, AgentRequest, AgentResponse, ProviderCapabilities
from ...wire import Reply, WireRequest, parse_json
from ..base import StreamDecoder
from ..codec import CodecBase
from ..credentials import NOWHERE, Address
from ..failures import failure, read_complaint, request_id
from ..writing import as_json
from .answer import Reading
from .body import API, Speaker, encode_body
from .family import SCHEMA_DIALECT, family_of
from .names import offered
from .platform import GEMINI_API, VERTEX, Platform, gemini_place, is_token, vertex_place
from .stream import GeminiDecoder

CAPABILITIES = ProviderCapabilities.trusted(
    streaming=True,
    tools=True,
    structured_output=True,
    json_mode=True,
    vision=True,
    system_messages=True,
    native_schema_output=True,
    thinking=True,
    documents=True,
    audio=True,
    token_counting=True,
)

PLACES = {"vertex": vertex_place}
"""Where a provider of that name is served; the Gemini API for any other."""


class GeminiCodec(CodecBase):
    """Gemini at one address.

    Args:
        address: Where it is served, and the key. An empty `base_url` makes relative addresses, for a brought client.
        headers: Sent with every request.
        name: What the provider is called here; signatures go back only to the name and model that made them.
        foreign_thinking: What becomes of reasoning that another model wrote.
        platform: The Gemini API or Vertex AI.
        token: Whether the key is an access token; by default those that begin with `ya29.` are.
    """

    api = API
    response_kind = "generateContent response"
    schema_dialect = SCHEMA_DIALECT

    def __init__(
        self,
        address: Address,
        headers: Mapping[str, str] | None = None,
        *,
        name: str = API,
        foreign_thinking: Literal["drop", "text"] = "drop",
        platform: Platform = GEMINI_API,
        token: bool | None = None,
    ) -> None:
        key = None if address.key is None else address.key.get_secret_value()
        sent: dict[str, str] = {}
        if key is not None:
            bearer = is_token(address) if token is None else token
            sent = {"authorization": f"Bearer {key}"} if bearer else {"x-goog-api-key": key}
        super().__init__(name, CAPABILITIES, {**sent, **(headers or {})}, () if key is None else (key,))
        self.platform = platform
        self._root = platform.root(address.base_url)
        self._speaker = Speaker(name, platform, foreign_thinking)

    @classmethod
    def from_config(cls, config: AgentConfig, name: str) -> GeminiCodec:
        place = PLACES.get(name, gemini_place)(config)
        return cls(
            place.address,
            config.headers.reveal(),
            name=name,
            foreign_thinking=config.foreign_thinking,
            platform=place.platform,
            token=place.token,
        )

    def schema_with_tools(self, model: str) -> bool:
        """Whether a model takes an output schema beside tools. The others refuse the two together."""
        return family_of(model).schema_with_tools

    @override
    def carried_by(self, client: Any, headers: Mapping[str, str]) -> GeminiCodec:
        platform = VERTEX if getattr(client, "vertexai", False) else GEMINI_API
        foreign = self._speaker.foreign_thinking
        return GeminiCodec(NOWHERE, headers, name=self.name, foreign_thinking=foreign, platform=platform)

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        url = self._url(request, "streamGenerateContent?alt=sse" if stream else "generateContent")
        body, warnings = encode_body(request, self._speaker)
        return WireRequest(url, self._headers, body, self.name, warnings)

    def _url(self, request: AgentRequest, method: str) -> str:
        if not request.model:
            raise errors.ConfigurationError(
                "No model is named.", field="model", fix='Name one: Agent("gemini:gemini-2.5-flash").'
            )
        return self.platform.url(self._root, request.model, method)

    @override
    def _read_response(self, body: Any, headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        reading = Reading(self._speaker.home(request), offered(request))
        for chunk in body if isinstance(body, list) else (body,):
            complaint = read_complaint(chunk) if chunk.get("error") else None
            if complaint is not None:
                raise failure(
                    complaint,
                    status=200,
                    headers=headers,
                    body=chunk,
                    provider=self.name,
                    model=request.model,
                    secrets=self._secrets,
                )
            reading.take(chunk)
        if not reading.complete:
            raise ValueError("it does not say how it ended")
        reading.finish()
        return reading.ending(
            provider=self.name,
            model=request.model or "",
            content=[reading.part(block) for block in reading.blocks],
            request_id=request_id(headers),
            raw=body,
        )

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder:
        return GeminiDecoder(self.name, self._speaker.home(request), headers, request, self._secrets)

    def encode_count(self, request: AgentRequest) -> WireRequest:
        """Asks how many tokens the request has, without answering it."""
        url = self._url(request, "countTokens")
        body, warnings = encode_body(request, self._speaker, counting=True)
        if self.platform.wraps_counted:
            name = self.platform.path(request.model or "", "").removesuffix(":")
            body = b'{"generateContentRequest":{"model":' + as_json(name) + b"," + body[1:] + b"}"
        return WireRequest(url, self._headers, body, self.name, warnings)

    def decode_count(self, reply: Reply, request: AgentRequest) -> int:
        try:
            return int(parse_json(reply.body)["totalTokens"])
        except (ValueError, KeyError, TypeError, OverflowError):
            raise self._protocol_error("the answer is not a count of tokens", reply, request) from None
