"""A node's ledger of the noise that it adds: what it says, when it is written, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from client_app.app import make_app
from task.errors import ConfigError, RefusedError, StateError
from task.privacy import accounting
from task.privacy.noise_ledger import FILE, NoiseLedger, epsilon
from tests.privacy.test_central import Ledger, run
from tests.privacy.test_secure import NODES
from tests.support.federation import owners_config, write_owners
from tests.support.grid import LocalGrid

EIGHT = {f"owner-{i}": 5 + 3 * i for i in range(8)}
# Writes a sum down and dies before anything is sent.
SCRIPT = """
import os, signal, sys
from pathlib import Path
from task.privacy.noise_ledger import NoiseLedger
for i in range(3):
    NoiseLedger(Path(sys.argv[1])).charge(str(i), 2.0, 1e-5, {"round": i})
os.kill(os.getpid(), signal.SIGKILL)
"""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_epsilon_is_that_of_the_gaussian_that_the_sums_are_worth() -> None:
    """Four of z = 2 are one of z = 1; the one of z = 7.03 has epsilon = 0.5 at delta = 1e-5."""
    assert epsilon([2.0] * 4, 1e-5) == epsilon([1.0], 1e-5)
    assert epsilon([7.03], 1e-5) == pytest.approx(0.5, abs=1e-3)
    assert epsilon([], 1e-5) == 0
    # The server's accountant, which rounds up.
    assert epsilon([4.0] * 10, 1e-4) <= accounting.epsilon([(1.0, 4.0)] * 10, 1e-4) * (1 + 1e-9)
    assert epsilon([4.0] * 10, 1e-4) == pytest.approx(accounting.epsilon([(1.0, 4.0)] * 10, 1e-4), rel=5e-3)


def test_what_was_written_outlives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / FILE
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, timeout=60)
    assert done.returncode == -9, done.stderr
    assert [line["sum"] for line in lines(path)] == ["0", "1", "2"]
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(path.read_bytes()[:-10])  # killed while it wrote: the sum was not sent
    again = NoiseLedger(path)
    again.charge("2", 2.0, 1e-5, {})
    again.charge("2", 2.0, 1e-5, {})  # a message that comes twice
    assert again.spent().sums == {"0": 2.0, "1": 2.0, "2": 2.0}
    spent = epsilon([2.0] * 3, 1e-5)
    assert again.summary() == f"epsilon = {spent:.4g} at delta = 1e-05 after 3 noised sums of all runs"
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(StateError, match="line 1: expected sum and noise"):
        again.spent()


def test_a_sum_beyond_the_owners_limit_is_refused_and_not_written(tmp_path: Path) -> None:
    most = epsilon([2.0, 2.0], 1e-6) + 1e-9
    ledger = NoiseLedger.of(tmp_path, {"max-epsilon": most, "delta": 1e-6})
    for name in ("a", "b"):
        ledger.check(2.0)
        ledger.charge(name, 2.0, 0.5, {})  # whatever delta the run names
    with pytest.raises(RefusedError, match=r"policy: max-epsilon = .*would be .* after 2 noised sums"):
        ledger.check(2.0)
    with pytest.raises(RefusedError, match="policy: max-epsilon"):
        ledger.charge("c", 2.0, 0.5, {})
    ledger.charge("b", 2.0, 0.5, {})  # paid for
    assert len(lines(tmp_path / FILE)) == 2


@pytest.mark.parametrize(
    "limits", [{"max-epsilon": -1.0}, {"max-epsilon": True}, {"max-epsilon": 2.0}], ids=str
)
def test_a_limit_that_cannot_be_used_is_named(limits: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='key "max-epsilon": expected'):
        NoiseLedger.of(tmp_path, limits)


# ------------------------------------------------------------------------------------------ in runs


def sites(folder: Path, **limits: float) -> type[LocalGrid]:
    """Return a grid of nodes as deployed, each with a state folder; `limits` are the last one's."""

    class Sites(LocalGrid):
        def __init__(self, app: object, node_configs: Any, run_config: Any = None, **more: Any) -> None:
            common = {"secagg-unverified": True, "run-paths": True}
            own = [
                {**c, **common, "state-dir": str(folder / f"site-{i}")} for i, c in enumerate(node_configs)
            ]
            own[-1] |= limits
            super().__init__(make_app(), own, run_config, **more)
            self.trained: list[tuple[int, int]] = []

        def _deliver(self, message: Message) -> Message | None:
            reply = super()._deliver(message)
            if message.metadata.message_type == "train" and reply is not None and not reply.has_error():
                node = self.index[message.metadata.dst_node_id]
                ledger = folder / f"site-{node}" / FILE
                self.trained.append((node, len(lines(ledger)) if ledger.exists() else 0))
            return reply

    return Sites


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    write_owners(tmp_path / "owners.npz", EIGHT)
    more = {"dp.noise": 2.0, "dp.clip": 0.3, "dp.delta": 0.01, "num-server-rounds": 3}
    return owners_config(tmp_path / "owners.npz", **NODES) | more


def test_each_node_writes_before_its_numbers_leave_and_the_one_at_its_limit_sends_none(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    """Three of four nodes are enough: the run goes on without the one whose owner allows two sums."""
    most = epsilon([2.0] * 2, 1e-5) + 1e-9
    grid_type = sites(tmp_path, **{"max-epsilon": most, "delta": 1e-5})
    played = run(keys, Ledger(), nodes=4, grid_type=grid_type)
    assert not any(row["skipped"] for row in played.rows)
    out = [line for row in played.rows for line in row["quarantined"]]
    assert {line["round"] for line in out} == {3}
    assert {line["client"] for line in out} == set(sorted(EIGHT)[3::4])
    assert all("policy: max-epsilon" in line["got"] for line in out)
    grid: Any = played.grid
    # By node, the lines that were there when its answer to each round's training left.
    seen = {node: [count for n, count in grid.trained if n == node] for node in range(4)}
    assert seen == {0: [1, 2, 3], 1: [1, 2, 3], 2: [1, 2, 3], 3: [1, 2]}
    first = lines(tmp_path / "site-0" / FILE)
    assert [(line["round"], line["phase"], line["noise"]) for line in first] == [
        (t, "train", 2.0) for t in (1, 2, 3)
    ]
    assert epsilon([2.0] * 3, 0.01) == pytest.approx(played.rows[-1]["epsilon"], rel=5e-3)


def test_a_run_cannot_move_the_ledger_and_nodes_that_share_one_each_count_their_noise(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that may name paths at the nodes; these have no folders of their own."""
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))

    class Shared(sites(tmp_path)):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            for context in self.contexts.values():
                context.node_config.pop("state-dir")

    run(keys | {"state-dir": str(tmp_path / "elsewhere")}, Ledger(), nodes=4, grid_type=Shared)
    found = lines(tmp_path / "cache" / "state" / FILE)
    assert [line["round"] for line in found] == [t for t in (1, 2, 3) for _ in range(4)]
    assert len({line["sum"] for line in found}) == 12
    assert list(tmp_path.rglob(FILE)) == [tmp_path / "cache" / "state" / FILE]


def test_twelve_runs_of_one_name_and_one_attempt_are_twelve_lines(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server chooses these words; each run has noise of its own, and so a name that its node draws."""
    monkeypatch.setattr("secrets.token_hex", lambda size: "ab" * size)
    for _ in range(12):
        journal = Ledger()
        journal.run_id = "the-run"
        run(keys | {"num-server-rounds": 1}, journal, nodes=3, grid_type=sites(tmp_path))
    found = lines(tmp_path / "site-0" / FILE)
    assert {(line["run"], line["round"]) for line in found} == {("the-run", 1)}
    assert len({line["sum"] for line in found}) == 12


def test_an_order_that_comes_twice_has_the_same_noise_and_is_counted_once(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    class Twice(sites(tmp_path)):  # type: ignore[misc]
        def _deliver(self, message: Message) -> Message | None:
            first = super()._deliver(message)
            if message.metadata.message_type != "train" or first is None:
                return first
            again = super()._deliver(message)
            assert again is not None
            words = [m.content["masked"]["low"].data for m in (first, again)]
            assert words[0] == words[1]
            return again

    played = run(keys | {"num-server-rounds": 1}, Ledger(), nodes=3, grid_type=Twice)
    assert not played.rows[1]["skipped"]
    assert len(lines(tmp_path / "site-0" / FILE)) == 1


@pytest.mark.parametrize("more", [{"dp.noise-by": "server"}, {"dp.noise": 0.0}], ids=str)
def test_a_site_with_a_limit_takes_part_in_no_run_without_the_nodes_noise(
    more: dict[str, Any], keys: dict[str, Any], tmp_path: Path
) -> None:
    grid_type = sites(tmp_path, **{"max-epsilon": 100.0, "delta": 1e-5})
    rest = {k: v for k, v in keys.items() if more.get("dp.noise") != 0 or not k.startswith("dp.")}
    rest |= {"num-server-rounds": 1, **(more if "dp.noise-by" in more else {})}
    row = run(rest, Ledger(), nodes=4, grid_type=grid_type).rows[1]
    assert {q["client"] for q in row["quarantined"]} == set(sorted(EIGHT)[3::4])
    assert all('"dp.noise-by" = "nodes"' in q["got"] for q in row["quarantined"])
