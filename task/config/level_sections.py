"""The run-config keys of clients whose models are unlike: of several widths or kinds, and public examples."""

from task.config.sections import Section, knob
from task.errors import ConfigError


class WidthConfig(Section):
    """Clients of several sizes: HeteroFL, Diao et al. 2021, and FedRolex, Alam et al. 2022."""

    levels: str = knob("", 'r, shares of each layer\'s units that clients have: "1,0.5,0.25"; "" = all alike')
    shares: str = knob("", 'shares of the clients by level, dealt by name: "0.2,0.3,0.5"; "" = equal')
    scheme: str = knob(
        "nested",
        "a client's units: the first ones, a window that rolls on by a unit a round, or drawn each round",
        choices=("nested", "rolling", "random"),
    )

    def by_level(self) -> tuple[tuple[float, float], ...]:
        """Return r and the share of the clients by level, widest first; () if all are alike.

        Raises:
            ConfigError: Naming the key.
        """
        if not self.levels:
            return ()
        levels = _numbers(
            "width.levels", self.levels, "shares above 0 and at most 1, each once, the widest first"
        )
        if any(not 0 < r <= 1 for r in levels) or list(levels) != sorted(set(levels), reverse=True):
            raise _unlike(
                "width.levels", "shares above 0 and at most 1, each once, the widest first", self.levels
            )
        return tuple(zip(levels, _shares("width", self.shares, len(levels)), strict=True))


class ModelsConfig(Section):
    """Clients of several kinds of models, which never leave them."""

    levels: str = knob("", 'models that clients have, in place of model: "logistic,mlp,2nn"; "" = all model')
    shares: str = knob("", 'shares of the clients by level, dealt by name: "0.2,0.3,0.5"; "" = equal')
    features: int = knob(
        0, "units of a last hidden layer, ReLU, that is put into each model; 0 = as the model is", low=0
    )

    def by_level(self) -> tuple[tuple[str, float], ...]:
        """Return name of the model and share of the clients by level; () if all have the run's model.

        Raises:
            ConfigError: Naming the key.
        """
        if not self.levels:
            return ()
        names = tuple(part.strip() for part in self.levels.split(","))
        if len({*names}) < len(names) or not all(names):
            raise _unlike("models.levels", "names of models, each once", self.levels)
        return tuple(zip(names, _shares("models", self.shares, len(names)), strict=True))


class PublicConfig(Section):
    """Public examples, the same at all parties, whose labels nobody needs."""

    data: str = knob("", 'data set that they come from; "" = from the run\'s own, and no client has them')
    examples: int = knob(500, "how many, drawn by the seed of the data", low=1)


def _shares(section: str, text: str, levels: int) -> tuple[float, ...]:
    """Return the shares of the clients by level; equal ones if the text names none."""
    wanted = f"{levels} shares of the clients, one for each of {section}.levels, that add up to 1"
    shares = _numbers(f"{section}.shares", text, wanted) if text else (1 / levels,) * levels
    if len(shares) != levels or any(s < 0 for s in shares) or abs(sum(shares) - 1) > 1e-6:
        raise _unlike(f"{section}.shares", wanted, text)
    return shares


def _numbers(key: str, text: str, expected: str) -> tuple[float, ...]:
    """Return the numbers of a list in a text."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise _unlike(key, expected, text) from None


def _unlike(key: str, expected: str, got: str) -> ConfigError:
    return ConfigError(f'run-config key "{key}": expected {expected}; got {got!r}')
