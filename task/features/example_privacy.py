"""Differential privacy of examples: DP-SGD at the clients."""

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.datasets import spec_of
from task.features.feature import Feature, Tensors
from task.features.privacy import too_little
from task.features.reasons import unaccounted, unsafe
from task.features.refusals import Choice, Setting, refused_by
from task.features.settings import (
    ALA,
    BY_LOSS,
    DP_LOCAL,
    DP_STEPS,
    HELD_OUT,
    MEANS_FILLED,
    OWN_MU,
    PARTS,
    STANDARDISED,
)

_MEANS = "means of columns are not protected"
_UNBOUNDED = "its sums over rows have no bound on what a row adds, by which noise would be chosen"


def _why_not(entry: Algorithm) -> str:
    if entry.statistics:  # `task.features.row_privacy`
        return "" if entry.noised_rows else _UNBOUNDED
    if why := unaccounted(entry):
        return why
    if entry.phases or not entry.traits.steps_alone:
        return "its clients use their examples for more than steps along the gradients of batches"
    if entry.private == "norm":
        return "batch normalisation lets each example change the gradients of the others"
    if any(r.of != "steps" for r in entry.up):
        return "its clients send numbers computed from their examples without noise"
    if "ala" in entry.stages:
        return "before they train, its clients learn from their examples how to mix models"
    needed = [s.name for s in entry.up_scalars if s.required]
    if needed:
        return f"its rule needs each client's {needed[0]!r}, which follows from its examples"
    return ""


def _refuses_model(_: Config, tensors: Tensors) -> str:
    if not (buffers := tensors.buffers):
        return ""
    return (
        f'"dp.unit": the model has {len(buffers)} buffers, such as {buffers[0]!r}: averages over examples, '
        "or constants, which no noise covers; expected a model without, such as one with group normalisation"
    )


FEATURE = Feature(
    "example_privacy",
    place=70,
    active=lambda config, _: DP_STEPS.on(config),
    stages=lambda config: ("example-dp",) if DP_STEPS.on(config) else (),
    choices=(
        Choice("dp.unit", ("example",), lambda entry: unsafe(entry, _why_not(entry)), DP_LOCAL, of_sums=True),
    ),
    pairs=tuple(
        refused_by(
            DP_STEPS,
            (ALA, "its weights are learned from the examples without noise"),
            (
                Setting(
                    "scaffold.option",
                    lambda c: c.entry.owns("scaffold.option") and c.scaffold.option == "I",
                    '"II"',
                ),
                "a full gradient would go up without noise",
            ),
            (BY_LOSS, "losses over the examples are not protected"),
            (HELD_OUT, "held-out clients adapt to their examples without noise before they are measured"),
            (
                Setting("precision", lambda c: c.train.precision != "float32", '"float32"'),
                "gradients of single examples are not computed in 16 bits",
            ),
            (PARTS, "it is untested with parts of a model"),
            (OWN_MU, "mu would follow losses over the examples, which are not protected"),
            (STANDARDISED, _MEANS),
            (MEANS_FILLED, _MEANS),
            (
                Setting(
                    "dataset",
                    lambda c: spec_of(c.data.dataset).targets > 1,
                    "one whose examples have one target",
                ),
                "it is not defined what one example of a text is",
            ),
        )
    ),
    refuses=lambda config, _: too_little(config),
    refuses_model=_refuses_model,
    stock_clients=(((DP_STEPS,), "cannot clip and add noise as the run requires"),),
    stock_loops=(((DP_STEPS,), 'only its own server and clients clip and add noise for "dp.noise"'),),
)
