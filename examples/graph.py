"""Fork, merge, draw and save a conversation graph. Runs offline."""

from __future__ import annotations

import tempfile
from pathlib import Path

from agent.graph import DAG
from agent.testing import scripted_agent


def main() -> None:
    question = DAG().system("Answer in one word.").user("Tea or coffee?")
    one = scripted_agent("Tea.").complete(question).dag
    two = scripted_agent("Coffee.").complete(question).dag
    joined = scripted_agent("Both, then.").complete(one.merge(two).user("You gave two answers.")).dag
    print(joined)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conversation.json"
        joined.save(path)
        print(len(DAG.load(path)), "nodes, saved and loaded")
        joined.save_html(Path(folder) / "conversation.html")


if __name__ == "__main__":
    main()
