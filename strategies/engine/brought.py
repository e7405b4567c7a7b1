"""A user's own rule, in which an error says where in the user's code it arose."""

from types import new_class
from typing import Any

from strategies.engine.rule import Rule, TooFewRepliesError
from strategies.engine.state import AggregatedReplies, Number, ServerState
from task.config.knobs import Config
from task.errors import BouquetError, ConfigError
from task.references import load_reference, place


def own_rule(name: str) -> type[Rule]:
    """Return the rule that a reference names, as one of the algorithm of that name.

    Raises:
        ConfigError: It is no rule, or has no update.
    """
    where = f'run-config key "algorithm": "{name}"'
    found = load_reference("algorithm", name)
    if not (isinstance(found, type) and issubclass(found, Rule)):
        raise ConfigError(
            f"{where}: expected a class derived from strategies.engine.rule.Rule; got {found!r}"
        )
    if not hasattr(found, "update"):
        raise ConfigError(
            f"{where}: expected class {found.__name__}(Rule, update=server_update); got no update"
        )
    theirs = found.update

    def update(
        state: Any, replies: AggregatedReplies, config: Config
    ) -> tuple[ServerState, dict[str, Number]]:
        try:
            made, metrics = theirs(state, replies, config)
            got = {name: (a.dtype, a.shape) for name, a in made.arrays.items()}
        except (BouquetError, TooFewRepliesError):
            raise
        except Exception as err:  # whatever the user's code raises
            raise ConfigError(f"{where}: its update failed: {place(err)}") from err
        if got != (expected := {name: (a.dtype, a.shape) for name, a in state.arrays.items()}):
            wrong = next(n for n in [*expected, *got] if expected.get(n) != got.get(n))
            raise ConfigError(
                f"{where}: expected its update to return the model's arrays, {_words(wrong, expected)}; got "
                f"{_words(wrong, got)}"
            )
        return made, metrics

    def prepare(space: dict[str, Any]) -> None:
        space |= {"__doc__": found.__doc__, "__module__": found.__module__}

    return new_class(found.__name__, (found,), {"algorithm": name, "update": update}, prepare)


def _words(name: str, arrays: dict[str, Any]) -> str:
    dtype, shape = arrays.get(name, ("no", ()))
    return f"{name} {dtype}{list(shape)}"
