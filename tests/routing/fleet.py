"""Several vendors behind one server: each target has its own path and script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from agent import Agent, Router, Target, errors
from agent.engine.wire import Answer, Network, WireRequest
from agent.testing import Script

_OF_TARGETS = ("weight", "level", "rpm", "tpm", "concurrency")


class Fleet:
    """A network of several vendors. `asked` lists whom requests went to, in order."""

    def __init__(self, **vendors: Any) -> None:
        self.vendors: dict[str, Network] = {
            name: script if callable(script) else Script(*(script if isinstance(script, list | tuple) else [script]))
            for name, script in vendors.items()
        }
        self.asked: list[str] = []

    def __call__(self, request: WireRequest) -> Answer:
        name = urlsplit(request.url).path.split("/")[1]
        self.asked.append(name)
        return self.vendors[name](request)

    def agent(self, name: str, base_url: str, **settings: Any) -> Agent:
        defaults = {"api_key": f"sk-{name}", "base_url": f"{base_url}/{name}/v1"}
        return Agent(f"openai-chat:{name}", **{**defaults, **settings})

    def router(self, base_url: str = "http://127.0.0.1", **options: Any) -> Router:
        """A router over all of them, named as they are; `each` has settings for single targets."""
        each: Mapping[str, Mapping[str, Any]] = options.pop("each", {})
        targets = []
        for name in self.vendors:
            settings = dict(each.get(name, {}))
            placed = {key: settings.pop(key) for key in _OF_TARGETS if key in settings}
            targets.append(Target(self.agent(name, base_url, **settings), name=name, **placed))
        return Router(targets, **options)

    def make(self, **options: Any) -> Callable[[str], Router]:
        """For the `make` option of a driver."""
        return lambda base_url: self.router(base_url, **options)


def busy(text: str = "busy", **facts: Any) -> errors.OverloadedError:
    return errors.OverloadedError(text, **facts)


def broken(*words: str) -> Answer:
    """A stream that says this much and ends too early."""
    chunk = 'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
    return Answer([(chunk % word).encode() for word in words], headers={"content-type": "text/event-stream"})
