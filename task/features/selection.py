"""Policies that draw who trains in a round."""

from task.catalogue.entry import Algorithm
from task.catalogue.selections import SELECTIONS
from task.features.feature import Feature
from task.features.reasons import REPEATS
from task.features.refusals import Choice


def _ring(entry: Algorithm) -> str:
    if entry.repeats:
        return REPEATS
    one_by_one = entry.phases or entry.individual or any(r.reduce == "collect" for r in entry.up)
    why = "the policy passes one model from client to client, and the rule needs several replies at once"
    return why if one_by_one else ""


def _loss(entry: Algorithm) -> str:
    whole = entry.sends_model and not entry.private
    return "" if whole else "the policy uses the loss of the received model, and no whole model is sent"


def _by_examples(entry: Algorithm) -> str:
    counts = any(phase.up and r.layout.of == "columns" for phase in entry.phases.values() for r in phase.up)
    return "the policy draws by n_k, and the rule counts features with weights n_k" if counts else ""


def _choice(name: str) -> Choice:
    policy = SELECTIONS[name]
    checks = [(policy.ring, _ring), (policy.needs_losses, _loss), (policy.by_examples, _by_examples)]

    def why_not(entry: Algorithm) -> str:
        if entry.asynchronous:
            return "a step takes the updates that arrive first, so a policy cannot choose its clients"
        return next((why for on, check in checks if on and (why := check(entry))), "")

    return Choice("selection", (name,), why_not)


FEATURE = Feature(
    "selection",
    place=150,
    active=lambda config, _: config.server.selection != "uniform",
    stages=lambda config: SELECTIONS[config.server.selection].stages,
    choices=tuple(_choice(name) for name in SELECTIONS if name != "uniform"),
)
