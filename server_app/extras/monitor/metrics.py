"""The state of a link and its latest runs for Prometheus, in its text format 0.0.4.

``GET /metrics`` of `bouquet monitor`. Names of nodes and runs are labels; nothing of the data is.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from server_app.deploy.link.status import GREEN, RED, YELLOW
from server_app.extras.monitor.data import GoneError, Watched
from server_app.results.lines import Row

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATEST = 8  # runs, so that neither labels nor the files to read grow for ever

Labels = Mapping[str, object]
Value = float | int | bool | None


@dataclass
class MetricFamily:
    """One metric with its samples."""

    name: str
    kind: str  # gauge or counter
    help: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)

    def add(self, value: Value, **labels: object) -> None:
        """Add a sample, unless the value was not measured."""
        if value is not None:
            self.samples.append((labels, value))

    def lines(self) -> Iterator[str]:
        """Yield the lines of the format; nothing without samples."""
        if self.samples:
            yield f"# HELP {self.name} {self.help}"
            yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            inside = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels.items())
            yield f"{self.name}{{{inside}}} {_number(value)}" if inside else f"{self.name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return repr(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def metrics(watched: Watched) -> bytes:
    """Return all metrics of a watched folder."""
    found = watched.runs()
    families = (
        [*_of_link(watched.nodes()), *_of_runs(watched, found)] if found["kit"] else _of_runs(watched, found)
    )
    return "".join(f"{line}\n" for family in families for line in family.lines()).encode()


def _of_link(nodes: Row) -> Iterable[MetricFamily]:
    state = MetricFamily("bouquet_link_state", "gauge", "1 for the link's state: green, yellow or red.")
    for name in (GREEN, YELLOW, RED) if nodes["state"] else ():
        state.add(nodes["state"] == name, state=name)
    online = MetricFamily("bouquet_nodes_online", "gauge", "Enrolled nodes that are online.")
    enrolled = MetricFamily("bouquet_nodes_enrolled", "gauge", "Nodes that are enrolled at the link.")
    each = MetricFamily("bouquet_node_online", "gauge", "1 if the node is online.")
    clients = MetricFamily("bouquet_node_clients", "gauge", "Clients that the node hosts.")
    if nodes["there"] and not nodes["old"]:  # an old status does not say who is online
        online.add(sum(bool(node["online"]) for node in nodes["nodes"]))
        enrolled.add(len(nodes["nodes"]))
    for node in nodes["nodes"]:
        each.add(node["online"], node=node["name"])
        clients.add(node["clients"], node=node["name"])
    return state, online, enrolled, each, clients


def _of_runs(watched: Watched, found: Row) -> Iterable[MetricFamily]:
    states = MetricFamily("bouquet_runs", "gauge", "Runs by state.")
    for state, count in sorted(Counter(run["state"] for run in found["runs"]).items()):
        states.add(count, state=state)
    done = MetricFamily(
        "bouquet_run_round", "gauge", f"Last finished round of each of the {LATEST} latest runs."
    )
    of = MetricFamily("bouquet_run_rounds", "gauge", "Planned rounds of the run.")
    running = MetricFamily("bouquet_run_running", "gauge", "1 while the run is running.")
    accuracy = MetricFamily(
        "bouquet_run_accuracy",
        "gauge",
        "Last accuracy, between 0 and 1; the label says where it was measured.",
    )
    loss = MetricFamily("bouquet_run_loss", "gauge", "Last loss on the server's test set, in nats.")
    moved = MetricFamily(
        "bouquet_run_bytes_total", "counter", "Bytes of all messages to and from the clients."
    )
    seconds = MetricFamily("bouquet_run_seconds_total", "counter", "Seconds of all finished rounds.")
    dropped = MetricFamily("bouquet_run_quarantined_total", "counter", "Replies that were quarantined.")
    for run in found["runs"][:LATEST]:
        name = {"run": run["name"]}
        try:
            rows = watched.all_rounds(run["name"])
        except GoneError:
            continue
        done.add(run["round"], **name)
        of.add(run["of"], **name)
        running.add(run["state"] == "running", **name)
        accuracy.add(run["accuracy"], **name, measured_on=run["measured_on"])
        loss.add(next((row["loss"] for row in reversed(rows) if row["loss"] is not None), None), **name)
        for key, direction in (("bytes_down", "to_clients"), ("bytes_up", "from_clients")):
            moved.add(sum(row[key] or 0 for row in rows), **name, direction=direction)
        seconds.add(sum(row["seconds"].get("total") or 0.0 for row in rows), **name)
        dropped.add(sum(row["quarantined_count"] for row in rows), **name)
    return states, done, of, running, accuracy, loss, moved, seconds, dropped
