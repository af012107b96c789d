"""The first minute: `make demo` runs this, with no key and no vendor.

A small language model runs inside this process. Then three HTTP servers on this machine stand in front of it, each
speaking another vendor's language, and one of them is killed while it is answering.
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


def embedded_model() -> Agent:
    """The model in this process; or, on a machine that cannot run it, one that plays a script."""
    status = local.status()
    if status.ready:
        print("SmolLM2, a language model of 135 million weights, inside this process. No key, no vendor.")
        return Agent("local:smollm2", temperature=0)
    print(f"{status.problem} {status.fix}\nUntil then, a scripted model answers: it repeats what it is told.")
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


def typed(agent: Agent) -> None:
    show(
        3, "A typed answer: the model can write nothing else", 'agent.json("Tell me about Paris.", schema=City).output'
    )
    print(f"   {agent.json('Tell me about Paris.', schema=City).output!r}")


# Three vendors that are not there


def question_in(body: dict[str, Any]) -> str:
    """What was asked, in any of the three languages."""
    last = (body.get("messages") or body["contents"])[-1]
    content = last.get("content") or last["parts"]
    return content if isinstance(content, str) else str(content[0]["text"])


@contextmanager
def vendors(agent: Agent) -> Iterator[dict[str, LoopbackServer]]:
    """Servers in front of the agent. Each answers in the wire format of whoever asks, a word every 150 milliseconds."""

    def answer(request: WireRequest) -> Answer:
        return VendorScript(lambda body: agent.complete(question_in(body), max_tokens=24), delay=0.15)(request)

    with ExitStack() as stack:
        yield {name: stack.enter_context(LoopbackServer(answer)) for name in ("openai-chat", "anthropic", "gemini")}


def route_of(servers: dict[str, LoopbackServer]) -> Router:
    """As in production, but for the addresses."""
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


def killed(router: Router, servers: dict[str, LoopbackServer]) -> None:
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
        print(f"   what had arrived: {error.partial.text if error.partial else None!r}")


def rerouted(router: Router) -> None:
    show(6, "The next questions go elsewhere, and the route tells why", "print(response.route)")
    responses = [router.complete("What is the opposite of hot?") for _ in range(3)]
    for line in str(responses[-1].route).splitlines():
        print(f"   {line}".rstrip())


def main() -> None:
    agent = embedded_model()
    for step in (complete, stream, typed):
        step(agent)
    with vendors(agent) as servers:
        router = route_of(servers)
        spread(router)
        killed(router, servers)
        rerouted(router)
        print(f"\nDone: {sum(len(server.requests) for server in servers.values())} HTTP requests, all accounted for.")


if __name__ == "__main__":
    main()
