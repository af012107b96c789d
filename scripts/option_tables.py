"""Writes the tables of options in the reference documentation: python -m scripts.option_tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from agent import AgentConfig, AgentRequest, Hooks, Router
from agent.batch.values import Options as BatchSettings
from agent.sessions import AgentSession
from agent.types import options

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "options.md"
INTRODUCTION = """\
# Options

Keyword arguments of the call methods, by TypedDict. Type checkers and editors know them; an unknown option raises
`ConfigurationError`, with a suggestion, before anything is sent. The TypedDicts are in `agent.types.options`.

`python -m scripts.option_tables` writes this page from the code.
"""
TABLES = {
    "RequestOptions": "All methods that take a request, their async versions, and the turns of sessions.",
    "CompleteOptions": "`complete`, `stream`, `json`, `stream_json` and batches, in addition to `RequestOptions`.",
    "RunOptions": "`run` and `run_stream`, in addition to `RequestOptions`.",
    "BatchOptions": "`batch` and `batch_stream`, in addition to `CompleteOptions`.",
    "BatchJobOptions": "`submit_batch`, in addition to `CompleteOptions`.",
    "SessionOptions": "`session`.",
    "ConfigOptions": "`Agent`, `Agent.with_config`, and `Router.with_config` for all its agents.",
    "RouteOptions": "`Router`, `Router.with_config`, and `route` of one request.",
}


def find_defaults() -> dict[str, Mapping[str, Any]]:
    """Defaults of the options, from the code that applies them."""
    settings = {field.name: field.default for field in (*fields(Hooks), *fields(BatchSettings))}
    signatures = {
        name: {key: parameter.default for key, parameter in inspect.signature(cls).parameters.items()}
        for name, cls in (("SessionOptions", AgentSession), ("RouteOptions", Router))
    }
    models = {
        name: {key: field.default for key, field in model.model_fields.items()}
        for name, model in (("RequestOptions", AgentRequest), ("ConfigOptions", AgentConfig))
    }
    own: dict[str, Mapping[str, Any]] = {"CompleteOptions": {"tools": ()}, "BatchJobOptions": {"folder": None}}
    return {**signatures, **models, "RunOptions": settings, "BatchOptions": settings, **own}


def own_types(name: str) -> dict[str, str]:
    """Types of the options that a TypedDict adds to its base, as they are written."""
    source = inspect.getsource(getattr(options, name))
    return dict(re.findall(r"^    (\w+): (.+?)(?:  # .*)?$", source, re.MULTILINE))


def write_table(name: str, defaults: Mapping[str, Any]) -> str:
    lines = ["| Option | Type | Default | Meaning |", "|---|---|---|---|"]
    docs = options.option_docs()[name]
    for option, annotation in own_types(name).items():
        default = defaults.get(option, MISSING)
        shown = "" if default is MISSING else f"`{default!r}`"
        meaning = " ".join(docs[option].split())
        lines.append(" | ".join((f"| `{option}`", f"`{annotation}`".replace("|", r"\|"), shown, f"{meaning} |")))
    return "\n".join(lines)


def write_page() -> str:
    """Return the text of the page."""
    defaults = find_defaults()
    parts = [INTRODUCTION]
    for name, methods in TABLES.items():
        parts.append(f"## {name}\n\n{methods}\n\n{write_table(name, defaults[name])}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(write_page(), "utf-8")
