"""Protects each training example of a client, by DP-SGD; run-config key ``dp.unit = "example"``.

A client draws batches and noise from its node's secret, the whole order, the run's keys, its user's code and
its examples, so that an order that is repeated gives the same bytes, and any other one, or other examples,
independent noise: with the same noise on other steps the difference of two updates would reveal the examples.
The excluded keys are listed (`task.config.run_name.all_terms`). It refuses a round that would exceed
``dp.max-epsilon`` of its own, or its site's limit over all runs. With its update a client sends, instead of
losses, how many steps it has taken in the run and with which sampling probability: from these the server
computes epsilon. Its example count n_k is treated as public.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from client_app.data.node import app_version
from client_app.memory.example_ledger import SECRET, SUFFIX, StepLedger
from client_app.memory.memory import store_of
from client_app.solvers.sgd import Finished
from client_app.stages.stage import Stage
from client_app.training.loop import LocalTask, steps_of
from client_app.training.private import PrivateSteps, private_program
from client_app.training.programs import Program
from task.catalogue.entry import NUM_EXAMPLES, TESTS
from task.catalogue.stages import DP_SAMPLING, DP_STEPS
from task.config.paths import state_root
from task.config.read import as_run_config
from task.config.run_name import all_terms
from task.errors import FieldError, StateError, local
from task.numerics.arrays import Arrays, flattened, sha256
from task.privacy.accounting import check_delta, epsilon
from task.privacy.noise import Stream, derived
from task.privacy.noise_ledger import TakenSteps
from task.privacy.secret import secret_in
from task.references import code_of, references_in


class PrivateExamples(Stage):
    """Lets a client train by DP-SGD, with a ledger of its steps."""

    names = ("example-dp",)
    rehearses = True

    def program(self, model: torch.nn.Module, program: Program) -> Program:
        """Return the program whose gradients of single examples are known."""
        return private_program(model, program)

    def rehearse(self, task: LocalTask) -> None:
        """Let the loop take private steps, of noise that protects nothing, as nothing leaves the node."""
        self._take(task, Stream(derived(bytes(32), "trial")))

    def start(
        self, task: LocalTask, cohort: Sequence[str], kept: Sequence[Mapping[str, Arrays]], server_round: int
    ) -> None:
        """Write the steps down, then let the loop take them."""
        if self.entry.work != "train":  # nothing of the training leaves
            return
        (client,), (n,), config = cohort, task.examples.sizes, self.node.config
        dp, expected = config.dp, config.train.batch_size or n
        check_delta(dp.delta, n, f"the {n} examples of client {client}")
        steps = steps_of(task.config, n, task.epochs[0])
        facts = (self.order.run, client, server_round, self._digest(task, client, kept[0]))
        secret = secret_in(state_root(config) / SECRET)
        tag = derived(secret, "order", *facts).hex()
        present = store_of(self.node).path(client, self.order.run)
        ledger = StepLedger(present.with_name(present.stem + SUFFIX))
        before = ledger.steps()
        if before.get(tag, steps) != steps:
            raise StateError(
                f"{local(present)}: the client's ledger says {before[tag]} steps of an order of round "
                f"{server_round} that has {steps}. Restore the file"
            )
        taken = {**before, tag: steps}
        self.numbers = {DP_STEPS.name: sum(taken.values()), DP_SAMPLING.name: min(1.0, expected / n)}
        if dp.max_epsilon:
            events = {(self.numbers[DP_SAMPLING.name], dp.noise): sum(taken.values())}
            if (spent := epsilon(events, dp.delta)) > dp.max_epsilon:
                raise FieldError(
                    "epsilon", f"at most {dp.max_epsilon:g} (run-config key dp.max-epsilon)", f"{spent:.4g}"
                )
        if (site := self.node.owner.ledger) is not None:
            made = TakenSteps(client, steps, self.numbers[DP_SAMPLING.name], dp.noise)
            site.charge_steps(tag, made, dp.delta, {"run": self.order.run, "round": server_round})
        if tag not in before:
            ledger.charge(server_round, tag, steps)
        self._take(task, Stream(derived(secret, "steps", *facts)))

    def _take(self, task: LocalTask, stream: Stream) -> None:
        dp, (n,) = self.node.config.dp, task.examples.sizes
        task.steps = PrivateSteps(dp.clip, dp.noise, self.node.config.train.batch_size or n, stream)

    def finish(self, cohort: Sequence[str], finished: Finished) -> Finished:
        """Leave out every number that follows from training examples without noise."""
        allowed = {s.name for s in (NUM_EXAMPLES, *TESTS, *self.entry.up_scalars)}
        ((upload, keep),) = finished
        numbers = {k: v for k, v in upload.scalars.items() if k in allowed}
        return [(replace(upload, scalars=numbers | self.numbers), keep)]

    def _digest(self, task: LocalTask, client: str, kept: Mapping[str, Arrays]) -> str:
        """Return what the client's steps follow from, as one word."""
        node, order = self.node, self.order
        records = {f"all/{f}": arrays for f, arrays in order.arrays.items()}
        for f, given in order.per_client.items():
            records |= {f"each/{f}/{name}": arrays for name, arrays in given.get(client, {}).items()}
        records |= {"start": task.received, **{f"own/{i}": a for i, a in enumerate(task.own)}}
        records |= {f"kept/{f}": arrays for f, arrays in kept.items()}
        flat = flattened(records)
        flat |= {"x": task.examples.x.cpu().numpy(), "y": task.examples.y.cpu().numpy()}
        keys, public = as_run_config(node.config), node.public()
        said = (
            sorted(order.scalars.items()), list(task.epochs), order.population, sorted(order.rows.items()),
            list(order.lost.get(client, ())), order.whole, sorted(code_of(references_in(keys)).items()),
            public.sha256 if public else "", app_version(),
        )  # fmt: skip
        return f"{sha256(flat)} {all_terms(keys)} {said!r}"
