"""Statistics of clients.jsonl: accuracies, participation and bytes by client."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from server_app.results.lines import Row, number
from task.numerics.metrics import spread, weighted_mean


@dataclass
class Scores:
    """Accuracies of clients in one round, and how many test examples are behind each."""

    accuracy: "array[float]" = field(default_factory=lambda: array("d"))
    examples: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def weighted_mean(self) -> float:
        """The mean in which every test example counts once."""
        return weighted_mean(self.accuracy, self.examples)


@dataclass
class ClientHistory:
    """The statistics of a run's clients.jsonl."""

    # By round, the clients' accuracies in its evaluation, before the next local training.
    before: dict[int, Scores] = field(default_factory=lambda: defaultdict(Scores))
    # By round, those of the models that clients ended their local training of this round with.
    after: dict[int, Scores] = field(default_factory=lambda: defaultdict(Scores))
    # Lines of clients that were held out of training: as they were, and after a round of local training.
    held_out: list[Row] = field(default_factory=list)
    adapted: list[Row] = field(default_factory=list)
    # By client, in how many rounds it took part: its training reply was used.
    times: Counter[str] = field(default_factory=Counter)
    # By client that was measured, the sum over rounds of what it contributed.
    contribution: dict[str, float] = field(default_factory=dict)
    # By client, its examples and metrics in a run that only evaluates a model, which has no round but 0.
    alone: dict[str, Row] = field(default_factory=dict)
    # By round, how many clients tested its model.
    tested: Counter[int] = field(default_factory=Counter)
    # By client, the bytes that its messages have cost down and up; nothing of runs that did not count them.
    bytes_down: Counter[str] = field(default_factory=Counter)
    bytes_up: Counter[str] = field(default_factory=Counter)


def gather(lines: Iterable[Row]) -> ClientHistory:
    """Read the rows of clients.jsonl in one pass. A client without test examples has no accuracy."""
    found, last = ClientHistory(), dict[str, int]()
    for line in lines:
        metrics = line.get("metrics") or {}
        if line.get("phase") in ("heldout", "heldout-adapted"):
            (found.held_out if line["phase"] == "heldout" else found.adapted).append(line)
            continue
        for counter, key in ((found.bytes_down, "bytes_down"), (found.bytes_up, "bytes_up")):
            if (size := number(line.get(key))) is not None:
                counter[line["name"]] += int(size)
        if line.get("phase") == "train":
            if last.get(line["name"]) != line["round"]:  # it may train several times in a round
                found.times[line["name"]] += 1
                last[line["name"]] = line["round"]
            if (share := number(metrics.get("contribution"))) is not None:
                found.contribution[line["name"]] = found.contribution.get(line["name"], 0.0) + share
            rounds = found.after
            accuracy, examples = metrics.get("test-accuracy"), metrics.get("test-examples")
        else:
            rounds = found.before
            if metrics and not line["round"]:
                found.alone[line["name"]] = {"examples": line.get("examples"), **metrics}
            accuracy, examples = metrics.get("accuracy"), line.get("examples")
            found.tested[line["round"]] += bool(number(examples))
        value, count = number(accuracy), number(examples)
        if value is not None and count is not None and count > 0:
            scores = rounds[line["round"]]
            scores.accuracy.append(value)
            scores.examples.append(count)
    return found


def participation(rounds: Sequence[Row], times: Mapping[str, int]) -> Row:
    """Return how often clients took part; `times` is as in `ClientHistory`.

    Returns:
        ``population``, the most clients that were online in a round; ``clients``, how many took part at all;
        ``max``, how often the busiest did; ``jain``, the index over the population; ``histogram``, number of
        clients by how often they took part, 0 included, ascending.
    """
    population = max([row.get("population") or 0 for row in rounds] + [len(times)])
    counts = [*times.values(), *[0] * (population - len(times))]
    return {
        "population": population,
        "clients": len(times),
        "max": max(counts, default=0),
        "jain": spread(counts)["jain"],
        "histogram": {str(n): k for n, k in sorted(Counter(counts).items())},
    }


def last_evaluation(clients: Sequence[Row], phase: str = "evaluate", metric: str = "accuracy") -> list[Row]:
    """Return the rows of the last round in which clients reported this metric in this phase."""
    rows = [row for row in clients if row.get("phase") == phase]
    rows = [row for row in rows if number(row.get("metrics", {}).get(metric)) is not None]
    last = max((row["round"] for row in rows), default=None)
    return [row for row in rows if row["round"] == last]


def bytes_by_client(seen: ClientHistory) -> Row | None:
    """Return how many bytes a client's messages have cost, down and up; None if no line says it."""
    ways = {"down": seen.bytes_down, "up": seen.bytes_up}
    if not any(ways.values()):
        return None
    return {
        way: {"mean": sum(sizes.values()) / len(sizes), "max": max(sizes.values())}
        for way, sizes in ways.items()
    }
