"""Middleware around calls: a class of one's own, and some that are ready. Runs offline."""

from __future__ import annotations

import logging
import sys

from typing_extensions import override

from agent import Agent, AgentRequest, AgentResponse, errors
from agent.middleware import Cache, CallInfo, CostTracker, Logging, Middleware, Redaction
from agent.testing import Script, ScriptedTransport


class NoShouting(Middleware):
    """Refuses some questions, and answers others itself."""

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> AgentResponse | None:
        if request.input == "Ping":
            return AgentResponse(text="Pong", stop_reason="stop")
        if request.input and request.input.isupper():
            raise errors.ConfigurationError("Please do not shout.")
        return None


def main() -> None:
    """The echo stands in for a vendor, and shows what it was sent."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="   %(levelname)s %(message)s")
    vendor = Script()
    layers = [Logging(level=logging.DEBUG), CostTracker(budget=1.0), NoShouting(), Redaction(), Cache()]
    agent = Agent("scripted:echo", transport=ScriptedTransport(vendor), middleware=layers)

    for question in ("Write to amy@example.com", "Write to bob@example.org", "Ping"):
        response = agent.complete(question)
        print(f"{response.text}  [{response.route[0].reason or 'asked'}]")
    print(f"The vendor saw: {[body['messages'][0]['content'] for body in vendor.requests]}")

    try:
        agent.complete("HELLO?")
    except errors.ConfigurationError as error:
        print(error.message)


if __name__ == "__main__":
    main()
