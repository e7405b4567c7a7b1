"""A level of the clients' models that no client has, which is said before round 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from task.models.family import Kinds, Levels, Widths
from task.population import some
from task.resolve.contract import levels_of

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine

FEW = 10_000  # clients; among more than these each level that has a share has clients


def warn_of_empty(engine: PhaseEngine) -> None:
    """Say, in round 1, which of ``models.levels`` or ``width.levels`` none of the clients has."""
    config, family, registry = engine.config, engine.family, engine.registry
    if registry.round > 1:
        return
    levels: Levels[str] | Levels[float] = levels_of(config, registry.model)
    if isinstance(family, Widths | Kinds):
        levels = family.levels
    names = registry.names
    if len(levels.values) == 1 or not names or len(names) > FEW:
        return
    has = {levels.of(name) for name in names}
    shares = zip(levels.values, levels.shares, strict=True)
    if empty := [f"{value}" for value, share in shares if share and value not in has]:
        key = "models.levels" if config.models.levels else "width.levels"
        engine.journal.remark(
            f"warning: {key}: none of the {len(names)} clients has {some(empty)}; a client's level is drawn "
            "from its name, so that of few clients a level may have none. Use more clients, another "
            "data-seed or fewer levels, or let nodes say theirs (bouquet node --model or --width)"
        )
