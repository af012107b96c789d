"""Virtual environments of the contestants, with pinned versions, below `.tools/bench/`.

Libraries are installed alone, because some import optional packages if they are present. A library that cannot be
installed is reported with the reason.

    python -m benchmarks.environments          # all of them
    python -m benchmarks.environments floor agent
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".tools" / "bench"

PINNED: dict[str, tuple[str, ...]] = {
    "floor": ("httpx==0.28.1",),
    "fast-json": ("httpx2==2.16.0", "orjson==3.13.0"),
    "aiohttp": ("aiohttp==3.14.5", "orjson==3.13.0"),
    "openai": ("openai==3.51.0",),
    "anthropic": ("anthropic==2.9.0",),
    "google-genai": ("google-genai==3.3.0",),
    # Both import `mcp` when they are given tools, and fail if it is not there.
    "litellm": ("litellm==1.106.2", "mcp==2.3.0"),
    "litellm-redis": ("litellm==1.106.2", "redis==8.1.0"),
    "any-llm": ("any-llm-sdk[openai,anthropic,gemini]==1.40.2",),
    "aisuite": ("aisuite[openai,anthropic]==0.2.0", "mcp==2.3.0"),
    "pydantic-ai": ("pydantic-ai-slim[openai,anthropic,google]==2.66.0",),
    "langchain": (
        "langchain==1.4.7",
        "langchain-core==1.7.2",
        "langchain-openai==1.7.3",
        "langchain-anthropic==1.7.7",
        "langchain-google-genai==4.4.2",
    ),
    "mirascope": ("mirascope[openai,anthropic,google]==2.8.2",),
    "llm": ("llm==0.36", "llm-anthropic==0.30", "llm-gemini==0.35"),
}
OURS = "agent"
"""Its environment holds what `pyproject.toml` asks for; the package itself is this checkout."""


@dataclass(frozen=True)
class Environment:
    """Interpreter of a contestant, or the reason why there is none."""

    name: str
    python: Path | None
    reason: str = ""


def requirements(name: str) -> tuple[str, ...]:
    if name != OURS:
        return PINNED[name]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return tuple(project["dependencies"])


def names() -> list[str]:
    return [*PINNED, OURS]


def ready(name: str) -> Environment:
    """Return an environment, and create it if it is missing or outdated."""
    home = FOLDER / name
    packages = requirements(name)
    stamp = home / hashlib.sha256("\n".join((sys.version, *packages)).encode()).hexdigest()[:16]
    python = home / "bin" / "python"
    if not stamp.exists():
        failure = _make(home, packages)
        if failure:
            return Environment(name, None, failure)
        stamp.touch()
    return Environment(name, python)


def _make(home: Path, packages: tuple[str, ...]) -> str:
    """Create an environment. Returns an error message, or an empty one."""
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", str(home / "bin" / "python")]
    commands = (
        [sys.executable, "-m", "venv", "--without-pip", str(home)],
        [*pip, "install", "--retries=1", *packages],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith("ERROR")] or lines
            return errors[-1][:300] if errors else f"exit {done.returncode}"
    return ""


def prepare_all(selected: list[str]) -> dict[str, Environment]:
    with ThreadPoolExecutor(4) as pool:
        return {environment.name: environment for environment in pool.map(ready, selected)}


def main(arguments: list[str]) -> int:
    environments = prepare_all(arguments or names())
    for environment in environments.values():
        print(f"{environment.name:14} {'ready' if environment.python else 'absent: ' + environment.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
