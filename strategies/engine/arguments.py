"""The arguments of a strategy: the keys of its algorithm and of the server, by name."""

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

# What Flower's strategies call differently, or do otherwise, with what there is here.
FLOWERS = {
    "min_available_nodes": "min_nodes, the nodes that must be online before round 1",
    "min_train_nodes": "fraction_train, which samples clients, and min_replies, the least number of replies "
    "with which a round changes the model",
    "min_evaluate_nodes": "fraction_evaluate, which samples the clients that evaluate",
}


@cache
def server_arguments() -> Mapping[str, Knob]:
    """Return what every strategy takes: the server's keys, and the seed.

    The number of rounds is an argument of `start`, as Flower has it.
    """
    found = {k.name: k for k in knobs() if k.section == "server" and k.name != "num_server_rounds"}
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
    """Return the signature of the constructor of an algorithm's strategy, as users call it: no `config`."""
    named = Parameter.KEYWORD_ONLY
    given = _arguments(algorithm).items()
    rest = [Parameter(name, named, default=k.default, annotation=k.type) for name, k in given]
    itself = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    return Signature([itself, *rest], return_annotation=None)


def configured(algorithm: str, config: Config | None, given: dict[str, Any]) -> tuple[Config, Algorithm]:
    """Return the config of a strategy of an algorithm, with arguments on top, and the contract of its run.

    Raises:
        ConfigError: An argument without its name, an unknown one, a value out of range, or one that nothing
            in the run reads.
    """
    if not isinstance(config, Config | None):
        first = next(iter(own_arguments(algorithm)), "fraction_train")
        raise ConfigError(
            f"strategy of {algorithm}: expected arguments by name, such as {first}=...; got {config!r} "
            "without one"
        )
    config = _with(config or Config(algorithm=algorithm), _arguments(algorithm), given)
    mine = algorithm_of(config.algorithm).rule == algorithm_of(algorithm).rule
    named = config if mine else replace(config, algorithm=algorithm)
    check_read(as_run_config(named), defaults())
    return config, contract_of(named)


def _with(config: Config, known: Mapping[str, Knob], given: Mapping[str, Any]) -> Config:
    """Return `config` with the arguments' keys replaced."""
    for name, value in given.items():
        if name in FLOWERS:
            raise ConfigError(f"strategy argument {name!r}: Flower's; expected {FLOWERS[name]}")
        if name not in known:
            raise ConfigError(choose_from(f"strategy argument {name!r}", name, known))
        knob = known[name]
        new = {knob.name: checked(knob, value, f"strategy argument {name!r}")}
        section = {knob.section: replace(getattr(config, knob.section), **new)} if knob.section else new
        config = replace(config, **section)
    return config
