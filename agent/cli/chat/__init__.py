"""What `agent chat` and `agent sessions` are made of: stored conversations, turns, commands, a prompt and a picture."""

from __future__ import annotations
