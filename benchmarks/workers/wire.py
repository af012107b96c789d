"""Wire formats by hand, for the floors: plain dictionaries without validation."""

from __future__ import annotations

from typing import Any

from benchmarks import workload
from benchmarks.workload import Output

Json = dict[str, Any]


def address(api: str, base: str, *, stream: bool = False) -> str:
    if api == "openai-chat":
        return f"{base}/v1/chat/completions"
    if api == "openai-responses":
        return f"{base}/v1/responses"
    if api == "anthropic":
        return f"{base}/v1/messages"
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"{base}/v1beta/models/{workload.MODELS[api]}:{method}"


def headers(api: str) -> dict[str, str]:
    if api == "anthropic":
        return {"x-api-key": workload.KEY, "anthropic-version": "2023-06-01"}
    if api == "gemini":
        return {"x-goog-api-key": workload.KEY}
    return {"authorization": f"Bearer {workload.KEY}"}


def question(api: str, *, stream: bool = False) -> Json:
    return conversation(api, [{"role": "user", "content": workload.QUESTION}], [], stream=stream)


def conversation(api: str, history: list[dict[str, str]], tools: list[Json], *, stream: bool = False) -> Json:
    """The body of a request, from messages and tools as plain data."""
    if api == "gemini":
        return _gemini(history, tools)
    model = workload.MODELS[api]
    body: Json
    if api == "openai-chat":
        body = {"model": model, "messages": history, "max_completion_tokens": workload.MAX_TOKENS}
        if tools:
            body["tools"] = [{"type": "function", "function": tool} for tool in tools]
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body
    if api == "openai-responses":
        body = {"model": model, "input": history, "max_output_tokens": workload.MAX_TOKENS, "store": False}
        if tools:
            body["tools"] = [{"type": "function", "strict": False, **tool} for tool in tools]
    else:
        system = [message["content"] for message in history if message["role"] == "system"]
        said = [message for message in history if message["role"] != "system"]
        body = {"model": model, "messages": said, "max_tokens": workload.MAX_TOKENS}
        if system:
            body["system"] = system[0]
        if tools:
            body["tools"] = [
                {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
                for tool in tools
            ]
    if stream:
        body["stream"] = True
    return body


def _gemini(history: list[dict[str, str]], tools: list[Json]) -> Json:
    body: Json = {
        "contents": [
            {"role": "model" if said["role"] == "assistant" else "user", "parts": [{"text": said["content"]}]}
            for said in history
            if said["role"] != "system"
        ],
        "generationConfig": {"maxOutputTokens": workload.MAX_TOKENS},
    }
    system = [message["content"] for message in history if message["role"] == "system"]
    if system:
        body["systemInstruction"] = {"parts": [{"text": system[0]}]}
    if tools:
        body["tools"] = [{"functionDeclarations": tools}]
    return body


def go_on(api: str, body: Json, answer: str, ask: str) -> None:
    """Add the response and the next question."""
    if api == "gemini":
        body["contents"] += [{"role": "model", "parts": [{"text": answer}]}, {"role": "user", "parts": [{"text": ask}]}]
        return
    said = body["input" if api == "openai-responses" else "messages"]
    said += [{"role": "assistant", "content": answer}, {"role": "user", "content": ask}]


def read(api: str, reply: Json) -> Output:
    """Text and usage of a whole answer."""
    if api == "openai-chat":
        usage = reply["usage"]
        text = reply["choices"][0]["message"]["content"]
        return text, (usage["prompt_tokens"], usage["completion_tokens"])
    if api == "gemini":
        usage = reply["usageMetadata"]
        text = "".join(part["text"] for part in reply["candidates"][0]["content"]["parts"])
        return text, (usage["promptTokenCount"], usage["candidatesTokenCount"])
    usage = reply["usage"]
    counts = usage["input_tokens"], usage["output_tokens"]
    if api == "anthropic":
        return "".join(block["text"] for block in reply["content"] if block["type"] == "text"), counts
    found = [part["text"] for item in reply["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(found), counts


class Reader:
    """Puts a stream's text together, from its events as dictionaries."""

    def __init__(self, api: str) -> None:
        self.take = getattr(self, "_" + api.replace("-", "_"))
        self.texts: list[str] = []
        self.prompt = self.completion = 0

    def result(self) -> Output:
        return "".join(self.texts), (self.prompt, self.completion)

    def _openai_chat(self, event: Json) -> None:
        if event["choices"]:
            text = event["choices"][0]["delta"].get("content")
            if text:
                self.texts.append(text)
        elif event["usage"]:
            self.prompt = event["usage"]["prompt_tokens"]
            self.completion = event["usage"]["completion_tokens"]

    def _openai_responses(self, event: Json) -> None:
        if event["type"] == "response.output_text.delta":
            self.texts.append(event["delta"])
        elif event["type"] == "response.completed":
            usage = event["response"]["usage"]
            self.prompt, self.completion = usage["input_tokens"], usage["output_tokens"]

    def _anthropic(self, event: Json) -> None:
        kind = event["type"]
        if kind == "content_block_delta":
            self.texts.append(event["delta"]["text"])
        elif kind == "message_start":
            self.prompt = event["message"]["usage"]["input_tokens"]
        elif kind == "message_delta":
            self.completion = event["usage"]["output_tokens"]

    def _gemini(self, event: Json) -> None:
        self.texts.append(event["candidates"][0]["content"]["parts"][0]["text"])
        usage = event["usageMetadata"]
        self.prompt, self.completion = usage["promptTokenCount"], usage["candidatesTokenCount"]
