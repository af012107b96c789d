"""GGUF files: problems are reported before the engine opens a file that would crash it."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, errors, local
from agent.local import engine, weights
from agent.local import weights as gguf
from agent.local import weights as machine
from agent.local.weights import check_gguf, estimate_memory, read_metadata
from tests.local.conftest import STATUS

LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 32,
    "llama.context_length": 131072,
    "llama.embedding_length": 4096,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "llama.rope.freq_base": 10000.0,
}
"""How a model of eight billion parameters describes itself."""


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def encode(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + text(value)
        case list():
            kind, items = (8, map(text, value)) if isinstance(value[0], str) else (4, (encode(v)[4:] for v in value))
            return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(items)
        case _:
            raise AssertionError


def file_of(facts: dict[str, Any], tensors: int = 1) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, len(facts)) + b"".join(
        text(name) + encode(value) for name, value in facts.items()
    )


def save_file(path: Path, facts: dict[str, Any]) -> Path:
    path.write_bytes(file_of(facts) + bytes(1000))
    return path


def test_a_file_describes_its_model() -> None:
    facts = {**LLAMA, "tokenizer.ggml.add_bos_token": True, "general.languages": ["en", "fr"], "x.sizes": [1, 2, 3]}
    assert read_metadata(file_of(facts)) == facts


def test_what_is_not_whole_is_not_read_and_nothing_after_it() -> None:
    whole = file_of({**LLAMA, "tokenizer.ggml.tokens": ["a"] * 1000})
    assert read_metadata(whole[:600]) == LLAMA
    for end in range(len(file_of(LLAMA))):
        known = read_metadata(whole[: 24 + end])
        assert known.items() <= LLAMA.items()
    strange = file_of(LLAMA) + text("x.odd") + struct.pack("<I", 99)
    assert read_metadata(strange[:16] + struct.pack("<Q", len(LLAMA) + 1) + strange[24:]) == LLAMA
    assert read_metadata(struct.pack("<4sIQQ", b"GGUF", 3, 1, 2**63) + text("\0" * 10)) == {}
    nested = text("x.deep") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000
    assert read_metadata(struct.pack("<4sIQQ", b"GGUF", 3, 1, 1) + nested) == {}


@pytest.mark.parametrize(
    "change",
    [{"llama.block_count": 0}, {"llama.rope.freq_base": math.nan}, {"llama.rope.freq_base": math.inf}],
    ids=["no layers", "not a number", "endless"],
)
def test_a_description_that_the_engine_would_die_of_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigurationError, match="contains invalid metadata") as caught:
        check_gguf(save_file(tmp_path / "odd.gguf", {**LLAMA, **change}), 512)
    assert "odd.gguf" in str(caught.value)


def test_a_context_that_does_not_fit_into_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert estimate_memory(LLAMA, 0) == 32 * 8 * 2 * 128 * 2 * 131072  # 17 GB
    path = save_file(tmp_path / "large.gguf", LLAMA)
    monkeypatch.setattr(gguf, "_memory", lambda: 8_000_000_000)
    check_gguf(path, 8192)
    with pytest.raises(errors.ConfigurationError, match=r"17 GB .* 8 GB") as caught:
        check_gguf(path, 0)
    assert caught.value.field == "context"
    assert "register_weights" in str(caught.value)
    monkeypatch.setattr(gguf, "_memory", lambda: None)
    check_gguf(path, 0)  # unknown sizes are accepted


def test_the_memory_is_reckoned_from_what_the_file_tells() -> None:
    per_layer = {**LLAMA, "llama.attention.head_count_kv": [8, 0, 8, 0], "llama.block_count": 4}
    assert estimate_memory(per_layer, 10) == 16 * 256 * 2 * 10
    shaped = {**LLAMA, "llama.attention.key_length": 64, "llama.attention.value_length": 32}
    assert estimate_memory(shaped, 1) == 32 * 8 * 96 * 2
    assert estimate_memory({}, 8192) == 0
    assert estimate_memory({**LLAMA, "llama.attention.head_count": 0}, 8192) == 0


def test_this_machine_has_some_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(os, "sysconf"):
        assert (gguf._memory() or 0) > 100_000_000
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert gguf._memory() is None


def test_only_a_file_is_opened(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes with names here")
    os.mkfifo(tmp_path / "pipe.gguf")  # opening it blocks until there is a writer
    for path, said in ((tmp_path / "pipe.gguf", "is not a regular file"), (tmp_path, "is a folder")):
        with pytest.raises(errors.ConfigurationError, match=said):
            weights.verify_weights(weights.find_model(f"{path}/" if path == tmp_path else str(path)))


@pytest.mark.parametrize("path", ["a\0b.gguf", "~nobody-of-that-name/x.gguf", f"{'x' * 5000}.gguf"])
def test_a_path_that_cannot_be_is_an_error_that_says_so(path: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="cannot be read"):
        weights.verify_weights(weights.find_model(path))


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_file(tmp_path / "mine.gguf", LLAMA)

    def expect_error(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", expect_error)
    with pytest.raises(errors.ConfigurationError, match="Permission denied"):
        check_gguf(path, 512)


@pytest.mark.parametrize("field", ["context", "threads"])
@pytest.mark.parametrize("number", [-1, 10**9, 2**40])
def test_numbers_that_the_engine_would_die_of_are_refused(field: str, number: int) -> None:
    with pytest.raises(errors.ConfigurationError, match=field):
        local.register_weights("mine", "x.gguf", **{field: number})


@pytest.mark.skipif(machine.engine_version() is None, reason="the engine is not installed")
@pytest.mark.parametrize(("context", "given"), [(0, 0), (1, 256), (256, 256), (257, 512), (8192, 8192)])
def test_a_context_is_rounded_up_to_what_the_engine_reserves(context: int, given: int) -> None:
    model = weights.LocalModel("mine", Path("x.gguf"), context=context)
    assert engine.parameters(machine.load_engine(), model, Path("x.gguf")).n_ctx == given


@pytest.mark.skipif(not STATUS.ready, reason=f"{STATUS.problem}")
def test_a_context_of_one_token_does_not_end_the_process() -> None:
    assert STATUS.weights is not None
    local.register_weights("tiny", STATUS.weights, context=1)
    try:
        agent = Agent("local:tiny")
        assert agent.complete("Hi", max_tokens=1).text
        with pytest.raises(errors.ContextLengthError):
            agent.complete("word " * 300, max_tokens=1)
    finally:
        local.unload()
        del weights._models["tiny"]
