"""Wrapper of a user's own rule: errors say where in the user's code they arose."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import new_class
from typing import Any

import numpy as np

from strategies.engine.rule import Round, RoundContext, Rule, TooFewRepliesError
from strategies.engine.state import AggregatedReplies, Number
from task.catalogue.record import MODEL_UP
from task.config.knobs import Config
from task.errors import BouquetError, ConfigError
from task.numerics.arrays import NamedArrays
from task.references import load_reference, place


def own_rule(name: str) -> type[Rule]:
    """Return the rule that a reference names, as one of the algorithm of that name.

    Raises:
        ConfigError: It is no rule, or has neither an update nor a round.
    """
    where = f'run-config key "algorithm": "{name}"'
    found = load_reference("algorithm", name)
    if not (isinstance(found, type) and issubclass(found, Rule)):
        raise ConfigError(f"{where}: expected a class derived from bouquet.extend.Rule; got {found!r}")
    if not hasattr(found, "update") and found.round is Rule.round:
        raise ConfigError(
            f"{where}: expected class {found.__name__}(Rule, update=server_update); got no update"
        )

    if found.takes_mean and found.round is not Rule.round:
        raise ConfigError(
            f"{where}: expected an update and no round, as {found.__name__} says takes_mean=True; got both"
        )

    def update(state: Any, replies: AggregatedReplies, config: Config) -> tuple[Any, dict[str, Number]]:
        with _blamed(where, "update"):
            made = found.update(_read_only(state), replies, config)
        return _checked(where, "update", state.arrays, made)

    def mean(state: Any, replies: AggregatedReplies, config: Config) -> tuple[Any, dict[str, Number]]:
        before = {name: array.copy() for name, array in replies.arrays[MODEL_UP.name].items()}
        with _blamed(where, "update"):
            made = found.update(_read_only(state), replies, config)
        result = _checked(where, "update", before, made)
        if changed := [n for n, a in result[0].arrays.items() if a.tobytes() != before[n].tobytes()]:
            raise ConfigError(
                f"{where}: expected its update to return replies.arrays[{MODEL_UP.name!r}] as it is, since "
                f"{found.__name__} says takes_mean=True; got other numbers in {changed[0]!r}"
            )
        return result

    def of_round(self: Any, state: Any, context: RoundContext) -> Round:
        with _blamed(where, "round"):
            made = yield from found.round(self, _read_only(state), context)
        return _checked(where, "round", state.arrays, made)

    def prepare(space: dict[str, Any]) -> None:
        space |= {"__doc__": found.__doc__, "__module__": found.__module__}
        if not found.takes_mean:  # the mean may have another form than the model before: that of ciphertexts
            space["round"] = of_round

    made_of = {"algorithm": name, "update": mean if found.takes_mean else update}
    return new_class(found.__name__, (found,), made_of, prepare)


@contextmanager
def _blamed(where: str, what: str) -> Iterator[None]:
    """Add to an error in the user's code where it arose; `what` is the function."""
    try:
        yield
    except (BouquetError, TooFewRepliesError):
        raise
    except Exception as err:  # whatever the user's code raises
        raise ConfigError(f"{where}: its {what} failed: {place(err)}") from err


def _read_only(state: Any) -> Any:
    """Return the state with read-only arrays: a model that was changed in place would not be sent."""
    arrays = {name: array.view() for name, array in state.arrays.items()}
    for array in arrays.values():
        array.setflags(write=False)
    return replace(state, arrays=arrays)


def _checked(where: str, what: str, like: NamedArrays, result: Any) -> tuple[Any, dict[str, Number]]:
    """Return the state and metrics that the user's code made, if its model has the form of these arrays.

    Raises:
        ConfigError: It has another, or none, or a metric is no number.
    """
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ConfigError(f"{where}: expected its {what} to return (state, metrics); got {_kind(result)}")
    made, metrics = result
    if not isinstance(getattr(made, "arrays", None), Mapping) or not isinstance(metrics, Mapping):
        raise ConfigError(
            f"{where}: expected its {what} to return (replace(state, arrays=...), metrics), the metrics as a "
            f"dict; got ({_kind(made)}, {_kind(metrics)})"
        )
    got = {name: (np.asarray(a).dtype, np.shape(a)) for name, a in made.arrays.items()}
    if got != (expected := {name: (a.dtype, a.shape) for name, a in like.items()}):
        wrong = next(n for n in [*expected, *got] if expected.get(n) != got.get(n))
        raise ConfigError(
            f"{where}: expected its {what} to return the model's arrays, {_words(wrong, expected)}; got "
            f"{_words(wrong, got)}"
        )
    return made, {str(name): _number(where, what, name, value) for name, value in metrics.items()}


def _number(where: str, what: str, name: object, value: Any) -> Number:
    """Return a metric as Python has numbers."""
    if np.ndim(value) or np.asarray(value).dtype.kind not in "fiub":
        raise ConfigError(
            f"{where}: expected its {what} to return numbers as metrics; got {_kind(value)} as {name!r}"
        )
    found: Number = np.asarray(value).item()
    return found


def _kind(value: Any) -> str:
    return type(value).__name__


def _words(name: str, arrays: dict[str, Any]) -> str:
    dtype, shape = arrays.get(name, ("no", ()))
    return f"{name} {dtype}{list(shape)}"
