"""One script, told in four wire formats: what a vendor's server would send for an answer, whole or as a stream.

It goes by the path that a request was sent to. Other paths than those of the four APIs are not found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Any
from urllib.parse import urlsplit

from typing_extensions import override

from .. import errors
from ..answers import Answer
from ..providers.scripted import Line, Script, failed, words_in
from ..types import AgentResponse
from ..wire import WireRequest
from .rules import Judge, Violation
from .rules.judging import model_at
from .speeches import AnthropicSpeech, GeminiSpeech, ResponsesSpeech, Speech

_CHAT = "/chat/completions"
_ANTHROPIC, _RESPONSES, _GEMINI = AnthropicSpeech(), ResponsesSpeech(), GeminiSpeech()
_SPEECHES: tuple[tuple[str, Speech], ...] = (
    ("/messages", _ANTHROPIC),
    ("/responses", _RESPONSES),
    (":generateContent", _GEMINI),
    (":streamGenerateContent", _GEMINI),
)
_COUNTS: tuple[tuple[str, Speech], ...] = (
    ("/messages/count_tokens", _ANTHROPIC),
    ("/responses/input_tokens", _RESPONSES),
    (":countTokens", _GEMINI),
)


class VendorScript(Script):
    """A script for a `LoopbackServer` that answers each request in the wire format of the path it was sent to.

    Chat Completions, Responses, Anthropic's Messages and Gemini's generateContent; see `Script` for the lines. Without
    any lines it echoes, and fills in schemas and forced tools, in each of them. Asked to count tokens it counts words,
    which takes no line.

    Args:
        lines: See `Script`.
        delay: Seconds between the pieces of a stream.
        strict: Judge each request by the rules of its API first. One that breaks a rule gets status 400 in the
            vendor's own format, and takes no line; `refusals` has what was wrong.
        signatures: Looked at only if strict: signatures, sealed reasoning and ids of stored items that the vendor
            knows besides those that this script has issued. A set, or whatever else can say what is in it.
        extra_keys: Looked at only if strict: keys of a body that are fine although the API does not have them, such
            as those of a vendor that speaks a dialect of it.
    """

    def __init__(
        self,
        *lines: Line,
        delay: float = 0.0,
        strict: bool = False,
        signatures: Container[str] = (),
        extra_keys: Container[str] = (),
    ) -> None:
        super().__init__(*lines, delay=delay)
        self._judge = Judge(signatures, extra_keys) if strict else None
        self.refusals: deque[Violation] = deque(maxlen=10_000)
        """What was wrong with the requests that were refused, in order."""

    @override
    def __call__(self, request: WireRequest) -> Answer:
        if self._judge is None:
            return self._answer(request)
        verdict = self._judge.verdict(request.url, request.body)
        if verdict is not None:
            violation, complaint = verdict
            self.refusals.append(violation)
            return self._refuse(request, complaint)
        answer = self._answer(request)
        if answer.status == 200:
            self._judge.heard(
                request.url, (piece.outcome for piece in answer.timed() if isinstance(piece.outcome, bytes))
            )
        return answer

    def _refuse(self, request: WireRequest, complaint: dict[str, Any]) -> Answer:
        try:
            number = self._asked(request)[1]
        except ValueError:  # no JSON, so there is nothing to put on record
            number = 0
        refusal = self._whole(complaint, number)
        refusal.status = 400
        return refusal

    def _answer(self, request: WireRequest) -> Answer:
        path = urlsplit(request.url).path
        if (counting := _speech_at(path, _COUNTS)) is not None:
            body, number = self._asked(request)
            return self._whole(counting.count(words_in(body)), number)
        if speech_for(request) is None and not path.endswith(_CHAT):
            complaint = {"message": f"a VendorScript does not answer {path}", "type": "not_found"}
            return failed(errors.ModelNotFoundError(complaint["message"]), {"error": complaint})
        return super().__call__(request)

    @override
    def _echo(self, request: WireRequest) -> Line:
        speech = speech_for(request)
        return super()._echo(request) if speech is None else speech.echo

    @override
    def _say(self, response: AgentResponse, request: WireRequest, body: dict[str, Any], number: int) -> Answer:
        speech = speech_for(request)
        if speech is None:
            return super()._say(response, request, body, number)
        if named := model_at(request.url):
            body = {"model": named, **body}
        if speech.streams(request, body):
            return self._streamed(speech.stream(response, body, number), number)
        return self._whole(speech.whole(response, body, number), number)

    @override
    def _fail(self, error: errors.AgentError, request: WireRequest) -> Answer:
        speech = speech_for(request)
        return super()._fail(error, request) if speech is None else failed(error, speech.complaint(error))


def speech_for(request: WireRequest) -> Speech | None:
    """The API that a request was sent to, by its path; None for Chat Completions, which scripts speak by themselves."""
    return _speech_at(urlsplit(request.url).path, _SPEECHES)


def _speech_at(path: str, table: tuple[tuple[str, Speech], ...]) -> Speech | None:
    return next((speech for ending, speech in table if path.endswith(ending)), None)
