"""`agent run`: requests, output and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import errors
from agent.cli.errors import ExitCode
from agent.cli.options import MAX_TEXT_BYTES
from agent.providers.scripted import Line
from agent.testing import LoopbackServer, VendorScript
from agent.types import AgentResponse, RefusalContent, ToolCall

from .runner import MODEL, run

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 16


class Vendor:
    """A vendor on loopback with configurable answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.server: LoopbackServer | None = None

    def says(self, *lines: Line) -> VendorScript:
        script = VendorScript(*lines)
        self.close()
        self.server = LoopbackServer(script)
        self._monkeypatch.setenv("OPENAI_BASE_URL", f"{self.server.url}/v1")
        return script

    def close(self) -> None:
        if self.server is not None:
            self.server.close()


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    one = Vendor(monkeypatch)
    yield one
    one.close()


# Requests


def test_a_prompt_is_answered(vendor: Vendor) -> None:
    vendor.says("Hello, world.")
    done = run("run", "-m", MODEL, "Say hello")
    assert (done.code, done.out, done.err) == (0, "Hello, world.\n", "")


def test_words_need_no_quotes(vendor: Vendor) -> None:
    script = vendor.says("fine")
    run("run", "-m", MODEL, "how", "are", "you")
    assert script.requests[0]["messages"][-1]["content"] == "how are you"


def test_piped_text_is_added_to_the_prompt(vendor: Vendor) -> None:
    script = vendor.says("ok", "ok", "ok")
    run("run", "-m", MODEL, "Summarize:", stdin=b"a long text\n")
    run("run", "-m", MODEL, stdin="ärger\n".encode())
    run("run", "-m", MODEL, "-", stdin=b"only this")
    asked = [body["messages"][-1]["content"] for body in script.requests]
    assert asked == ["Summarize:\n\na long text", "ärger", "only this"]


def test_every_setting_arrives(vendor: Vendor) -> None:
    script = vendor.says("ok")
    done = run("run", "-m", MODEL, "-s", "Be brief.", "--max-tokens", "9", "--temperature", "0.5", "--seed", "7", "hi")
    body = script.requests[0]
    assert done.code == 0
    assert body["messages"][0]["content"] == "Be brief."
    assert (body["temperature"], body["seed"]) == (0.5, 7)
    assert 9 in (body.get("max_tokens"), body.get("max_completion_tokens"))


def test_files_go_along_as_what_they_are(vendor: Vendor, tmp_path: Path) -> None:
    script = vendor.says("ok", "ok")
    (tmp_path / "notes.txt").write_text("remember the milk")
    (tmp_path / "picture.txt").write_bytes(PNG)  # its name is wrong, its content is not
    (tmp_path / "paper.pdf").write_bytes(b"%PDF-1.7 x")
    (tmp_path / "voice.wav").write_bytes(b"RIFF\0\0\0\0WAVEfmt ")
    names = [str(tmp_path / name) for name in ("notes.txt", "picture.txt", "paper.pdf", "voice.wav")]
    done = run("run", "-m", MODEL, *[part for name in names for part in ("-a", name)], "Look")
    assert done.code == 0, done.err
    content = script.requests[0]["messages"][-1]["content"]
    assert content[0]["text"] == "File notes.txt:\n\nremember the milk"
    assert content[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert [part["type"] for part in content] == ["text", "image_url", "file", "input_audio", "text"]
    assert content[-1]["text"] == "Look"
    done = run("run", "-m", MODEL, "-a", "-", "Look", stdin=PNG)
    assert [part["type"] for part in script.requests[1]["messages"][-1]["content"]] == ["image_url", "text"]


def test_images_and_papers_may_be_addresses_that_the_vendor_fetches(vendor: Vendor) -> None:
    script = vendor.says("ok", "ok")
    done = run("run", "-m", MODEL, "-a", "https://x.example/a.PNG?size=1", "Look")
    assert done.code == 0, done.err
    assert script.requests[0]["messages"][-1]["content"][0]["image_url"]["url"] == "https://x.example/a.PNG?size=1"
    done = run("run", "-m", "anthropic:claude-sonnet-5", "-a", "https://x.example/paper.pdf", "Read")
    assert "no key" in done.err  # it went as far as the vendor
    done = run("run", "-m", MODEL, "-a", "https://x.example/page", "Look")
    assert done.code == ExitCode.USAGE
    assert "Download the file" in done.err


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read: No such file"),
        (b"\x7fELF\0\x01\xff", "is neither UTF-8 text nor"),
        (b"x" * (MAX_TEXT_BYTES + 1), "is too large: 4.0 MB"),
    ],
    ids=["missing", "unknown", "too large"],
)
def test_a_file_that_cannot_go_along_is_named(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    done = run("run", "-m", "scripted:echo", "-a", str(path), "hi")
    assert done.code == ExitCode.USAGE
    assert f"error: {path} {complaint}" in done.err
    assert "fix: " in done.err


def test_other_input_that_cannot_be_asked(tmp_path: Path) -> None:
    assert "is a folder" in run("run", "-m", "scripted:echo", "-a", str(tmp_path), "hi").err
    assert "Add -a -" in run("run", "-m", "scripted:echo", "hi", stdin=PNG).err
    assert "neither UTF-8" in run("run", "-m", "scripted:echo", "hi", stdin=b"\xff\xfe\0").err
    done = run("run", "-m", "scripted:echo")
    assert (done.code, done.out) == (ExitCode.USAGE, "")
    assert "prompt is empty" in done.err
    big = tmp_path / "big.png"
    with big.open("wb") as file:
        file.truncate(20_000_001)
    assert "the limit is 20 MB" in run("run", "-m", "scripted:echo", "-a", str(big), "hi").err


# Output


def test_json_is_the_whole_response(vendor: Vendor) -> None:
    vendor.says("Hello")
    response = json.loads(run("run", "-m", MODEL, "--json", "hi").out)
    assert response["text"] == "Hello"
    assert response["provider"] == "openai-chat"
    assert response["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("kind", ["inline", "file", "class in a file", "with a tool"])
def test_a_schema_makes_json(vendor: Vendor, tmp_path: Path, kind: str) -> None:
    vendor.says('{"name": "Ada", "age": 36}')
    schema = '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}'
    (tmp_path / "person.json").write_text(schema)
    (tmp_path / "person_shapes.py").write_text(
        "from pydantic import BaseModel\nclass Person(BaseModel):\n    name: str\n    age: int\n"
    )
    forms = {"file": tmp_path / "person.json", "class in a file": f"{tmp_path}/person_shapes.py:Person"}
    extra = ("--tool", "os.path:basename") if kind == "with a tool" else ()
    done = run("run", "-m", MODEL, "--schema", str(forms.get(kind, schema)), *extra, "Who?")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"name": "Ada", "age": 36}


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("{no json", "--schema is not JSON"),
        ("nowhere.json", "nowhere.json cannot be read"),
        ("word", "neither a file nor a schema"),
        ("json:nothing", "json has no 'nothing'"),
        ('{"type": "nonsense"}', "not a valid JSON schema"),
    ],
)
def test_a_schema_that_is_none_is_refused_before_anything_is_sent(schema: str, complaint: str) -> None:
    done = run("run", "-m", "scripted:echo", "--schema", schema, "hi")
    assert done.code == ExitCode.USAGE
    assert complaint in done.err


def test_a_schema_that_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1]")
    assert (
        "must be a JSON schema, not a list"
        in run("run", "--schema", str(tmp_path / "list.json"), "hi", "-m", "scripted:e").err
    )


def test_verbose_says_who_answered_and_what_it_cost(vendor: Vendor) -> None:
    vendor.says("Hello", errors.OverloadedError("busy"), "Hi")
    done = run("run", "-m", MODEL, "-v", "hi")
    assert done.out == "Hello\n"
    assert done.err.startswith("openai-chat:gpt-test · ")
    done = run("run", "-m", MODEL, "-m", "scripted:echo", "-v", "hi")
    assert done.out == "You said: hi\n"
    assert "scripted:echo" in done.err
    assert "OverloadedError 529" in done.err or "OverloadedError 503" in done.err
    done = run("run", "-m", "scripted:echo", "-m", "mistral:x", "-v", "hi")
    assert "Set the environment variable MISTRAL_API_KEY.\n" in done.err  # and nothing that only a program could do


def test_an_answer_that_is_cut_off_is_told_as_such(vendor: Vendor) -> None:
    vendor.says(AgentResponse(text="Once upon", stop_reason="length"))
    done = run("run", "-m", MODEL, "hi")
    assert (done.code, done.out) == (0, "Once upon\n")
    assert "warning: The answer was cut off" in done.err


def test_a_refusal_is_a_failure(vendor: Vendor) -> None:
    vendor.says(RefusalContent(refusal="I will not."))
    done = run("run", "-m", MODEL, "hi")
    assert (done.code, done.out) == (ExitCode.FAILED, "")
    assert "error: The model refused: I will not." in done.err


def test_a_filter_that_ends_the_answer_is_a_failure(vendor: Vendor) -> None:
    vendor.says(AgentResponse(text="So", stop_reason="content_filter"))
    done = run("run", "-m", MODEL, "--no-stream", "hi")
    assert (done.code, done.out) == (ExitCode.FAILED, "So\n")
    assert "filter" in done.err


def test_what_a_vendor_leaves_out_is_a_warning(vendor: Vendor) -> None:
    vendor.says("Hello")
    done = run("run", "-m", "openai-chat:gpt-5", "--temperature", "0.3", "hi")
    assert (done.code, done.out) == (0, "Hello\n")
    assert "warning: " in done.err


# Tools

TOOLS = '''
from agent import tool

def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@tool(risk="exec")
def launch() -> str:
    """Launch something."""
    return "launched"

both = [add, launch]
number = 5
'''


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sums.py").write_text(TOOLS)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no luck')")
    (tmp_path / "needs.py").write_text("import nowhere_to_be_found")
    (tmp_path / "ends.py").write_text("import sys; sys.exit(141)")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("reference", ["sums:add", "sums.py:add", "sums:both"])
@pytest.mark.usefixtures("tools")
def test_the_model_calls_the_functions_that_are_named(vendor: Vendor, reference: str) -> None:
    script = vendor.says(ToolCall(id="c1", name="add", arguments={"a": 2, "b": 3}), "It is 5.")
    done = run("run", "-m", MODEL, "--tool", reference, "What is 2 + 3?")
    assert (done.code, done.out) == (0, "It is 5.\n")
    assert done.err == "→ add(a=2, b=3)\n← add: 5\n"
    assert script.requests[1]["messages"][-1]["content"] == "5"


@pytest.mark.usefixtures("tools")
def test_a_tool_that_runs_code_has_to_be_allowed(vendor: Vendor) -> None:
    call = ToolCall(id="c1", name="launch", arguments={})
    vendor.says(call, "No.")
    assert "✗ launch: " in run("run", "-m", MODEL, "--tool", "sums:launch", "Go").err
    vendor.says(call, "Yes.")
    done = run("run", "-m", MODEL, "--tool", "sums:launch", "--allow-exec", "--no-stream", "Go")
    assert "← launch: launched" in done.err
    assert done.out == "Yes.\n"
    assert run("run", "-m", MODEL, "--allow-exec", "Go").code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("nothing", "is not a reference"),
        ("nowhere:add", "there is no module 'nowhere'"),
        ("nowhere.py:add", "there is no file nowhere.py"),
        ("sums:subtract", "sums has no 'subtract'"),
        ("sums:number", "is a int"),
        ("broken.py:add", "RuntimeError: no luck"),
        ("ends.py:add", "SystemExit: 141"),
        ("needs.py:add", "there is no module 'nowhere_to_be_found'"),
    ],
)
@pytest.mark.usefixtures("tools")
def test_a_tool_that_cannot_be_loaded_is_named(reference: str, complaint: str) -> None:
    done = run("run", "-m", "scripted:echo", "--tool", reference, "hi")
    assert done.code == ExitCode.USAGE
    assert complaint in done.err
    assert "Traceback" not in done.err


# Which model, and how it fails


def test_a_route_asks_the_next_when_one_fails(vendor: Vendor) -> None:
    vendor.says(errors.OverloadedError("busy"))
    done = run("run", "-m", MODEL, "-m", "scripted:echo", "hi")
    assert (done.code, done.out) == (0, "You said: hi\n")
    assert run("run", "-m", MODEL, "-m", "scripted:echo", "--strategy", "nonsense", "hi").code == ExitCode.USAGE
    assert run("run", "-m", MODEL, "-m", "scripted:echo", "--base-url", "http://x", "hi").code == ExitCode.USAGE


def test_the_environment_names_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_MODEL", "scripted:echo")
    assert run("run", "hi").out == "You said: hi\n"


def test_without_any_model_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.cli.options.is_embedded_installed", lambda: False)
    done = run("run", "hi")
    assert done.code == ExitCode.SETUP
    assert "agent local install" in done.err


@pytest.mark.parametrize("model", ["gpt", "openai:", ":gpt", "nobody:gpt"])
def test_a_model_that_is_not_named_right(model: str) -> None:
    done = run("run", "-m", model, "hi")
    assert done.code == ExitCode.USAGE
    assert done.err.startswith("error: ")
    assert "fix: " in done.err


def test_a_missing_key_is_a_matter_of_setup() -> None:
    done = run("run", "-m", "openai:gpt-5", "hi")
    assert done.code == ExitCode.SETUP
    assert "OPENAI_API_KEY" in done.err
    assert "api_key=" not in done.err


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (errors.AuthenticationError("bad key", status_code=401), ExitCode.SETUP),
        (errors.BadRequestError("no"), ExitCode.FAILED),
        (errors.ModelNotFoundError("which?"), ExitCode.FAILED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_a_failure_is_one_line_and_an_exit_code(vendor: Vendor, failure: errors.AgentError, code: int) -> None:
    vendor.says(failure)
    done = run("run", "-m", MODEL, "hi")
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: ")
    assert [line.partition(": ")[0] for line in done.err.splitlines()] == ["error", "fix"][: done.err.count("\n")]


def test_a_deadline_ends_the_call(vendor: Vendor) -> None:
    vendor.server = LoopbackServer(VendorScript("a b c d e f g h", delay=0.3))
    done = run("run", "-m", MODEL, "--base-url", f"{vendor.server.url}/v1", "--deadline", "0.5", "hi")
    assert done.code == ExitCode.FAILED
    assert "error: " in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--nonsense"),
        ("run", "hi", "--temperature", "warm"),
        ("run", "hi", "--max-tokens"),
        ("nonsense",),
        ("models", "--context", "many"),
    ],
    ids=" ".join,
)
def test_wrong_options_show_the_usage_and_end_with_two(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (ExitCode.USAGE, "")
    assert done.err.startswith("Usage: agent ")
    assert "error: " in done.err
    assert "--help" in done.err


@pytest.mark.parametrize("value", ["3", "-1"])
def test_a_setting_out_of_range_is_named(value: str) -> None:
    done = run("run", "-m", "scripted:echo", "hi", "--temperature", value)
    assert done.code == ExitCode.USAGE
    assert "temperature" in done.err


def test_a_conversation_goes_on(vendor: Vendor) -> None:
    script = vendor.says("Hello, Ada.", "Ada.")
    assert run("run", "-m", MODEL, "--session", "names", "I am Ada.").code == 0
    assert run("run", "-m", MODEL, "--session", "names", "Who am I?").out == "Ada.\n"
    assert [message["content"] for message in script.requests[1]["messages"]] == [
        "I am Ada.",
        "Hello, Ada.",
        "Who am I?",
    ]


def test_a_mistake_of_ours_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("agent.cli.options.create_client", broken)
    done = run("run", "hi", "-m", "scripted:echo")
    assert done.code == ExitCode.FAILED
    assert "error: ZeroDivisionError: oh" in done.err
    monkeypatch.setenv("AGENT_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run("run", "hi", "-m", "scripted:echo")
