"""Matches a regular expression against the lines of texts, in a process of its own. See `matcher`.

Nothing of this package is imported here: it is run as plain source, by an interpreter that knows no packages. It opens
no file. An order comes as an argument; texts come through standard input, each with its size and the most matches
wanted in front; each is answered with one line of JSON.
"""

import io
import json
import re
import resource
import struct
import sys
from contextlib import suppress
from typing import Any

LONGEST_EXCERPT = 500


def excerpt(line: str, start: int) -> str:
    """A line, or the part of a very long line around its match."""
    if len(line) <= LONGEST_EXCERPT:
        return line
    begin = max(0, start - LONGEST_EXCERPT // 4)
    end = begin + LONGEST_EXCERPT
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


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def limit(seconds: float, memory: int) -> None:
    """For the case that nobody is left to kill this process."""
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
        say({"error": str(error)[:500]})
        return
    say({"lines": []})
    while header := sys.stdin.buffer.read(16):
        size, most = struct.unpack(">QQ", header)
        text = sys.stdin.buffer.read(size).decode("utf-8", "replace")
        say({"lines": matches(pattern, text, most)})


if __name__ == "__main__":
    main()
