"""The Flower ``Strategy`` of every rule, made from the rules in `strategies.rules`."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from strategies import rules
from strategies.engine.arguments import signature_of
from strategies.engine.brought import own_rule
from strategies.engine.rule import Rule
from strategies.strategy import Strategy
from task.catalogue.algorithms import ALGORITHMS
from task.config.knobs import Config
from task.errors import ConfigError
from task.references import is_reference


def _shell(rule: type[Rule]) -> type[Strategy]:
    def __init__(self: Strategy, config: Config | None = None, **knobs: Any) -> None:  # noqa: N807
        Strategy.__init__(self, config, **knobs)

    vars(__init__)["__signature__"] = signature_of(rule.algorithm)
    namespace = {"__module__": "strategies", "__doc__": rule.__doc__, "__init__": __init__}
    made: type[Strategy] = type(rule.__name__, (Strategy,), namespace, rule=rule)
    return made


_RULES = {
    cls.algorithm: cls
    for found in iter_modules(rules.__path__)
    for cls in vars(import_module(f"{rules.__name__}.{found.name}")).values()
    if isinstance(cls, type) and issubclass(cls, Rule) and cls.algorithm
}
for _name, _entry in ALGORITHMS.items():
    if _entry.rule not in _RULES:
        raise ConfigError(
            f'task/catalogue: the entry "{_name}" has rule "{_entry.rule}", which no file in strategies/rules'
            f' registers. Add there: class NAME(Rule, algorithm="{_entry.rule}", update=server_update), or, '
            'if the server does what FedAvg\'s does, to the entry: rule="fedavg"'
        )
STRATEGIES = {name: _shell(rule) for name, rule in sorted(_RULES.items())}
"""By name of the rule, see `task.catalogue.entry.Algorithm.rule`."""


def strategy_of(rule: str) -> type[Strategy]:
    """Return the strategy of a rule: a key of `STRATEGIES`, or a user's own ``package.module:name``.

    Raises:
        ConfigError: A user's own is no rule.
    """
    return _shell(own_rule(rule)) if is_reference(rule) else STRATEGIES[rule]
