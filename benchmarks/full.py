"""Run all benchmarks, and write the results as JSON for `benchmarks.report`.

python -m benchmarks.full                                     # an hour; writes build/bench/result.json
python -m benchmarks.full --contestants litellm --rows call   # some of it
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import contest, conversations, growth, imports, routing, shared_limits, starts
from benchmarks.contest import Plan, Table
from benchmarks.contestants import AGAIN, EVERYONE, FLOOR, OURS, ROOT, Entry
from benchmarks.environments import Environment, prepare_all
from benchmarks.rows import CROWD, EVERY_KEY, GROWTH, IMPORT, MEMORY, ROUTER, ROWS, SESSIONS, SHARED, START
from benchmarks.server import run_server
from benchmarks.workload import APIS

RESULT = ROOT / "build" / "bench" / "result.json"
Json = dict[str, Any]


def machine() -> Json:
    model = ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        model = platform.processor()
    return {"processor": model or platform.machine(), "cores": os.cpu_count(), "system": platform.system()}


def of_starts(entries: list[Entry], places: dict[str, Environment], server: str, api: str, rounds: int) -> list[Json]:
    measured = starts.run(entries, places, server, api, rounds)
    cells: list[Json] = []
    for key, by_name, control in zip(
        (START, MEMORY), (measured.cpu, measured.memory), measured.controls(), strict=True
    ):
        for name, cell in by_name.items():
            line = {"row": key, "api": api, "contestant": name, **cell.as_json(), "control": control.as_json()}
            if key == MEMORY and "microseconds" in line:
                line["kilobytes"] = round(line.pop("microseconds") / 1e6)
                del line["blocks"], line["floors"]
            cells.append(line)
    return cells


def of_growth(entries: list[Entry], places: dict[str, Environment], server: str, api: str, rounds: int) -> list[Json]:
    results: list[Json] = []
    with contest.processes(entries, places, server) as alive:
        for entry in entries:
            measured = growth.measure(alive[entry.name], api, rounds, "stream")
            line: Json = {"row": GROWTH, "api": api, "contestant": entry.name}
            if isinstance(measured, str):
                results.append({**line, "absent": measured})
            else:
                costs = {length: round(cost * 1e6 / length, 3) for length, cost in measured.seconds.items()}
                results.append({**line, "ratio": {"median": round(measured.ratio, 4)}, "microseconds_a_chunk": costs})
    return results


def of_crowd(entries: list[Entry], places: dict[str, Environment], server: str, api: str) -> list[Json]:
    """A thousand concurrent streams of 200 chunks, four times."""
    results: list[Json] = []
    for entry in entries:
        with contest.processes((entry,), places, server) as alive:
            order: Json = {"task": CROWD, "api": api, "scenario": "stream-200", "in_flight": 1000, "times": 3000}
            answer = alive[entry.name].ask(**order)
            results.append({"row": CROWD, "api": api, "contestant": entry.name, **answer})
    return results


def of_sessions() -> Json:
    turns = {
        str(age): {
            "microseconds": round(cost, 1),
            "bytes": size,
            "json_microseconds": round(conversations.json_cost(age), 1),
        }
        for age, (cost, size) in conversations.session_costs(10_000, (10, 100, 1_000, 10_000)).items()
    }
    return {
        "turns": turns,
        "append_last_tenth_to_first": round(conversations.append_ratio(300_000), 3),
        "bytes_a_node": round(conversations.bytes_per_node(100_000)),
    }


def measure(options: argparse.Namespace, save: Callable[[Json], None]) -> Json:
    """Run the selected benchmarks, and save the results after each part."""
    entries = [entry for entry in EVERYONE if entry not in (FLOOR, AGAIN) and options.takes(entry.name)]
    own = [entry for entry in entries if entry == OURS]
    print("environments …", file=sys.stderr, flush=True)
    places = prepare_all(sorted({entry.environment for entry in (FLOOR, *entries)}))
    rows = [row for row in ROWS if row.key in options.rows]
    plan = Plan(rows, options.apis, options.sessions, options.rounds, options.block)
    result: Json = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "python": platform.python_version(),
        "settings": {"sessions": plan.sessions, "rounds": plan.rounds, "block_seconds": plan.block},
        "absent": {place.name: place.reason for place in places.values() if place.python is None},
        "versions": {},
        "cells": [],
    }

    def after_row(table: Table) -> None:
        result["versions"], result["cells"] = table.versions, table.as_json()
        save(result)

    def add(cells: list[Json]) -> None:
        result["cells"] += cells
        save(result)

    with run_server() as server:
        if rows:
            contest.run(plan, entries, places, server, after_row)
        for api in options.apis:
            if options.rows & {START, MEMORY}:
                add(of_starts(entries, places, server, api, options.rounds * 2))
            if GROWTH in options.rows:
                add(of_growth([FLOOR, *own], places, server, api, options.rounds))
        if CROWD in options.rows:
            add(of_crowd([FLOOR, *own], places, server, options.apis[0]))
    if IMPORT in options.rows and own:
        ratio, floor, ours = imports.import_ratio()
        result[IMPORT] = {"ratio": round(ratio, 3), "floor_ms": round(floor, 1), "ours_ms": round(ours, 1)}
    if ROUTER in options.rows and own:
        added, plain = routing.overhead()
        result[ROUTER] = {"added_microseconds": round(added, 2), "call_microseconds": round(plain, 2)}
    if SESSIONS in options.rows and own:
        result[SESSIONS] = of_sessions()
    if SHARED in options.rows and own:
        result[SHARED] = shared_limits.measure(prepare_all([shared_limits.ENVIRONMENT]))
    save(result)
    return result


def _options(arguments: list[str]) -> argparse.Namespace:
    keys = (*EVERY_KEY, CROWD, SESSIONS, SHARED)
    parser = argparse.ArgumentParser(description="Everyone against raw httpx, as ratios of CPU time.")
    parser.add_argument("--rows", default=",".join(keys), help="some of: " + ", ".join(keys))
    parser.add_argument("--apis", default=",".join(APIS), help="some of: " + ", ".join(APIS))
    parser.add_argument("--contestants", default="", help="only those whose names contain one of these")
    parser.add_argument("--sessions", type=int, default=3, help="how often all processes are started anew")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in each session")
    parser.add_argument("--block", type=float, default=0.05, help="seconds of CPU in a block, about")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    options.rows = set(options.rows.split(","))
    options.apis = options.apis.split(",")
    parts = [part for part in options.contestants.split(",") if part]
    options.takes = lambda name: not parts or any(part in name for part in parts)
    for selected, known in ((options.rows, keys), (options.apis, APIS)):
        if unknown := set(selected) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(known)}")
    return options


def _write(path: Path, result: Json) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n")


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = measure(options, lambda measured: _write(options.output, measured))
    for cell in result["cells"]:
        if "error" in cell:
            print(f"{cell['row']}, {cell['api']}, {cell['contestant']}: {cell['error']}")
    print(f"{options.output}: {len(result['cells'])} cells")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
