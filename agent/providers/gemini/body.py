"""Writing a request as the JSON that generateContent takes: settings here, the conversation in `contents`.

What the API cannot take raises before anything is sent; a mere setting that is left out or changed is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from ... import errors
from ...models import facts
from ...schemas import compile_schema, compiled_json
from ...types import AgentRequest, Origin, Role, ToolSpec
from ...types.tools import plain_schema
from ..repair import repair
from ..writing import Written, as_json, check_extra, home_of, object_json, text_json, tools_json
from .contents import ContentsWriter
from .family import SCHEMA_DIALECT, Family, family_of
from .names import sent_name
from .platform import COUNTED, Platform

API = "gemini"

MOST_STOPS = 5
_SEEDS = range(-(2**31), 2**31)
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_MOST_LABELS = 64
_MERGED = ("generationConfig", "toolConfig")
"""Objects of the body that `extra` may add to: its keys win, the others stay."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who is asked: what the bytes depend on besides the request."""

    name: str
    platform: Platform
    foreign_thinking: Literal["drop", "text"]

    def home(self, request: AgentRequest) -> Origin:
        return home_of(self.name, API, request.model or "")


def encode_body(request: AgentRequest, speaker: Speaker, *, counting: bool = False) -> tuple[bytes, tuple[str, ...]]:
    """The body, and what had to be changed or left out of it. For `counting`, only what can be counted."""
    check_extra(request, ("contents", "model"))
    home, family = speaker.home(request), family_of(request.model or "")
    writer = ContentsWriter(home, family, any_ids=speaker.platform.any_ids)
    said = request.to_messages()
    messages, repairs = repair(said, home, speaker.foreign_thinking, assistant_media=True)
    leading = list(takewhile(lambda message: message.role is Role.SYSTEM, messages))
    contents = writer.contents(messages[len(leading) :])
    if not contents:
        raise errors.ConfigurationError(
            "There is nothing to answer: the conversation holds only instructions, or nothing at all.",
            field="messages",
            fix="Pass input= or a user's message.",
        )
    settings = _Settings(request, speaker, family)
    body = settings.body()
    if system := writer.system(leading):
        check_extra(request, ("systemInstruction",))
        body["systemInstruction"] = {"parts": system}
    if counting and not speaker.platform.wraps_counted:
        body = {key: value for key, value in body.items() if key in COUNTED}
    warnings = dict.fromkeys((*repairs, *writer.warnings, *settings.warnings))
    ending = b"]," + object_json(body)[1:] if body else b"]}"
    return b"".join([b'{"contents":[', *contents, ending]), tuple(warnings)


class _Settings:
    """Everything in a body but the conversation; collects what is left out on the way."""

    def __init__(self, request: AgentRequest, speaker: Speaker, family: Family) -> None:
        self._request = request
        self._speaker = speaker
        self._family = family
        self._functions = [tool for tool in request.tools if isinstance(tool, ToolSpec)]
        self._server_tools = [tool for tool in request.tools if not isinstance(tool, ToolSpec)]
        self.warnings: list[str] = []

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {}
        if self._request.tools:
            body["tools"] = self._tools()
        if tool_config := self._tool_config():
            body["toolConfig"] = tool_config
        if generation := self._generation_config():
            body["generationConfig"] = generation
        if self._speaker.platform.labels and (labels := _labels(self._request.metadata)):
            body["labels"] = labels
        for key, value in self._request.extra.items():
            both = key in _MERGED and key in body and isinstance(value, Mapping)
            body[key] = {**body[key], **value} if both else value
        return body

    def _tools(self) -> Written:
        tools = [as_json(tool) for tool in self._server_tools]
        if self._functions:
            functions = tools_json(self._functions, API, _function, self.warnings.append)
            tools.append(b'{"functionDeclarations":' + functions + b"}")
        return Written(b"[" + b",".join(tools) + b"]")

    def _tool_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {}
        if self._functions and (calling := self._calling()):
            config["functionCallingConfig"] = calling
        if (
            self._functions
            and self._server_tools
            and self._family.mixes_tools
            and self._speaker.platform.shows_server_tools
        ):
            config["includeServerSideToolInvocations"] = True
        if self._server_tools and self._request.tool_choice not in (None, "auto"):
            self.warnings.append("tool_choice does not reach the vendor's own tools: the model uses them as it likes")
        if self._functions and self._request.parallel_tool_calls is False:
            self.warnings.append("parallel_tool_calls=False was left out: the model may call several tools at once")
        return config

    def _calling(self) -> dict[str, Any] | None:
        choice = self._request.tool_choice
        match choice:
            case "none":
                return {"mode": "NONE"}
            case "required":
                return {"mode": "ANY"}
            case None | "auto":
                if any(tool.strict for tool in self._functions):
                    if self._family.validated_calls:
                        return {"mode": "VALIDATED"}
                    self.warnings.append("strict was left out: the model cannot be made to keep to a tool's schema")
                return None if choice is None else {"mode": "AUTO"}
            case _:
                return {"mode": "ANY", "allowedFunctionNames": [sent_name(choice)]}

    def _generation_config(self) -> dict[str, Any]:
        request = self._request
        config: dict[str, Any] = {}
        if request.max_tokens is not None:
            config["maxOutputTokens"] = request.max_tokens
        self._sampling(config)
        if request.stop:
            if len(request.stop) > MOST_STOPS:
                self.warnings.append(f"only the first {MOST_STOPS} of {len(request.stop)} stop sequences were sent")
            config["stopSequences"] = list(request.stop[:MOST_STOPS])
        if request.logprobs is not None:
            config["responseLogprobs"] = True
            if request.logprobs:
                config["logprobs"] = request.logprobs
        if request.thinking is not None:
            thinking, warning = self._family.thinking_config(request.thinking)
            if thinking is not None:
                config["thinkingConfig"] = thinking
            if warning is not None:
                self.warnings.append(warning)
        schema = request.output_json_schema if request.output_mode in (None, "native") else None
        if schema is not None:
            self._check_schema_with_tools()
            compiled = compile_schema(schema, SCHEMA_DIALECT)
            if not compiled.sendable:
                raise self._refused(f"It cannot enforce this schema ({'; '.join(compiled.lost)}).", "leave it out")
            self.warnings.extend(f"output_schema: {lost}" for lost in compiled.lost)
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = compiled.schema
        return config

    def _sampling(self, config: dict[str, Any]) -> None:
        request = self._request
        given = {"temperature": request.temperature, "topP": request.top_p}
        sampling = {key: value for key, value in given.items() if value is not None}
        if sampling and facts(self._speaker.name, request.model or "").sampling is False:
            self.warnings.append(f"{' and '.join(sampling)} were left out: the model does not take them")
        else:
            config.update(sampling)
        if request.seed is not None:
            if request.seed in _SEEDS:
                config["seed"] = request.seed
            else:
                self.warnings.append("seed was left out: it must fit into 32 bits")

    def _check_schema_with_tools(self) -> None:
        if self._request.tools and not self._family.schema_with_tools:
            raise self._refused("It takes none beside tools.", "leave out the tools, or use Gemini 3 or later")

    def _refused(self, why: str, otherwise: str) -> errors.UnsupportedFeatureError:
        return errors.UnsupportedFeatureError(
            f"{self._request.model} does not take that output schema. {why}",
            field="output_schema",
            fix=f'Use output_mode="tool" or "prompted", or {otherwise}.',
            provider=self._speaker.name,
            model=self._request.model,
        )


def _function(tool: ToolSpec, warnings: list[str]) -> dict[str, Any] | Written:
    if (text := plain_schema(tool)) is not None:
        schema = compiled_json(text, SCHEMA_DIALECT)
        description = b',"description":' + text_json(tool.description) if tool.description else b""
        return Written(
            b'{"name":%b%b,"parametersJsonSchema":%b}' % (text_json(sent_name(tool.name)), description, schema)
        )
    function: dict[str, Any] = {"name": sent_name(tool.name)}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        compiled = compile_schema(tool.parameters, SCHEMA_DIALECT)
        if tool.strict:  # for the others a schema is advice, and what it lost is told in descriptions
            warnings.extend(f"tool {tool.name}: {lost}" for lost in compiled.lost)
        function["parametersJsonSchema"] = compiled.schema
    return {**function, **tool.extra}


def _labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The metadata that can be a label: Vertex AI bills and filters by them, and is strict about their form."""
    fitting = {
        key: value
        for key, value in metadata.items()
        if _LABEL_KEY.fullmatch(key) and isinstance(value, str) and _LABEL_VALUE.fullmatch(value)
    }
    return dict(list(fitting.items())[:_MOST_LABELS])
