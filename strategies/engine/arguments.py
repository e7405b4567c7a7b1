"""The arguments of a strategy, by our names and by Flower's."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from inspect import Parameter, Signature
from typing import Any

from task.catalogue.entry import Algorithm
from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import Config
from task.config.read import Knob, as_run_config, checked, defaults, knobs
from task.errors import ConfigError, choose_from
from task.references import is_reference
from task.resolve.contract import contract_of
from task.resolve.effective import check_read, reads_only

FLOWER_NAMES = {"min_available_nodes": "min_nodes", "min_train_nodes": "min_replies"}


@cache
def server_arguments() -> Mapping[str, Knob]:
    """Return what every strategy takes: the server's keys, by our names and Flower's, and the seed.

    The number of rounds is an argument of `start`, as Flower has it.
    """
    found = {k.name: k for k in knobs() if k.section == "server" and k.name != "num_server_rounds"}
    found |= {flower: found[ours] for flower, ours in FLOWER_NAMES.items()}
    return found | {k.name: k for k in knobs() if k.key == "seed"}


@cache
def own_arguments(algorithm: str) -> Mapping[str, Knob]:
    """Return the keys of an algorithm's own that its strategy takes; none of a user's, which may read any."""
    if is_reference(algorithm):
        return {}
    entry = algorithm_of(algorithm)
    return {k.name: k for k in knobs() if entry.owns(k.key) and reads_only(k.key, algorithm)}


def _arguments(algorithm: str) -> Mapping[str, Knob]:
    return {**own_arguments(algorithm), **server_arguments()}


def signature_of(algorithm: str) -> Signature:
    """Return the signature of the constructor of an algorithm's strategy."""
    either, named = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    first = [Parameter("self", either), Parameter("config", either, default=None, annotation=Config | None)]
    given = _arguments(algorithm).items()
    rest = [Parameter(name, named, default=k.default, annotation=k.type) for name, k in given]
    return Signature([*first, *rest], return_annotation=None)


def configured(algorithm: str, config: Config | None, given: dict[str, Any]) -> tuple[Config, Algorithm]:
    """Return the config of a strategy of an algorithm, with arguments on top, and the contract of its run.

    Raises:
        ConfigError: An unknown argument, a value out of range, or one that nothing in the run reads.
    """
    config = _with(config or Config(algorithm=algorithm), _arguments(algorithm), given)
    mine = algorithm_of(config.algorithm).rule == algorithm_of(algorithm).rule
    named = config if mine else replace(config, algorithm=algorithm)
    check_read(as_run_config(named), defaults())
    return config, contract_of(named)


def _with(config: Config, known: Mapping[str, Knob], given: Mapping[str, Any]) -> Config:
    """Return `config` with the arguments' keys replaced."""
    for name, value in given.items():
        if name not in known:
            raise ConfigError(choose_from(f"strategy argument {name!r}", name, known))
        knob = known[name]
        new = {knob.name: checked(knob, value, f"strategy argument {name!r}")}
        section = {knob.section: replace(getattr(config, knob.section), **new)} if knob.section else new
        config = replace(config, **section)
    return config
