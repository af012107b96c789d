"""The first minute: `make demo` runs this, with no key and no vendor.

A scripted model answers over a real HTTP connection to this machine, so everything but the model is real: requests,
streams, retries and failures.
"""

from __future__ import annotations

from pydantic import BaseModel

from agent import Agent, RetryConfig, errors
from agent.testing import Answer, LoopbackServer, Piece, Script


class City(BaseModel):
    name: str
    country: str
    population: int


def event(text: str) -> bytes:
    """One event of a Chat Completions stream."""
    return b'data: {"model": "demo", "choices": [{"index": 0, "delta": {"content": "%b"}}]}\n\n' % text.encode()


CUT_OFF = Answer(
    [event("The best route to"), Piece(event(" the harbour is"), after=0.2), Piece(ConnectionResetError(), after=0.2)],
    headers={"content-type": "text/event-stream"},
)
SCRIPT = (
    "Paris is the capital of France.",
    "The Seine rises in Burgundy, passes through Paris and reaches the sea at Le Havre.",
    City(name="Paris", country="France", population=2_103_000),
    errors.RateLimitError("too many requests", retry_after=0.3),
    "This is the second attempt.",
    CUT_OFF,
)


def show(number: int, title: str, code: str) -> None:
    print(f"\n{number}. {title}\n   >>> {code}", flush=True)


def complete(agent: Agent) -> None:
    show(1, "A question and its answer", 'agent.complete("What is the capital of France?")')
    response = agent.complete("What is the capital of France?")
    print(f"   {response.text}")
    print(f"   [stop_reason={response.stop_reason} usage={response.usage and response.usage.total_tokens} tokens]")


def stream(agent: Agent) -> None:
    show(2, "A stream: text as it arrives", 'agent.stream("Describe the Seine.").text_stream()')
    print("  ", end=" ")
    for piece in agent.stream("Describe the Seine.").text_stream():
        print(piece, end="", flush=True)
    print()


def typed(agent: Agent) -> None:
    show(3, "A typed answer, checked against the schema", 'agent.json("Tell me about Paris.", schema=City).output')
    print(f"   {agent.json('Tell me about Paris.', schema=City).output!r}")


def retried(agent: Agent) -> None:
    show(4, "A rate limit: waited for, retried, and on record", 'agent.complete("Are you there?").route')
    response = agent.complete("Are you there?")
    print(f"   {response.text}")
    for number, attempt in enumerate(response.route, start=1):
        outcome = "answered" if attempt.error is None else f"{attempt.error} (HTTP {attempt.status_code})"
        print(f"   attempt {number} at {attempt.target}: {outcome}")


def interrupted(agent: Agent) -> None:
    show(5, "A stream that breaks: an error, never half an answer", 'agent.stream("Which way?").collect()')
    try:
        agent.stream("Which way?").collect()
    except errors.StreamInterrupted as error:
        reason, *_details = error.message.split(":")
        print(f"   {type(error).__name__}: {reason}")
        print(f"   what had arrived: {error.partial.text if error.partial else None!r}")


def main() -> None:
    with LoopbackServer(Script(*SCRIPT, delay=0.06)) as server:
        agent = Agent("scripted:demo", base_url=server.url, retry=RetryConfig(jitter=False))
        print("A scripted model behind a real HTTP server on this machine. No key, no vendor.")
        for step in (complete, stream, typed, retried, interrupted):
            step(agent)
        print(f"\nDone: {len(server.requests)} HTTP requests, every outcome accounted for.")


if __name__ == "__main__":
    main()
