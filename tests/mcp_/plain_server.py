"""A server for the older protocol in plain Python, with misbehavior by command line options."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

TOOL = {"name": "act", "description": "", "inputSchema": {"type": "object", "properties": {"do": {"type": "string"}}}}


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def act(do: str) -> dict[str, Any] | None:
    match [do] if do == "half a character" else do.split(" ", 1):
        case ["env"]:
            return {"content": [{"type": "text", "text": json.dumps(dict(os.environ))}]}
        case ["pid"]:
            return {"content": [{"type": "text", "text": str(os.getpid())}]}
        case ["die"]:
            sys.stderr.write("first words\n")
            sys.stderr.write(f"the disk \x1b[31mis full\x1b[0m; token was {os.environ.get('TOKEN')}\n")
            sys.stderr.flush()
            os._exit(3)
        case ["grandchild"]:
            made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            return {"content": [{"type": "text", "text": str(made.pid)}]}
        case ["long", size]:
            return {"content": [{"type": "text", "text": "x" * int(size)}]}
        case ["invalid_line"]:
            sys.stdout.write("Loading…\n{not json}\n\n")
            return {"content": [{"type": "text", "text": "babbled"}]}
        case ["nonsense"]:
            return {"content": [{"type": "text"}]}
        case ["half a character"]:
            return {"content": [{"type": "text", "text": "\ud800"}]}
        case ["garbled"]:
            return {"content": [{"type": "image", "data": "***", "mimeType": "image/png"}]}
        case ["sample"]:
            params = {"messages": [], "maxTokens": 10}
            say({"id": "s1", "method": "sampling/createMessage", "params": params})
            answer = json.loads(sys.stdin.readline())
            return {"content": [{"type": "text", "text": answer["error"]["message"]}]}
        case ["silence"]:
            return None
        case _:
            return {"content": [{"type": "text", "text": do}]}


def main(how: str) -> None:
    if how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "gone":
        sys.stderr.write("no such module: weather\n")
        sys.exit(2)
    if how == "babbling":
        while True:
            print("this is not what you expect")
    if how == "mute":
        time.sleep(60)
    cancelled: list[Any] = []
    for line in sys.stdin:
        message = json.loads(line)
        id, method = message.get("id"), message.get("method")
        if how == "easily offended" and method == "server/discover":
            sys.exit(1)
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "plain", "version": "1"}
            say({"id": id, "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}})
        elif method == "tools/list":
            endless = {"tools": [TOOL] * 100, "nextCursor": str(id)}
            say({"id": id, "result": endless if how == "endless" else {"tools": [TOOL]}})
        elif method == "tools/call":
            do = message["params"]["arguments"].get("do", "")
            told = {"content": [], "structuredContent": {"cancelled": cancelled}}
            result = told if do == "cancelled?" else act(do)
            if result is not None:
                say({"id": id, "result": result})
        elif method == "notifications/cancelled":
            cancelled.append(message["params"]["reason"])
        elif id is not None:
            say({"id": id, "error": {"code": -32601, "message": "Method not found"}})
    if how == "stubborn":
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
