"""Shared options, and the objects they select: clients, requests, tools, schemas, the store."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import typer
from platformdirs import user_data_path

from agent.agent import Agent
from agent.calls.requests import read_request
from agent.local.weights import SMOLLM2, engine_version, locate_weights
from agent.models import list_models
from agent.providers import list_providers
from agent.routing.router import Router
from agent.routing.strategies import STRATEGIES, read_strategy
from agent.stores import SqliteStore
from agent.types import (
    AgentRequest,
    AudioContent,
    DocumentContent,
    ImageContent,
    Message,
    TextContent,
    ThinkingLevel,
    ToolLoopConfig,
)

from .errors import CommandError, ExitCode

if TYPE_CHECKING:
    from agent.client import Client

_THINKING_LEVELS = tuple(level.value for level in ThinkingLevel)


def complete_model(incomplete: str) -> Iterator[str]:
    """Complete providers, and after a colon the known models of the provider."""
    provider, colon, _ = incomplete.partition(":")
    if not colon:
        providers = [name for name in list_providers() if name.startswith(incomplete)]
        if len(providers) != 1 or not list_models(providers[0]):
            yield from (f"{name}:" for name in providers)
            return
        provider = providers[0]  # a single completion ends with a space, so list the models instead
    yield from (name for model in list_models(provider) if (name := f"{provider}:{model}").startswith(incomplete))


def complete_from(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Create a completion that offers these names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def option(*names: str, metavar: str, help: str, **settings: Any) -> Any:
    """An option with a value and no default shown on the help page."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=False, **settings)


ModelOption: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--model",
        "-m",
        metavar="PROVIDER:MODEL",
        help="The model. Repeat the option for a route: the next model is the fallback. "
        "Default: AGENT_MODEL, or the embedded model if it is installed.",
        autocompletion=complete_model,
    ),
]
StrategyOption: TypeAlias = Annotated[
    str | None,
    option(
        "--strategy",
        metavar="NAME",
        help=f"The routing strategy: {', '.join(STRATEGIES)}.",
        autocompletion=complete_from(STRATEGIES),
    ),
]
BaseUrlOption: TypeAlias = Annotated[
    str | None, option("--base-url", metavar="URL", help="The address of the API, if not the vendor's default.")
]
SystemOption: TypeAlias = Annotated[str | None, option("--system", "-s", metavar="TEXT", help="The system prompt.")]
AttachOption: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--attach",
        "-a",
        metavar="FILE",
        help="Attach a text, image, PDF or audio file; - is standard input. Images and PDFs can be URLs. Repeatable.",
    ),
]
ToolOption: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--tool",
        metavar="MODULE:FUNCTION",
        help="A Python function that the model may call; also file.py:function. Repeatable.",
    ),
]
SchemaOption: TypeAlias = Annotated[
    str | None,
    option("--schema", metavar="SCHEMA", help="JSON schema of the answer: a .json file, inline JSON, or module:Model."),
]
MaxTokensOption: TypeAlias = Annotated[
    int | None, option("--max-tokens", metavar="N", help="Limit on the tokens of the answer.")
]
TemperatureOption: TypeAlias = Annotated[
    float | None, option("--temperature", metavar="0..2", help="Sampling temperature.")
]
ThinkingOption: TypeAlias = Annotated[
    str | None,
    option(
        "--thinking",
        metavar="LEVEL",
        help=f"Thinking effort: {', '.join(_THINKING_LEVELS)}.",
        autocompletion=complete_from(_THINKING_LEVELS),
    ),
]
SeedOption: TypeAlias = Annotated[
    int | None, option("--seed", metavar="N", help="Sampling seed, for reproducible answers where supported.")
]
TimeoutOption: TypeAlias = Annotated[
    float | None, option("--timeout", metavar="SECONDS", help="Time limit for each attempt.")
]
DeadlineOption: TypeAlias = Annotated[
    float | None, option("--deadline", metavar="SECONDS", help="Time limit for the call, including retries.")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PromptArgument: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROMPT",
        help="The prompt. Piped input is appended; - reads the prompt from standard input.",
        show_default=False,
    ),
]


# Clients and requests


def create_client(models: Sequence[str] = (), strategy: str | None = None, **settings: Any) -> Client:
    """Create an agent for one model, or a router for several.

    Args:
        models: Names such as `provider:model`; by default `default_model()`.
        strategy: The routing strategy. It makes a router even of one model.
        settings: Fields of `AgentConfig`; None means not set.
    """
    names = models or [default_model()]
    if len(names) > 1 and settings.get("base_url") is not None:
        raise CommandError(
            "--base-url applies to one model, and several are given.",
            fix="Set each vendor's variable instead; see: agent doctor",
        )
    agents = [create_agent(name, **settings) for name in names]
    return agents[0] if len(agents) == 1 and strategy is None else create_router(agents, strategy)


def create_agent(name: str, **settings: Any) -> Agent:
    return Agent(name, **{setting: value for setting, value in settings.items() if value is not None})


def create_router(agents: Sequence[Agent], strategy: str | None = None) -> Router:
    return Router(agents, strategy=read_strategy(strategy or "fallback"))


def create_request(
    prompt: Sequence[str] | None,
    attach: Sequence[str] | None,
    *,
    tool: Sequence[str] | None,
    schema: str | None,
    **fields: Any,
) -> AgentRequest:
    """Build the request from the prompt, attachments, piped input and request options."""
    message = read_prompt(prompt, attach)
    fields |= {
        "tools": load_tools(tool) if tool else None,
        "output_schema": None if schema is None else load_schema(schema),
    }
    return read_request(message, {name: value for name, value in fields.items() if value is not None})


def tool_limits(*, allow_exec: bool = False) -> ToolLoopConfig:
    """Limits for runs with tools; those of the risk `exec` run only with `--allow-exec`."""
    config = ToolLoopConfig()
    return config.model_copy(update={"allowed_risks": config.allowed_risks | {"exec"}}) if allow_exec else config


EMBEDDED_MODEL = "local:smollm2"


def default_model() -> str:
    """The model of AGENT_MODEL, or the embedded model if it is installed."""
    if name := os.environ.get("AGENT_MODEL", "").strip():
        return name
    if is_embedded_installed():
        return EMBEDDED_MODEL
    raise CommandError(
        "No model is configured, and the embedded model is not installed.",
        fix="Pass -m provider:model, set AGENT_MODEL, or run: agent local install",
        code=ExitCode.SETUP,
    )


def is_embedded_installed() -> bool:
    """Whether the engine and the weights exist; `agent local status` also verifies the weights."""
    weights = locate_weights(SMOLLM2)
    return engine_version() is not None and weights is not None and weights.exists()


# Files

SESSIONS_FILE = "sessions.db"


def data_folder() -> Path:
    """The folder of sessions and history; AGENT_HOME overrides the user's data folder."""
    if name := os.environ.get("AGENT_HOME", "").strip():
        return Path(name).expanduser()
    return user_data_path("agent-llm-router", appauthor=False)


def open_session_store() -> SqliteStore:
    folder = data_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CommandError(
            f"Sessions cannot be stored in {folder}: {error.strerror or error}.",
            fix="Set AGENT_HOME to a writable folder.",
            code=ExitCode.SETUP,
        ) from None
    return SqliteStore(folder / SESSIONS_FILE)


# Prompts and attachments. The type of a file is detected from its content: names can be wrong, and pipes have none.

MAX_TEXT_BYTES = 4_000_000
MAX_MEDIA_BYTES = 20_000_000

_SIGNATURES: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF87a", 0, "image/gif"),
    (b"GIF89a", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"%PDF-", 0, "application/pdf"),
    (b"WAVE", 8, "audio/wav"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"\xff\xf3", 0, "audio/mpeg"),
    (b"OggS", 0, "audio/ogg"),
    (b"fLaC", 0, "audio/flac"),
)
"""File signatures: bytes, their offset, and the media type."""

_URL = re.compile("https?://", re.IGNORECASE)
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp")


def read_prompt(prompt: Sequence[str] | None, files: Sequence[str] | None = None) -> AgentRequest:
    """Build a request from prompt arguments, attached files and piped input."""
    files = list(files or ())
    text = " ".join(prompt or ())
    piped = "" if "-" in files else _read_piped_text(required=text in ("", "-"))
    text = "\n\n".join(part for part in ("" if text == "-" else text, piped.strip("\n")) if part)
    if not text and not files:
        raise _empty_prompt()
    parts = [read_attachment(name) for name in files]
    if not parts:
        return AgentRequest(input=text)
    return AgentRequest(messages=(Message.user([*parts, TextContent(text=text)] if text else parts),))


def _empty_prompt() -> CommandError:
    return CommandError("The prompt is empty.", fix='Write a prompt: agent run "What is 2 + 2?"')


def read_attachment(name: str) -> Any:
    """Return the content part for a file or a URL; `-` is standard input."""
    if is_url(name):
        return _url_part(name)
    data = _read_bytes(name)
    media_type = detect_media_type(data)
    title = "standard input" if name == "-" else Path(name).name
    if media_type is None:
        return TextContent(text=f"File {title}:\n\n{_decode_text(data, name)}")
    if len(data) > MAX_MEDIA_BYTES:
        raise _too_large(name, len(data), MAX_MEDIA_BYTES)
    if media_type.startswith("image/"):
        return ImageContent(image_data=data, media_type=media_type)
    if media_type.startswith("audio/"):
        return AudioContent(data=data, media_type=media_type)
    return DocumentContent(data=data, media_type=media_type, title=title)


def is_url(name: str) -> bool:
    return _URL.match(name) is not None


def _url_part(url: str) -> Any:
    """Return the content part for a URL. The vendor fetches it, so the type is taken from the suffix."""
    suffix = Path(urlsplit(url).path).suffix.lower()
    if suffix == ".pdf":
        return DocumentContent(url=url, media_type="application/pdf")
    if suffix in _IMAGE_SUFFIXES:
        return ImageContent(image_url=url)
    raise CommandError(
        f"The URL {url} has no suffix of an image or a PDF.", fix="Download the file, and attach it by its path."
    )


def detect_media_type(data: bytes) -> str | None:
    """Return the media type of a known binary format; None for anything else, such as text."""
    return next((media_type for mark, offset, media_type in _SIGNATURES if data.startswith(mark, offset)), None)


def _read_bytes(name: str) -> bytes:
    if name == "-":
        if sys.stdin is None:
            raise CommandError("Standard input is closed.", fix="Name a file after -a.")
        return sys.stdin.buffer.read(MAX_MEDIA_BYTES + 1)
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            raise CommandError(f"{name} is a folder.", fix="Attach its files one by one.")
        with path.open("rb") as file:
            size = path.stat().st_size
            if size > MAX_MEDIA_BYTES:
                raise _too_large(name, size, MAX_MEDIA_BYTES)
            return file.read(MAX_MEDIA_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror or error}.", fix="Check the path.") from None


def _decode_text(data: bytes, name: str) -> str:
    if len(data) > MAX_TEXT_BYTES:
        raise _too_large(name, len(data), MAX_TEXT_BYTES)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise CommandError(
            f"{name} is neither UTF-8 text nor a supported image, PDF or audio file.",
            fix="Convert it to text, PNG, JPEG, GIF, WebP, PDF, WAV, MP3, Ogg or FLAC.",
        )
    return text


def _too_large(name: str, size: int, limit: int) -> CommandError:
    return CommandError(
        f"{name} is too large: {size / 1e6:.1f} MB; the limit is {limit / 1e6:.0f} MB.",
        fix="Attach a smaller part of it.",
    )


def _read_piped_text(*, required: bool) -> str:
    """Read piped input; empty if standard input is a terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        if required and sys.stdin is not None:
            raise _empty_prompt()
        return ""
    data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
    if detect_media_type(data) is not None:
        raise CommandError("The piped input is not text.", fix="Add -a - to attach it as a file.")
    return _decode_text(data, "standard input")


# Python objects and schemas


def load_tools(references: Sequence[str]) -> list[Any]:
    """Load tools by reference; a reference may name a list of tools."""
    tools: list[Any] = []
    for reference in references:
        value = load_object(reference, "--tool")
        values = list(value) if isinstance(value, list | tuple) else [value]
        for tool in values:
            if not callable(tool) and not hasattr(tool, "run"):
                raise CommandError(
                    f"--tool {reference!r} is a {type(tool).__name__}.",
                    fix="Name a function, a tool, or a list of these.",
                )
        tools += values
    return tools


def load_schema(text: str) -> Any:
    """Load a JSON schema from a file or inline JSON, or a Python type by reference."""
    if text.lstrip().startswith("{"):
        return _parse_schema(text, "--schema")
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        try:
            return _parse_schema(path.read_text("utf-8"), text)
        except OSError as error:
            reason = error.strerror or str(error)
        except UnicodeDecodeError:
            reason = "it is not UTF-8 text"
        raise CommandError(f"--schema: {text} cannot be read: {reason}.", fix="Check the path.")
    if ":" in text:
        return load_object(text, "--schema")
    raise CommandError(
        f"--schema {text!r} is neither a file nor a schema.", fix="Pass a .json file, inline JSON, or module:Model."
    )


def _parse_schema(text: str, source: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{source} is not JSON: {error}.", fix="Check it with: python -m json.tool") from None
    if not isinstance(schema, dict):
        raise CommandError(
            f"{source} must be a JSON schema, not a {type(schema).__name__}.", fix="A schema is a JSON object."
        )
    return schema


def load_object(reference: str, option_name: str) -> Any:
    """Import the object of `module:name` or `file.py:name`, which runs the module's code."""
    module_name, colon, path = reference.rpartition(":")
    if not colon or not module_name or not path:
        raise CommandError(f"{option_name} {reference!r} is not a reference.", fix="Write module:name or file.py:name.")
    if module_name.endswith(".py") or os.sep in module_name:
        value = _import_file(module_name, option_name)
    else:
        here = os.getcwd()
        if here not in sys.path:
            sys.path.insert(0, here)  # as `python -m` does; a console script starts without it
        value = _run_import(module_name, option_name, lambda: importlib.import_module(module_name))
    try:
        return attrgetter(path)(value)
    except AttributeError:
        raise CommandError(
            f"{option_name}: {module_name} has no {path!r}.", fix="Check the name after the colon."
        ) from None


def _import_file(name: str, option_name: str) -> Any:
    path = Path(name).expanduser()
    if not path.is_file():
        raise CommandError(f"{option_name}: there is no file {name}.", fix="Check the path, or name a module.")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise CommandError(f"{option_name}: {name} is not a Python file.", fix="Name a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # for code that looks up classes by their module, such as pickle
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loader = spec.loader
    _run_import(name, option_name, lambda: loader.exec_module(module))
    return module


def _run_import(name: str, option_name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        raise CommandError(
            f"{option_name}: there is no module {error.name!r}.", fix="Run the command where it can be imported."
        ) from error
    except (Exception, SystemExit) as error:  # SystemExit: the script must not choose the exit code
        raise CommandError(
            f"{option_name}: importing {name} failed: {type(error).__name__}: {error}",
            fix="Run it with Python to see the traceback.",
        ) from error
