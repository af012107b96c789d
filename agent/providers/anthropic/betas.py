"""Beta features: which parts of a request need a beta header."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...types import AgentRequest, ToolSpec

TOOL_BETAS = {
    "computer_20241022": "computer-use-2024-10-22",
    "bash_20241022": "computer-use-2024-10-22",
    "text_editor_20241022": "computer-use-2024-10-22",
    "computer_20250124": "computer-use-2025-01-24",
    "computer_20251124": "computer-use-2025-11-24",
    "code_execution_20250522": "code-execution-2025-05-22",
    "advisor_": "advisor-tool-2026-03-01",
    "mcp_toolset": "mcp-client-2025-11-20",
}
"""Betas by the prefix of a server tool's type."""

BLOCK_BETAS = {
    "advisor_tool_result": "advisor-tool-2026-03-01",
    "compaction": "compact-2026-01-12",
    "mcp_tool_use": "mcp-client-2025-04-04",
    "mcp_tool_result": "mcp-client-2025-04-04",
}
"""Betas by the type of a block in the conversation."""

KEY_BETAS = {"context_management": "context-management-2025-06-27", "mcp_servers": "mcp-client-2025-04-04"}
"""Betas by a key of the body, which comes from `extra`."""


def find_betas(request: AgentRequest, block_types: Iterable[str]) -> tuple[str, ...]:
    """Return the betas that a request needs. For one feature, the version that a tool needs comes first."""
    betas: list[str] = []
    for tool in request.tools:
        if not isinstance(tool, ToolSpec):
            tool_type = str(tool.get("type", ""))
            betas += [beta for prefix, beta in TOOL_BETAS.items() if tool_type.startswith(prefix)]
    betas += [beta for key, beta in KEY_BETAS.items() if key in request.extra]
    betas += [BLOCK_BETAS[block_type] for block_type in block_types if block_type in BLOCK_BETAS]
    return tuple(betas)


def merge_betas(given: str, betas: Iterable[str]) -> str:
    """Add betas to the caller's header value, except for features that it has already, under any date."""
    merged = [beta.strip() for beta in given.split(",") if beta.strip()]
    features = {_feature_of(beta) for beta in merged}
    for beta in betas:
        if _feature_of(beta) not in features:
            features.add(_feature_of(beta))
            merged.append(beta)
    return ",".join(merged)


def _feature_of(beta: str) -> str:
    return re.sub(r"-\d{4}-\d\d-\d\d$", "", beta)
