"""The package as a whole: exports, cost of the import, and first use from any thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel

import agent.types

HERE = Path(agent.types.__file__).parent

# The parent package imports much more; a stand-in for it shows what the types alone need.
ALONE = f"""
import sys, types
parent = types.ModuleType("agent")
parent.__path__ = [{str(HERE.parent)!r}]
sys.modules["agent"] = parent
import agent.types
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE + code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_exported_name_exists_once() -> None:
    names = agent.types.__all__
    assert len(names) == len(set(names))
    assert all(hasattr(agent.types, name) for name in names)


def test_importing_builds_nothing_and_loads_nothing_heavy() -> None:
    code = """
from pydantic import BaseModel
values = [v for v in vars(agent.types).values() if isinstance(v, type) and issubclass(v, BaseModel)]
print(len(values) > 20, [v.__name__ for v in values if v.__pydantic_complete__])
print([name for name in ("asyncio", "httpx2", "httpcore2", "openai", "ssl", "socket") if name in sys.modules])
"""
    assert run(code) == "True []\n[]"


def test_types_may_be_first_used_by_many_threads_at_once() -> None:
    code = """
import threading
barrier = threading.Barrier(16)
failures = []
def use():
    barrier.wait()
    try:
        message = {"role": "user", "content": [{"type": "text", "text": "a"}]}
        request = agent.types.AgentRequest(input="a", messages=[message])
        response = agent.types.AgentResponse(text="a", usage={"input": 1})
        assert request.from_dict(request.to_dict()) == request
        assert response.from_dict(response.to_dict()) == response
    except BaseException as error:
        failures.append(repr(error))
threads = [threading.Thread(target=use) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(failures)
"""
    assert run(code) == "[]"


def test_every_model_is_frozen_in_its_own_header() -> None:
    exported = {getattr(agent.types, name) for name in agent.types.__all__}
    models = [value for value in exported if isinstance(value, type) and issubclass(value, BaseModel)]
    assert len(models) > 20
    assert all(model.model_config["frozen"] for model in models)


def test_every_model_has_a_json_schema() -> None:
    for model in (agent.types.Message, agent.types.AgentRequest, agent.types.AgentConfig, agent.types.StreamEvent):
        assert model.model_json_schema(mode="validation")
    assert agent.types.ToolSpec.model_json_schema()["properties"]["parameters"]["default"] == {}


def test_no_module_outgrows_its_idea() -> None:
    for module in HERE.glob("*.py"):
        assert len(module.read_text().splitlines()) <= 500, module.name
