"""The headline numbers of a result, for its closing table."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from server_app.results import people
from server_app.results.drift import lines_of
from server_app.results.summary import scalars_of
from server_app.results.tables import table_lines
from task.catalogue.algorithms import ALGORITHMS
from task.units import human_bytes, human_seconds

MOST = 20  # clients of whom each has a row
# What ended a run before its last round, in words, by run-config key.
ENDS = {
    "target-accuracy": "target accuracy reached",
    "plateau-rounds": "no longer better",
    "adaptive-tau.budget": "budget spent",
    "dp.max-epsilon": "privacy budget spent",
}


def _contribution(of: Mapping[str, float]) -> str:
    """Return who has contributed most and least."""
    if not of:
        return ""
    ranked = sorted(of, key=lambda name: (-of[name], name))
    most, least = ranked[0], ranked[-1]
    return f"most {most} {short(of[most])}, least {least} {short(of[least])}"


def headline(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the numbers a reader looks for first, as (label, text); what was not measured is left out."""
    run = [result.get(key) for key in ("algorithm", "dataset", "model") if result.get(key)]
    before, after = result.get("clients") or {}, result.get("clients_after") or {}
    personal = result.get("measured_on") == "clients"
    where = " (clients, weighted by examples)" if personal else ""
    reached = [f"{t}: {r:.1f}" for t, r in (result.get("rounds_to_target") or {}).items() if r is not None]
    best, skipped = result.get("best_accuracy"), result.get("skipped")
    ended = ENDS.get(result.get("ended_by") or "", "")
    remarks = ", ".join(part for part in (ended, f"{skipped} skipped" if skipped else "") if part)
    took = result.get("participation") or {}
    entry = ALGORITHMS.get(str(result.get("algorithm")))
    chosen = result.get("selection") not in (None, "uniform") or (entry is not None and entry.asynchronous)
    measures = scalars_of(result.get("client_measures" if personal else "measures") or {})
    lowest = "" if result.get("accuracy") is not None else short(result.get("best_loss"))
    rows = [
        ("Run", f"{', '.join(map(str, run))}, seed {result.get('seed')}" if run else ""),
        ("Stopped", str(result.get("stopped") or "")),
        ("model.safetensors", str(result.get("model_holds") or "")),
        ("Rounds", f"{result.get('rounds', 0)}" + (f" ({remarks})" if remarks else "")),
        ("Accuracy, final", _add(short(result.get("accuracy")), where)),
        ("Accuracy, best", _add(short(best), _best_of(result))),
        ("Loss, final", _add(short(result.get("loss")), where)),
        ("Loss, lowest", _add(lowest, _best_of(result))),
        *((name, _add(short(value), where)) for name, value in measures.items()),
        ("Client accuracy, final", "" if personal else short(result.get("client_accuracy"))),
        ("Train loss, final", short(result.get("train_loss"))),
        ("Rounds to accuracy", ", ".join(reached)),
        ("Sent to clients", human_bytes(result.get("bytes_down", 0)) + _a_client(result, "down")),
        ("Received from clients", human_bytes(result.get("bytes_up", 0)) + _a_client(result, "up")),
        ("Bytes to accuracy", _moved_to(result)),
        ("Pooling the data instead", _pooled(result)),
        ("Time", human_seconds(result.get("seconds", 0.0)) + _time_to(result)),
        ("Time, simulated devices", human_seconds(result.get("simulated_seconds", 0.0)) if chosen else ""),
        ("Energy, simulated devices", f"{result['joules']:.6g} J" if "joules" in result else ""),
        ("Participation", _share(took)),
        ("Left out", _left_out(result.get("left_out") or ())),
        *lines_of(result),
        *table_lines(entry.work if entry else "", result),
        *people.lines_of(result, short),
        ("Quarantined replies", str(result.get("quarantined", 0))),
        ("Clients without test examples", str(result.get("untested") or "")),
        ("Portable", f"kernels {result['kernels'][:22]}..." if result.get("portable") else ""),
        ("Contribution", _contribution(result.get("contribution") or {})),
        ("Privacy", _promise(result.get("privacy") or {})),
    ]
    if before.get("mean") is not None:
        rows += [
            ("Accuracy over clients", f"unweighted mean {short(before['mean'])}, std {short(before['std'])}"),
            ("Worst 10 % of clients", f"mean accuracy {short(before['worst_decile'])}"),
            ("Jain index", short(before["jain"])),
        ]
    if after.get("mean") is not None:
        means = f"{short(after['weighted_mean'])} weighted by examples, {short(after['mean'])} unweighted"
        rows.append(("After local training", f"{means}, std {short(after['std'])}"))
    rows += _by_client(result.get("by_client") or {})
    rows += _own_models(result.get("cross_evaluation") or {})
    held = result.get("heldout") or {}
    whole = result.get("global_model") or {}
    parts = [short(whole.get("accuracy")), f"loss {short(whole['loss'])}" if whole.get("loss") else ""]
    rows.append(("Global model, test set", ", ".join(part for part in parts if part)))
    rows += [(_level_name(row), _level_text(row)) for row in result.get("levels") or ()]
    rows.append(("Held-out clients", _held_text(held)))
    rows.append(("Held out, after training", _held_text(held.get("adapted") or {})))
    return [(label, text) for label, text in rows if text]


def _by_client(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return a row for each of the first clients of a run that only evaluates."""
    rows, left = [(f"Client {name}", _figures(found[name])) for name in list(found)[:MOST]], len(found) - MOST
    return [*rows, ("More clients", f"{left}, in clients.jsonl")] if left > 0 else rows


def measured_in(found: Mapping[str, Any]) -> str:
    """Return in what the clients' own models were measured at all clients: accuracy, or else loss."""
    return "accuracy" if any(v is not None for row in found.get("accuracy", ()) for v in row) else "loss"


def _own_models(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how good the clients' own models are at home, and at the other clients."""
    figure = measured_in(found)
    home, elsewhere = list[float](), list[float]()
    for model, row in zip(found.get("models", ()), found.get(figure, ()), strict=True):
        for client, value in zip(found["clients"], row, strict=True):
            if value is not None:
                (home if model == client else elsewhere).append(value)
    pairs = (("Own models at home", home), ("Own models at others", elsewhere))
    return [(name, f"mean {figure} {short(fmean(values))}") for name, values in pairs if values]


def _figures(of: Mapping[str, Any]) -> str:
    values = [f"{key} {short(value)}" for key, value in scalars_of(of).items() if key != "examples"]
    return ", ".join([*values, *([f"{of['examples']} test examples"] if of.get("examples") else [])])


def _level_name(row: Mapping[str, Any]) -> str:
    return f"Model {row['model']}" if "model" in row else f"Width {row['width']:g}"


def _level_text(row: Mapping[str, Any]) -> str:
    """Return, in words, the results of a level's clients."""
    found = short(row.get("accuracy")) or (
        f"loss {short(row['loss'])}" if row.get("loss") is not None else ""
    )
    clients = f"{row['clients']} client{'' if row['clients'] == 1 else 's'}"
    return ", ".join(filter(None, (found, f"{row['parameters']:,} parameters", clients)))


def _held_text(held: Mapping[str, Any]) -> str:
    if not held:
        return ""
    loss = f", loss {short(held['loss'])}" if held.get("loss") is not None else ""
    if held.get("mean") is None:
        return f"{held['count']} clients{loss}"
    means = f"{short(held['weighted_mean'])}, over {held['count']} clients mean {short(held['mean'])}"
    return f"{means}, std {short(held['std'])}{loss}"


def _promise(found: Mapping[str, Any]) -> str:
    if not found:
        return ""
    unit = "client" if found["unit"] == "client" else "example of a client"
    return f"epsilon {found['epsilon']:.4g} at delta {found['delta']:g} for each {unit}, there or not"


def _max(found: Mapping[str, Any]) -> int:
    return int(found["max"] if "max" in found else found["most"])  # which is its name before version 1.0


def _share(took: Mapping[str, Any]) -> str:
    if not took.get("clients"):
        return ""
    most = _max(took)
    times = "1 round" if most == 1 else f"up to {most} rounds"
    return f"{took['clients']} of {took['population']} clients, {times} each"


def _best_of(result: Mapping[str, Any]) -> str:
    """Return the best round, and how many clients tested it where that is fewer than tested others."""
    tested = result.get("best_tested")
    fewer = f", {tested['clients']} of {tested['max']} clients" if tested else ""
    return f" (round {result.get('best_round')}{fewer})"


def _left_out(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return the nodes that were online in the last round and took no part, and why."""
    return ", ".join(f"node {n['name'] or n['node']} ({str(n['reason']).removesuffix('.')})" for n in nodes)


def _a_client(result: Mapping[str, Any], way: str) -> str:
    found = (result.get("bytes_by_client") or {}).get(way)
    if not found:
        return ""
    return f"; {human_bytes(found['mean'])} a client, at most {human_bytes(_max(found))}"


def _pooled(result: Mapping[str, Any]) -> str:
    """Return the bytes that all clients' data would have, next to what was sent."""
    size, sent = result.get("pooled_bytes"), result.get("bytes_up", 0) + result.get("bytes_down", 0)
    if not size or not sent:
        return ""
    return f"{human_bytes(size)} once, uncompressed; the run sent {sent / size:.2g} times that"


def _moved_to(result: Mapping[str, Any]) -> str:
    """Return the bytes to the highest accuracy that was reached."""
    ways = [result.get(f"bytes_{way}_to_target") or {} for way in ("down", "up")]
    reached = [t for t, size in ways[0].items() if size is not None]
    if not reached:
        return ""
    down, up = (human_bytes(sizes[reached[-1]]) for sizes in ways)
    return f"{reached[-1]}: {down} to clients, {up} from clients"


def _time_to(result: Mapping[str, Any]) -> str:
    """Return the seconds to the highest accuracy that was reached."""
    reached = [(t, s) for t, s in (result.get("seconds_to_target") or {}).items() if s is not None]
    return f"; {human_seconds(reached[-1][1])} to accuracy {reached[-1][0]}" if reached else ""


def _add(text: str, more: str) -> str:
    return text + more if text else ""


def short(value: float | None) -> str:
    """Return a number with three decimals, or three digits where those would say nothing; "" for None."""
    if value is None:
        return ""
    plain = value == 0 or 0.01 <= abs(value) < 1000
    return f"{value:.3f}" if plain else f"{value:.3g}"
