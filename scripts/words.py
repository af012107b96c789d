"""Report names and phrases that are not standard terms. `make lint` runs this."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONGEST_FIRST_LINE = 100

PHRASES = re.compile(
    r"\b(whoever|somebody|someone else's|nobody|of our own|of its own accord|is asked|are asked|was asked|is told"
    r"|are told|was told|with await|a say in|stands? around|is wanted|shall be|becomes of)\b"
    r"|(?:^|[.:;(] )(?:What|Who|Whose) [a-z][^.?]*(?!\?)(?:\.|$)",
    re.I | re.M,
)
"""Phrases that hide a standard term. Docstrings, comments, error messages and help texts may not contain them.

Questions are allowed: prompts contain them.
"""

LINE_STARTS = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)

IRREGULAR = frozenset(
    """
    begun born bought brought built caught chosen done drawn driven found frozen given gone grown heard held
    hidden kept known led left lost made meant met paid said seen sent shown sold sought spoken spent stolen stood
    sworn taken taught thought thrown told understood won written
    """.split()  # noqa: SIM905  # a list of quoted words is harder to read
)
PRONOUNS = frozenset(
    """
    all another any anybody both each everybody he her his it its mine none nobody one other others ours she
    somebody theirs these they this those what which who whoever whom whose yours
    """.split()  # noqa: SIM905  # a list of quoted words is harder to read
)
NOUNS = frozenset(
    """
    bed bring ceiling docstring embed embedding encoding exceed feed heading king listing logging mapping need
    ping pricing proceed red ring routing sampling seed setting shed sibling speed spring string testing thing
    thinking timing warning
    """.split()  # noqa: SIM905  # a list of quoted words is harder to read
)
"""Words with such an ending that are nouns or imperative verbs."""

EXCEPTIONS = {
    "framing": "HTTP message framing",
    "hedging": "the standard term for a second request sent when the first is slow",
    "scripted": "a transport or provider that follows a script",
    "scripted_agent": "an agent that follows a script",
    "simulated": "the driver in virtual time",
    "threaded": "a client that runs in a thread",
}
"""Names of modules and functions that are kept, with the reason."""
SAME_NAME_ALLOWED = {
    "provider": "the entry point of every provider module",
    "Context": "the call context, and the conversation in the vocabulary of stream functions",
    "register": "adds the commands of a module to the command line",
    "main": "the entry point of every executable module",
}
"""Public names that several modules define, with the reason."""


def is_participle(word: str) -> bool:
    if word in NOUNS:
        return False
    return word in IRREGULAR or (len(word) > 4 and word.endswith(("ed", "ing")))


def first_word(name: str) -> str:
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name.strip("_"))
    return parts[0].lower() if parts else ""


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        "property" in ast.unparse(decorator) or "fixture" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def check_names(path: Path, tree: ast.Module) -> Iterator[str]:
    stem = path.stem.strip("_")
    if stem not in EXCEPTIONS and not stem.startswith("test_") and (is_participle(stem) or stem in PRONOUNS):
        yield f"{path}: the module name {stem!r} is a participle or pronoun; use a noun"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name
            if name in EXCEPTIONS or name.startswith(("test_", "_missing_", "__")) or is_property(node):
                continue
            word = first_word(name)
            if is_participle(word) or word in PRONOUNS:
                yield f"{path}:{node.lineno}: the function name {name!r} begins with {word!r}; use an imperative verb"


def check_docstrings(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text.splitlines()[0]) > LONGEST_FIRST_LINE:
                line = node.body[0].lineno
                yield f"{path}:{line}: the first line of a docstring has {len(text.splitlines()[0])} characters"


def check_phrases(path: Path, source: str) -> Iterator[str]:
    """Check comments and docstrings, and all strings of the package: elsewhere, other strings are data."""
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = token.type == tokenize.STRING and previous in LINE_STARTS
        is_text = token.type == tokenize.STRING and path.parts[0] == "agent"
        previous = token.type
        if token.type == tokenize.COMMENT or is_docstring or is_text:
            for found in PHRASES.finditer(token.string.strip("\"'# rf")):
                line = token.start[0] + token.string[: found.start()].count("\n")
                yield f"{path}:{line}: the phrase {found.group(0).strip()!r}"


def check_repeated_names(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Names of top-level functions and classes that several modules define with different meanings."""
    places: dict[str, set[Path]] = defaultdict(set)
    for path, tree in trees.items():
        if path.parts[1:2] == ("providers",) and len(path.parts) > 3:
            continue  # the packages of wire formats have the same structure
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith(
                "_"
            ):
                places[node.name].add(path)
    for name, paths in sorted(places.items()):
        if len(paths) > 1 and name not in SAME_NAME_ALLOWED:
            yield f"{name!r} is defined in {', '.join(map(str, sorted(paths)))}"


def main() -> int:
    trees: dict[Path, ast.Module] = {}
    problems: list[str] = []
    wanted = [Path(name) for name in sys.argv[1:]]
    for folder in ("agent", "tests", "benchmarks", "scripts", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text("utf-8")
            short = path.relative_to(ROOT)
            tree = ast.parse(source)
            if folder == "agent":
                trees[short] = tree
            if wanted and not any(short.is_relative_to(place) for place in wanted):
                continue
            problems += check_names(short, tree)
            problems += check_docstrings(short, tree)
            if short != Path("scripts/words.py"):
                problems += check_phrases(short, source)
    problems += [
        line for line in check_repeated_names(trees) if not wanted or any(str(place) in line for place in wanted)
    ]
    print(*problems, sep="\n")
    if problems:
        print(f"{len(problems)} names and phrases to change")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
