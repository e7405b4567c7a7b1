"""The table of boosted trees: what each column did for the splits, and what the trees say of the rows."""

from __future__ import annotations

from task.classical.printed import Printed
from task.numerics.arrays import NamedArrays
from task.trees.boosting import Boosting
from task.trees.ensemble import LEAF, Ensemble
from task.trees.objectives import SQUARED

_HEAD = ("column", "weight", "gain", "cover", "total_gain", "total_cover")


def importance_table(boosting: Boosting, arrays: NamedArrays) -> Printed | None:
    """Return the table; None if no tree has been grown."""
    names = [v.name for v in boosting.variables]
    trees = Ensemble.from_arrays(arrays, len(names))
    if not trees.trees:
        return None
    found = trees.importance(len(names))
    columns = [names, found["weight"].astype(int).tolist(), *(found[name].tolist() for name in _HEAD[2:])]
    rounds = trees.trees // boosting.objective.classes
    losses, (rows, held) = arrays["losses"].tolist(), arrays["figures"].tolist()
    figures: dict[str, object] = {
        "trees": trees.trees,
        "leaves": int((trees.feature == LEAF).sum()),
        "rounds": rounds,
        "rows": int(rows),
        "objective": boosting.objective.name,
        "loss": losses[rounds - 1][0],
        "losses": [row[0] for row in losses],
    }
    if held:
        figures |= {"held_out_rows": int(held), "held_out_loss": losses[rounds - 1][1]}
        if boosting.objective.name != SQUARED:
            figures["held_out_error"] = losses[rounds - 1][2]
        figures["held_out_losses"] = [row[1] for row in losses]
    digest = arrays["sums-sha256"].tobytes().hex()
    return Printed("columns", _HEAD, tuple(zip(*columns, strict=True)), figures, digest)
