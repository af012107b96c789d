"""Local models that run in this process, without a key, server or network.

`install()` downloads the engine and the weights of SmolLM2, and `Agent("local:smollm2")` uses them. Other GGUF files
are used by path, or by a name given with `register_weights`.
"""

from __future__ import annotations

from .engine import unload
from .installer import Progress, Status, install, status
from .weights import register_weights

__all__ = ["Progress", "Status", "install", "register_weights", "status", "unload"]
