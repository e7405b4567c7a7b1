"""Logistic regression over parties with other columns of the same people, under additive encryption.

Hardy et al. 2017, arXiv 1711.10677: the loss is its Taylor expansion, so that gradients are sums of products.
With y = -1 or 1 and u = sum_k u_k, u_k = X_k w_k,

    log(1 + exp(-y u)) = log 2 - y u / 2 + u^2 / 8 + O(u^4),    its derivative by u is  d = u / 4 - y / 2

and d = sum_k r_k with r_k = u_k / 4, less y / 2 at the party L with the labels. As y^2 = 1 the loss is
(u - 2 y)^2 / 8 and a constant: least squares with targets of -2 and 2.

The paper has a third party that decrypts, which must not see what the two others send each other. Here every
message goes through the server, and there is no third party: each party k has its own key, under
which it encrypts its r_k, and no party ever sees another's. For each batch of b rows

1  every party k   E_k(r_k)                                                      up, then down to all others
2  every party j   E_k(X_j^T r_k + mask), for each other k                       up, then down to k
3  every party k   X_j^T r_k + mask, decrypted                                   up, then down to j
4  every party j   g_j = sum_k X_j^T r_k / b;  w_j <- w_j - eta g_j

and step 4 goes with step 1 of the next batch: an epoch, which is a round, of B batches takes 3 B + 1
exchanges.

=========  =====================  =======================================================  =============
symbol     variable               meaning                                                  where
=========  =====================  =======================================================  =============
E_k        `task.vertical`        Paillier under party k's key (``paillier``)              parties
r_k        ``residuals``          party k's part of d, encrypted [b, bytes]                wire
n_k        ``moduli``             public keys                                              wire
-          ``products``           packs of masked sums under their owner's key             wire
-          ``opened``             the same, decrypted                                      wire
-          ``proofs``             whose each record is (`task.vertical.proofs`)            wire
w_k        -                      party k's weights; at L with an intercept                parties
-          ``digest``             SHA-256 of w_k, which is all the server keeps            wire, state
m          `Parties.train`        common rows that are trained on                          server
=========  =====================  =======================================================  =============
"""

from typing import Any

import numpy as np

from strategies.engine.rule import TRAIN, Phases, Round, RoundContext
from strategies.rules.parties import Numbers, Parties, Questions, by_party, side_by_side, take_digests
from task.vertical import psi
from task.vertical.paillier import slots, widths
from task.vertical.proofs import PROOF_BYTES
from task.vertical.rows import batches


class VerticalLogistic(Parties, algorithm="vertical-logistic", update=take_digests):
    """Encrypted logistic regression over parties; see `strategies.rules.vertical_logistic`."""

    def warn(self, context: RoundContext) -> None:
        """Say what is not private."""
        if self.config.vertical.key_bits == 0:
            context.remark(
                "warning: vertical.key-bits = 0: scores and labels of rows are sent unencrypted; "
                "set it to 2048"
            )

    def round(self, state: Any, context: RoundContext) -> Round:
        """Go once over the common rows, batch by batch."""
        ask, others = Questions(context, {"lr": context.lr}), len(self.parties) - 1
        cipher, plain = widths(self.config.vertical.key_bits)
        spans = batches(0, self.train, self.train, self.config)
        packs = others * -(-(max(self.columns.values()) + 1) // slots(self.config.vertical.key_bits))
        opened: Numbers = {party: np.zeros((0, plain), np.uint8) for party in self.parties}
        proofs: Numbers = {party: np.zeros((0, PROOF_BYTES), np.uint8) for party in self.parties}
        for w, span in enumerate(spans):
            b = span.stop - span.start
            rows = {"residuals": (b, cipher), "moduli": (1, plain), "opened": opened[self.label].shape}
            rows |= {"proofs": proofs[self.label].shape, "proof": (1, PROOF_BYTES)}
            sums = {"opened": opened, "proofs": proofs}
            found = yield from ask("residuals", self.parties, sums, rows=rows, window=w)
            if not others:
                continue
            names = {"residuals": "residuals", "moduli": "moduli", "proofs": "proof"}
            given = {down: self._to_others(by_party(found, up)) for down, up in names.items()}
            proved = {"proofs": (others, PROOF_BYTES)}
            rows = {"residuals": (others * b, cipher), "moduli": (others, plain), "products": (packs, cipher)}
            found = yield from ask("products", self.parties, given, rows=rows | proved, window=w)
            rows = {"products": (packs, cipher), "opened": (packs, plain)}
            sealed = {name: self._swapped(by_party(found, name)) for name in ("products", "proofs")}
            found = yield from ask("open", self.parties, sealed, rows=rows | proved, window=w)
            opened, proofs = (self._swapped(by_party(found, name)) for name in ("opened", "proofs"))
        rows = {"opened": opened[self.label].shape, "proofs": proofs[self.label].shape}
        rows["digest"] = (1, psi.BYTES)
        sums = {"opened": opened, "proofs": proofs}
        last = yield from ask(TRAIN, self.parties, sums, rows=rows, log_as=TRAIN, window=len(spans))
        state, _ = type(self).update(state, last, self.config)
        return state, {"exchanges": (3 if others else 1) * len(spans) + 1, "rows": self.train}

    def evaluation(self, state: Any, context: RoundContext) -> Phases:
        """Let the parties send u_k of the test rows, and the one with the labels measure their sum."""
        ask = Questions(context, {"lr": context.lr})
        w = len(batches(0, self.train, self.train, self.config))
        joint = np.zeros((self.tests, 0), np.float32)
        if self.others:
            rows = {"embeddings": (self.tests, 1)}
            replies = yield from ask("scores", self.others, rows=rows, window=w)
            joint = side_by_side(replies)
        yield from self.measured(ask, joint, w)

    def _to_others(self, given: Numbers) -> Numbers:
        """Return for each party what all others sent, one after the other in the order of their names."""
        return {p: np.concatenate([given[k] for k in self.parties if k != p]) for p in self.parties}

    def _swapped(self, given: Numbers) -> Numbers:
        """Return for each party what the others sent for it, of parts for all others in their order."""
        others = {j: [k for k in self.parties if k != j] for j in self.parties}
        parts = {j: dict(zip(ks, np.split(given[j], len(ks)), strict=True)) for j, ks in others.items()}
        return {k: np.concatenate([parts[j][k] for j in others[k]]) for k in self.parties}
