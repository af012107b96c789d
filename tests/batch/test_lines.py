"""Accepted and rejected lines of batch files."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from agent.batch.ledger import Line, read_lines
from agent.errors import ConfigurationError
from agent.types import AgentRequest, Message, Role


def line(value: Any) -> Line:
    return Line(7, value if isinstance(value, bytes) else json.dumps(value).encode())


def in_batch_format(**body: Any) -> dict[str, Any]:
    said = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}], **body}
    return {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": said}


def test_text_is_a_prompt() -> None:
    assert line("hi").request() == AgentRequest(input="hi")
    assert line("hi").key == 7


def test_prompt_is_another_name_for_input() -> None:
    read = line({"prompt": "hi", "temperature": 0.5, "custom_id": "a"})
    assert read.request() == AgentRequest(input="hi", temperature=0.5)
    assert read.key == "a"


def test_a_request_of_ours_is_read_as_it_was_written() -> None:
    request = AgentRequest(
        messages=[Message.user("hi")], system="Be brief.", max_tokens=5, stop=["x"], metadata={"a": 1}
    )
    assert line(request.to_dict()).request() == request


def test_a_line_of_the_batch_apis_is_read_without_its_model() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    read = line(
        in_batch_format(
            max_completion_tokens=9,
            tools=[tool],
            tool_choice={"type": "function", "function": {"name": "f"}},
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            stream=False,
            n=1,
            temperature=None,
        )
    )
    request = read.request()
    assert read.custom_id == "r-1"
    assert request.model is None
    assert (request.max_tokens, request.tool_choice, request.output_schema) == (9, "f", {"title": "x", **schema})
    assert request.messages[0].role is Role.USER
    assert line(in_batch_format(max_tokens=3, response_format={"type": "text"})).request().max_tokens == 3
    assert line(in_batch_format(max_tokens=3, max_completion_tokens=None)).request().max_tokens == 3
    assert line(in_batch_format(tool_choice="required", tools=[tool])).request().tool_choice == "required"


def test_a_line_of_a_batch_api_may_have_any_wire_format() -> None:
    body = {"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]}
    request = line({"method": "POST", "url": "/v1/messages", "body": body}).request()
    assert (request.model, request.max_tokens, request.messages[-1].text) == (None, 9, "hi")
    assert line({"url": "/v1/responses", "body": {"model": "m", "input": "hi"}}).request().to_messages()[0].text == "hi"


BAD: dict[str, tuple[Any, str, str | None]] = {
    "no JSON": (b"{nope", "it is not JSON", None),
    "no UTF-8": (b'"\xff"', "it is not JSON", None),
    "half a surrogate": (b'"\\ud800"', "it is not JSON", None),
    "nan": (b'{"input": "x", "temperature": NaN}', "it is not JSON", None),
    "a number": (5, "it is a number", None),
    "a list": ([1], "it is an array", None),
    "null": (None, "it is null", None),
    "true": (True, "it is true or false", None),
    "nothing asked": ({"input": ""}, "The request is empty", "input"),
    "a wrong field": ({"inptu": "x"}, "inptu", "inptu"),
    "a wrong value": ({"input": "x", "temperature": 9}, "temperature", "temperature"),
    "two prompts": ({"input": "x", "prompt": "y"}, "prompt and input are aliases", "prompt"),
    "an odd id": ({"input": "x", "custom_id": 5}, "custom_id is not a string", "custom_id"),
    "an empty id": ({"input": "x", "custom_id": ""}, "custom_id is not a string", "custom_id"),
    "another url": ({**in_batch_format(), "url": "/v1/embeddings"}, "url is not supported", "url"),
    "another method": ({**in_batch_format(), "method": "GET"}, "url is not supported", "url"),
    "a body of text": ({**in_batch_format(), "body": "x"}, "body is not an object", "body"),
    "more beside the body": ({**in_batch_format(), "x": 1}, "x: unknown field", "x"),
    "two answers": (in_batch_format(n=2), "n: not supported", "body.n"),
    "a stream": (in_batch_format(stream=True), "stream: not supported", "body.stream"),
    "a form without schema": (in_batch_format(response_format={"type": "json_object"}), "response_format", None),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_line_names_the_line_and_the_field(name: str) -> None:
    value, said, field = BAD[name]
    with pytest.raises(ConfigurationError) as caught:
        line(value).request()
    assert str(caught.value).startswith("Line 7 of the input is invalid: ")
    assert said in caught.value.message
    assert field is None or caught.value.field == field


def test_empty_lines_are_left_out_but_counted() -> None:
    file = io.BytesIO(b'\xef\xbb\xbf"a"\n\n  \r\n"b"\r\n\n"c"')
    found = [(each.number, each.request().input) for each in read_lines(file)]
    assert found == [(1, "a"), (4, "b"), (6, "c")]
    assert [each.number for each in read_lines(file)] == [1, 4, 6]  # from the beginning again


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import agent.batch.ledger as lines

    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    file = io.BytesIO(b'"' + b"x" * 5000 + b'"\n"b"\n' + b'"' + b"y" * 97 + b'"\n')
    long, short, just = read_lines(file)
    with pytest.raises(ConfigurationError, match="Line 1 of the input is invalid: it is longer than 100 bytes"):
        long.request()
    assert short.request().input == "b"
    assert just.request().input == "y" * 97


def test_a_changed_line_has_another_digest() -> None:
    assert line("a").digest == Line(9, b'"a"').digest != line("b").digest
