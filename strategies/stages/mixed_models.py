"""Clients that train parts of the model, or kinds of their own: ``width.*``, ``models.*``, dropout-width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from strategies.engine.stage import ServerStage
from task.models.family import Kinds, Levels, ModelFamily, SubModels, Widths
from task.population import some
from task.resolve.run_model import levels_of
from task.wire.layouts import Forms

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine

FEW = 10_000  # clients; among more than these each level that has a share has clients


def set_family(engine: PhaseEngine, family: ModelFamily | None) -> None:
    """Say which part of the model each client of a run trains."""
    if mixed := engine.find(MixedModelsStage):
        mixed.family = family


class MixedModelsStage(ServerStage):
    """Has each client train its part of the model, or its own kind of model."""

    name = "mixed_models"

    def __init__(self, engine: PhaseEngine) -> None:
        super().__init__(engine)
        self.family: ModelFamily | None = None  # which part of the model each client trains

    def offers(self) -> Mapping[str, Any]:
        """Give the rule the family."""
        return {"family": self.family}

    def forms(self, forms: Forms) -> Forms:
        """Return the forms of what each client has."""
        if self.family is None:
            return forms
        return replace(forms, part=SubModels(self.family, self.engine.round, self.engine.model).form)

    def registered(self) -> None:
        """Say, in round 1, which of ``models.levels`` or ``width.levels`` none of the clients has."""
        config, registry = self.engine.config, self.engine.registry
        if registry.round > 1:
            return
        levels: Levels[str] | Levels[float] = levels_of(config, registry.model)
        if isinstance(self.family, Widths | Kinds):
            levels = self.family.levels
        names = registry.names
        if len(levels.values) == 1 or not names or len(names) > FEW:
            return
        has = {levels.of(name) for name in names}
        shares = zip(levels.values, levels.shares, strict=True)
        if empty := [f"{value}" for value, share in shares if share and value not in has]:
            key = "models.levels" if config.models.levels else "width.levels"
            self.engine.journal.remark(
                f"warning: {key}: none of the {len(names)} clients has {some(empty)}; a client's level is "
                "drawn from its name, so with few clients a level may have none. Use more clients, "
                "another data-seed or fewer levels, or set the levels at the nodes (bouquet node "
                "--model or --width)"
            )
