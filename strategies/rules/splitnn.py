"""SplitNN over parties with other columns of the same people, server half.

Vepakomma, Gupta, Swedish and Raskar 2018, arXiv 1812.00564, vertically partitioned data; in windows (the
paper's has one batch per exchange), and with local passes as in FedBCD (Liu et al. 2022).

Each party k has a bottom model over its own columns; the party L with the labels has the top model, too. A
round is an epoch over the m common rows, cut into windows of S batches. For each window

1  every party k but L   A_k = f_k(X_k) of the window's rows                          up, then down to L
2  party L               a step of g and f_L on each batch, Q times over; G_k = dL/dA_k of the first pass
                                                                                      up, then down to k
3  every party k but L   a step along G_k on each batch, Q times over, the forward pass done again

and step 3 of a window goes with step 1 of the next one: an epoch of W windows takes 2 W + 1 exchanges.
S = Q = 1 is back-propagation through the whole model, as if the columns lay in one place.

=========  ===========================  ==================================================  =============
symbol     variable                     meaning                                             where
=========  ===========================  ==================================================  =============
A_k        ``embeddings``               outputs of party k's bottom model [rows, c]         wire
G_k        ``gradients``                gradients of the batch's mean loss by A_k           wire
theta_k    -                            the parties' parts of the model                     parties
-          ``digest``                   SHA-256 of a part, which is all the server keeps    wire, state
m          `SplitNN.train`              common rows that are trained on                     server
=========  ===========================  ==================================================  =============

The server relays; its state has, by party, the SHA-256 of that party's part, so that equal runs have equal
``model.safetensors``. Before round 1 the parties find their common rows (`task.vertical.psi`).
"""

from collections.abc import Generator
from typing import Any

import numpy as np

from strategies.engine.rule import TRAIN, Phase, Phases, Round, RoundContext
from strategies.engine.state import AggregatedReplies
from strategies.rules.parties import ROWS, Parties, Questions, side_by_side, take_digests
from task.population import some
from task.vertical import psi
from task.vertical.rows import windows


class SplitNN(Parties, algorithm="splitnn", update=take_digests):
    """Parties with other columns of the same people; see `strategies.rules.splitnn`."""

    def warn(self, context: RoundContext) -> None:
        """Say what is not private, unless the run says what is done about it."""
        vertical = self.config.vertical
        if len(self.parties) > 1 and vertical.defence == "none":
            context.remark(
                f"warning: the gradients that go to {some(self.others)} reveal labels of {self.label}, "
                'especially those of rare classes (docs/howto/vertical.md); vertical.defence = "max-norm" or '
                '"gaussian" makes it harder'
            )
        wide = self.columns.items()
        if wide_ones := [c for c, p in wide if 0 < p <= vertical.cut and c != self.label]:
            context.remark(
                f"warning: vertical.cut = {vertical.cut} is not less than the columns of {some(wide_ones)}: "
                "the columns can perhaps be reconstructed from what is sent; choose a smaller vertical.cut"
            )

    def round(self, state: Any, context: RoundContext) -> Round:
        """Go once over the common rows, window by window."""
        ask, others, width = Questions(context, {"lr": context.lr}), self.others, self.config.vertical.cut
        spans, gradients = windows(self.train, self.config), np.zeros((0, width * len(others)), np.float32)
        for w, (start, stop) in enumerate(spans):
            size = stop - start
            joint = yield from self._embedded(ask, w, gradients, size)
            rows = {"embeddings": joint.shape, "gradients": joint.shape, "digest": (1, psi.BYTES)}
            last = yield from ask(TRAIN, (self.label,), records={"embeddings": joint}, rows=rows, window=w)
            gradients = last.arrays["gradients"][ROWS][0]
        state, _ = type(self).update(state, last, self.config)
        if others:
            done = yield from self._step(ask, len(spans), gradients, 0, log_as=TRAIN)
            state, _ = type(self).update(state, done, self.config)
        return state, {"exchanges": 2 * len(spans) + 1 if others else len(spans), "rows": self.train}

    def evaluation(self, state: Any, context: RoundContext) -> Phases:
        """Let the parties embed the common test rows, and the one with the labels measure the whole model."""
        ask = Questions(context, {"lr": context.lr})
        w = len(windows(self.train, self.config))
        none = np.zeros((0, self.config.vertical.cut * len(self.others)), np.float32)
        joint = yield from self._embedded(ask, w, none, self.tests, tests=1)
        yield from self.measured(ask, joint, w)

    def _embedded(
        self, ask: "Questions", w: int, gradients: np.ndarray, size: int, tests: int = 0
    ) -> Generator[Phase, AggregatedReplies, np.ndarray]:
        """Return the other parties' embeddings of a window, side by side, after a step on the one before."""
        if not self.others:
            return np.zeros((size, 0), np.float32)
        replies = yield from self._step(ask, w, gradients, size, tests=tests)
        return side_by_side(replies)

    def _step(
        self, ask: "Questions", w: int, gradients: np.ndarray, size: int, tests: int = 0, log_as: str = ""
    ) -> Generator[Phase, AggregatedReplies, AggregatedReplies]:
        """Ask the other parties to step along their gradients and to embed this number of rows."""
        width = self.config.vertical.cut
        own = {p: gradients[:, k * width : (k + 1) * width] for k, p in enumerate(self.others)}
        rows = {"gradients": (len(gradients), width), "embeddings": (size, width), "digest": (1, psi.BYTES)}
        return (
            yield from ask(
                "embed", self.others, {"gradients": own}, rows=rows, log_as=log_as, window=w, tests=tests
            )
        )
