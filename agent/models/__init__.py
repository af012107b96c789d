"""Model facts: context windows, capabilities and retirement dates.

The table is part of the package and not always complete or current; None means unknown and never blocks a request.
`register_model` adds models and overrides facts.
"""

from __future__ import annotations

from .lookup import ModelFacts, Prices, facts, list_models, register_model

__all__ = ["ModelFacts", "Prices", "facts", "list_models", "register_model"]
