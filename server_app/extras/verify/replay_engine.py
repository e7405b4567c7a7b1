"""A phase engine that is answered by a transcript instead of nodes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flwr.serverapp import Grid

from server_app.extras.verify.chain import Chain, Row
from server_app.extras.verify.findings import Findings
from server_app.extras.verify.sums import Summed, read_replies
from strategies.engine.fold import Folded
from strategies.engine.phases import PhaseEngine
from strategies.engine.rule import Phase
from strategies.membership.client_registry import ClientRegistry
from strategies.stages import stages_of
from task.config.knobs import Config
from task.errors import BouquetError
from task.numerics.arrays import Arrays, sha256
from task.resolve.contract import contract_of
from task.wire import messages as wire


class DiffersError(BouquetError):
    """The transcript contradicts itself, so that what follows cannot be computed."""


class ReplayEngine(PhaseEngine):
    """A phase engine whose replies are those of a transcript."""

    def __init__(self, chain: Chain, config: Config, findings: Findings) -> None:
        super().__init__(config, ClientRegistry(timeout_s=0.0, min_nodes=1))
        self.use([s for s in stages_of(self, contract_of(config)) if s.replayed])
        self.chain, self.findings, self.run_id = chain, findings, chain.run
        self._lines: Iterator[Row] = iter(())

    def begin_line(self, line: Row, model: Arrays) -> None:
        """Use the phases of a line instead of nodes."""
        self.begin(int(line["round"]), float(line["lr"]))
        self.model, self._lines = model, iter(line["phases"])
        given = [phase["replies"]["names"] for phase in line["phases"] if phase["replies"]]
        asked = {*line.get("cohort", ()), *(c for phase in line["phases"] for c in phase.get("asked", ()))}
        names = self.registry.names = tuple(next(iter(given), ()) or sorted(asked))
        counts = [phase["replies"].get("population", 0) for phase in line["phases"] if phase["replies"]]
        # The other clients don't change the result.
        self.registry.known.names = names if given and given[0] else ("",) * max(counts, default=0)
        self._spent: Row = line.get("spent", {})

    def run(self, phase: Phase, grid: Grid) -> Folded:
        """Return what the transcript has of a phase."""
        line = next(self._lines, None)
        if line is None or line["kind"] != phase.kind:
            got = line["kind"] if line else "nothing"
            raise DiffersError(f"expected a phase {phase.kind!r}, as the rule requests; got {got}")
        sent = phase.records.get(wire.ARRAYS)
        model = "" if sent is None else sha256(sent)
        if model != line["model"]:
            raise DiffersError(
                f"phase {phase.name}: expected that nodes received the model {model[:12]}, the rule's last "
                f"result; got {line['model'][:12]}"
            )
        if "asked" in line and line["asked"] != list(phase.to):
            raise DiffersError(
                f"phase {phase.name}: expected the rule to ask {len(phase.to)} clients; got others"
            )
        for upload in line.get("uploads", ()):
            want = [phase.epochs.get(client, 0) for client in upload["clients"]]
            if upload["epochs"] != want:
                raise DiffersError(
                    f"phase {phase.name}: expected {want} epochs of {', '.join(upload['clients'])}, as the "
                    f"keys say (0 = local-epochs); got {upload['epochs']}"
                )
        if "sent" in line and line["sent"] != dict(phase.scalars):
            raise DiffersError(
                f"phase {phase.name}: expected {dict(phase.scalars)} to be sent; got {line['sent']}"
            )
        encoding, like = self.encoding(phase), self.like
        summed = Summed(
            self.chain.folder, self.chain.run, self.round, phase, line, self.config, like, encoding
        )
        folded = Folded(read_replies(summed, self.findings), [], {}, 0)
        self.done.append((phase, folded))
        return folded

    def rest(self) -> list[str]:
        """Return the phases of the line that were not asked for."""
        return [str(line["phase"]) for line in self._lines]

    def spent(self, reduced: Any, asked: int) -> Any:
        """Return the replies with the round's cost, as the transcript says."""
        return replace(reduced, **self._spent)

    def note_used(self, *, used: bool) -> None:
        """Do nothing: a replay has no waiting clients."""
