"""Store, fork and continue a conversation, also with another vendor. Runs offline."""

from __future__ import annotations

import tempfile
from pathlib import Path

from agent.stores import SqliteStore
from agent.testing import scripted_agent


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "sessions.db")
        session = scripted_agent("Hello, Ada!", "You are Ada.").session("ada", store=store)
        session.run("I am Ada.")
        print(session.run("Who am I?").text)

        # Later, in another program, with another vendor:
        again = scripted_agent("You have been Ada all along.").session("ada", store=store)
        print(again.run("Sure?").text)

        fork = again.fork()
        fork.undo(2)
        print(len(again.messages), "messages here,", len(fork.messages), "in the fork")
        store.close()


if __name__ == "__main__":
    main()
