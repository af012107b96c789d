"""Stream a response to a web page with server-sent events. Runs offline."""

from __future__ import annotations

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from agent import errors
from agent.testing import scripted_agent

AGENT = scripted_agent("Good morning, Ada. It is sunny in Paris.", delay=0.02)


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            with AGENT.stream("Greet me.", deadline=60.0) as stream:  # closed if the reader disconnects
                for text in stream.text_stream():
                    self.send_event("text", text)
            self.send_event("done", stream.response.stop_reason)
        except errors.AgentError as error:
            self.send_event("failed", type(error).__name__)  # a partial answer is marked as failed

    def send_event(self, kind: str, data: Any) -> None:
        self.wfile.write(f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode())

    @override
    def log_message(self, *args: Any) -> None:
        pass


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/") as answer:
            print(answer.read().decode())
        server.shutdown()


if __name__ == "__main__":
    main()
