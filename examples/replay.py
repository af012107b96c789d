"""Record responses and replay them.

Runs offline: a script replaces the recorded vendor.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from typing_extensions import override

from agent import AgentRequest, errors
from agent.middleware import Cache, CallInfo, Middleware, SqliteResponseStore
from agent.testing import scripted_agent


class RefuseUnrecorded(Middleware):
    """Runs after the cache, for requests that were not recorded."""

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> None:
        raise errors.ConfigurationError(f"Not recorded: {request.input!r}", fix="Record it first.")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        tape = Cache(SqliteResponseStore(Path(folder) / "tape.db"))
        recording = scripted_agent("Paris.", "Rome.", middleware=[tape])
        for country in ("France", "Italy"):
            recording.complete(f"What is the capital of {country}?")

        replaying = scripted_agent("must not be asked", middleware=[tape, RefuseUnrecorded()])
        print(replaying.complete("What is the capital of Italy?").text)
        print(replaying.stream("What is the capital of France?").collect().text)
        try:
            replaying.complete("What is the capital of Spain?")
        except errors.ConfigurationError as error:
            print(error.message)
        print(tape.stats)


if __name__ == "__main__":
    main()
