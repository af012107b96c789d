"""The chat of `agent chat`: stored sessions, turns, commands, input and transcripts."""

from __future__ import annotations
