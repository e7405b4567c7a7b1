"""The share of the party with labels in growing boosted trees; `strategies.rules.secureboost` has the whole.

It keeps the sums of the steps so far, from which the tree grows again with every message.
"""

from dataclasses import dataclass

import numpy as np
import torch

from client_app.vertical.encrypted import from_rows, secret_key, to_rows
from client_app.vertical.growing import GrowingWork
from client_app.vertical.party import AlignedParty, Kept, digest_of
from client_app.vertical.tree_columns import Columns
from task.catalogue.entry import SUMS, TRAIN_LOSS
from task.classical.columns import scale_of
from task.errors import DataError, FieldError
from task.numerics.arrays import Arrays
from task.numerics.row_sums import row_sums, value
from task.tasks.evaluate import measure
from task.trees.boosting import growth_of, improved, waits
from task.trees.ensemble import TreeEnsemble
from task.trees.histograms import slots
from task.trees.objectives import LOGISTIC, SQUARED, Objective
from task.vertical import open_tree
from task.vertical.gradients import Packing
from task.vertical.shared_tree import SharedTree
from task.wire import messages as wire
from task.wire.layouts import ROWS

Ints = open_tree.Ints
_EXPECTED = {LOGISTIC: "labels of two classes", SQUARED: "one number a row"}
_NEITHER = "no parties, which grow trees by logistic or squared-error"


@dataclass
class _LabelTree:
    """What the party with the labels has of the open tree."""

    columns: Columns  # its own
    tree: SharedTree
    held: Arrays

    def take(self, steps: int) -> None:
        """Let the tree take the sums of its first steps."""
        counts, done = self.held["counts"].tolist(), len(self.tree.steps)
        self.tree.take(self.held["histograms"][sum(counts[:done]) : sum(counts[:steps])], counts[done:steps])

    def sides(self, place: Ints) -> open_tree.Sides:
        """Return the directions of rows in the nodes of the last step that own columns split, [1, M]."""
        found = np.zeros((1, len(place)), np.uint8)
        for node in self.tree.steps[-1]:
            if self.tree.owner(node) == self.tree.label:
                split, rows = self.tree.split(node), place == node
                x = self.columns.x[rows, self.tree.column(node)]
                found[0, rows] = open_tree.sides_of(x, split.cut, split.default_left)
        return found


class SearchWork(GrowingWork):
    """What the party with the labels does."""

    def _objective(self, data: AlignedParty) -> tuple[Objective, np.ndarray]:
        """Return the loss, and the targets of all common rows, float64 [M].

        Raises:
            DataError: The party has no labels, or they do not go with the loss.
        """
        node, name = self.node, self.config.gbdt.objective
        classes = node.dataset.num_classes if node.task.name == "classification" else 0
        if name == "auto":
            name = LOGISTIC if classes else SQUARED
        if not data.party.labelled:
            raise DataError(f"client {data.party.name}: expected labels, to grow trees by; got none")
        y = data.y(data.rows).cpu().numpy().astype(np.float64)
        if y.ndim != 1 or classes != {LOGISTIC: 2, SQUARED: 0}.get(name):
            got = f"{classes} classes" if classes else f"targets of a task of {node.task.name}"
            raise DataError(
                f'run-config key "gbdt.objective": {name} expects {_EXPECTED.get(name, _NEITHER)}; got {got}'
            )
        train = y[len(data.tests) :]
        return Objective(name, width=0.0 if name == LOGISTIC else float(np.ptp(train))), y

    def gradients(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Begin a tree: send g and h of each training row, encrypted."""
        kept = self.kept(client)
        data = self.data(client, kept)
        objective, y = self._objective(data)
        tests, model = len(data.tests), self._model(data, kept)
        margins = model["margins"]["margins"][tests:, None]
        g, h = (a[:, 0] for a in objective.derivatives(margins, y[tests:]))
        key, (count, _) = kept.get("key") or self.new_key(), self.order.rows["ciphers"]
        secret = secret_key(key)
        # Nothing is said of rows that are not drawn. Of one party alone nobody asks.
        said = zip(Packing(len(g)).numbers(g, h)[:count], self.used(len(g)).tolist(), strict=False)
        numbers = [n if used else 0 for n, used in said]
        up = {
            "moduli": {ROWS: self.modulus(secret)},
            "ciphers": {ROWS: to_rows([secret.encrypt(n) for n in numbers], self.cipher_bytes)},
        }
        up["proof"] = self.proofs("gradients", client, ("",), [[a[ROWS] for a in up.values()]])
        opened = {
            "step": np.array(0), "place": np.zeros(len(y), np.int64), "g": g, "h": h,
            "counts": np.zeros(0, np.int64), "histograms": np.zeros((0, 0, 3), np.int64),
        }  # fmt: skip
        keep = {**model, "aligned": kept["aligned"], "key": key, "open": opened}
        return wire.ClientUpdate(up, {wire.NUM_EXAMPLES: float(len(g))}), keep

    def _model(self, data: AlignedParty, kept: Kept) -> Kept:
        """Return the trees, and their sums for the common rows; before round 1 the base alone."""
        if "part" in kept:
            return {name: kept[name] for name in ("part", "margins", "step")}
        objective, y = self._objective(data)
        train = y[len(data.tests) :]
        trees = TreeEnsemble.empty(_base(objective, train, ~self.held(len(train))))
        margins = np.full(len(y), trees.base[0])
        return {
            "part": {**trees.to_arrays(), "numbers": np.zeros(0, np.int64)},
            "margins": {"margins": margins},
            "step": {"round": np.array(0)},
        }

    def _search(self, client: str, kept: Kept) -> _LabelTree:
        """Return the open tree as it was left."""
        columns, held = self.columns(client, kept), self.opened(client, kept, self.step, self.step - 1)
        keys, (objective, _) = self.config.gbdt, self._objective(self.data(client, kept))
        growth = growth_of(keys, objective.unit)
        draw = keys.colsample, self.config.seeds.train, self.order.round
        tree = SharedTree.of(client, columns.layout.cuts, self._counts(client), growth, draw)
        return _LabelTree(columns, tree, held)

    def _by_other(self, client: str, record: str) -> list[np.ndarray]:
        """Return what came of a record, by other party."""
        given, others = self.given(client, record), self.others(client)
        return np.split(given, len(others)) if others else []

    def _counts(self, client: str) -> dict[str, np.ndarray]:
        """Return by other party the number of cuts of each of its columns.

        Raises:
            FieldError: A column has more than the run allows.
        """
        given, most = self._by_other(client, "bins"), self.config.gbdt.max_bins - 1
        if any((n < -1).any() or (n > most).any() for n in given):
            raise FieldError("bins", f"at most {most} cuts a column (gbdt.max-bins)", "another number")
        return {p: n[n[:, 0] >= 0, 0] for p, n in zip(self.others(client), given, strict=True)}

    def _placed(self, client: str, search: _LabelTree, first: int = 0) -> Ints:
        """Return where the rows are after the steps before, the last one by the directions that came.

        `first` is the place of the first proof of these.
        """
        place, tree = search.held["place"], search.tree
        search.take(self.step)
        if int(search.held["step"]) == self.step:
            return place
        others, given = self.others(client), self.given(client, "directions")
        said = [[sides[None]] for sides in given]
        self.check("sides", client, others, ("",) * len(others), said, self.step - 1, first)
        sides = np.concatenate([search.sides(place), given])
        nodes, parties = tree.steps[-1], [client, *others]
        if [parties[k] for k in open_tree.owners(place, nodes, sides)] != [tree.owner(n) for n in nodes]:
            raise FieldError("sides", "directions from the party whose split a node was given", "another's")
        return open_tree.moved(place, nodes, len(tree.tree.nodes) - 2 * len(nodes), sides)

    def search(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Split nodes by the sums of all parties' columns, and tell each party which of its own do."""
        kept, others, (size, _) = self.kept(client), self.others(client), self.order.rows["asked"]
        search = self._search(client, kept)
        place = self._placed(client, search, len(others))
        taken = self._taken(client, search, place, kept)
        counts, before = search.held["counts"][: self.step], search.held["histograms"]
        before = before[: int(counts.sum())].reshape(-1, *taken.shape[1:])
        search.held = {
            **search.held, "step": np.array(self.step), "place": place,
            "counts": np.append(counts, len(taken)), "histograms": np.concatenate([before, taken]),
        }  # fmt: skip
        search.take(self.step + 1)
        tree = search.tree
        asked = np.full((size, 1), open_tree.FOREIGN, np.int32)
        asked[: len(tree.tree.asked), 0] = tree.tree.asked
        told, sides = [tree.told(party, size) for party in others], search.sides(place)
        to = [(("splits", party), [t, asked]) for party, t in zip(others, told, strict=True)]
        to.append((("sides", ""), [sides]))
        proofs = [self.proofs(what, client, (party,), [arrays])[ROWS] for (what, party), arrays in to]
        up = {
            "splits": {ROWS: np.concatenate([np.zeros((0, 4), np.int32), *told])},
            "asked": {ROWS: asked},
            "sides": {ROWS: sides},
            "proof": {ROWS: np.concatenate(proofs)},
        }
        found = {"splits": float(len(tree.steps[-1])), "asked": float(len(tree.tree.asked))}
        return wire.ClientUpdate(up, self.examples(search.columns) | found), {"open": search.held}

    def _taken(self, client: str, search: _LabelTree, place: Ints, kept: Kept) -> Ints:
        """Return the histograms of the nodes that the tree asks for, of all columns, [nodes, cells, 3].

        Raises:
            FieldError: A party's do not add up to what the nodes' rows have.
        """
        tree, columns, others = search.tree, search.columns, self.others(client)
        nodes, g, h = tree.tree.asked, search.held["g"], search.held["h"]
        of = np.where(self.used(columns.train), slots(place[columns.tests :], nodes), -1)
        parts = {client: columns.histograms(of, len(nodes), g, h)}
        packing, secret = Packing(columns.train), secret_key(kept["key"])
        given, counts = self._by_other(client, "histograms"), self._counts(client)
        said = [[counts[party], part] for party, part in zip(others, given, strict=True)]
        self.check("histograms", client, others, ("",) * len(others), said, self.step)
        for party, part in zip(others, given, strict=True):
            cells = tree.cells(party)
            plain = packing.opened(secret.decrypt(from_rows(part)), len(nodes) * cells, self.key_bits)
            parts[party] = packing.sums(plain).reshape(len(nodes), cells, 3)
        inside = [of == i for i in range(len(nodes))]
        return tree.joint(parts, [np.array([g[i].sum(), h[i].sum(), i.sum()]) for i in inside])

    def grow(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Add the tree to the model, and its leaves to the rows' margins."""
        kept, t = self.kept(client), self.order.round
        search, data = self._search(client, kept), self.data(client, kept)
        model, place = self._model(data, kept), self._placed(client, search)
        trees = TreeEnsemble.from_arrays(model["part"], len(search.tree.whose))
        search.take(len(search.held["counts"]))
        grown = search.tree.tree
        tree, order = grown.tree(), np.array(grown.order(), np.int64)
        number = np.argsort(order)  # of each node, by the one that it had while the tree grew
        margins = model["margins"]["margins"] + tree.value[number[place]].astype(np.float64)
        part = {**trees.joined(tree).to_arrays(), "numbers": np.append(model["part"]["numbers"], order)}
        stopping, best = self._stopping(data, model, margins)
        keep = {
            "part": part | stopping,
            "margins": {"margins": margins} | best,
            "step": {"round": np.array(t)},
        }
        rows = len(data.tests) + np.flatnonzero(~self.held(search.columns.train))
        loss = self._measured(data, margins, rows)[0]["loss"]
        numbers = {**self.examples(search.columns), TRAIN_LOSS.name: loss}
        if stopping:
            losses, patience = stopping["held-out-losses"].tolist(), self.config.gbdt.patience
            numbers["held-out-loss"] = losses[-1]
            numbers["ended"] = float(patience > 0 and not waits(losses, patience))
        part = keep["part"]
        return wire.ClientUpdate({"digest": digest_of(part)}, numbers), {**keep, "open": kept["open"]}

    def _stopping(self, data: AlignedParty, model: Kept, margins: np.ndarray) -> tuple[Arrays, Arrays]:
        """Return the losses of the rows held out and the best number of trees, and their margins.

        Nothing if no rows are held out; no number if the run has no patience.
        """
        tests, (objective, y) = len(data.tests), self._objective(data)
        held = self.held(len(y) - tests)
        if not held.any():
            return {}, {}
        terms, _ = objective.losses(margins[tests:][held, None], y[tests:][held])
        (total,) = row_sums(terms[:, None], "losses")
        loss = objective.mean_loss(value(total), int(held.sum()))
        losses = np.append(model["part"].get("held-out-losses", np.zeros(0)), loss)
        found: Arrays = {"held-out-losses": losses}
        if not self.config.gbdt.patience:
            return found, {}
        best = improved(losses.tolist())
        kept = margins if best == len(losses) else model["margins"]["best"]
        return found | {"best": np.array(best)}, {"best": kept}

    def _measured(
        self, data: AlignedParty, margins: np.ndarray, rows: slice | Ints
    ) -> tuple[dict[str, float], Arrays]:
        f, y = torch.from_numpy(margins[rows]), data.y(data.rows[rows])
        classes = self.node.task.name == "classification"
        outputs = (torch.stack([torch.zeros_like(f), f], dim=1) if classes else f[:, None]).float()
        return measure(torch.nn.Identity(), outputs.to(y.device), y, task=self.node.task)

    def score(self, client: str) -> wire.ClientUpdate:
        """Measure the model on the common test rows."""
        kept = self.kept(client, later=1)
        data = self.data(client, kept)
        margins = kept["margins"].get("best", kept["margins"]["margins"])
        found, sums = self._measured(data, margins, slice(len(data.tests)))
        return wire.ClientUpdate({SUMS.name: sums} if self.entry.metrics else {}, found)


def _base(objective: Objective, y: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return the margin before the first tree, float64 [1], by the targets `y` of the rows that are used."""
    scale, y = scale_of(float(np.abs(y).max(initial=1.0))), y[used]
    return objective.base(row_sums(objective.base_terms(y, scale), "targets"), len(y), scale)
