"""A party's share of vertical logistic regression; `strategies.rules.vertical_logistic` has the whole.

All sums are of whole numbers: columns in units of 2^-20, residuals in units of 2^-32. So a party gets exactly
the sum that it would get without encryption, and the weights are the same to the bit.

A party's masks follow from a secret of its own and from the ciphertexts that it multiplies: a message that
comes twice is masked alike, and other ciphertexts otherwise.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from client_app.data.node import Node
from client_app.stages.stage import Outcome, each
from client_app.vertical.encrypted import EncryptedWork, from_rows, secret_key, to_rows
from client_app.vertical.party import Kept, PartyModel, aligned
from task.catalogue.entry import Algorithm
from task.errors import DataError, FieldError
from task.numerics.arrays import Arrays
from task.secagg.primitives import derive, digest
from task.vertical.paillier import PublicKey
from task.vertical.rows import batches
from task.wire import messages as wire
from task.wire.layouts import ROWS

COLUMN_BITS, RESIDUAL_BITS = 20, 32  # units of 2^-20 and 2^-32
MOST_COLUMN, MOST_RESIDUAL, MOST_ROWS = 31, 44, 20  # in bits: a sum has 95 and a sign (`SLOT_BITS`)


def whole(values: np.ndarray, unit_bits: int, most_bits: int, what: str) -> np.ndarray:
    """Return numbers in units of 2^-unit_bits, whole float64s.

    Raises:
        FieldError: One is not finite, or so large that a sum would not fit.
    """
    units: np.ndarray = np.rint(values * 2.0**unit_bits)
    if not (np.isfinite(units).all() and np.abs(units).max(initial=0.0) < 2.0**most_bits):
        raise FieldError(
            what, f"numbers of less than 2^{most_bits - unit_bits}; lower learning-rate", "larger ones"
        )
    return units


@dataclass
class _Linear(PartyModel):
    """A party's weights as they stand: w_k, and where the labels are an intercept after them."""

    params: list[torch.Tensor]  # one of [p_k] or [p_k + 1], float64

    @property
    def weights(self) -> np.ndarray:
        found: np.ndarray = self.params[0].numpy()
        return found

    def columns(self, rows: np.ndarray) -> np.ndarray:
        """Return X_k of some rows in units of 2^-20, a column of ones last where the labels are, float64."""
        x = self.data.x(rows).flatten(1).double().cpu().numpy()
        if self.data.party.labelled:
            x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        return whole(x, COLUMN_BITS, MOST_COLUMN, "columns")

    def scores(self, columns: np.ndarray) -> np.ndarray:
        """Return u_k = X_k w_k."""
        found: np.ndarray = (columns * 2.0**-COLUMN_BITS * self.weights).sum(axis=1)
        return found

    def residuals(self, rows: np.ndarray, columns: np.ndarray) -> list[int]:
        """Return r_k = u_k / 4, less y / 2 where the labels are, in units of 2^-32."""
        found = self.scores(columns) / 4
        if self.data.party.labelled:
            found = found - (self.data.y(rows).cpu().numpy() - 0.5)
        return [int(r) for r in whole(found, RESIDUAL_BITS, MOST_RESIDUAL, "residuals")]

    def arrays(self) -> Arrays:
        """Return the weights."""
        return {"weight": self.weights.copy()}


class LogisticWork(EncryptedWork):
    """What the parties among an order's clients do in one phase of a round."""

    def _opened(self, client: str) -> _Linear:
        """Return a party as it was left.

        Raises:
            StateError: It has not taken the steps that this phase goes on from.
            DataError: Its labels are not of two classes.
        """
        order, step = self.order, self.step
        first = self.entry.work == "residuals" and step == 0
        (kept,) = self.memory.load([client], order.round + (not first))
        held = kept.get("step", {"round": np.array(0), "windows": np.array(0)})
        done = int(held["windows"]) if int(held["round"]) == order.round else 0
        if int(held["round"]) < order.round - 1 or ("part" not in kept and not first):
            raise self.wrong_round(client, order.round - 1, kept)
        if not first and done not in (step, step - 1):
            raise self.wrong_step(client, "weights", step, done)
        data = aligned(self.node, client, kept.get("aligned", {}))
        if data.party.labelled and self.node.dataset.num_classes != 2:
            raise DataError(
                f'run-config key "algorithm": {self.entry.name} expects labels of two classes; got '
                f"{self.node.dataset.num_classes}. splitnn takes any number"
            )
        size = data.party.inputs + data.party.labelled
        params = [torch.from_numpy(kept.get("part", {"weight": np.zeros(size)})["weight"].copy())]
        return _Linear(data, self.optimizer(params, kept), done, kept, params)

    def _batch(self, held: _Linear, step: int) -> np.ndarray:
        """Return the rows of a step."""
        rows = held.data.epoch(self.order.round)
        spans = batches(0, len(rows), len(rows), self.config)
        if max(s.stop - s.start for s in spans) > 1 << MOST_ROWS:
            raise FieldError("batch-size", f"at most 2^{MOST_ROWS} rows in a step", "more")
        found: np.ndarray = rows[spans[step]]
        return found

    # ------------------------------------------------------------------ phases

    def residuals(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Take the step before, if there is one, and send the encrypted residuals of the next batch."""
        held = self._stepped(client)
        key = held.kept.get("key") or self.new_key()
        secret = secret_key(key)
        rows = self._batch(held, self.step)
        ciphers = [secret.encrypt(r) for r in held.residuals(rows, held.columns(rows))]
        up = {
            "residuals": {ROWS: to_rows(ciphers, self.cipher_bytes)},
            "moduli": {ROWS: self.modulus(secret)},
        }
        signed = [up[name][ROWS] for name in ("moduli", "residuals")]
        up["proof"] = self.proofs("residuals", client, ("",), [signed])
        keep = {**held.keep(self.order.round), "key": key, "aligned": held.kept["aligned"]}
        return wire.ClientUpdate(up, {wire.NUM_EXAMPLES: len(rows)}), keep

    def products(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Multiply the others' residuals with the own columns, masked, each sum under its owner's key."""
        held = self._opened(client)
        if held.windows != self.step:
            raise self.wrong_step(client, "residuals", self.step, held.windows)
        rows = self._batch(held, self.step)
        given, others = self.given(client, "residuals"), self.others(client)
        keys = self.given(client, "moduli")
        said = [[m[None], r] for m, r in zip(keys, np.split(given, len(others)), strict=True)]
        self.check("residuals", client, others, ("",) * len(others), said, self.step)
        moduli = from_rows(keys)
        size, _ = self.order.rows["products"]
        packs = size // max(len(moduli), 1)
        mine = held.columns(rows)
        columns = [[int(v) for v in column] for column in mine.T]
        out: list[int] = []
        asked = self._asked(mine, moduli, given)
        for k, public in enumerate(self.publics(moduli)):
            ciphers = from_rows(given[k * len(rows) : (k + 1) * len(rows)])
            padded = columns + [[0] * len(rows)] * (packs * public.slots - len(columns))
            out += public.combined(ciphers, padded, self._masks(held, asked, k, public, packs))
        about = {"digest": asked, "moduli": keys}
        keep = {**held.keep(self.order.round), "asked": about}
        made = to_rows(out, self.cipher_bytes)
        signed = [[m[None], a] for m, a in zip(keys, np.split(made, len(others)), strict=True)]
        up = {"products": {ROWS: made}, "proofs": self.proofs("products", client, others, signed)}
        return wire.ClientUpdate(up, {wire.NUM_EXAMPLES: len(rows)}), keep

    def open(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Decrypt what others made of the own residuals; their masks hide it."""
        held, others = self._opened(client), self.others(client)
        secret, given = secret_key(held.kept["key"]), self.given(client, "products")
        modulus = self.modulus(secret)
        signed = [[modulus, part] for part in np.split(given, len(others))]
        self.check("products", client, others, (client,) * len(others), signed, self.step)
        rows, made = self._batch(held, self.step), to_rows(secret.decrypt(from_rows(given)), self.plain_bytes)
        parts = [[part] for part in np.split(made, len(others))]
        up = {"opened": {ROWS: made}, "proofs": self.proofs("opened", client, others, parts)}
        return wire.ClientUpdate(up, {wire.NUM_EXAMPLES: len(rows)}), {}

    def finish(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Take the last step of the round."""
        held = self._stepped(client)
        numbers = {wire.NUM_EXAMPLES: float(len(held.data.epoch(self.order.round)))}
        return wire.ClientUpdate({"digest": held.digest()}, numbers), held.keep(self.order.round)

    def scores(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Send u_k of the common test rows."""
        held = self._opened(client)
        found = held.scores(held.columns(held.data.tests)).astype(np.float32)[:, None]
        return wire.ClientUpdate({"embeddings": {ROWS: found}}, {wire.NUM_EXAMPLES: len(found)}), {}

    def score(self, client: str) -> wire.ClientUpdate:
        """Measure the whole model on the common test rows."""
        held = self._opened(client)
        tests = held.data.tests
        given = self.embeddings(tests)
        total = held.scores(held.columns(tests)) + given.astype(np.float64).sum(axis=1)
        outputs = torch.from_numpy(np.stack([np.zeros_like(total), total], axis=1)).float()
        return self.measured(torch.nn.Identity(), outputs, held.data.y(tests))

    # ------------------------------------------------------------------ a step

    def _stepped(self, client: str) -> _Linear:
        """Return a party after `step` steps; the last one is taken with the sums that came, if it was not."""
        held = self._opened(client)
        if self.step == 0 or held.windows == self.step:
            return held
        rows = self._batch(held, self.step - 1)
        columns = held.columns(rows)
        own = held.residuals(rows, columns)
        exact = [sum(int(x) * r for x, r in zip(column, own, strict=True)) for column in columns.T]
        opened = from_rows(self.given(client, "opened"))
        if opened:
            others = self.others(client)
            parts = [[part] for part in np.split(self.given(client, "opened"), len(others))]
            self.check("opened", client, others, (client,) * len(others), parts, self.step - 1)
            moduli = from_rows(held.kept["asked"]["moduli"])
            packs = len(opened) // len(moduli)
            for k, public in enumerate(self.publics(moduli)):
                masks = self._masks(held, held.kept["asked"]["digest"], k, public, packs, self.step - 1)
                numbers = [a - m for a, m in zip(opened[k * packs : (k + 1) * packs], masks, strict=True)]
                sums = [s for number in numbers for s in public.unpacked(number, public.slots)]
                exact = [a + b for a, b in zip(exact, sums, strict=False)]  # the last packs are padded
        unit = 2.0 ** -(COLUMN_BITS + RESIDUAL_BITS) / len(rows)
        gradient = torch.tensor([a * unit for a in exact], dtype=torch.float64)
        held.optimizer.step(held.params, [gradient], self.order.scalars["lr"])
        held.windows = self.step
        return held

    def _asked(self, columns: np.ndarray, moduli: list[int], given: np.ndarray) -> np.ndarray:
        """Return what is multiplied as one digest.

        The own columns are part of it: with the same masks on other rows, as of a run of the same name under
        another seed, the difference of two answers would show what the rows differ in.
        """
        found = digest("products", *(str(n) for n in moduli), given.tobytes(), columns.tobytes())
        return np.frombuffer(found, np.uint8)

    def _masks(
        self, held: _Linear, asked: np.ndarray, k: int, public: PublicKey, packs: int, step: int | None = None
    ) -> list[int]:
        """Return a uniform number modulo n for each pack of the k-th other party."""
        about = self.order.run, self.order.round, self.step if step is None else step, k
        size = self.plain_bytes + 16  # its remainder is uniform up to 2^-128
        secret = held.kept["key"]["masks"].tobytes()
        raw = [derive(secret, asked.tobytes(), "mask", *about, i, size=size) for i in range(packs)]
        return [int.from_bytes(r, "big") % public.modulus for r in raw]


def run_logistic(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Do one phase of vertical logistic regression for the parties of an order."""
    work = LogisticWork(node, entry, order)
    if entry.work == "tally":
        return each(order.clients, work.score)
    steps = {
        "residuals": work.residuals, "products": work.products, "open": work.open, "finish": work.finish,
        "scores": work.scores,
    }  # fmt: skip
    return work.run(steps[entry.work])
