"""Responses: content, usage, cost and metadata of a call, in the same form for every vendor."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, get_args

from pydantic import Field, computed_field, model_validator
from typing_extensions import TypeVar, override

from ._base import EMPTY_OBJECT, EMPTY_SEQUENCE, Accepts, Json, JsonObject, SequenceOf, get_slot
from .media import ContentPart
from .messages import Message, Role
from .parts import Part, RefusalContent, TextContent, ThinkingContent, ToolCall
from .routing import Attempt, Route
from .usage import Priced, TokenUsage, Usage

if TYPE_CHECKING:
    from ..graph import DAG

OutputT = TypeVar("OutputT", covariant=True, default=Any)  # Any: `AgentResponse` alone accepts every response
"""Type of `output`."""

__all__ = ["AgentResponse", "FinishReason", "Response", "TokenUsage", "Usage"]

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "refusal", "pause", "error", "other"]

_OTHER_NAMES: dict[FinishReason, str] = {
    "stop": "end_turn stop_sequence completed complete eos",
    "length": "max_tokens max_output_tokens model_length",
    "tool_calls": "tool_use tool_call tooluse function_call",
    "content_filter": "content_filtered safety recitation blocklist prohibited_content spii",
    "pause": "pause_turn",
    "error": "aborted failed",
}
_FINISH: dict[str, FinishReason] = {reason: reason for reason in get_args(FinishReason)}
_FINISH.update({name: reason for reason, names in _OTHER_NAMES.items() for name in names.split()})
_NO_CONTENT: Any = EMPTY_SEQUENCE
_NO_OUTPUT: Any = None
_NO_ROUTE: Any = Route()
_CANONICAL = frozenset(get_args(FinishReason))


class AgentResponse(Priced, Generic[OutputT], frozen=True):
    """A model's response. `text` and `tool_calls` are views of `content`, and accepted instead of it."""

    __slots__ = ("_dag", "_raw")
    _carried: ClassVar[tuple[str, ...]] = ("_raw", "_dag")
    _cost_fields: ClassVar[tuple[str, ...]] = ("cost_estimate", "cost_source")

    provider: str = ""
    model: str = ""
    content: Accepts[SequenceOf[Part], Sequence[ContentPart]] = Field(default=_NO_CONTENT)
    if TYPE_CHECKING:
        output: OutputT = Field(default=_NO_OUTPUT)
        """The output parsed by the requested schema."""
    else:
        output: Json = None

        @classmethod
        def __class_getitem__(cls, output_type):
            return cls  # the type of `output` matters to type checkers only

    usage: Usage | None = None
    stop_reason: FinishReason | None = None
    raw_stop_reason: str | None = None
    """The vendor's name of the stop reason."""
    latency_ms: float | None = None
    request_id: str | None = None
    id: str | None = None
    """The vendor's response id."""
    warnings: SequenceOf[str] = EMPTY_SEQUENCE
    """Parts of the request that the codec dropped or changed."""
    logprobs: SequenceOf[JsonObject] = ()
    """Log probabilities of text tokens, if requested: `token`, `logprob`, and `top` with alternatives."""
    choices: SequenceOf["AgentResponse"] = Field(default=(), exclude_if=lambda choices: not choices)
    """Alternative responses to a request with `n`, besides this one. The usage is that of all of them."""
    status: Literal["queued", "in_progress"] | None = None
    """Status of a background response that is not complete."""
    service_tier: str | None = None
    """The tier that processed the request, in the vendor's spelling."""
    stop_sequence: str | None = None
    """The stop sequence that ended the text, where the vendor reports it."""
    vendor: JsonObject = Field(default=EMPTY_OBJECT, exclude_if=lambda vendor: not vendor)
    """Other data of the response by the vendor's names, such as fingerprints, filter results and container ids."""
    route: Accepts[Route, Sequence[Attempt]] = Field(default=_NO_ROUTE)
    """All attempts of the call, in order; `str()` prints a table."""

    if TYPE_CHECKING:
        text: str | None = None
        tool_calls: list[ToolCall] = Field(default_factory=list)
        cost_estimate: float | None = None
        cost_source: str | None = None
        raw: Any = None

        @property
        def dag(self) -> "DAG | Any": ...  # Any: None unless the request was a graph

    else:

        def __init__(self, /, *, raw=None, **data):
            __tracebackhide__ = True
            super().__init__(**data)
            if raw is not None:
                object.__setattr__(self, "_raw", raw)

        @model_validator(mode="before")
        @classmethod
        def _read(cls, data):
            if type(data) is not dict:
                return data
            if "text" in data or "tool_calls" in data:
                data = _move_into_content(data)
            reason = data.get("stop_reason")
            if isinstance(reason, str) and reason not in _CANONICAL:
                data = _normalize_stop_reason(data, reason)
            return data

        @property
        def raw(self):
            """The vendor's response; not part of equality, hash, dumps and pickles."""
            return get_slot(self, "_raw")

        @property
        def dag(self):
            """The requested graph extended by this response; not part of equality, hash, dumps and pickles."""
            return get_slot(self, "_dag")

        @computed_field
        @property
        def cost_estimate(self) -> float | None:
            """Cost in US dollars, if known."""
            return self._cost.get()[0]

        @computed_field
        @property
        def cost_source(self) -> str | None:
            """Source of the cost: `vendor`, `user`, or a price list and its version."""
            return self._cost.get()[1]

        @computed_field
        @property
        def text(self) -> str | None:
            """All text of the response; None without a text part."""
            texts = [part.text for part in self.content if type(part) is TextContent]
            return "".join(texts) if texts else None

        @computed_field
        @property
        def tool_calls(self) -> list[ToolCall]:
            return [part for part in self.content if type(part) is ToolCall]

    @override
    def __hash__(self) -> int:
        # `output` may be unhashable; equal responses have equal hashes without it.
        return hash((self.provider, self.model, self.content, self.usage, self.stop_reason, self.request_id, self.id))

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        if update and not {"text", "tool_calls"}.isdisjoint(update) and "content" not in update:
            raise ValueError("text and tool_calls are views of content; update content instead")
        return super().model_copy(update=update, deep=deep)

    @property
    def role(self) -> Role:
        return Role.ASSISTANT

    @property
    def thinking(self) -> str:
        """The visible text of the model's reasoning."""
        return "".join(part.thinking for part in self.content if isinstance(part, ThinkingContent))

    @property
    def refusal(self) -> str | None:
        """The text of a refusal, if the model refused."""
        return "".join(part.refusal for part in self.content if isinstance(part, RefusalContent)) or None

    @property
    def message(self) -> Message:
        """The response as a message, to append to a conversation."""
        return Message(Role.ASSISTANT, self.content, usage=self.usage)

    @property
    def has_tool_calls(self) -> bool:
        return any(isinstance(part, ToolCall) for part in self.content)

    def get_text(self) -> str:
        return self.text or ""

    def get_tool_use(self) -> list[ToolCall]:
        return self.tool_calls

    def has_tool_use(self) -> bool:
        return self.has_tool_calls


Response = AgentResponse


def _move_into_content(data: dict[str, Any]) -> dict[str, Any]:
    rest = dict(data)
    text = rest.pop("text", None)
    calls = rest.pop("tool_calls", None) or ()
    if not isinstance(calls, list | tuple):
        raise ValueError("tool_calls must be a list")
    if not rest.get("content"):
        texts = () if text is None else ({"type": "text", "text": text},)
        rest["content"] = (*texts, *(_add_tag(call) for call in calls))
    return rest


def _add_tag(call: Any) -> Any:
    return {"type": "tool_call", **call} if isinstance(call, Mapping) else call


def _normalize_stop_reason(data: dict[str, Any], reason: str) -> dict[str, Any]:
    """Translate a vendor's stop reason, kept in `raw_stop_reason`; an unknown one becomes `other`."""
    known = _FINISH.get(reason.lower(), "other")
    return {**data, "stop_reason": known, "raw_stop_reason": data.get("raw_stop_reason") or reason}
