"""Text and usage from events of OpenAI's shape, which several libraries have made their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from benchmarks.workload import Output


class ChatReader:
    """Text and usage from chunks of Chat Completions; other libraries have chunks of this shape, too."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.usage: tuple[int, int] | None = None

    def take(self, chunk: Any) -> None:
        if chunk.choices:
            text = chunk.choices[0].delta.content
            if text:
                self.texts.append(text)
        usage = getattr(chunk, "usage", None)
        if usage:
            self.usage = usage.prompt_tokens, usage.completion_tokens

    def result(self) -> Output:
        return "".join(self.texts), self.usage


class ResponsesReader:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.usage: tuple[int, int] | None = None

    def take(self, event: Any) -> None:
        if event.type == "response.output_text.delta":
            self.texts.append(event.delta)
        elif event.type == "response.completed":
            self.usage = event.response.usage.input_tokens, event.response.usage.output_tokens

    def result(self) -> Output:
        return "".join(self.texts), self.usage


def read_all(chunks: Iterable[Any]) -> Output:
    reader = ChatReader()
    for chunk in chunks:
        reader.take(chunk)
    return reader.result()


async def aread_all(chunks: AsyncIterator[Any]) -> Output:
    reader = ChatReader()
    async for chunk in chunks:
        reader.take(chunk)
    return reader.result()
