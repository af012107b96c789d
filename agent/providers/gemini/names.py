"""Names of functions and ids of calls, as Gemini takes them. They differ at the wire only.

Gemini often gives a call no id. The conversation needs one, so one is made up when the answer is read, in a form that
is known again: what was made up here is not sent back.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from pydantic_core import to_json

from ...types import AgentRequest, ToolSpec
from ..writing import fitting_name

LONGEST_NAME = 64
_ALLOWED = "a-zA-Z0-9_.:-"
_MADE_UP = re.compile(r"gemini_[0-9a-f]{20}(?:#\d+)?")


def sent_name(name: str) -> str:
    """A function's name, which must begin with a letter or an underscore."""
    if not name[:1].isascii() or not (name[:1].isalpha() or name[:1] == "_"):
        name = f"_{name}"
    return fitting_name(name, LONGEST_NAME, _ALLOWED)


def offered(request: AgentRequest) -> dict[str, ToolSpec]:
    """For reading an answer: the caller's tools by the names that were sent."""
    return {sent_name(tool.name): tool for tool in request.tools if isinstance(tool, ToolSpec)}


def made_up_id(response_id: str, position: int, name: str, arguments: Any) -> str:
    """The same id each time this answer is read, streamed or not."""
    said = f"{response_id}/{position}/{name}/".encode("utf-8", "surrogatepass") + to_json(arguments)
    return "gemini_" + hashlib.sha256(said).hexdigest()[:20]


def sent_id(id: str) -> str | None:
    """A call's id, unless the vendor has never seen it."""
    return None if not id or _MADE_UP.fullmatch(id) else id
