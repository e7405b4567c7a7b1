"""Split the columns of a data set among parties, along the last axis of an example.

Of a table that are its columns; of pictures the columns of pixels, so that the left half is one party's.
"""

from task.datasets.base import Decoded
from task.errors import ConfigError


def columns_of(dataset: Decoded, columns: str, parties: int) -> list[slice]:
    """Return the columns of each party, as places along the last axis, by the run-config key ``columns``.

    Raises:
        ConfigError: They cannot be dealt so.
    """
    width = dataset.input_shape[-1]
    got = f'"{columns}" of {width} columns and {parties} parties (run-config key "num-clients")'
    if columns == "even":
        if parties > width:
            raise ConfigError(
                f'run-config key "columns": expected as many columns as parties or more; got {got}. Set '
                "num-clients to fewer, such as 2"
            )
        sizes = [width // parties + (k < width % parties) for k in range(parties)]
    else:
        parts = [part.strip() for part in columns.split(",")]
        if not all(part.isdecimal() for part in parts) or len(parts) != parties:
            raise ConfigError(
                f'run-config key "columns": expected "even", or a number for each party, as in "10,20"; '
                f"got {got}"
            )
        sizes = [int(part) for part in parts]
    if sum(sizes) != width or 0 in sizes[1:]:
        raise ConfigError(
            f'run-config key "columns": expected {width} columns in all, and at least one for each party but '
            f"the first, which has the labels; got {got}"
        )
    ends = [sum(sizes[: k + 1]) for k in range(parties)]
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
