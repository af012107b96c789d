"""One request in four wire formats, with the same response fields.

Runs offline: a local server implements the APIs of all vendors. For the real vendors, remove `base_url` and
`api_key`; the keys are then read from the environment.
"""

from __future__ import annotations

from agent import Agent, AgentResponse, Usage
from agent.testing import LoopbackServer, VendorScript

# Targets, and the paths of their APIs at the server.
TARGETS = (
    ("openai-responses:gpt-5.6", "/v1"),
    ("openai-chat:gpt-4o", "/v1"),
    ("anthropic:claude-sonnet-5", ""),
    ("gemini:gemini-3.5-flash", ""),
)
ANSWER = AgentResponse(
    text="Paris, on the Seine.",
    usage=Usage.from_counts(1200, 40, cache_read=1000, reasoning=15),
)


def main() -> None:
    with LoopbackServer(VendorScript(*[ANSWER] * 2 * len(TARGETS))) as server:
        for target, path in TARGETS:
            agent = Agent(target, base_url=f"{server.url}{path}", api_key="unused")
            response = agent.complete("What is the capital of France?", max_tokens=500)
            streamed = agent.stream("What is the capital of France?", max_tokens=500).collect()
            assert (streamed.text, streamed.usage) == (response.text, response.usage)

            usage = response.usage or Usage()
            print(f"{target}: {response.text}")
            print(f"  read {usage.prompt_tokens} tokens, {usage.cache_read_tokens} of them from a cache", end="; ")
            print(f"wrote {usage.completion_tokens}, {usage.reasoning_tokens} of them thinking")
            print(f"  cost ${response.cost_estimate or 0:.6f} ({response.cost_source})")
        print("paths:", *dict.fromkeys(request.url for request in server.requests), sep="\n  ")


if __name__ == "__main__":
    main()
