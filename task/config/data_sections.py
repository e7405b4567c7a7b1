"""The sections of data that change during a run: examples arrive, data drift, clients join late."""

from task.config.sections import Section, knob
from task.config.when import When

# Drifts that change the images; the others change the labels.
IMAGE_DRIFTS = ("background", "contrast", "invert", "noise", "rotate")
LABEL_DRIFTS = ("labels-rotate", "labels-swap")


class StreamConfig(Section):
    """Examples that arrive over the rounds (see ``docs/howto/changing-data.md``)."""

    start: float = knob(
        1.0, "share of its examples that a client has in its first round; 1 = all", above=0,
        high=1,
    )  # fmt: skip
    per_round: float = knob(
        0.0,
        "share of its examples that arrives in each later round",
        low=0,
        high=1,
        when=When("stream.start", (1.0,), but=True),
    )
    order: str = knob(
        "shuffled",
        "order of arrival: shuffled by seed, or as in the data set",
        choices=("shuffled", "rows"),
        when=When("stream.start", (1.0,), but=True, other=When("stream.window")),
    )
    window: int = knob(0, "w, a client trains on the last w examples that arrived; 0 = all", low=0)
    own_data: bool = knob(False, "nodes' own files may change: nodes register again before every round")

    @property
    def on(self) -> bool:
        """Whether clients of a partition have only some of their examples in some round."""
        return self.start < 1 or self.window > 0


_DRIFTS = When("drift.kind", ("none",), but=True)


class DriftConfig(Section):
    """A change of the distribution (see ``docs/howto/changing-data.md``)."""

    kind: str = knob(
        "none",
        "what changes: labels (y + 1 mod C, or 2j and 2j + 1 swapped), or images as in feature-skew",
        choices=("none", *LABEL_DRIFTS, *IMAGE_DRIFTS),
    )
    strength: float = knob(
        0.0,
        "images: level, contrast or deviation; 0 = as feature-skew-strength = 0",
        low=0,
        high=1,
        when=When("drift.kind", ("background", "contrast", "noise")),
    )
    round: int = knob(10, "t_0, the first round with the new concept", low=1, when=_DRIFTS)
    pattern: str = knob(
        "sudden",
        "sudden = all at t_0; gradual = more examples, staggered = more clients each round; "
        "recurring = on, off",
        choices=("sudden", "gradual", "staggered", "recurring"),
        when=_DRIFTS,
    )
    span: int = knob(
        10,
        "rounds until all have changed (gradual, staggered), or of each phase (recurring)",
        low=1,
        when=(_DRIFTS, When("drift.pattern", ("sudden",), but=True)),
    )
    clients: float = knob(
        1.0, "share of the clients whose data change, drawn by seed", above=0, high=1, when=_DRIFTS
    )
    examples: str = knob(
        "all",
        "examples that change: all = all that a client has, new = only those that arrive from then on",
        choices=("all", "new"),
        when=_DRIFTS,
    )


class ArriveConfig(Section, switch="share"):
    """Clients that join after round 1 (see ``docs/howto/changing-data.md``)."""

    share: float = knob(0.0, "share of the clients that join late, drawn by seed; 0 = none", low=0, below=1)
    round: int = knob(2, "the round from which they can be selected", low=2)
