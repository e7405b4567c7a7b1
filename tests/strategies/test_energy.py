"""Energy of the simulated devices, by hand, and batteries that run empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from task.errors import ConfigError
from task.resolve.read import read_config
from tests.support.federation import SIZES, in_one_process, owners_config, play

# All devices alike: 10 examples a second, and 8 Mbit/s = 1 MB/s.
ALIKE = {"devices__speed": 10.0, "devices__bandwidth": 8.0, "devices__spread": 0.0}
MODEL = 4 * 3 + 3  # numbers of 4 bytes, W and b of ``logistic``, down and up
RADIO_S = 2 * MODEL * 4 / 1e6


def config(owners: Path, **more: Any) -> dict[str, Any]:
    return owners_config(owners, local_epochs=2, fraction_train=1.0, **ALIKE, **more)


def spent(name: str, compute: float, radio: float) -> float:
    """Joules in a round: two epochs over n_k examples, and the model down and up."""
    return compute * 2 * SIZES[name] / 10 + radio * RADIO_S


def test_joules_are_watts_times_simulated_seconds(owners: Path) -> None:
    played = play(config(owners, devices__watts_compute=5.0, devices__watts_radio=2000.0), nodes=2)
    lines = [line for line in played.keep.clients if line["phase"] == "train"]
    assert {line["name"] for line in lines} == {*SIZES}
    for line in lines:
        assert line["joules"] == pytest.approx(spent(line["name"], 5.0, 2000.0), rel=1e-12)
    for row in played.rows[1:]:
        total = sum(spent(name, 5.0, 2000.0) for name in SIZES)
        assert row["joules"] == pytest.approx(total, rel=1e-12)
        assert "empty_batteries" not in row
    assert played.rows[0]["joules"] == 0


def test_without_the_keys_nothing_is_said(owners: Path) -> None:
    played = play(config(owners), nodes=2)
    assert not any("joules" in row for row in [*played.rows, *played.keep.clients])


def test_a_client_whose_battery_is_empty_is_away_until_the_end_of_the_run(owners: Path) -> None:
    """10 W for 2 n / 10 s are 2 n J a round, of 50 J: cleo 46, emil 32, ben 24, anna 14, dora 10."""
    keys = config(owners, devices__watts_compute=10.0, devices__battery_joules=50.0, num_server_rounds=9)
    rows = play(keys, nodes=2).rows
    ends = {name: -(-50 // (2 * n)) for name, n in SIZES.items()}  # the round in which it is empty
    assert ends == {"cleo": 2, "emil": 2, "ben": 3, "anna": 4, "dora": 5}
    for row in rows[1:]:
        assert row["selected"] == sorted(n for n, last in ends.items() if row["round"] <= last)
        assert row["empty_batteries"] == sorted(n for n, last in ends.items() if row["round"] >= last)
    assert rows[-1]["round"] == 5  # nobody is left


def test_a_resumed_run_goes_on_with_the_charge_that_is_left(owners: Path, tmp_path: Path) -> None:
    keys = config(owners, devices__watts_compute=10.0, devices__battery_joules=50.0, num_server_rounds=4)
    keys |= {"run-name": "whole"}
    whole = in_one_process(keys, tmp_path)
    in_one_process(keys | {"run-name": "cut", "num-server-rounds": 2}, tmp_path)
    cut = in_one_process(keys | {"run-name": "cut", "resume": True}, tmp_path)
    rows = [
        [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        for folder in (whole, cut)
    ]
    seen = [[(r["selected"], r["joules"], r["empty_batteries"]) for r in of] for of in rows]
    assert seen[0] == seen[1]
    result = json.loads((cut / "result.json").read_text())
    # 2 J an example: in round 1 and 2 of all 63, in 3 of 24, in 4 of 12.
    assert result["joules"] == pytest.approx(2 * (63 + 63 + 24 + 12), rel=1e-12)
    assert "Energy, simulated devices" in (cut / "report.html").read_text()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"devices.battery-joules": 9.0}, "battery-joules.*nothing else uses a battery up"),
        ({"devices.watts-compute": 1.0, "algorithm": "fedbuff"}, "no simulated seconds by client.*fedbuff"),
    ],
)
def test_what_has_no_energy_is_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_config({"dataset": "digits", **keys})
