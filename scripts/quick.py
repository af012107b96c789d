"""Print the test files of `make quick`: one or two per part, and those of changed modules."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALWAYS = (
    "batch/test_ends.py",
    "cli/test_tables.py",
    "engine/test_effects.py",
    "testing/faults/test_chaos.py",
    "graph/test_graph.py",
    "loop/test_events.py",
    "loop/test_pause.py",
    "middleware/test_order.py",
    "providers/test_recordings.py",
    "routing/test_router.py",
    "testing/rules/test_refusals.py",
    "schemas/test_compiling.py",
    "sessions/test_session.py",
    "stores/test_sqlite.py",
    "support/test_cases.py",
    "tools/test_decorator.py",
    "http/test_parser.py",
    "types/test_messages.py",
    "test_agent.py",
    "calls/test_call.py",
    "calls/test_streams.py",
    "calls/test_structured.py",
    "test_surface.py",
)
MOST_IMPORTERS = 12
"""A module that more test files import than this is covered by those that always run."""


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else []


def list_changed_files() -> set[Path]:
    base = next(iter(git("merge-base", "HEAD", "main") or git("merge-base", "HEAD", "origin/main")), "HEAD")
    names = [*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")]
    return {Path(name) for name in names if name.endswith(".py") and (ROOT / name).exists()}


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def main() -> None:
    tests = {path: path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    chosen = {path for path in (ROOT / "tests" / name for name in ALWAYS) if path.exists()}
    for path in list_changed_files():
        if ROOT / path in tests:
            chosen.add(ROOT / path)
        elif path.parts[0] in ("agent", "tests"):
            found = [test for test, text in tests.items() if f"from {module_name(path)} import" in text]
            chosen.update(found if len(found) <= MOST_IMPORTERS else ())
    print(*sorted(path.relative_to(ROOT).as_posix() for path in chosen))


if __name__ == "__main__":
    main()
