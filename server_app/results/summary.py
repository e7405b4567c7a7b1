"""The summary of a run: the content of result.json.

Pure functions of the rows that `server_app.results.folder` reads and writes. A run's accuracy and loss are
those of the central evaluation where it has one. A personalised run has none, because no single model is its
result; there they are the clients' on their own test data, weighted by examples.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from server_app.results.clients import ClientHistory, Scores, bytes_by_client, gather, participation
from server_app.results.drift import recoveries
from server_app.results.lines import Row, number
from server_app.results.people import last_of
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.gradients import VARIANCE
from task.config.knobs import Config
from task.config.read import as_run_config
from task.numerics.metrics import crossing, spread, weighted_mean
from task.numerics.plateau import plateau
from task.resolve.effective import models_in, unmet

TARGETS = (0.5, 0.8, 0.9, 0.95, 0.97, 0.99)

# Where accuracy and loss were measured, the headline first, with their keys in rounds.jsonl.
MEASURED = {"server": ("accuracy", "loss"), "clients": ("client_accuracy", "client_loss")}


def has_accuracy(rounds: Iterable[Mapping[str, Any]], on: str) -> bool:
    """Return whether any round has an accuracy measured there, see `MEASURED`."""
    return any(number(row.get(MEASURED[on][0])) is not None for row in rounds)


def has_measure(rounds: Iterable[Mapping[str, Any]], on: str) -> bool:
    """Return whether any round has an accuracy or a loss measured there."""
    return any(number(row.get(key)) is not None for row in rounds for key in MEASURED[on])


def measured_on(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """Return where the headline accuracy of these rounds was measured; None if nowhere.

    Where the task has no accuracy, as regression, it is where the loss was measured.
    """
    found = (on for has in (has_accuracy, has_measure) for on in MEASURED if has(rounds, on))
    return next(found, None)


def score(row: Mapping[str, Any], on: str) -> float | None:
    """Return the accuracy of a round, or without one the loss with its sign turned; None without both."""
    accuracy, loss = (number(row.get(key)) for key in MEASURED[on])
    return accuracy if accuracy is not None or loss is None else -loss


def measures_of(rounds: Sequence[Mapping[str, Any]], prefix: str = "") -> Row:
    """Return the run's further metrics by name, those of the last round that measured them.

    `prefix` is "client_" for those on the clients' own test data.
    """
    for row in reversed(rounds):
        found = {k: row[f"{prefix}{k}"] for k in row.get("measures") or () if f"{prefix}{k}" in row}
        if found:
            return found
    return {}


def scalars_of(measures: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are one number, without AUROC's error."""
    known = {k: number(v) for k, v in measures.items() if k != "auroc-error" and not isinstance(v, list)}
    return {k: v for k, v in known.items() if v is not None}


def summarise(
    rounds: Sequence[Row],
    clients: Iterable[Row] | ClientHistory,
    config: Mapping[str, Any],
    targets: Iterable[float] = TARGETS,
    on: str | None = None,
) -> Row:
    """Return what result.json holds.

    "accuracy" and "loss" are those of the last evaluation, "best_accuracy" and "..._to_target" are read
    from all; "measured_on" says whose evaluations these are. Without an accuracy the best round is that of
    the lowest loss. "clients" and "clients_after" say how the clients differ, before and after local
    training; "bytes_by_client" has mean and max of the clients that took part, where a node's messages
    count in equal parts for its clients. "by_client" has the figures of each where a run only evaluates. The
    x of "..._to_target" is interpolated as in
    `task.numerics.metrics.crossing`; seconds and bytes are summed over the rounds, so the time between a stop
    and a resume does not count. A target that was not reached is None. Simulated seconds are those of a trace
    of device speeds (`strategies.selection.devices`), not measured.

    Args:
        rounds: Rows of rounds.jsonl, in order.
        clients: Rows of clients.jsonl, or what `gather` made of them.
        config: Every run-config key with its value.
        targets: Accuracies; the run's own target-accuracy joins them.
        on: "server" or "clients", to go by that evaluation; None = by `measured_on`.
    """
    seen = clients if isinstance(clients, ClientHistory) else gather(clients)
    on = on or measured_on(rounds)
    keys = MEASURED[on or "server"]
    own = config.get("target-accuracy") or 0.0
    goals = sorted({float(t) for t in targets} | ({float(own)} if own > 0 else set()))
    at = [row["round"] for row in rounds]
    accuracy = [number(row.get(keys[0])) for row in rounds]
    spent = _spent(rounds)
    # the first round that reached the best
    best = max(((a, -r) for a, r in zip(accuracy, at, strict=True) if a is not None), default=None)
    losses = [(number(row.get(keys[1])), row["round"]) for row in rounds]
    lowest = min(((loss, r) for loss, r in losses if loss is not None), default=None)
    best_round = -best[1] if best else lowest[1] if lowest else None
    final, local = _last(rounds, *keys), _last(rounds, *MEASURED["clients"])
    return {
        **{key: config.get(key) for key in ("algorithm", "dataset")},
        "model": models_in(config),
        **{key: config.get(key) for key in ("selection", "seed")},
        "rounds": at[-1] if at else 0,
        "ended_by": _ended_by(rounds, config),
        "measured_on": on,
        "accuracy": number(final.get(keys[0])),
        "loss": number(final.get(keys[1])),
        "best_accuracy": best[0] if best else None,
        "best_round": best_round,
        "best_loss": lowest[0] if lowest else None,
        "train_loss": number(_last(rounds, "train_loss").get("train_loss")),
        "client_accuracy": number(local.get("client_accuracy")),
        "client_loss": number(local.get("client_loss")),
        "measures": measures_of(rounds),
        "client_measures": measures_of(rounds, "client_"),
        **{
            f"{what}_to_target": {str(t): crossing(x, accuracy, t) for t in goals}
            for what, x in spent.items()
        },
        "bytes_up": sum(row.get("bytes_up", 0) for row in rounds),
        "bytes_down": sum(row.get("bytes_down", 0) for row in rounds),
        "bytes_by_client": bytes_by_client(seen),
        "seconds": spent["seconds"][-1] if rounds else 0.0,
        "simulated_seconds": spent["simulated_seconds"][-1] if rounds else 0.0,
        **_energy(rounds),
        "clients": _over_clients(seen.before),
        "clients_after": _over_clients(seen.after),
        "heldout": _held_out(seen),
        "participation": participation(rounds, seen.times),
        "quarantined": sum(len(row.get("quarantined", [])) for row in rounds),
        "untested": len({name for row in rounds for name in row.get("untested", [])}),
        "skipped": sum(bool(row.get("skipped")) for row in rounds),
        "model_sha256": rounds[-1].get("model_sha256") if rounds else None,
        **(_best_tested(seen, best_round) if on == "clients" else {}),
        **privacy_of(rounds, config),
        **({"drift": drifts} if (drifts := recoveries(rounds, config, keys[0])) else {}),
        **({"by_client": dict(sorted(seen.alone.items()))} if seen.alone else {}),
        **last_of(rounds),
        **({"contribution": dict(sorted(seen.contribution.items()))} if seen.contribution else {}),
    }


def _spent(rounds: Sequence[Row]) -> dict[str, list[float]]:
    """Return what the run had taken after each round, from its beginning."""
    up, down = (np.cumsum([row.get(f"bytes_{way}", 0) for row in rounds]) for way in ("up", "down"))
    return {
        "rounds": [row["round"] for row in rounds],
        "seconds": np.cumsum([seconds_of(row) for row in rounds]).tolist(),
        "bytes": (up + down).tolist(),
        "bytes_up": up.tolist(),
        "bytes_down": down.tolist(),
        "simulated_seconds": np.cumsum([row.get("simulated_seconds") or 0.0 for row in rounds]).tolist(),
    }


def privacy_of(rounds: Sequence[Row], config: Mapping[str, Any]) -> Row:
    """Return under "privacy" what a run promises, if it promises anything: (epsilon, delta), and its unit.

    Of the keys of the noise it has those that the run reads: an analysis clips nothing.
    """
    spent = number(_last(rounds, "epsilon").get("epsilon"))
    if spent is None:
        return {}
    run = {**as_run_config(Config()), **config}  # that of an earlier version may lack keys
    names = ("unit", "delta", "noise", "clip", "clip-quantile")
    return {"privacy": {"epsilon": spent, **{k: run[f"dp.{k}"] for k in names if not unmet(f"dp.{k}", run)}}}


def _energy(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the joules of a run that counts them."""
    used = [row["joules"] for row in rounds if row.get("joules") is not None]
    return {"joules": math.fsum(used)} if used else {}


def _ended_by(rounds: Sequence[Row], config: Mapping[str, Any]) -> str | None:
    """Return the run-config key that ended the run; None if there are rounds left for it to do."""
    if not rounds:
        return None
    goal, keys = config.get("target-accuracy") or 0.0, MEASURED[measured_on(rounds) or "server"]
    if goal and (number(rounds[-1].get(keys[0])) or 0.0) >= goal:
        return "target-accuracy"
    if plateau(rounds, config.get("plateau-rounds") or 0, config.get("plateau-delta") or 0.0):
        return "plateau-rounds"
    if (config.get("dp.max-epsilon") or math.inf) < (number(rounds[-1].get("epsilon_next")) or 0.0):
        return "dp.max-epsilon"
    if rounds[-1]["round"] >= (config.get("num-server-rounds") or 0):
        return "num-server-rounds"
    entry, budget = ALGORITHMS.get(str(config.get("algorithm"))), "adaptive-tau.budget"
    return budget if entry and entry.owns(budget) else None


def _best_tested(seen: ClientHistory, best: int | None) -> Row:
    """Return under "best_tested" how many clients tested the best round, if more tested another."""
    clients, most = seen.tested.get(best or 0, 0), max(seen.tested.values(), default=0)
    return {"best_tested": {"clients": clients, "max": most}} if 0 < clients < most else {}


def _over_clients(rounds: Mapping[int, Scores]) -> Row:
    """Return the spread of client accuracies in the last round that has some, and the best round.

    "mean", "std", "worst_decile" and "jain" count every client once, "weighted_mean" every test example.
    The best round is the first with the highest weighted mean; both its means are given.
    """
    means = {t: rounds[t].weighted_mean for t in sorted(rounds)}
    last = max(rounds, default=None)
    best = max(means, key=lambda t: means[t], default=None)
    values = [] if last is None else rounds[last].accuracy
    return {
        "round": last,
        "count": len(values),
        **spread(values),
        "weighted_mean": None if last is None else means[last],
        "best_round": best,
        "best_weighted_mean": None if best is None else means[best],
        "best_mean": None if best is None else spread(rounds[best].accuracy)["mean"],
    }


def _held_out(seen: ClientHistory) -> Row | None:
    """Return the results of the held-out clients, or None if there were none.

    "adapted" says the same after one round of local training, where the models are the clients' own. "loss"
    and "weighted_mean" count every test example once, the others every client.
    """

    def over(lines: Sequence[Row]) -> Row | None:
        def values(metric: str) -> tuple[list[float], list[float]]:
            found = [(number((x.get("metrics") or {}).get(metric)), number(x.get("examples"))) for x in lines]
            pairs = [(value, n) for value, n in found if value is not None and n]
            return [value for value, _ in pairs], [n for _, n in pairs]

        accuracy, examples = values("accuracy")
        losses, counts = values("loss")
        if not lines:
            return None
        return {
            "count": len(lines),
            **spread(accuracy),
            "weighted_mean": weighted_mean(accuracy, examples) if accuracy else None,
            "loss": weighted_mean(losses, counts) if losses else None,
        }

    before = over(seen.held_out)
    return None if before is None else {**before, "adapted": over(seen.adapted)}


def _last(rounds: Sequence[Row], *keys: str) -> Row:
    """Return the last row that has any of the keys: a loss that went to NaN hides no accuracy."""
    return next(
        (row for row in reversed(rounds) if any(number(row.get(key)) is not None for key in keys)), {}
    )


def gradient_variance(row: Row) -> float | None:
    """Return the variance of the clients' gradients, E_k |grad F_k - grad f|^2, if the round measured it."""
    return number((row.get("metrics") or {}).get(VARIANCE))


def seconds_of(row: Row) -> float:
    """Return how long a round took."""
    seconds = row.get("seconds") or {}
    phases = (v for k, v in seconds.items() if k != "total")
    return float(seconds["total"] if seconds.get("total") is not None else sum(phases))
