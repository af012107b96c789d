"""What a router is made from: targets, their names there, whose troubles they share, and settings that fit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from ..errors import ConfigurationError
from ..types import AgentResponse
from ..types.policies import BreakerConfig
from .health import Health, Parking
from .targets import Target


def name_targets(targets: Sequence[Target]) -> None:
    """Targets without a name are called as their agents; of several, all but the first get a number."""
    taken: set[str] = set()
    for target in targets:
        provider, model = target.callee.named()
        plain = target.name or (f"{provider}:{model}" if model else provider)
        name, number = plain, 1
        while name in taken:
            number += 1
            name = f"{plain}#{number}"
        if target.name and name != target.name and target.health is None:
            raise ConfigurationError(
                f"Two targets are called {target.name!r}.", field="targets", fix="Give each a name of its own."
            )
        target.name = name
        taken.add(name)


def share_health(targets: Sequence[Target], config: BreakerConfig) -> None:
    """What is the same model behind the same key fails together; what is behind the same key is refused together."""
    keys: dict[Hashable, Parking] = {}
    known: dict[Hashable, Health] = {}
    for target in targets:
        access, whole = target.callee.identity()
        if target.health is not None:
            keys.setdefault(access, target.health.key)
            known.setdefault(whole, target.health)
    for target in targets:
        if target.health is None:
            access, whole = target.callee.identity()
            if whole not in known:
                known[whole] = Health(config, keys.setdefault(access, Parking()))
            target.health = known[whole]


def tools_of(targets: Sequence[Target], response: AgentResponse | None) -> list[Any]:
    """The tools that the targets offer. Of several with one name, that of the target which answered."""
    attempts = response.route if response is not None else ()
    answered = next((attempt.target for attempt in reversed(attempts) if attempt.error is None), None)
    found: dict[str, Any] = {}
    for target in sorted(targets, key=lambda target: target.name != answered):
        for tool in target.callee.own_tools(response):
            found.setdefault(getattr(tool, "name", ""), tool)
    return list(found.values())


def racers_of(race: bool | int, targets: int) -> int:
    """How many targets are asked at once."""
    if race is True:
        return targets
    if race is False:
        return 1
    if race < 2:
        raise ConfigurationError(f"A race of {race}.", field="race", fix="Pass True, or 2 or more.")
    return min(race, targets)


def one_of(field: str, value: str, known: Sequence[str]) -> None:
    """Refuse a setting that is none of these."""
    if value not in known:
        raise ConfigurationError(f"{field} is {value!r}.", field=field, fix=f"Use one of {', '.join(known)}.")
