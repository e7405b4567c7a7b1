"""A party's share of growing boosted trees if it has no labels; `strategies.rules.secureboost` has the whole.

What a party keeps of an open tree follows from the messages of the round so far, so that a message that comes
twice, or a round that begins again, changes nothing. The first step of a round begins a new tree.
"""

from dataclasses import replace

import numpy as np

from client_app.data.node import Node
from client_app.vertical.encrypted import EncryptedWork, from_rows, to_rows
from client_app.vertical.party import AlignedParty, Kept, aligned, digest_of
from client_app.vertical.tree_columns import Columns
from task.catalogue.entry import Algorithm
from task.errors import FieldError
from task.numerics import seeds
from task.numerics.arrays import Arrays
from task.trees.histograms import slots
from task.trees.sampling import Flags, Keys, drawn, keys_of
from task.vertical import open_tree
from task.vertical.gradients import Packing
from task.wire import messages as wire
from task.wire.layouts import ROWS

_TABLE = {"node": np.int64, "column": np.int32, "cut": np.float32, "default-left": np.uint8}
_NO_SPLITS = {
    "at": np.zeros(0, np.int64), **{name: np.zeros(0, dtype) for name, dtype in _TABLE.items()},
    "nodes": np.zeros(0, np.int64), "next": np.zeros(0, np.int64), "sides": np.zeros((1, 0), np.uint8),
}  # fmt: skip


def _keys(rows: int) -> Keys:
    """Return the keys by which training rows are drawn: their places in the common order."""
    return keys_of("", np.arange(rows), np.arange(rows, dtype=np.float64))


class GrowingWork(EncryptedWork):
    """What a party does in one phase of a round: what is common to all parties."""

    def __init__(self, node: Node, entry: Algorithm, order: wire.TrainOrder) -> None:
        super().__init__(node, entry, order, "step")

    def kept(self, client: str, later: int = 0) -> Kept:
        """Return what a party keeps: its part of the model from before the round, and the open tree.

        With `later` = 1 the part is that of the round.

        Raises:
            StateError: The party lacks its part of the last round's model.
        """
        last = self.order.round - 1 + later
        (kept,) = self.memory.load([client], self.order.round + later)
        held = int(kept["step"]["round"]) if "step" in kept else 0
        if held != last and any(record.name == "step" for record in self.entry.keeps):
            raise self.wrong_round(client, last, kept)
        return kept

    def opened(self, client: str, kept: Kept, *steps: int) -> Arrays:
        """Return the open tree, which has taken one of these numbers of steps.

        Raises:
            StateError: It has not.
        """
        found = kept.get("open", {})
        if not found or int(found["step"]) not in steps:
            raise self.wrong_step(client, "open tree", steps[0], int(found["step"]) if found else "no tree")
        return found

    def data(self, client: str, kept: Kept) -> AlignedParty:
        """Return the party's rows; their columns are not standardised, on which no split depends."""
        return replace(aligned(self.node, client, kept.get("aligned", {})), scale=None)

    def columns(self, client: str, kept: Kept) -> Columns:
        """Return the party's columns with their cuts."""
        data, keys = self.data(client, kept), self.config.gbdt
        held = self.held(len(data.rows) - len(data.tests))
        return Columns.of(data, keys.max_bins, keys.min_child_count, held)

    def held(self, rows: int) -> Flags:
        """Return which of the training rows no tree is grown from, bool [rows]."""
        return drawn(_keys(rows), self.config.gbdt.held_out, self.config.seeds.train, seeds.UNGROWN)

    def used(self, rows: int) -> Flags:
        """Return from which of the training rows the round's tree is grown, bool [rows]."""
        share, seed = self.config.gbdt.subsample, self.config.seeds.train
        return ~self.held(rows) & drawn(_keys(rows), share, seed, seeds.TREE_ROWS, self.order.round)

    def examples(self, columns: Columns) -> dict[str, float]:
        """Return what any reply says."""
        return {wire.NUM_EXAMPLES: float(columns.train)}


class TableWork(GrowingWork):
    """What a party without labels does: sum up others' numbers by its columns, and split rows by them."""

    def bins(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Send how many cuts each column has."""
        columns = self.columns(client, self.kept(client))
        found = np.full(self.order.rows["bins"], -1, np.int32)
        found[: len(columns.layout.cuts), 0] = [len(cuts) for cuts in columns.layout.cuts]
        return wire.ClientUpdate({"bins": {ROWS: found}}, self.examples(columns)), {}

    def histograms(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Add up the encrypted numbers of the rows in each cell of the nodes that are asked for."""
        kept = self.kept(client)
        columns = self.columns(client, kept)
        if self.step == 0:
            opened = self._begun(client, len(columns.x))
        else:
            opened = self._moved(client, self.opened(client, kept, self.step, self.step - 1))
        made = self._summed(columns, opened)
        counts = np.array([len(cuts) for cuts in columns.layout.cuts], np.int32)  # which `bins` has sent
        up = {"histograms": {ROWS: made}, "proof": self.proofs("histograms", client, ("",), [[counts, made]])}
        return wire.ClientUpdate(up, self.examples(columns)), {"open": opened}

    def _summed(self, columns: Columns, opened: Arrays) -> np.ndarray:
        """Return the encrypted sums of the cells of the nodes that are asked for, several in a ciphertext."""
        (public,) = self.publics(from_rows(opened["moduli"]))
        packing, (packs, _) = Packing(columns.train), self.order.rows["histograms"]
        nodes, ciphers = opened["asked"].tolist(), from_rows(opened["ciphers"])
        packed = packing.slots(self.key_bits)
        of = slots(opened["place"][columns.tests :], nodes)
        groups = columns.groups(np.where(self.used(columns.train), of, -1), len(nodes))
        if len(ciphers) != columns.train or len(groups) > packs * packed:
            raise FieldError(
                "ciphers",
                f"those of {columns.train} rows, and room for {len(groups)} sums",
                f"{len(ciphers)}, and room for {packs * packed}",
            )
        return to_rows(public.grouped(ciphers, groups, packed, packing.bits, packs), self.cipher_bytes)

    def _begun(self, client: str, rows: int) -> Arrays:
        """Return a new tree, with the numbers of the party that has the labels."""
        given, label = {name: self.given(client, name) for name in ("moduli", "ciphers")}, self._label(client)
        self.check("gradients", client, [label], ("",), [list(given.values())], self.step)
        return {
            "step": np.array(0), "size": np.array(1), "place": np.zeros(rows, np.int64), **given,
            "asked": np.zeros(1, np.int64), **_NO_SPLITS,
        }  # fmt: skip

    def _label(self, client: str) -> str:
        """Return the party with the labels; that it has them it proves by what it signs."""
        parties, number = sorted([client, *self.others(client)]), int(self.order.scalars["label"])
        if not 0 <= number < len(parties) or parties[number] == client:
            raise FieldError("label", f"one of {len(parties) - 1} other parties", str(number))
        return parties[number]

    def _moved(self, client: str, opened: Arrays) -> Arrays:
        """Return a tree after the step before, with the directions of the rows that came."""
        if int(opened["step"]) == self.step:
            return opened
        others, given = self.others(client), self.given(client, "directions")
        self.check("sides", client, others, ("",) * len(others), [[s[None]] for s in given], self.step - 1)
        nodes, size = opened["nodes"].tolist(), int(opened["size"])
        place = open_tree.moved(opened["place"], nodes, size, np.concatenate([opened["sides"], given]))
        asked, after = opened["next"], size + 2 * len(nodes)
        if len(asked) != len({*asked.tolist()} & {*range(size, after)}):
            raise FieldError("asked", "nodes that the step before has made", "others")
        return {
            **opened,
            "step": np.array(self.step),
            "size": np.array(after),
            "place": place,
            "asked": asked,
        }

    def divide(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Say which rows go left in the nodes that the party's own columns split."""
        kept = self.kept(client)
        columns, opened = self.columns(client, kept), self.opened(client, kept, self.step)
        splits, asked = self.given(client, "splits"), self.given(client, "asked")
        self.check("splits", client, [self._label(client)], (client,), [[splits, asked]], self.step)
        splits = splits[splits[:, 0] != open_tree.FOREIGN]
        nodes, own = splits[:, 0].astype(np.int64), splits[splits[:, 1] != open_tree.FOREIGN]
        place, sides = opened["place"], np.zeros((1, len(columns.x)), np.uint8)
        if len(nodes) != len({*nodes.tolist()} & {*place.tolist()}):
            raise FieldError("splits", "leaves of the open tree, each once", "other nodes")
        cut = np.zeros(len(own), np.float32)
        for i, (node, column, number, default_left) in enumerate(own.tolist()):
            if not 0 <= column < len(columns.layout.cuts):
                raise FieldError("splits", f"one of {len(columns.layout.cuts)} columns", str(column))
            cut[i] = open_tree.cut_of(number, columns.layout.cuts[column])
            rows = place == node
            sides[0, rows] = open_tree.sides_of(columns.x[rows, column], cut[i], bool(default_left))
        table = {name: opened[name][opened["at"] < self.step] for name in ("at", *_TABLE)}
        made = {
            "at": np.full(len(own), self.step), "node": own[:, 0], "column": own[:, 1], "cut": cut,
            "default-left": (own[:, 3] != 0).astype(np.uint8),
        }  # fmt: skip
        table = {name: np.concatenate([a, made[name].astype(a.dtype)]) for name, a in table.items()}
        asked = asked[asked != open_tree.FOREIGN].astype(np.int64)
        up = {"sides": {ROWS: sides}, "proof": self.proofs("sides", client, ("",), [[sides]])}
        keep = {**opened, **table, "nodes": nodes, "next": asked, "sides": sides}
        return wire.ClientUpdate(up, self.examples(columns)), {"open": keep}

    def close(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Add the tree's splits to the party's table."""
        kept, t = self.kept(client), self.order.round
        opened = self.opened(client, kept, self.step, self.step - 1)
        part = open_tree.with_splits(kept.get("part", {}), t - 1, {name: opened[name] for name in _TABLE})
        keep = {"part": part, "step": {"round": np.array(t)}, "open": opened}
        return wire.ClientUpdate({"digest": digest_of(part)}, self.examples(self.columns(client, kept))), keep
