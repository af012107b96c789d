"""Names of functions and ids of calls. They differ from the conversation's only in what is sent.

Gemini often gives a call no id, and conversations need one. The response reader generates one, in a form that is
recognized here and not sent back.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from pydantic_core import to_json

from ...types import AgentRequest, ToolSpec
from ..encoding import normalize_name

MAX_NAME_LENGTH = 64
_ALLOWED = "a-zA-Z0-9_.:-"
_GENERATED_ID = re.compile(r"gemini_[0-9a-f]{20}(?:#\d+)?")


def function_name(name: str) -> str:
    """Return a tool's name as it is sent. It must begin with a letter or an underscore."""
    if not name[:1].isascii() or not (name[:1].isalpha() or name[:1] == "_"):
        name = f"_{name}"
    return normalize_name(name, MAX_NAME_LENGTH, _ALLOWED)


def tools_by_name(request: AgentRequest) -> dict[str, ToolSpec]:
    """The request's tools by the names that were sent, for reading the response."""
    return {function_name(tool.name): tool for tool in request.tools if isinstance(tool, ToolSpec)}


def generate_id(response_id: str, position: int, name: str, arguments: Any) -> str:
    """Return an id for a call. It is the same each time the response is read, streamed or not."""
    seed = f"{response_id}/{position}/{name}/".encode("utf-8", "surrogatepass") + to_json(arguments)
    return "gemini_" + hashlib.sha256(seed).hexdigest()[:20]


def is_generated(id: str) -> bool:
    return _GENERATED_ID.fullmatch(id) is not None
