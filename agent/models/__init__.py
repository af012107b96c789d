"""What is known about models: how much they read and write, what they can do, when they retire.

The table is a file in this package, read at the first lookup. It is neither complete nor always current: None means not
known, and nobody should refuse anything for that. What you know better, `register_model` adds, and it wins.
"""

from __future__ import annotations

from .lookup import ModelFacts, Prices, facts, list_models, register_model

__all__ = ["ModelFacts", "Prices", "facts", "list_models", "register_model"]
