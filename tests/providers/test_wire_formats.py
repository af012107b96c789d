"""A wire format is one package and one line in the registry."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import agent
from agent.testing import WIRE_FORMAT_CASES, check_wire_format
from agent.wire_formats import WIRE_FORMATS

MODELS = {
    "openai-chat": "gpt-4o",
    "openai-responses": "gpt-4o",
    "anthropic": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-flash",
    "bedrock": "anthropic.claude-sonnet-4-5-20250929-v1:0",
}
TOY = Path(__file__).parent / "toy_format"


@pytest.mark.malformed
@pytest.mark.parametrize("case", WIRE_FORMAT_CASES)
@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_a_wire_format_keeps_its_promises(name: str, case: str) -> None:
    check_wire_format(name, model=MODELS[name], only=[case])


PROGRAM = """
from agent import Agent, errors
from agent.models.prices import price
from agent.models import facts, list_models
from agent.providers import list_providers
from agent.schemas import compile_schema
from agent.testing import Chaos, LoopbackServer, VendorScript, check_wire_format
from agent.types import ToolCall, ToolSpec, Usage

check_wire_format("postcard")

assert "postcard" in list_providers()
model = next(name for name in list_models("mistral"))
assert facts("postcard", model).model_copy(update={"provider": "mistral"}) == facts("mistral", model)
assert price(Usage(prompt_tokens=1000), provider="postcard", models=("mistral-large-latest",)) is not None
assert compile_schema({"type": "object", "properties": {}}, "postcard").strict

tool = ToolSpec(name="f", parameters={"type": "object", "properties": {"n": {"type": "integer"}}})
with LoopbackServer(VendorScript("Hello there", ToolCall(id="c", name="f", arguments={"n": 1}))) as server:
    ask = Agent("postcard:m", base_url=server.url, api_key="k")
    assert ask.stream("Hi").collect().text == "Hello there"
    assert ask.complete("Hi", tools=[tool]).tool_calls[0].arguments == {"n": 1}
with LoopbackServer(VendorScript()) as server:
    ask = Agent("postcard:m", base_url=server.url, api_key="k")
    assert ask.complete("Hi").text == "You said: Hi"
    assert ask.complete("Hi", tools=[tool], tool_choice="f").tool_calls[0].name == "f"
with LoopbackServer(Chaos(VendorScript(), ["overloaded"], share=1.0)) as server:
    try:
        Agent("postcard:m", base_url=server.url, api_key="k", max_retries=0).complete("Hi")
    except errors.OverloadedError:
        print("well done")
"""


def test_a_new_wire_format_is_one_package_and_one_line(tmp_path: Path) -> None:
    package = tmp_path / "agent"
    shutil.copytree(Path(agent.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(TOY, package / "providers" / "postcard", ignore=shutil.ignore_patterns("__pycache__"))
    registry = package / "wire_formats.py"
    line = '    "postcard": "agent.providers.postcard",\n'
    text = registry.read_text("utf-8")
    registry.write_text(text.replace("WIRE_FORMATS = {\n", f"WIRE_FORMATS = {{\n{line}"), "utf-8")
    assert line in registry.read_text("utf-8")
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=100
    )
    assert (done.stdout, done.stderr) == ("well done\n", "")


@pytest.mark.parametrize(
    ("old", "new", "case"),
    [
        ('"text": response.text or ""', '"text": "Twice"', "a_response_is_read_as_it_was_written"),
        ('sse({"model": self.head.model})', 'sse({"model": "other"})', "a_stream_says_the_same_however_it_is_cut"),
        ('return sse(_error(error))', 'return sse({"end": "done", "cost": {"read": 1, "written": 1}})',
         "an_error_in_a_stream_ends_it"),
        ('{"extra": fields.rest()}', '{"extra": {}}', "an_unknown_field_is_carried"),
        ('{"extra": fields.rest()}', '{"extra": dict(fields.left)}', "a_request_cannot_set_its_destination"),
        ('"overloaded": 529', '"overloaded": 418', "errors_are_read_as_what_they_are"),
        ('fields.text("use")', "None", "a_request_round_trips"),
    ],
)  # fmt: skip
def test_the_suite_notices_a_format_that_breaks_a_promise(tmp_path: Path, old: str, new: str, case: str) -> None:
    text = (TOY / "server.py").read_text("utf-8")
    assert old in text
    package = tmp_path / "broken"
    shutil.copytree(TOY, package, ignore=shutil.ignore_patterns("__pycache__"))
    server = text.replace(old, new)
    if case == "errors_are_read_as_what_they_are":
        server = server.replace('code = "overloaded" if', "code = error.code if")
    (package / "server.py").write_text(server, "utf-8")
    program = (
        "from agent import wire_formats\n"
        "wire_formats.WIRE_FORMATS['postcard'] = 'broken'\n"
        "from agent.testing import check_wire_format\n"
        "try:\n    check_wire_format('postcard')\n"
        "except AssertionError as error:\n    print(str(error).partition(':')[0])\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(agent.__file__).parent.parent}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=100)
    assert (done.stdout, done.stderr) == (f"{case}\n", "")
