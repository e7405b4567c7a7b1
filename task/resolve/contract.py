"""The contract of a run: its algorithm's catalogue entry with what other keys and features add to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from task.catalogue.entry import Algorithm
from task.catalogue.selections import SELECTIONS, with_selection
from task.catalogue.several import with_models
from task.catalogue.stages import with_stages
from task.catalogue.user_algorithm import algorithm_of
from task.codecs import CODECS
from task.config.knobs import Config
from task.features import with_features
from task.secagg.fixed_point import EXACT
from task.tasks import metrics_of

if TYPE_CHECKING:  # torch costs seconds
    pass


def entry_of(config: Config) -> Algorithm:
    """Return the entry of the run's algorithm, as the algorithm's own keys change it."""
    entry = config.entry
    if entry.models:
        return with_models(entry, int(config.value(entry.models)))
    if entry.distils and not config.value(entry.distils):
        return replace(entry, distils="")
    return entry


def contract_of(config: Config) -> Algorithm:
    """Return the entry of the run's algorithm, under its selection policy and with its stages."""
    entry = with_selection(entry_of(config), config.server.selection)
    entry = with_features(config, with_stages(entry, stages_of(config)))
    return replace(entry, metrics=True) if metrics_of(config, config.data.task) else entry


def takes_public(config: Config) -> bool:
    """Return whether the run's public examples are taken out of its clients' own pool."""
    return contract_of(config).reads_public and not config.public.data


def stages_of(config: Config) -> frozenset[str]:
    """Return the stages that the run config names."""
    named = {"ala": config.train.ala, "attack": config.attack.kind != "none"}
    robust = algorithm_of(config.algorithm).withstands is not None
    named["momentum"] = robust and config.robust.client_momentum > 0
    named["canary"] = config.dp.central and config.audit.canaries > 0
    codec = CODECS.get(config.codec.up)
    biased = codec is not None and codec.biased
    structured = config.structured.kind != "none"
    coded = (codec is not None and not biased) or structured
    named |= {"structured": structured, "codec": coded, "codec-with-feedback": biased}
    named |= {"dp": config.dp.central and not config.dp.adaptive, "adaptive-dp": config.dp.adaptive}
    named["example-dp"] = config.dp.local
    named["grid"] = config.server.secagg and config.server.secagg_bits < EXACT and not config.dp.central
    policy = SELECTIONS[config.server.selection].stages
    return frozenset(policy) | {name for name, on in named.items() if on}
