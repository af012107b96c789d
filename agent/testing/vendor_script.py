"""A script for a `LoopbackServer` that answers in every wire format."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import to_json
from typing_extensions import override

from .. import errors
from ..providers import server_at, server_dialects
from ..providers.scripted import Line, Script, error_answer, words_in
from ..wire import Answer, WireRequest
from .rules import Judge, Violation


class VendorScript(Script):
    """A script for a `LoopbackServer` that answers each request in the wire format of the path it was sent to.

    Chat Completions, Responses, Anthropic's Messages and Gemini's generateContent; see `Script` for the lines. Without
    any lines it echoes, and fills in schemas and forced tools, in each of them. Requests to count tokens are answered
    with the number of words, and take no line.

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
            return self._respond(request)
        verdict = self._judge.verdict(request.url, request.body)
        if verdict is not None:
            violation, complaint = verdict
            self.refusals.append(violation)
            return self._refuse(request, complaint)
        answer = self._respond(request)
        if answer.status == 200:
            self._judge.heard(
                request.url, (piece.outcome for piece in answer.timed() if isinstance(piece.outcome, bytes))
            )
        return answer

    def _refuse(self, request: WireRequest, complaint: dict[str, Any]) -> Answer:
        try:
            number = self._record(request)[1]
        except ValueError:  # no JSON, so there is nothing to put on record
            number = 0
        return _json_answer(to_json(complaint), number, status=400)

    def _respond(self, request: WireRequest) -> Answer:
        server = server_at(request.url)
        if server is None:
            path = urlsplit(request.url).path
            error = errors.ModelNotFoundError(f"a VendorScript does not answer {path}", code="not_found")
            return error_answer(error, server_dialects()[0])
        if server.endpoint(request.url) == "count":
            body, number = self._record(request)
            return _json_answer(server.encode_count(words_in(body)), number)
        return self._answer(request, server)


def _json_answer(body: bytes, number: int, status: int = 200) -> Answer:
    return Answer([body], status=status, headers={"content-type": "application/json", "x-request-id": f"req_{number}"})
