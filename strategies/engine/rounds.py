"""Records of one round: the row of ``rounds.jsonl`` and the lines of ``clients.jsonl``."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strategies.engine.cohort import RoundPlan
from strategies.engine.fold import Folded
from strategies.engine.rule import EVALUATE, TRAIN, Phase
from strategies.engine.stage import Leave
from task.numerics.arrays import Arrays, sha256
from task.numerics.metrics import weighted_mean
from task.wire import messages as wire


class Clock:
    """Seconds by phase; ``total`` is less where the end of a round overlaps with the next one's training."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        # When the previous round ended: ``total`` counts from there, so that the totals add up to the run's.
        self.begun = self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to `phase` and update ``total``."""
        now = time.perf_counter()
        self.laps[phase] = self.laps.get(phase, 0.0) + now - self._last
        self.laps["total"] = now - self.begun
        self._last = now

    def begin(self, at: float) -> None:
        """Count ``total`` from the end of the previous round."""
        self.begun = at
        self.laps["total"] = self._last - at

    @property
    def now(self) -> float:
        """When the last lap ended."""
        return self._last


def client_lines(
    server_round: int, phase: str, folded: Folded, others: Sequence[Folded] = ()
) -> list[dict[str, Any]]:
    """Return the lines of ``clients.jsonl`` about a phase, by the clients' sorted names.

    Their bytes are the client's share of its node's messages (`task.wire.traffic`), in this phase and in
    `others` of the round that have no lines of their own.
    """
    phases, lines = (folded, *others), []
    for name in sorted(folded.metrics):
        scalars = dict(folded.metrics[name])
        examples = scalars.pop(wire.NUM_EXAMPLES, None)  # unknown with secure aggregation
        examples = None if examples is None else int(examples)
        line = {"name": name, "round": server_round, "phase": phase, "examples": examples}
        line["bytes_down"] = round(sum(f.down.get(name, 0) for f in phases))
        line["bytes_up"] = round(sum(f.up.get(name, 0) for f in phases))
        lines.append(line | {"metrics": dict(sorted(scalars.items()))})
    return lines


@dataclass
class RoundLog:
    """Gathers a round while it runs. Names and keys of `row` are public."""

    round: int
    clock: Clock = field(default_factory=Clock)
    values: dict[str, Any] = field(
        default_factory=lambda: {
            **dict.fromkeys(("lr", "train_loss", "client_loss", "client_accuracy", "loss", "accuracy")),
            **{"population": 0, "simulated_seconds": 0.0},
            **{"selected": [], "stragglers": [], "asked": 0, "answered": 0, "skipped": False, "metrics": {}},
            **{"rolled_back": None, "client_counts": {}, "untested": []},
        }
    )
    clients: list[dict[str, Any]] = field(default_factory=list)
    quarantined: list[wire.RejectedReply] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    leaves: list[Leave] = field(default_factory=list)  # write down what the round leaves

    def add(self, done: Sequence[tuple[Phase, Folded]], bytes_down: int) -> None:
        """Add the results of phases: bytes and quarantined of all, lines of training and evaluation."""
        self.bytes_down += bytes_down
        names = [phase.log_as or (phase.name if phase.name in (TRAIN, EVALUATE) else "") for phase, _ in done]
        others = [folded for name, (_, folded) in zip(names, done, strict=True) if not name]
        for name, (_, folded) in zip(names, done, strict=True):
            self.bytes_up += folded.bytes_up
            self.quarantined += folded.quarantined
            self.values["untested"] = sorted({*self.values["untested"], *folded.untested})
            if name:
                more = others if name == TRAIN else ()
                self.clients += client_lines(self.round, name, folded, more)

    def trained(self, plan: RoundPlan, lr: float | None, skipped: bool, metrics: dict[str, Any]) -> None:
        """Add the round's cohort and the result of its training, after `add`; without `lr` if none learns."""
        lines = [line for line in self.clients if line["phase"] == TRAIN]
        sent = [line for line in lines if wire.TRAIN_LOSS in line["metrics"]]
        losses, weights = [x["metrics"][wire.TRAIN_LOSS] for x in sent], [x["examples"] for x in sent]
        loss = weighted_mean(losses, weights) if sent else None
        self.values |= {"lr": lr, "train_loss": loss, "skipped": skipped, "metrics": metrics}
        self.values |= {"selected": list(plan.clients), "stragglers": list(plan.stragglers)}
        self.values |= {"asked": plan.asked, "answered": len({line["name"] for line in lines})}

    def spent(self, row: Mapping[str, Any], *, secret: bool) -> None:
        """Add the privacy cost of a round; omit who took part if that is `secret`."""
        self.values |= row
        if secret:
            self.values |= {"selected": [], "stragglers": [], "untested": []}
            self.clients = []

    def measured(self, further: Mapping[str, Any], prefix: str = "") -> None:
        """Add the additional metrics; ``measures`` lists them, as only some runs have any."""
        if further:
            self.values["measures"] = list(further)
            self.values |= {f"{prefix}{k}": v for k, v in further.items() if k not in ("loss", "accuracy")}

    def evaluated(
        self, seen: Mapping[str, Any], counts: Mapping[str, int], further: Mapping[str, Any]
    ) -> None:
        """Add the result of an evaluation at the clients, and how many clients sent which metric."""
        names = ("loss", "accuracy")
        self.values |= {f"client_{k}": seen.get(k) for k in names}
        self.measured(further, "client_")
        self.values["client_counts"] = {f"client_{k}": counts[k] for k in names if k in counts}

    def row(self, model: Arrays, whole: Arrays) -> dict[str, Any]:
        """Return the round's row, given the model as it travels and as its file has it.

        Its ``seconds`` run until the journal has written it.
        """
        trained = {} if len(whole) == len(model) else {"trained_sha256": sha256(model)}
        return {
            "round": self.round,
            **self.values,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "model_sha256": sha256(whole),
            **trained,
            "quarantined": [q.as_dict() for q in self.quarantined],
            "seconds": self.clock.laps,
        }
