"""Try the installed wheel in an empty environment, as part of `make wheel`.

It must find the installed package and never the checkout beside it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import agent

NOT_LOADED_BY_IMPORT = ("httpx2", "httpcore2", "asyncio", "openai", "anthropic", "google.genai", "jsonschema")
CHECKOUT = Path(__file__).resolve().parent.parent
INSTALLED = Path(agent.__file__).resolve().parent


def check_installation() -> None:
    assert INSTALLED != CHECKOUT / "agent", f"this is the checkout, not the installed package: {INSTALLED}"
    assert "site-packages" in INSTALLED.parts, INSTALLED
    assert (INSTALLED / "py.typed").is_file(), "py.typed is missing from the wheel"
    assert not (INSTALLED.parent / "tests").exists(), "the wheel installs the tests"
    installed = version("agent-llm-router")
    assert agent.__version__ == installed, (agent.__version__, installed)


def check_import() -> None:
    code = "import sys; from agent import Agent; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    eager = set(NOT_LOADED_BY_IMPORT) & set(done.stdout.split())
    assert not eager, f"`from agent import Agent` loads {sorted(eager)}"


def check_command_line() -> None:
    """Without the extra `cli` it tells its version, what to install, and of the embedded model, in words."""
    program = Path(sys.executable).with_name("agent")

    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    assert run("--version") == (0, f"agent {agent.__version__}\n")
    code, said = run("run", "Hello")
    assert (code, "agent-llm-router[cli]" in said) == (3, True), said
    code, said = run("local", "status")
    assert (code, "agent local install" in said) == (3, True), said


def check_calls(model: agent.Agent) -> None:
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        population: int

    async def with_await() -> None:
        assert (await model.acomplete("Hello")).text == "You said: Hello"
        assert (await model.astream("Hello").collect()).text == "You said: Hello"
        assert isinstance((await model.ajson("A city", schema=City)).output, City)

    assert model.complete("Hello").text == "You said: Hello"
    assert "".join(model.stream("Hello").text_stream()) == "You said: Hello"
    assert isinstance(model.json("A city", schema=City).output, City)
    assert isinstance(model.json("A city", schema=City.model_json_schema()).output, dict)
    asyncio.run(with_await())


def main() -> None:
    check_installation()
    check_import()
    check_command_line()
    from agent.testing import LoopbackServer, Script

    check_calls(agent.Agent("scripted:smoke"))
    with LoopbackServer(Script()) as server:
        check_calls(agent.Agent("scripted:smoke", base_url=server.url))
        check_calls(agent.Agent("openai-chat:smoke", base_url=f"{server.url}/v1", api_key="sk-smoke"))
        paths = {request.url for request in server.requests}
        assert paths == {"/chat/completions", "/v1/chat/completions"}, paths
    print(f"agent-llm-router {agent.__version__}: the wheel works on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
