"""A search for the usual term finds the place in the code among the first three files."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import agent

PACKAGE = Path(agent.__file__).parent

QUESTIONS = [
    # question, search term, module
    ("Where is Retry-After parsed?", "retry-after", "providers/rate_limit_hints.py"),
    ("Where is a tool timeout enforced?", "tool timeout", "loop/tool_calls.py"),
    ("Where are Anthropic's cache markers written?", "cache_control", "providers/anthropic/conversation.py"),
    ("Where is the retry budget?", "retry budget", "routing/limits.py"),
    ("Where does a circuit breaker become half-open?", "half-open", "routing/health.py"),
    ("Where are addresses raced?", "happy eyeballs", "http/connections.py"),
    ("Where are targets cooled down?", "cooldown", "routing/health.py"),
    ("Where is the backoff between retries computed?", "backoff", "types/config.py"),
    ("Where does a deadline interrupt a sync call?", "deadline", "engine/drivers/sync.py"),
    ("Where are hedged requests sent?", "hedge", "routing/flow.py"),
    ("Where are tokens estimated?", "token estimate", "models/token_estimates.py"),
    ("Where is the pre-flight check?", "pre-flight", "calls/preflight.py"),
    ("Where are keep-alive connections replaced?", "keep-alive", "http/exchange.py"),
    ("Where do argument errors of tools get their text?", "argument error", "tools/signatures.py"),
    ("Where are server-sent events parsed?", "server-sent events", "http/sse.py"),
    ("Where are conversations repaired?", "repair", "providers/repair.py"),
    ("Where is structured output validated?", "structured output", "calls/structured_output.py"),
    ("Where are chunked bodies parsed?", "chunked body", "http/parser.py"),
    ("Where are keys masked?", "mask", "types/secrets.py"),
    ("Where is the price of a response computed?", "price", "models/prices.py"),
    ("Where is the journal of a run?", "journal", "loop/journal.py"),
    ("Where does a run pause for approval?", "PausedRun", "loop/results.py"),
    ("Where are spend limits reserved?", "spend limit", "routing/limits.py"),
    ("Where are rate limits of targets enforced?", "rate limit", "routing/limits.py"),
    ("Where are branches of a conversation merged?", "merge branches", "graph/dag.py"),
    ("Where is the SQLite schema?", "CREATE TABLE", "stores/sqlite_schema.py"),
    ("Where are secrets redacted from messages?", "redact", "middleware/redaction.py"),
    ("Where are programs sandboxed?", "sandbox", "toolkit/sandbox.py"),
    ("Where is the proxy chosen?", "proxy", "transports/proxies.py"),
    ("Where are JSON schemas compiled for a vendor?", "compile schema", "schemas/__init__.py"),
    ("Where are shadow requests sent?", "shadow", "routing/flow.py"),
    ("Where are model groups and fallbacks ranked?", "strategy", "routing/strategies.py"),
    ("Where is a batch file resumed?", "batch file", "batch/files.py"),
]


@cache
def sources() -> dict[str, tuple[str, str]]:
    """The text of each module, and the names that it defines with its docstring."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        headline = "\n".join([path.stem, ast.get_docstring(tree) or "", *names])
        found[path.relative_to(PACKAGE).as_posix()] = (text, headline)
    return found


def search(term: str) -> list[str]:
    """Rank modules as an editor does: names and headlines before text, then by path."""
    pattern = re.compile(r"[-_ ]?".join(map(re.escape, re.split(r"[-_ ]", term))), re.I)
    scores = {
        name: 10 * len(pattern.findall(headline)) + len(pattern.findall(text))
        for name, (text, headline) in sources().items()
    }
    return sorted((name for name, score in scores.items() if score), key=lambda name: (-scores[name], name))


@pytest.mark.parametrize(("question", "term", "module"), QUESTIONS, ids=[term for _, term, _ in QUESTIONS])
def test_the_usual_term_finds_the_place_among_the_first_three(question: str, term: str, module: str) -> None:
    assert module in search(term)[:3], f"{question} {search(term)[:6]}"
