"""Check requests before sending: errors, dropped settings, context window and cost.

Runs offline, with no key: nothing is sent.
"""

from __future__ import annotations

from agent import Agent, ContentPart, Message
from agent.models import ModelFacts, Prices, register_model
from agent.types import AudioContent

register_model(
    ModelFacts(
        provider="vllm",
        model="my-llama",
        context_window=8_192,
        max_output=2_048,
        vision=False,
        prices=Prices(input=0.1, output=0.4),  # US dollars per million tokens
    )
)
QUESTION = Message.user(
    [
        ContentPart.text_part("What is said here, and what is in the picture? " + "Be precise. " * 200),
        ContentPart.image_url_part("https://example.com/photo.png"),
        AudioContent(data=b"RIFF....WAVE", media_type="audio/wav"),
    ]
)


def main() -> None:
    for target in ("gemini:gemini-3.5-flash", "anthropic:claude-sonnet-5", "vllm:my-llama"):
        report = Agent(target, api_key="unused").check(QUESTION, seed=7, max_tokens=1000)
        print(report, end="\n\n")

    agent = Agent("openai:gpt-5.6", api_key="unused")
    count = agent.count_tokens(QUESTION, exact=False)  # exact=True sends a request to the vendor
    print(f"{count.low} to {count.high} tokens, {'counted' if count.exact else 'estimated'}")


if __name__ == "__main__":
    main()
