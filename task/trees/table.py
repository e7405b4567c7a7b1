"""The table of boosted trees: what each column did for the splits, and what the trees say of the rows."""

from __future__ import annotations

from task.classical.printed import Printed
from task.numerics.arrays import NamedArrays
from task.trees.declared import Declared
from task.trees.ensemble import LEAF, TreeEnsemble
from task.trees.objectives import SQUARED

_HEAD = ("column", "weight", "gain", "cover", "total_gain", "total_cover")


def importance_table(declared: Declared, arrays: NamedArrays) -> Printed | None:
    """Return the table; None if no tree has been grown."""
    names = declared.names
    trees = TreeEnsemble.from_arrays(arrays, len(names))
    if not trees.trees:
        return None
    found = trees.importance(len(names))
    columns = [names, found["weight"].astype(int).tolist(), *(found[name].tolist() for name in _HEAD[2:])]
    figures: dict[str, object] = {
        "trees": trees.trees,
        "leaves": int((trees.feature == LEAF).sum()),
        "objective": declared.objective.name,
    }
    if "losses" in arrays:
        figures |= _losses(trees.trees // declared.objective.classes, declared, arrays)
    digest = arrays["sums-sha256"].tobytes().hex()
    return Printed("columns", _HEAD, tuple(zip(*columns, strict=True)), figures, digest)


def _losses(rounds: int, declared: Declared, arrays: NamedArrays) -> dict[str, object]:
    """Return the losses of so many rounds, over all rows."""
    losses, (rows, held) = arrays["losses"].tolist(), arrays["figures"].tolist()
    figures: dict[str, object] = {
        "rounds": rounds,
        "rows": int(rows),
        "loss": losses[rounds - 1][0],
        "losses": [row[0] for row in losses],
    }
    if held:
        figures |= {"held_out_rows": int(held), "held_out_loss": losses[rounds - 1][1]}
        if declared.objective.name != SQUARED:
            figures["held_out_error"] = losses[rounds - 1][2]
        figures["held_out_losses"] = [row[1] for row in losses]
    return figures
