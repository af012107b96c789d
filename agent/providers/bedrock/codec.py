"""Codec for Converse, ConverseStream and CountTokens, and the credentials of its requests.

An API key is a bearer token: `api_key`, or AWS_BEARER_TOKEN_BEDROCK. Without one, each request is signed (SigV4) with
the credentials that botocore finds: environment variables, profiles, SSO, roles of containers and instances. botocore
renews them. Only signing imports botocore.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlsplit

from typing_extensions import override

from ... import errors
from ...engine.wire import Reply, WireRequest
from ...types import AgentConfig, AgentRequest, AgentResponse, ProviderCapabilities
from ..anthropic.conversation import prepare_conversation
from ..anthropic.fields import SCHEMA_DIALECT
from ..base import ApiAddress, StreamDecoder, first_variable, make_capabilities, resolve_address
from ..codec import CodecBase
from ..encoding import JsonDict, check_extra, dump_json, encode_fields, request_origin
from ..failures import request_id
from ..repair import ForeignThinking
from .fields import (
    FIELDS,
    MERGED_KEYS,
    MODEL_FIELDS,
    PROMPT_FIELDS,
    ConverseContext,
    declare_called_tools,
    encode_thinking,
)
from .messages import MessageEncoder, place_cache_points
from .models import API, features_of, foundation_model, region_in
from .response import BlockReader, map_stop_reason, read_model, read_usage
from .stream import ConverseDecoder

if TYPE_CHECKING:
    from botocore.session import Session


KEY_VARIABLE = "AWS_BEARER_TOKEN_BEDROCK"
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_URL_VARIABLES = ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_ENDPOINT_URL")
_REGION = re.compile(r"[a-z]{2,}(?:-[a-z0-9]+)+")
_HOST = re.compile(r"bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")
_EXTRA = "pip install 'agent-llm-router[bedrock]'"
_NO_CREDENTIALS = (
    f"There are no AWS credentials: set {KEY_VARIABLE}, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."
)


def resolve_endpoint(config: AgentConfig, *, signed_by_caller: bool) -> tuple[ApiAddress, str | None]:
    """Return the address, and the region if it is known.

    Raises:
        ConfigurationError: There is neither a region nor a base URL.
    """
    region = _find_region(config)
    address = resolve_address(
        config,
        default_base_url=None if region is None else _regional_url(region),
        key_variables=() if signed_by_caller else (KEY_VARIABLE,),
        base_url_variables=_URL_VARIABLES,
        key_required=False,
    )
    return address, region


def _regional_url(region: str) -> str:
    return f"https://bedrock-runtime.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


def _find_region(config: AgentConfig) -> str | None:
    """Find the region: in base_url, in an ARN, in the environment, or in the AWS profile."""
    if host := _HOST.match(urlsplit(config.base_url or "").hostname or ""):
        return host[1]
    region = region_in(config.model) or first_variable(_REGION_VARIABLES) or _read_profile_region()
    if region is not None and not _REGION.fullmatch(region):
        raise errors.ConfigurationError(
            f"{region!r} is not the name of an AWS region.", field="region", fix="Set AWS_REGION, such as us-east-1."
        )
    if region is None and config.base_url is None and first_variable(_URL_VARIABLES) is None:
        raise errors.ConfigurationError(
            "There is no AWS region for Bedrock.",
            field="region",
            fix=f"Set AWS_REGION, or pass base_url={_regional_url('us-east-1')!r}.",
        )
    return region


def _read_profile_region() -> str | None:
    """Read the region of the AWS profile; None without botocore or a profile."""
    try:
        from botocore.exceptions import BotoCoreError  # lazy: an optional package
        from botocore.session import Session  # lazy: an optional package
    except ImportError:
        return None
    try:
        region = Session().get_config_variable("region")
    except BotoCoreError as error:
        raise errors.ConfigurationError(
            f"The AWS profile cannot be read: {error}.", field="region", fix="Correct AWS_PROFILE or ~/.aws/config."
        ) from None
    return region if isinstance(region, str) and region else None


class Signer:
    """Signs requests with the AWS credentials of this process. May be shared by threads."""

    def __init__(self, region: str | None) -> None:
        self._region = region
        self._session: Session | None = None
        self._lock = threading.Lock()
        self.secrets: tuple[str, ...] = ()
        """Secrets of the latest two sets of credentials, which errors must not quote."""
        try:
            import botocore.auth  # noqa: F401  # lazy: an optional package
        except ImportError:
            raise errors.ConfigurationError(
                "Requests to Bedrock without an API key are signed with botocore, which is not installed.",
                field="api_key",
                fix=f"Run {_EXTRA}, or set {KEY_VARIABLE}.",
            ) from None

    def sign(self, request: WireRequest) -> WireRequest:
        """Return the request with its signature. Loading credentials may block."""
        from botocore.auth import SigV4Auth  # lazy: an optional package
        from botocore.awsrequest import AWSRequest  # lazy: an optional package
        from botocore.exceptions import BotoCoreError, ProfileNotFound  # lazy: an optional package

        if self._region is None:
            raise errors.ConfigurationError(
                "There is no AWS region to sign requests for.", field="region", fix="Set AWS_REGION, such as us-east-1."
            )
        try:
            credentials = self._load_credentials()
        except BotoCoreError as error:
            fix = "Correct AWS_PROFILE." if isinstance(error, ProfileNotFound) else "Log in again, or check the role."
            raise errors.AuthenticationError(
                f"The AWS credentials cannot be loaded ({type(error).__name__}). {fix}", provider=API
            ) from None
        content_type = {"content-type": "application/json"}
        signed = AWSRequest(method="POST", url=request.url, data=request.body, headers=content_type)
        SigV4Auth(credentials, "bedrock", self._region).add_auth(signed)
        added = ((name.lower(), value) for name, value in signed.headers.items() if name.lower() != "content-type")
        headers = tuple((name.encode("ascii"), value.encode("latin-1")) for name, value in added)
        return replace(request, headers=(*request.headers, *headers))

    def _load_credentials(self) -> Any:  # Any: botocore has no types
        with self._lock:
            if self._session is None:
                from botocore.session import Session  # lazy: an optional package

                self._session = Session()
            found = self._session.get_credentials()
        if found is None:
            raise errors.AuthenticationError(_NO_CREDENTIALS, provider=API)
        credentials = found.get_frozen_credentials()
        current = tuple(filter(None, (credentials.secret_key, credentials.token)))
        if not set(current) <= set(self.secrets):
            self.secrets = (*current, *self.secrets[:2])
        return credentials


_RESERVED_KEYS = ("messages", "modelId")
_COUNTED_KEYS = frozenset(("messages", "system", "toolConfig", MODEL_FIELDS))
"""Keys of the body that the endpoint for counting tokens accepts."""
_PROFILE_HINT = "on-demand throughput isn"
"""In errors for models that only inference profiles serve."""
_PROFILE_ADVICE = "Add a region prefix to the model, such as us.{model}, to use an inference profile."


def encode_body(
    request: AgentRequest,
    provider: str,
    foreign_thinking: ForeignThinking = "drop",
    *,
    count_tokens: bool = False,
) -> tuple[JsonDict, tuple[str, ...]]:
    """Return the body, and warnings about content that was dropped. Unsupported content raises an error."""
    check_extra(request, _RESERVED_KEYS)
    context = ConverseContext(request, request_origin(provider, API, request.model or ""))
    prefill = context.claude is None or context.claude.features.prefill
    system, messages = prepare_conversation(context, foreign_thinking, prefill=prefill)
    context.drop_all_extra(request.messages)
    encoder = MessageEncoder(context)
    context.body["messages"] = encoder.encode(messages)
    if system:
        check_extra(request, ("system",))
        context.body["system"] = encoder.encode_system(system)
    encode_thinking(context, messages)
    body = encode_fields(context, PROMPT_FIELDS if count_tokens else FIELDS)
    declare_called_tools(context)
    place_cache_points(context)
    for key, value in request.extra.items():
        merges = key in MERGED_KEYS and key in body and isinstance(value, Mapping)
        body[key] = {**body[key], **value} if merges else value
    if count_tokens:
        body = {"input": {"converse": {key: value for key, value in body.items() if key in _COUNTED_KEYS}}}
    return body, tuple(context.warnings)


def _capabilities(model: str) -> ProviderCapabilities:
    """Return the capabilities of a model. Only Claude's tokens can be counted."""
    features = features_of(model)
    return make_capabilities(
        json_mode=False,
        system_messages=True,
        native_schema_output=features.native_schema,
        documents=True,
        audio=True,
        token_counting=features.thinking == "claude" and foundation_model(model) is not None,
    )


class BedrockCodec(CodecBase):
    """Codec for Bedrock at one address, for one model or several.

    Args:
        address: Base URL and API key. Without a key, `signer` signs requests.
        headers: Additional headers of every request.
        name: The provider's name.
        model: The model whose capabilities are reported.
        foreign_thinking: Drop reasoning of other models, or send it as text.
        signer: Signs requests with AWS credentials.
    """

    api = API
    response_kind = "Converse response"
    schema_dialect: ClassVar[str | None] = SCHEMA_DIALECT
    count_key: ClassVar[str] = "inputTokens"

    def __init__(
        self,
        address: ApiAddress,
        headers: Mapping[str, str] | None = None,
        *,
        name: str = API,
        model: str = "",
        foreign_thinking: ForeignThinking = "drop",
        signer: Signer | None = None,
    ) -> None:
        super().__init__(name, _capabilities(model), {**address.credentials(), **(headers or {})}, address.secrets)
        self._foreign_thinking = foreign_thinking
        self._root = address.base_url.rstrip("/")
        self._signer = signer
        self._own_secrets = self._secrets
        self.sign: Callable[[WireRequest], WireRequest] | None = None if signer is None else self._sign

    @classmethod
    def from_config(cls, config: AgentConfig, name: str = API) -> BedrockCodec:
        headers = config.headers.reveal()
        has_credentials = "authorization" in {header.lower() for header in headers}
        address, region = resolve_endpoint(config, signed_by_caller=has_credentials)
        return cls(
            address,
            headers,
            name=name,
            model=config.model,
            foreign_thinking=config.foreign_thinking,
            signer=None if has_credentials or address.key is not None else Signer(region),
        )

    def _sign(self, request: WireRequest) -> WireRequest:
        """Sign a request with AWS credentials, which errors must not quote."""
        assert self._signer is not None
        signed = self._signer.sign(request)
        self._secrets = (*self._own_secrets, *self._signer.secrets)
        return signed

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        body, warnings = encode_body(request, self.name, self._foreign_thinking)
        url = self._url(request.model, "converse-stream" if stream else "converse")
        return WireRequest(url, self._headers, dump_json(body), self.name, warnings)

    def encode_count(self, request: AgentRequest) -> WireRequest:
        body, warnings = encode_body(request, self.name, self._foreign_thinking, count_tokens=True)
        url = self._url(foundation_model(request.model or "") or request.model, "count-tokens")
        return WireRequest(url, self._headers, dump_json(body), self.name, warnings)

    def _url(self, model: str | None, operation: str) -> str:
        if not model:
            raise errors.ConfigurationError(
                "No model is set.", field="model", fix='Pass one: Agent("bedrock:us.amazon.nova-lite-v1:0").'
            )
        return f"{self._root}/model/{quote(model, safe='~')}/{operation}"

    @override
    def _read_response(self, body: dict[str, Any], headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        reader = BlockReader(self.name, request)
        message = body["output"]["message"]
        parts = [reader.read_part(block) for block in message["content"]]
        reason: str = body["stopReason"]
        return AgentResponse(
            provider=self.name,
            model=read_model(body, request),
            content=[part for part in parts if part is not None],
            usage=read_usage(body.get("usage")),
            stop_reason=map_stop_reason(reason),
            raw_stop_reason=reason,
            request_id=request_id(headers),
            raw=body,
        )

    @override
    def decode_error(self, reply: Reply, request: AgentRequest) -> errors.AgentError:
        error = super().decode_error(reply, request)
        if _PROFILE_HINT in error.message:
            error.message = f"{error.message} {_PROFILE_ADVICE.format(model=request.model)}"
        return error

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder:
        return ConverseDecoder(self.name, headers, request, self._secrets)
