"""What measurements of single clients cannot stand: they need what each of them sends, in clear."""

from task.features.refusals import Pair, Setting, pairs
from task.features.settings import DP_CENTRAL, ENCRYPTED, PARTS, SECURE, TRANSCRIPT


def in_clear(measurement: Setting) -> tuple[Pair, ...]:
    """Return the pairs of a measurement of single clients."""
    return tuple(
        pairs(
            measurement,
            (SECURE, "the server learns sums only"),
            (ENCRYPTED, "the server cannot decrypt single clients' uploads"),
            (DP_CENTRAL, "values of single clients are not protected"),
            (PARTS, "clients have parts of the model"),
            (TRANSCRIPT, "it is measured on data that a transcript does not hold"),
            (
                Setting("evaluate-every", lambda c: c.server.evaluate_every == 0),
                "it is measured when the server evaluates",
            ),
        )
    )
