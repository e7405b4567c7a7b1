"""Base of rules whose clients keep their models: the server has a table instead of a model.

`ServerState.arrays` is the table, and what a run's ``model.safetensors`` holds. Clients send numbers times
weights, and the weights, so that the server needs sums only.
"""

from typing import ClassVar

from strategies.engine.rule import RoundContext, Rule
from strategies.engine.state import ServerState
from task.errors import ConfigError
from task.numerics.arrays import Arrays


class SharedTable(Rule):
    """Sends the table down."""

    holds: ClassVar[tuple[str, ...]] = ()  # names of the table's arrays

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ServerState:
        """Return the table that the run begins with.

        Raises:
            ConfigError: `arrays` are something else, such as a model.
        """
        if arrays.keys() != {*self.holds}:
            raise ConfigError(
                f"{type(self).__name__}: expected as initial arrays a table of {' and '.join(self.holds)} "
                "(task.resolve.run_model.initial_of), as its models never leave the clients; got "
                f"{sorted(arrays)[:5]}"
            )
        return super().initial_state(arrays, trainable)

    def down_record(self, state: ServerState, name: str, context: RoundContext) -> Arrays:
        """Return the table."""
        return state.arrays
