"""A migration page shows the same program twice: both sides run, and print the same.

Our side is run with all other blocks of the documentation, in `test_docs`. The other side runs here, each page as one
program in an interpreter of its own, against the same server on loopback. Each side prints its `#>` lines, and both
sides print the same. `make peers` installs the other libraries.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.testing import LoopbackServer
from tests.test_docs import ROOT, find_fenced_blocks, read_promises, vendor

TOOLS = ROOT / ".tools"

# Prints what each block printed, as one line of JSON. It imports nothing that the page could lack.
RUNNER = """
import contextlib, io, json, sys
names, printed = {"__name__": "page"}, []
for code, line, path in json.loads(sys.stdin.read()):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile("\\n" * line + code, path, "exec", dont_inherit=True), names)
    printed.append(out.getvalue())
sys.stdout.write(json.dumps(printed))
"""


class Peer(NamedTuple):
    page: str
    title: str
    folder: str | None
    """Where `make peers` puts it; None for one that is among our own tools."""


PEERS = (
    Peer("from-openai-sdk.md", "OpenAI SDK", None),
    Peer("from-litellm.md", "LiteLLM", "litellm"),
    Peer("from-pydantic-ai.md", "pydantic-ai", "pydantic-ai"),
)


class Pair(NamedTuple):
    before: str
    line: int
    after: str


def path_of(peer: Peer) -> Path:
    return ROOT / "docs" / "migration" / peer.page


def pairs(peer: Peer) -> Iterator[Pair]:
    text = path_of(peer).read_text("utf-8")
    for found in re.finditer(r'^<div class="sides" markdown>\n(?P<both>.*?)^</div>$', text, re.M | re.S):
        both = found["both"]
        before = re.search(rf'^```python title="{re.escape(peer.title)}"\n(?P<code>.*?)^```$', both, re.M | re.S)
        assert before is not None, f"a pair without its {peer.title} side: {both[:80]!r}"
        (after,) = find_fenced_blocks(both)
        yield Pair(before["code"], text[: found.start("both") + before.start("code")].count("\n"), after.code)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with LoopbackServer(vendor) as running:
        yield running.url


def run_page(peer: Peer, url: str, folder: Path) -> list[str]:
    """Return the output of each block of the other library."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "SYSTEMROOT", "LANG", "TMPDIR")}
    keys = {"OPENAI_API_KEY": "sk-test", "ANTHROPIC_API_KEY": "sk-ant-test"}
    addresses = {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url}
    # Neither side fetches anything; without this, one of them would try, when it is imported.
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    apart: list[str] = []
    if peer.folder is not None:
        offline["PYTHONPATH"] = str(TOOLS / peer.folder)
        apart = ["-S"]  # its own dependencies, not ours
    (folder / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    blocks = [(pair.before, pair.line, str(path_of(peer))) for pair in pairs(peer)]
    done = subprocess.run(
        [sys.executable, *apart, "-c", RUNNER],
        input=json.dumps(blocks),
        cwd=folder,
        env={**kept, "HOME": str(folder), "PYTHONIOENCODING": "utf-8", **keys, **addresses, **offline},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed: list[str] = json.loads(done.stdout)
    return printed


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.title)
def test_the_other_side_of_a_migration_page_runs_and_prints_what_it_says(peer: Peer, url: str, tmp_path: Path) -> None:
    if peer.folder is not None and not (TOOLS / peer.folder).is_dir():
        pytest.skip(f"{peer.title} is not installed in {TOOLS.name}/{peer.folder}: run `make peers`")
    for pair, printed in zip(pairs(peer), run_page(peer, url, tmp_path), strict=True):
        if said := read_promises(pair.before):
            assert [line.rstrip() for line in printed.splitlines()] == said, f"{peer.page}, line {pair.line}"


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.title)
def test_both_sides_of_a_migration_page_say_the_same(peer: Peer) -> None:
    both = [(read_promises(pair.before), read_promises(pair.after)) for pair in pairs(peer)]
    for before, after in both:
        assert before == after
    assert len(both) >= 8
    assert sum(1 for before, _ in both if before) >= 6


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.title)
def test_a_migration_page_speaks_of_everything_one_migrates(peer: Peer) -> None:
    text = path_of(peer).read_text("utf-8").lower()
    for topic in (
        "stream", "tool", "structured output", "async", "fallback", "retries", "timeout", "middleware", "history",
        "test", "error", "what is different", "what we lack",
    ):  # fmt: skip
        assert topic in text, topic
