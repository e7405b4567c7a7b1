"""Simulated malicious clients."""

from task.catalogue.entry import Algorithm
from task.config.attack_section import INFORMED, MOVED
from task.config.knobs import Config
from task.datasets import spec_of
from task.features.feature import Feature
from task.features.reasons import REPEATS, no_base, pooled
from task.features.refusals import Choice


def _informed(entry: Algorithm) -> str:
    why = f"{REPEATS}, each edge separately, and an edge may have no benign clients to imitate"
    stale = "the updates of a step are from several versions, and may be of one client"
    return no_base(entry) or (why if entry.repeats else stale if entry.asynchronous else "")


def _refuses(config: Config, _: Algorithm) -> str:
    if config.attack.backdoor and spec_of(config.data.dataset).text:
        return (
            f'"attack.kind": "{config.attack.kind}" puts a patch into images or rows of numbers; expected '
            f"another data set than a text; got {config.data.dataset!r}"
        )
    return ""


FEATURE = Feature(
    "attacks",
    place=25,
    active=lambda config, _: config.attack.kind != "none",
    stages=lambda config: ("attack",) if config.attack.kind != "none" else (),
    choices=(
        Choice("attack.kind", MOVED, lambda entry: pooled(entry) or no_base(entry)),
        Choice("attack.kind", ("label-flip", "backdoor"), pooled),
        Choice("attack.kind", INFORMED, _informed),
    ),
    refuses=_refuses,
)
