"""From options to whoever answers: one agent, or a router of several; and where conversations are kept.

It knows names of settings, not of vendors.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_data_path

from agent.agent import Agent
from agent.calls.requests import read_request
from agent.local.weights import SMOLLM2, engine_version, locate_weights
from agent.routing.router import Router
from agent.routing.strategies import read_strategy
from agent.stores import SqliteStore
from agent.types import ToolLoopConfig

from . import exit_codes

if TYPE_CHECKING:
    from agent.calls.requests import RequestLike
    from agent.client import Client
    from agent.types import AgentRequest

EMBEDDED = "local:smollm2"
SESSIONS = "sessions.db"
"""The file with the conversations, in the folder of `home`."""


def caller(models: Sequence[str] = (), strategy: str | None = None, **settings: Any) -> Client:
    """An agent for one model, a router for several.

    Args:
        models: Each as `provider:model`; by default the one of `default_model`.
        strategy: How a router orders them; only with several.
        settings: Fields of `AgentConfig`. Those that are None are left out.
    """
    names = models or [default_model()]
    if len(names) > 1 and settings.get("base_url") is not None:
        raise exit_codes.Problem(
            "--base-url is for one model.", fix="Set each vendor's variable instead; see: agent doctor"
        )
    agents = [agent(name, **settings) for name in names]
    if len(agents) == 1 and strategy is None:
        return agents[0]
    return router(agents, strategy)


def agent(name: str, **settings: Any) -> Agent:
    """The agent for `provider:model`, with those settings that are not None."""
    return Agent(whole(name), **{setting: value for setting, value in settings.items() if value is not None})


def router(agents: Sequence[Agent], strategy: str | None = None) -> Router:
    """A route of these agents."""
    return Router(agents, strategy=read_strategy(strategy or "fallback"))


def request(asked: RequestLike, **fields: Any) -> AgentRequest:
    """A request with these fields, those left out that are None. What is wrong with them is an error that says so."""
    return read_request(asked, {name: value for name, value in fields.items() if value is not None})


def loop(*, allow_exec: bool = False) -> ToolLoopConfig:
    """Limits of a run with the tools that the user named. Those that run code have to be allowed besides."""
    usual = ToolLoopConfig()
    return usual.model_copy(update={"allowed_risks": usual.allowed_risks | {"exec"}}) if allow_exec else usual


def default_model() -> str:
    """The model to ask when none is named: of the environment, or the embedded one if it is installed."""
    named = os.environ.get("AGENT_MODEL", "").strip()
    if named:
        return named
    if embedded_is_installed():
        return EMBEDDED
    raise exit_codes.Problem(
        "No model is named, and the embedded one is not installed.",
        fix="Name one with -m provider:model or in AGENT_MODEL, or run: agent local install",
        code=exit_codes.SETUP,
    )


def embedded_is_installed() -> bool:
    """Whether the embedded model is there. Whether it is whole, `agent local status` finds out."""
    weights = locate_weights(SMOLLM2)
    return engine_version() is not None and weights is not None and weights.exists()


def home() -> Path:
    """The folder for what outlives a command; `AGENT_HOME` overrides it."""
    named = os.environ.get("AGENT_HOME", "").strip()
    if named:
        return Path(named).expanduser()

    return user_data_path("agent-llm-router", appauthor=False)


def session_store() -> SqliteStore:
    """Where conversations are kept between commands."""
    folder = home()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise exit_codes.Problem(
            f"Conversations cannot be kept in {folder}: {error.strerror or error}.",
            fix="Name a folder of yours in the environment variable AGENT_HOME.",
            code=exit_codes.SETUP,
        ) from None
    return SqliteStore(folder / SESSIONS)


def temporary_page(name: str) -> Path:
    """Where to write a page that is looked at once. The folder is this user's own."""
    folder = Path(tempfile.mkdtemp(prefix="agent-graph-"))
    return folder / f"{re.sub('[^A-Za-z0-9_-]+', '-', name)[:60] or 'graph'}.html"


def whole(name: str) -> str:
    """The name, if it names a provider and a model."""
    provider, colon, model = name.partition(":")
    if not colon or not provider or not model:
        raise exit_codes.Problem(
            f"{name!r} names no model.", fix="Write provider:model, such as openai:gpt-5.2; see: agent models"
        )
    return name
