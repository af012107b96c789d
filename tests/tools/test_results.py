"""Tool results: always JSON, within the limit, without local details."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from agent.tools import AgentToolResult, ArgumentsError, ToolError
from agent.tools.results import (
    JsonSample,
    ToolFailed,
    decode_binary,
    error_result,
    error_text,
    is_finite,
    render_result,
    sanitize_error_text,
    strip_paths,
    to_frozen_json,
)
from agent.types import ImageContent, Message, Role, TextContent, ToolResult

LIMIT = 300


def render(value: Any, limit: int = LIMIT) -> ToolResult:
    return render_result(value, "c1", "tool", limit)


def survives(result: ToolResult) -> bool:
    message = Message(Role.TOOL, (result,))
    return Message.from_dict(json.loads(json.dumps(message.to_dict(), allow_nan=False))) == message


# Anything at all

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(alphabet=st.characters(categories=["Cs", "Cc"]))
    | st.binary()
    | st.decimals()
    | st.datetimes()
    | st.complex_numbers()
    | st.builds(object)
)
keys = st.text() | st.integers() | st.none() | st.binary() | st.datetimes() | st.tuples(st.integers(), st.text())
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner) | st.dictionaries(keys, inner) | st.tuples(inner, inner) | st.builds(iter, st.lists(inner))
    ),
    max_leaves=20,
)


@given(values)
def test_whatever_is_returned_can_be_written_and_is_not_too_long(value: Any) -> None:
    result = render(value)
    assert survives(result)
    assert len(result.text.encode()) <= LIMIT + 60
    assert "\0" not in result.text


@given(values)
def test_whatever_is_kept_for_a_user_interface_can_be_written(value: Any) -> None:
    assert survives(render(AgentToolResult("fine", details=value)))
    assert survives(error_result("bad", "c1", "tool", details=value))


@given(st.lists(st.builds(lambda text: TextContent(text=text), st.text()) | st.text() | st.integers(), max_size=30))
def test_whatever_parts_are_returned_are_not_too_long(parts: list[Any]) -> None:
    result = render(parts)
    assert survives(result)
    assert len(result.text.encode()) <= LIMIT + 60


@given(st.text(), st.integers(1, 50))
def test_text_is_cut_between_characters(text: str, limit: int) -> None:
    shown = render(text, limit).text
    if len(text.replace("\0", "").encode("utf-8", "replace")) <= limit and len(text) <= limit:
        assert shown == text.replace("\0", "")
    else:
        kept, note, rest = shown.rpartition("\n[truncated: ")
        assert note
        assert rest == f"the output was longer than {limit} bytes]"
        assert text.replace("\0", "").startswith(kept)


@given(st.text(min_size=1, alphabet="aä漢🎉"), st.integers(1, 20))
def test_bytes_of_text_are_text_wherever_they_are_cut(text: str, limit: int) -> None:
    data = text.encode()
    shown = render(data, limit).text
    assert text.startswith(shown.partition("\n[truncated")[0])
    assert ("truncated: " in shown) == (len(data) > limit)


def test_what_fits_is_kept_beside_its_text() -> None:
    result = render({"a": [1, 2.5, None, True], "b": "ü"})
    assert result.text == '{"a":[1,2.5,null,true],"b":"ü"}'
    assert result.result == {"a": [1, 2.5, None, True], "b": "ü"}
    assert render("text").result is None


def test_what_is_too_long_is_not_kept_as_if_it_were_whole() -> None:
    result = render(list(range(1_000)))
    assert result.result is None
    assert result.text.endswith(f"[truncated: the output was longer than {LIMIT} bytes]")
    assert to_frozen_json("x" * 100_000) is None


def test_the_time_it_takes_depends_on_the_limit_and_not_on_the_value() -> None:
    class Counting(list[Any]):
        looked_at = 0

        @override
        def __iter__(self) -> Any:
            for item in super().__iter__():
                Counting.looked_at += 1
                yield item

    render({"deep": [Counting(range(1_000_000))]})
    assert Counting.looked_at < LIMIT


@pytest.mark.timing
def test_a_hundred_megabytes_take_no_time() -> None:
    for huge in ("x" * 100_000_000, b"\xff" * 100_000_000, [[0] * 1_000] * 50_000, {"a": "x" * 100_000_000}):
        began = time.perf_counter()
        render(huge, 256 * 1024)
        assert time.perf_counter() - began < 1.0


def test_pictures_stay_pictures_up_to_a_size() -> None:
    small = ImageContent(image_data=b"\x89PNG\r\n\x1a\n", media_type="image/png")
    assert render(small).content == (small,)
    large = ImageContent(image_data=bytes(6_000_000), media_type="image/png")
    assert [part.type for part in render([large, large]).content] == ["image", "text"]  # type: ignore[union-attr]


def test_a_result_keeps_what_it_says_but_not_whose_it_is() -> None:
    given = ToolResult(tool_call_id="other", name="other", content="ok", result={"a": float("nan")}, details={"b": 1})
    assert render(given) == ToolResult(
        tool_call_id="c1", name="tool", content="ok", result={"a": "NaN"}, details={"b": 1}
    )


# Exceptions


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("No such file: '/srv/me/secret/plan.txt'", "No such file: 'plan.txt'"),
        ('File "/usr/lib/python3/json/decoder.py", line 3', 'File "decoder.py", line 3'),
        ("in /srv/app/main.py:12", "in main.py:12"),
        ("path=/var/lib/x.db;mode=ro", "path=x.db;mode=ro"),
        ("at:/var/lib/x.db", "at:x.db"),
        ("(~/.ssh/id_rsa)", "(id_rsa)"),
        ("'/srv/a b/c d/e f.txt' is missing", "'e f.txt' is missing"),
        (r"C:\Users\me\x.txt and \\server\share\y.txt", "x.txt and y.txt"),
        ("file:///srv/me/x.txt", "x.txt"),
        ("/srv/me/dir/", ""),
    ],
)
def test_absolute_paths_keep_their_last_part_only(text: str, shown: str) -> None:
    assert strip_paths(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "https://example.com/a/b/c?d=/e",
        "see http://localhost:8080/v1/models",
        "1/2 or 3/4",
        "and/or/nor",
        "src/main.py and ./a/b.txt and ../c/d.txt",
        "text/plain; charset=utf-8",
        "50%/75%",
        "a / b",
        "s3://bucket/key/x",
    ],
)
def test_what_is_no_absolute_path_stays(text: str) -> None:
    assert strip_paths(text) == text


def test_tracebacks_are_left_out_and_what_they_end_with_is_kept() -> None:
    try:
        json.loads("{")
    except ValueError:
        import traceback

        text = f"It failed:\n{traceback.format_exc()}Try again."
    render = sanitize_error_text(text)
    assert render.startswith("It failed:\njson.decoder.JSONDecodeError: Expecting property name")
    assert render.endswith("\nTry again.")
    assert "Traceback" not in render
    assert "File" not in render


@given(st.text(alphabet="/\\'\":~ abC.\n", max_size=300))
def test_no_text_is_too_much_for_that(text: str) -> None:
    sanitize_error_text(text * 50)


def test_the_words_for_the_model_are_those_of_the_error() -> None:
    assert error_text(ToolError("Ask again tomorrow.")) == "Ask again tomorrow."
    assert error_text(ArgumentsError("a: Field required")) == "Invalid arguments: a: Field required"
    assert error_text(ToolFailed("ValueError: no")) == "ValueError: no"
    assert error_text(KeyError("x")) == "KeyError: 'x'"
    assert error_text(ZeroDivisionError()) == "ZeroDivisionError"
    deep: Exception = ValueError("at the bottom")
    for _ in range(2_000):
        deep = ExceptionGroup("level", [deep])
    assert error_text(deep).startswith("ExceptionGroup: level (1 sub-exception); ExceptionGroup: level")
    nameless = type("x" * 10_000, (Exception,), {})
    assert len(error_text(nameless("y" * 10_000))) <= 2_000


# Samples


@dataclass
class Pair:
    left: Any
    right: Any


def test_the_same_thing_twice_is_no_circle() -> None:
    inner = [1]
    assert JsonSample(Pair(inner, inner), 100).data == {"left": [1], "right": [1]}


def test_numbers_that_are_none_are_found_and_written_as_text() -> None:
    sample = JsonSample({"a": [float("inf"), 1.0]}, 100)
    assert not is_finite(sample.data)
    assert is_finite(sample.finite)
    assert sample.finite == {"a": ["Infinity", 1.0]}


def test_bytes_that_are_no_text_are_only_described() -> None:
    assert decode_binary(b"\xff\xfe", 100) == "[2 bytes of binary data]"
    assert decode_binary(memoryview(bytearray(b"abcd")), 2) == "abc"
    assert decode_binary(memoryview(b""), 2) == ""
