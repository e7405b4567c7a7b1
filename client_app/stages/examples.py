"""Protects each training example of a client, by DP-SGD; run-config key ``dp.unit = "example"``.

A client draws batches and noise from its node's secret, the whole order and its examples, so that an order
that is repeated gives the same bytes, and any other one, or other examples, independent noise. It
refuses a round that would exceed ``dp.max-epsilon`` of its own. With its update go up, in place of losses,
how many steps it has taken in the run and with which sampling probability: from these the server computes
epsilon. Its example count n_k is taken for known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from client_app.memory.ledger import SECRET, SUFFIX, StepLedger
from client_app.solvers.sgd import Finished
from client_app.stages.stage import Stage
from client_app.training.loop import LocalTask, steps_of
from client_app.training.private import PrivateSteps
from task.config.paths import state_root
from task.errors import FieldError
from task.numerics.arrays import Arrays, sha256
from task.privacy.accounting import epsilon
from task.privacy.ledger import secret_in
from task.privacy.noise import Stream, derived
from task.spec.entry import NUM_EXAMPLES, TESTS
from task.spec.stages import DP_SAMPLING, DP_STEPS


class PrivateExamples(Stage):
    """Lets a client train by DP-SGD, with a ledger of its steps."""

    def start(
        self, task: LocalTask, cohort: Sequence[str], kept: Sequence[Mapping[str, Arrays]], server_round: int
    ) -> None:
        """Write the steps down, then let the loop take them."""
        if self.entry.work != "train":  # nothing of the training leaves
            return
        (client,), (n,), config = cohort, task.examples.sizes, self.node.config
        dp, expected = config.dp, config.train.batch_size or n
        if dp.delta * n >= 1:
            raise FieldError(
                "dp.delta", f"less than one over the {n} examples of the client", f"{dp.delta:g}"
            )
        steps = steps_of(task.config, n, task.epochs[0])
        facts = (self.order.run, client, server_round, self._digest(task, kept[0]))
        secret = secret_in(state_root(config) / SECRET)
        tag = derived(secret, "order", *facts).hex()
        present = self.node.store().path(client, self.order.run)
        ledger = StepLedger(present.with_name(present.stem + SUFFIX))
        before = ledger.steps()
        taken = {**before, tag: steps}
        self.numbers = {DP_STEPS.name: sum(taken.values()), DP_SAMPLING.name: min(1.0, expected / n)}
        if dp.max_epsilon:
            events = {(self.numbers[DP_SAMPLING.name], dp.noise): sum(taken.values())}
            if (spent := epsilon(events, dp.delta)) > dp.max_epsilon:
                raise FieldError(
                    "epsilon", f"at most {dp.max_epsilon:g} (run-config key dp.max-epsilon)", f"{spent:.4g}"
                )
        if tag not in before:
            ledger.charge(server_round, tag, steps)
        stream = Stream(derived(secret, "steps", *facts))
        task.steps = PrivateSteps(dp.clip, dp.noise, expected, stream)

    def finish(self, cohort: Sequence[str], finished: Finished) -> Finished:
        """Leave out every number that follows from training examples without noise."""
        allowed = {s.name for s in (NUM_EXAMPLES, *TESTS, *self.entry.up_scalars)}
        ((upload, keep),) = finished
        numbers = {k: v for k, v in upload.scalars.items() if k in allowed}
        return [(replace(upload, scalars=numbers | self.numbers), keep)]

    def _digest(self, task: LocalTask, kept: Mapping[str, Arrays]) -> str:
        """Return what the client's steps follow from, as one word."""
        received = self.order.arrays
        own = {f"own/{i}": a for i, a in enumerate(task.own)}
        records = {**received, **own, **{f"kept/{f}": a for f, a in kept.items()}}
        flat = {f"{f}/{n}": a for f, arrays in records.items() for n, a in arrays.items()}
        # With the same noise on other examples the difference of two updates would give the change away.
        flat |= {"x": task.examples.x.cpu().numpy(), "y": task.examples.y.cpu().numpy()}
        config = self.node.config
        said = repr((sorted(self.order.scalars.items()), task.epochs, config.train, config.dp, config.adam))
        return f"{sha256(flat)} {said} {config.algorithm} {config.seeds.train}"
