"""Makes agent/models/models.json, the table of what is known about models.

    pip download litellm --no-deps && python scripts/model_facts.py litellm-*.whl

The facts are read from the model map inside the litellm wheel (MIT licence, Copyright (c) 2023 Berri AI; its notice is
kept in the table), which is never installed. Gaps and errors of the map are corrected below, by hand. Prices are
not taken: they come from genai-prices, when they are needed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "agent" / "models" / "models.json"
MAP_IN_WHEEL = "litellm/model_prices_and_context_window_backup.json"
LIMIT = 150_000
"""Bytes the table may have."""

NOTICE = """\
Facts about models, taken from the model map of litellm (https://github.com/BerriAI/litellm) and corrected by hand in
scripts/model_facts.py. The map is under the MIT License:

Copyright (c) 2023 Berri AI

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

SOURCES: dict[str, tuple[tuple[str, str], ...]] = {
    "openai": (("openai", ""),),
    "anthropic": (
        ("anthropic", ""),
        ("bedrock_converse", "anthropic."),
        ("bedrock", "anthropic."),
        ("vertex_ai-anthropic_models", "vertex_ai/"),
    ),
    "gemini": (
        ("gemini", "gemini/"),
        ("vertex_ai-language-models", "vertex_ai/"),
        ("vertex_ai-language-models", "gemini-"),
    ),
    "deepseek": (("deepseek", "deepseek/"), ("deepseek", "")),
    "groq": (("groq", "groq/"),),
    "mistral": (("mistral", "mistral/"),),
    "xai": (("xai", "xai/"),),
    "together": (("together_ai", "together_ai/"),),
    "fireworks": (("fireworks_ai", "fireworks_ai/accounts/fireworks/models/"),),
    "cerebras": (("cerebras", "cerebras/"),),
    "perplexity": (("perplexity", "perplexity/"),),
    "moonshot": (("moonshot", "moonshot/"),),
    "zai": (("zai", "zai/"),),
    "alibaba": (("dashscope", "dashscope/"),),
    "cohere": (("cohere_chat", ""),),
    "minimax": (("minimax", "minimax/"),),
    "nova": (("amazon_nova", "amazon-nova/"), ("bedrock_converse", "amazon.")),
    "sambanova": (("sambanova", "sambanova/"),),
    "local": (),
}
"""Our table → the map's providers, and how their keys begin there. The first source that has a model wins."""

MODES = ("chat", "responses")
NOT_CHAT = re.compile(
    r"-tts|lyria|realtime|-live|transcribe|guard|container|embedding|-image|search-api|robotics|deep-research|"
    r"omni-|-up-to-|learnlm|exp-\d|^together-ai|codellama|^pplx|llama-2|-base$|-online$|computer-use|^\w+/"
)
"""Names of what is no general chat model. The last alternative is another vendor's model behind an aggregator."""
VENDOR_IN_NAME = frozenset(("together", "groq"))
"""Tables whose own names hold a slash."""
SOLD_BY_CLOUDS = frozenset(("anthropic", "gemini", "nova"))
MANY = frozenset(("fireworks",))
"""Vendors that list whatever was ever uploaded: only rows that claim something are taken."""
STALE = "2026-01-01"
"""Models retired before this date have no row."""

CURATED = frozenset(("openai", "anthropic", "gemini", "deepseek", "mistral", "xai", "groq", "moonshot"))
"""Vendors whose rows are complete: a model cannot do what its row does not claim."""

CAPABILITIES = {
    "tools": "supports_function_calling",
    "vision": "supports_vision",
    "documents": "supports_pdf_input",
    "audio": "supports_audio_input",
    "native_schema": "supports_response_schema",
    "thinking": "supports_reasoning",
    "sampling": "supports_sampling_params",
}
NO_IF_UNCLAIMED = ("tools", "vision", "audio", "native_schema", "thinking")

WINDOW_IS_SUM = {("openai", 272_000, 128_000), ("openai", 922_000, 128_000)}
"""Where the map's input limit leaves room for the longest answer: the window is both together."""

CORRECTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    # OpenAI: reasoning models refuse temperature and top_p, and so do those that search by themselves.
    ("openai", r"^(ft:)?o\d", {"sampling": False}),
    ("openai", r"^(gpt-5|gpt-[6-9]|codex|chat-latest|.*daybreak)", {"sampling": False}),
    ("openai", r"search-preview", {"sampling": False}),
    ("openai", r"^gpt-5-chat", {"sampling": True, "thinking": False}),
    ("openai", r"^gpt-5[.]\d-chat-latest", {"thinking": True}),
    # Those that do not think unless told to take both, as long as they are not told to.
    (
        "openai",
        r"^gpt-5[.](1|2|4)(-mini|-nano)?(-\d{4}-\d\d-\d\d)?$",
        {"sampling": True, "sampling_with_thinking": False},
    ),
    ("openai", r"^gpt-(3[.]5|4)", {"thinking": False}),
    ("openai", r"^ft:gpt-(3[.]5|4)", {"thinking": False, "tools": True}),
    ("openai", r"^ft:gpt-(4o|4[.]1)", {"vision": True}),
    # Anthropic: enforced schemas have a row of their own in the map; thinking and temperature exclude each other.
    ("anthropic", r"^claude-(3-7|sonnet-4|opus-4|haiku-4)", {"sampling_with_thinking": False}),
    ("anthropic", r"^claude-3-5-haiku", {"vision": True}),
    ("anthropic", r"^claude-3-7-sonnet", {"max_output": 64_000}),
    # DeepSeek has a JSON mode and no schemas. The reasoner takes temperature and does not use it.
    ("deepseek", r".", {"native_schema": False}),
    # Perplexity's models search by themselves and call no tools.
    ("perplexity", r"^sonar", {"tools": False, "native_schema": True}),
)
"""(table, pattern of the model's name, facts), applied in order."""

_GEMINI = {"tools": True, "vision": True, "documents": True, "audio": True, "native_schema": True}
ADDED: dict[str, dict[str, dict[str, Any]]] = {
    "gemini": {
        "gemini-1.5-flash": {"context_window": 1_048_576, "max_output": 8192, **_GEMINI, "thinking": False},
        "gemini-1.5-pro": {"context_window": 2_097_152, "max_output": 8192, **_GEMINI, "thinking": False},
        "gemini-2.0-flash": {"context_window": 1_048_576, "max_output": 8192, **_GEMINI, "thinking": False},
        "gemini-2.0-flash-lite": {"context_window": 1_048_576, "max_output": 8192, **_GEMINI, "thinking": False},
        "gemini-3-pro-preview": {"context_window": 1_048_576, "max_output": 65_536, **_GEMINI, "thinking": True},
    },
    "groq": {
        "llama-3.3-70b-versatile": {"context_window": 131_072, "max_output": 32_768, "tools": True, "vision": False},
        "llama-3.1-8b-instant": {"context_window": 131_072, "tools": True, "vision": False},
    },
    "xai": {
        "grok-3": {"context_window": 131_072, "tools": True, "vision": False, "native_schema": True},
        "grok-3-mini": {"context_window": 131_072, "tools": True, "vision": False, "thinking": True},
        "grok-4": {"context_window": 256_000, "tools": True, "vision": True, "native_schema": True, "thinking": True},
    },
    "local": {
        "smollm2": {
            "context_window": 8192,
            "prices": {"input": 0.0, "output": 0.0},
            "tools": True,
            "native_schema": True,
            "vision": False,
            "documents": False,
            "audio": False,
            "thinking": False,
        },
    },
}
"""Well-known models that the map no longer lists, which programs and recordings still name; and the embedded one."""

DROPPED = {"anthropic": r"^claude(-instant)?$|20240620$"}


def read_map(source: Path) -> tuple[dict[str, dict[str, Any]], str]:
    """The model map in a wheel, or in a JSON file; and what it is a version of."""
    if source.suffix == ".whl":
        with zipfile.ZipFile(source) as wheel:
            return json.loads(wheel.read(MAP_IN_WHEEL)), "-".join(source.name.split("-")[:2])
    return json.loads(source.read_text("utf-8")), source.name


def table_of(models: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Rows by table and model."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for table, sources in SOURCES.items():
        rows: dict[str, dict[str, Any]] = {}
        for provider, prefix in sources:
            for key, entry in models.items():
                if entry.get("litellm_provider") != provider or not key.startswith(prefix):
                    continue
                name = own_name(table, key if prefix == "gemini-" else key.removeprefix(prefix))
                if is_wanted(table, name, entry):
                    rows.setdefault(name, row_of(table, name, entry))
        for name, facts in ADDED.get(table, {}).items():
            rows.setdefault(name, shorten_row(facts))
        tables[table] = without_copies(rows)
    return {table: dict(sorted(rows.items())) for table, rows in tables.items() if rows}


def own_name(table: str, name: str) -> str:
    """A model's name without what a cloud adds to it."""
    if table not in SOLD_BY_CLOUDS:
        return name
    return re.sub(r"(-v\d+(:\d+)?|@default|:\d+)$", "", name.replace("@2", "-2"))


def is_wanted(table: str, name: str, entry: Mapping[str, Any]) -> bool:
    if entry.get("mode") not in MODES or not entry.get("max_input_tokens"):
        return False
    if table in MANY and not (entry.get("supports_function_calling") or entry.get("supports_reasoning")):
        return False
    if str(entry.get("deprecation_date") or "9999") < STALE and table != "anthropic":
        return False
    if table in DROPPED and re.search(DROPPED[table], name):
        return False
    found = NOT_CHAT.search(name)
    return found is None or ("/" in found[0] and table in VENDOR_IN_NAME and "guard" not in name)


def row_of(table: str, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    reads, writes = _number(entry.get("max_input_tokens")), _number(entry.get("max_output_tokens"))
    if (table, reads, writes) in WINDOW_IS_SUM:
        assert reads is not None
        assert writes is not None
        facts["context_window"], facts["max_input"] = reads + writes, reads
    else:
        facts["context_window"] = reads
    # Some vendors name the window as the limit of an answer, which says nothing.
    facts["max_output"] = writes if writes is not None and (reads is None or writes < reads) else None
    for fact, key in CAPABILITIES.items():
        value = entry.get(key)
        if value is None and fact in NO_IF_UNCLAIMED and table in CURATED:
            value = False
        facts[fact] = value
    if table == "anthropic":
        facts["native_schema"] = bool(entry.get("supports_native_structured_output"))
    takes = entry.get("supported_modalities") or ()
    if takes:
        facts["vision"], facts["audio"] = "image" in takes, "audio" in takes
    makes = [kind for kind in entry.get("supported_output_modalities") or () if kind != "text"]
    facts["makes"] = " ".join(makes) if makes and takes else None
    facts["retires"] = entry.get("deprecation_date")
    for where, pattern, correction in CORRECTIONS:
        if where == table and re.search(pattern, name):
            facts.update(correction)
    return shorten_row(facts)


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and value > 0 else None


def shorten_row(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Format a row: numbers and dates as they are, true and false facts as one line of words each."""
    row = {name: value for name, value in facts.items() if value is not None and not isinstance(value, bool)}
    for word, wanted in (("yes", True), ("no", False)):
        names = [name for name, value in facts.items() if value is wanted]
        if names:
            row[word] = " ".join(names)
    return row


def without_copies(rows: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A dated version that says what its family says needs no row: looking it up finds the family."""
    kept: dict[str, dict[str, Any]] = {}
    for name, row in rows.items():
        family = re.sub(r"-(\d{4}-\d\d-\d\d|\d{8})$", "", name)
        if family != name and family in rows:
            if rows[family] == row:
                continue
        elif family != name and not any(other != name and other.startswith(f"{family}-2") for other in rows):
            kept[family] = row  # the only version there is
            continue
        kept[name] = row
    return kept


def format_tables(tables: Mapping[str, Mapping[str, Any]], version: str) -> str:
    """One line for each model, so that a change shows as one."""

    def lines(rows: Mapping[str, Any]) -> Iterable[str]:
        return (f"{json.dumps(name)}: {json.dumps(row, separators=(', ', ': '))}" for name, row in rows.items())

    blocks = ",\n".join(
        f"{json.dumps(table)}: {{\n" + ",\n".join(lines(rows)) + "\n}" for table, rows in tables.items()
    )
    notice = json.dumps(NOTICE.splitlines())
    return f'{{"notice": {notice},\n"source": {json.dumps(version)},\n"models": {{\n{blocks}\n}}}}\n'


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="a litellm wheel, or the JSON file inside it")
    parser.add_argument("--target", type=Path, default=TARGET)
    given = parser.parse_args(arguments)
    models, version = read_map(given.source)
    tables = table_of(models)
    text = format_tables(tables, version)
    if len(text.encode()) > LIMIT:
        print(f"{len(text.encode())} bytes are more than {LIMIT}", file=sys.stderr)
        return 1
    given.target.write_text(text, "utf-8")
    print(f"{given.target}: {sum(map(len, tables.values()))} models, {len(text.encode())} bytes, from {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
