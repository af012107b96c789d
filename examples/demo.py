"""A tour in one minute, with no key: `make demo`.

A small language model runs in this process. Three local HTTP servers serve it in the wire formats of three vendors, and
one of them is stopped during a response.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pydantic import BaseModel

from agent import Agent, RetryConfig, Router, Target, errors, local
from agent.engine.wire import WireRequest
from agent.testing import Answer, LoopbackServer, VendorScript, scripted_agent


class City(BaseModel):
    name: str
    country: str


def show(number: int, title: str, code: str) -> None:
    print(f"\n{number}. {title}\n   >>> {code}", flush=True)


def create_agent() -> Agent:
    """Return the embedded model, or a scripted one if it is not installed."""
    status = local.status()
    if status.ready:
        print("SmolLM2, a language model of 135 million weights, inside this process. No key, no vendor.")
        return Agent("local:smollm2", temperature=0)
    print(f"{status.problem} {status.fix}\nUntil then, a scripted model echoes its input.")
    return scripted_agent(model="echo")


def complete(agent: Agent) -> None:
    show(1, "A question and its answer", 'agent.complete("What is the capital of France?")')
    response = agent.complete("What is the capital of France?")
    print(f"   {response.text}")
    print(f"   [stop_reason={response.stop_reason} usage={response.usage and response.usage.total_tokens} tokens]")


def stream(agent: Agent) -> None:
    show(2, "A stream: text as it is written", 'agent.stream("Write one sentence about the sea.").text_stream()')
    print("  ", end=" ")
    for piece in agent.stream("Write one sentence about the sea.").text_stream():
        print(piece, end="", flush=True)
    print()


def complete_json(agent: Agent) -> None:
    show(
        3, "A typed answer: the model can write nothing else", 'agent.json("Tell me about Paris.", schema=City).output'
    )
    print(f"   {agent.json('Tell me about Paris.', schema=City).output!r}")


# Local servers for three vendors


def question_in(body: dict[str, Any]) -> str:
    """Extract the question from a request of any vendor."""
    last = (body.get("messages") or body["contents"])[-1]
    content = last.get("content") or last["parts"]
    return content if isinstance(content, str) else str(content[0]["text"])


@contextmanager
def vendors(agent: Agent) -> Iterator[dict[str, LoopbackServer]]:
    """Start servers that respond in the wire format of the request, one word every 150 ms."""

    def answer(request: WireRequest) -> Answer:
        return VendorScript(lambda body: agent.complete(question_in(body), max_tokens=24), delay=0.15)(request)

    with ExitStack() as stack:
        yield {name: stack.enter_context(LoopbackServer(answer)) for name in ("openai-chat", "anthropic", "gemini")}


def create_router(servers: dict[str, LoopbackServer]) -> Router:
    """Create the router as in production, except for the addresses."""
    retry = RetryConfig(max_retries=1)
    agents = {
        name: Agent(f"{name}:smollm2", base_url=server.url, api_key="none-needed") for name, server in servers.items()
    }
    return Router([Target(agent, name=name) for name, agent in agents.items()], strategy="round_robin", retry=retry)


def spread(router: Router) -> None:
    show(
        4,
        "A router over three servers, each with another vendor's API",
        'router.complete("What is the opposite of hot?")',
    )
    for _ in range(3):
        response = router.complete("What is the opposite of hot?")
        text, _, _ = (response.text or "").partition(".")
        print(f"   {response.route[-1].target:12} {text}.")


def interrupt(router: Router, servers: dict[str, LoopbackServer]) -> None:
    show(
        5, "One is killed in mid-answer: an error, never half an answer", 'router.stream("What is a river?").collect()'
    )
    arrived = ""
    try:
        for event in router.stream("What is a river?"):
            arrived += event.text or ""
            if len(arrived.split()) == 4:
                servers["openai-chat"].close()
    except errors.StreamInterrupted as error:
        reason, *_details = error.message.split(":")
        print(f"   {type(error).__name__}: {reason}")
        print(f"   partial text: {error.partial.text if error.partial else None!r}")


def reroute(router: Router) -> None:
    show(6, "The next questions go elsewhere, and the route tells why", "print(response.route)")
    responses = [router.complete("What is the opposite of hot?") for _ in range(3)]
    for line in str(responses[-1].route).splitlines():
        print(f"   {line}".rstrip())


def main() -> None:
    agent = create_agent()
    for step in (complete, stream, complete_json):
        step(agent)
    with vendors(agent) as servers:
        router = create_router(servers)
        spread(router)
        interrupt(router, servers)
        reroute(router)
        print(f"\nDone: {sum(len(server.requests) for server in servers.values())} HTTP requests, all accounted for.")


if __name__ == "__main__":
    main()
