"""Write the benchmark page from a result: tables and plots.

python -m benchmarks.report build/bench/result.json
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import plots, shared_limits
from benchmarks.contestants import EVERYONE, FLOOR, OURS, ROOT
from benchmarks.plots import number_of
from benchmarks.rows import CROWD, GROWTH, IMPORT, MEMORY, OTHER_TITLES, ROUTER, ROWS, SESSIONS, SHARED, START
from benchmarks.workload import APIS

PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "assets"
OWN = (OURS.name,)
RAW = ("raw httpx", "httpx2 + orjson", "aiohttp + orjson")
"""Not LLM libraries: they send and parse by hand, and check nothing."""
ORDER = [entry.name for entry in EVERYONE if entry.name != "raw httpx, again"]
TITLES = {row.key: row.title for row in ROWS} | {START: OTHER_TITLES[START], MEMORY: OTHER_TITLES[MEMORY]}
FEW = 3
"""Tables with at most this many libraries have no plot."""
Json = dict[str, Any]

HEAD = """# Benchmarks

CPU time of calls, streams, conversations and start-up, as a ratio to raw httpx 0.28 with the standard library's JSON
in the same run. A ratio below 1 means less work than a hand-written call. `make bench` and
`python -m benchmarks.report` write this page.

Measured on {date}: {processor}, {cores} cores, {system}, Python {python}.

## Method

- The server runs in a separate process on its own core and sends prepared bytes with the headers and fields of real
  vendors. It supports Chat Completions, Responses, Messages and Gemini's API. Each stream event is one HTTP chunk,
  and each write contains eight chunks. There is no compression and no TLS.
- Each library runs in its own process and virtual environment, reuses its client, and has tracing and logging turned
  off. The figures count the user and system CPU time of that process, but no waiting.
- A result counts only if the text, and the usage where the library reports it, equal what the server sent.
- Libraries take turns in blocks of about {block} ms, in changing order. Each figure is the median over {rounds}
  rounds of the ratio of a block to the mean of the raw httpx blocks before and after it. All processes are started
  anew in each session ({sessions}).
- Raw httpx runs twice in each round, in two processes. The row *raw httpx, again* would be 1.00 without noise; ignore
  differences smaller than its quartiles.
- *raw httpx*, *httpx2 + orjson* and *aiohttp + orjson* are not LLM libraries: they only parse JSON and check nothing.
  Bold marks the library with the lowest cost. A dash means that a library does not support this, or that it [could
  not be measured](#missing-results).
"""

TAIL = """## Reproduce

```bash
make bench-quick  # this package against raw httpx, with limits; two minutes
make bench        # all libraries, installed in .tools/bench; an hour
python -m benchmarks.quick --rows call,stream --apis anthropic
python -m benchmarks.report build/bench/result.json
```
"""


class Result:
    """A result, by row."""

    def __init__(self, read: Json) -> None:
        self.read = read
        self.cells: dict[tuple[str, str, str], Json] = {
            (cell["row"], cell["api"], cell["contestant"]): cell for cell in read["cells"]
        }

    def apis(self, row: str) -> list[str]:
        return [api for api in APIS if any((row, api, name) in self.cells for name in ORDER)]

    def ratio(self, row: str, api: str, name: str) -> float | None:
        if name == FLOOR.name:
            return 1.0
        cell = self.cells.get((row, api, name), {})
        return cell["ratio"]["median"] if "ratio" in cell else None

    def names(self, row: str) -> list[str]:
        return [name for name in ORDER if any(self.ratio(row, api, name) is not None for api in self.apis(row))]


def table(result: Result, row: str) -> Iterator[str]:
    """A line for each contestant, a column for each API; the least of the libraries in bold."""
    apis = result.apis(row)
    best = {api: min(_libraries(result, row, api).values(), default=math.inf) for api in apis}
    yield "| | " + " | ".join(apis) + " |"
    yield "|---|" + "---:|" * len(apis)
    for name in result.names(row):
        shown = [_format_ratio(result.ratio(row, api, name), best[api] if name not in RAW else None) for api in apis]
        yield f"| {name} | " + " | ".join(shown) + " |"
    controls = [result.cells.get((row, api, OURS.name), {}).get("control") for api in apis]
    if all(controls):
        parts = [
            f"{control['median']:.2f} ({control['low']:.2f}–{control['high']:.2f})" for control in controls if control
        ]
        yield "| *raw httpx, again* | " + " | ".join(parts) + " |"


def _libraries(result: Result, row: str, api: str) -> dict[str, float]:
    results = {name: result.ratio(row, api, name) for name in ORDER if name not in RAW}
    return {name: ratio for name, ratio in results.items() if ratio is not None}


def _format_ratio(ratio: float | None, best: float | None) -> str:
    if ratio is None:
        return "–"
    return f"**{number_of(ratio)}**" if ratio == best else number_of(ratio)


def picture(result: Result, row: str) -> str:
    """The geometric mean over the APIs that a contestant speaks, with that of the quartiles."""
    results: list[plots.Bar] = []
    for name in result.names(row):
        cells = [result.cells.get((row, api, name), {}) for api in result.apis(row)]
        spreads = [cell["ratio"] for cell in cells if "ratio" in cell]
        kind = "ours" if name in OWN else "floor" if name in RAW else "other"
        if name == FLOOR.name:
            results.append(plots.Bar(name, 1.0, 1.0, 1.0, kind))
        elif spreads:
            value, low, high = (_mean([spread[part] for spread in spreads]) for part in ("median", "low", "high"))
            results.append(plots.Bar(name, value, low, high, kind))
    unit = "raw httpx = 1" if row == MEMORY else "CPU, raw httpx = 1"
    return plots.bars(TITLES[row][:1].upper() + TITLES[row][1:], unit, results)


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def behind(result: Result) -> Iterator[str]:
    """List the rows in which another library or the floor is cheaper than this package."""
    for row in TITLES:
        for api in result.apis(row):
            results = _libraries(result, row, api)
            ours = [results.pop(name) for name in OWN if name in results]
            if not ours:
                continue
            mine = min(ours)
            ahead = {name: ratio for name, ratio in results.items() if ratio < mine}
            parts = ", ".join(
                f"{name} {number_of(ratio)}" for name, ratio in sorted(ahead.items(), key=lambda one: one[1])
            )
            if parts:
                yield f"- {TITLES[row]}, {api}: agent {number_of(mine)}; {parts}."
            elif mine > 1:
                yield f"- {TITLES[row]}, {api}: agent {number_of(mine)}, raw httpx 1."


def list_other_rows(result: Result) -> Iterator[str]:
    """List the rows without other contestants."""
    read = result.read
    yield "| measurement | result |"
    yield "|---|---|"
    if IMPORT in read:
        data = read[IMPORT]
        yield _line(
            "`from agent import Agent`",
            f"{data['ratio']:.2f} × pydantic with one model ({data['ours_ms']:.0f} ms CPU)",
        )
    if ROUTER in read:
        data = read[ROUTER]
        plain = data["call_microseconds"]
        yield _line(
            "a router of three targets adds", f"{data['added_microseconds']:.0f} µs to a call of {plain:.0f} µs"
        )
    for (row, api, name), cell in result.cells.items():
        if row == GROWTH and "ratio" in cell:
            costs = ", ".join(f"{cost:.1f}" for cost in cell["microseconds_a_chunk"].values())
            what = f"a chunk in streams of 100, 1,000 and 10,000: {name}, {api}"
            yield _line(what, f"{costs} µs; late to early {cell['ratio']['median']:.2f}")
        if row == CROWD and "memory" in cell:
            memory = {part: f"{size / 2**20:.0f} MB" for part, size in cell["memory"].items()}
            what = f"1,000 streams of 200 chunks at once, four times: {name}, {api}"
            yield _line(
                what, f"{memory['warm']} after the first, {memory['after']} after the last, {memory['peak']} peak"
            )
    if SESSIONS in read:
        data = read[SESSIONS]
        for age, turn in data["turns"].items():
            share = turn["microseconds"] / turn["json_microseconds"]
            sent = f"{turn['bytes'] / 1024:.1f} KB"
            spent = f"{turn['microseconds']:.0f} µs for {sent}, {share:.1f} × `json.dumps` of it"
            yield _line(f"turn {int(age):,} of a session", spent)
        grown = data["append_last_tenth_to_first"]
        yield _line("appending to a graph of 300,000 messages, last tenth to first", f"{grown:.2f}")


def _line(measurement: str, result: str) -> str:
    return f"| {measurement} | {result} |"


def list_shared_limits(data: Json) -> Iterator[str]:
    """Compare routers with state in Redis."""
    yield "Routers with state in Redis, and LiteLLM's router with Redis, in one run."
    yield "CPU times are the least of all blocks."
    yield ""
    yield shared_limits.format_tables(data)


def list_missing(result: Result) -> Iterator[str]:
    """List the contestants that could not take part, with the reason."""
    for name, reason in result.read["absent"].items():
        yield f"- {name} could not be installed: {reason}"
    reasons: dict[tuple[str, str], list[str]] = {}
    for (row, api, name), cell in result.cells.items():
        reason = cell.get("error") or cell.get("absent", "")
        if reason and not reason.startswith(("has no ", "speaks ")):
            reasons.setdefault((name, reason.splitlines()[0][:160]), []).append(f"{TITLES.get(row, row)} ({api})")
    for (name, reason), places in reasons.items():
        where = places[0] if len(places) == 1 else f"{len(places)} cells"
        yield f"- {name}, {where}: {reason}"


def list_versions(result: Result) -> Iterator[str]:
    yield "| library | versions |"
    yield "|---|---|"
    for name, versions in result.read["versions"].items():
        if name in ORDER and versions:
            yield f"| {name} | {', '.join(f'{library} {version}' for library, version in versions.items())} |"


def page(result: Result) -> str:
    read = result.read
    settings = read["settings"]
    head = HEAD.format(
        date=read["date"][:10],
        python=read["python"],
        block=round(settings["block_seconds"] * 1000),
        rounds=settings["sessions"] * settings["rounds"],
        sessions=settings["sessions"],
        **read["machine"],
    )
    lines = [head]
    for row, title in TITLES.items():
        if result.apis(row):
            lines += [f"## {title[:1].upper()}{title[1:]}", ""]
            if len(result.names(row)) > FEW:
                lines += [f"![{title}, as bars](assets/benchmarks-{row}.svg)", ""]
            lines += [*table(result, row), ""]
    if SHARED in read:
        lines += ["## Shared limits on Redis", "", *list_shared_limits(read[SHARED]), ""]
    lines += ["## Other measurements", "", *list_other_rows(result), ""]
    lines += ["## Where another library or raw httpx is faster", "", *(list(behind(result)) or ["Nowhere."]), ""]
    lines += ["## Missing results", "", *(list(list_missing(result)) or ["None."]), ""]
    lines += ["## Versions", "", *list_versions(result), ""]
    return "\n".join([*lines, TAIL])


def main(arguments: list[str]) -> int:
    result = Result(json.loads(Path(arguments[0]).read_text()))
    PICTURES.mkdir(exist_ok=True)
    for row in TITLES:
        if len(result.names(row)) > FEW:
            (PICTURES / f"benchmarks-{row}.svg").write_text(picture(result, row))
    PAGE.write_text(page(result))
    print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
