"""A language model inside this process: no key, no server, and no network once it is installed.

`install()` fetches the engine and the weights of SmolLM2, `status()` says what is there, and `Agent("local:smollm2")`
asks it. A GGUF file of your own is asked by its path, or by a name that `register_model` gives it.
"""

from __future__ import annotations

from .engine import unload
from .installer import Progress, Status, install, status
from .weights import register_model

__all__ = ["Progress", "Status", "install", "register_model", "status", "unload"]
