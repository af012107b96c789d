"""A stdio server that replies to some methods with given texts, or exits with them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    stage, kind, text, good = json.loads(Path(sys.argv[1]).read_text())
    for line in sys.stdin:
        message = json.loads(line)
        method, reply = message["method"], {"jsonrpc": "2.0", "id": message.get("id")}
        if method in stage and kind != "reply":
            sys.stdout.write({"line": f"{text}\n", "half a line": text}.get(kind, ""))
            sys.stdout.flush()
            sys.stderr.write(f"{text}\n" if kind == "last words" else "")
            sys.stderr.flush()
            os._exit(3)
        if "id" in message:
            unknown = {"error": {"code": -32601, "message": "unknown method"}}
            fields = json.loads(text) if method in stage else {"result": good[method]} if method in good else unknown
            sys.stdout.write(json.dumps(reply | fields) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
