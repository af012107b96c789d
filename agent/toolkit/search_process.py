"""Match a regular expression against lines, in a process that opens no files. See `search.Matcher`.

The source runs in an isolated interpreter and imports nothing of this package. The pattern is an argument; texts arrive
on standard input, each after its size and the match limit; each response is one line of JSON.
"""

import io
import json
import re
import resource
import struct
import sys
from contextlib import suppress
from typing import Any

MAX_EXCERPT = 500


def excerpt(line: str, start: int) -> str:
    """Return the line, or the part of a very long line around the match."""
    if len(line) <= MAX_EXCERPT:
        return line
    begin = max(0, start - MAX_EXCERPT // 4)
    end = begin + MAX_EXCERPT
    return ("…" if begin else "") + line[begin:end] + ("…" if end < len(line) else "")


def matches(pattern: "re.Pattern[str]", text: str, most: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for number, line in enumerate(io.StringIO(text, newline="\n"), start=1):
        line = line.removesuffix("\n").removesuffix("\r")
        match = pattern.search(line)
        if match is not None:
            found.append((number, excerpt(line, match.start())))
            if len(found) == most:
                break
    return found


def send_result(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def limit(seconds: float, memory: int) -> None:
    """Limit CPU time and memory, in case the parent dies."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 2, int(seconds) + 2))
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def main() -> None:
    order = json.loads(sys.argv[1])
    limit(order["seconds"], order["memory"])
    try:
        pattern = re.compile(order["pattern"], re.IGNORECASE if order["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        send_result({"error": str(error)[:500]})
        return
    send_result({"lines": []})
    while header := sys.stdin.buffer.read(16):
        size, most = struct.unpack(">QQ", header)
        text = sys.stdin.buffer.read(size).decode("utf-8", "replace")
        send_result({"lines": matches(pattern, text, most)})


if __name__ == "__main__":
    main()
