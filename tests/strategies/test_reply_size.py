"""How large replies get follows from the model, and a run that its link would not let answer is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from server_app.deploy.kits import kit
from strategies import FedAvg
from strategies.engine.channel import Channel
from strategies.engine.reply_size import LARGEST, MIB, check_size, reply_bytes
from strategies.engine.rule import Phase
from task.errors import ConfigError
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.wire import coding
from task.wire import messages as wire
from task.wire.coding import coder_of
from task.wire.encoding import PLAIN
from task.wire.sealing import Sealed
from tests.strategies.test_faults import WARDS, wards

NUMBERS = 1 << 20
MODEL = {"w": np.zeros(NUMBERS, np.float32)}


def sizes(clients: int, **keys: Any) -> dict[str, int]:
    config = read_config({"dataset": "digits", "model": "logistic", **keys})
    entry = contract_of(config)
    like = {record.name: MODEL for record in entry.up}
    coder = coder_of(config, entry, like, {wire.ARRAYS: MODEL}, ("w",), 1)
    return reply_bytes(entry, like, clients, Sealed() if entry.encrypted else coder or PLAIN)


@pytest.mark.parametrize("clients", [1, 3])
def test_all_records_that_travel_count(clients: int) -> None:
    of_model = (4 if clients == 1 else 12) * NUMBERS
    assert sum(sizes(clients).values()) == of_model
    assert sum(sizes(clients, algorithm="scaffold").values()) == 2 * of_model
    assert sum(sizes(clients, algorithm="krum").values()) == 4 * NUMBERS * clients  # each by itself
    assert sum(sizes(clients, **{"codec.up": "int8"}).values()) < of_model / 2


def test_a_client_alone_on_its_node_sends_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a node of several would send the sum of what the codes decode to."""
    before = sizes(1, **{"codec.up": "int8"})
    monkeypatch.setattr(coding, "MOST_DECODED", 0)
    assert sizes(1, **{"codec.up": "int8"}) == before
    assert sum(sizes(2, **{"codec.up": "int8"}).values()) == 12 * NUMBERS


def test_encrypted_replies_have_the_size_of_their_ciphertexts() -> None:
    assert sum(sizes(1, he=True).values()) > 4 * NUMBERS


def test_a_limit_names_figures_and_key() -> None:
    check_size({"arrays": 100 * MIB}, 3, 0, "")
    check_size({"arrays": 62 * MIB}, 3, 64 * MIB, "kit.toml")
    with pytest.raises(ConfigError) as caught:
        check_size({"arrays": 115 * MIB, "control": 7 * MIB}, 3, 64 * MIB, "kits/link/kit.toml")
    assert str(caught.value) == (
        'kits/link/kit.toml: key "max-reply": expected at least 124M for this run: the reply of a node with '
        '3 clients has up to 123.0M (arrays 115.0M, control 7.0M); got 64M. Set max-reply = "124M" and '
        "start the link again, or send less (codec.up, a smaller model, fewer clients a node)"
    )
    check_size({"arrays": 115 * MIB, "control": 7 * MIB}, 3, 124 * MIB, "kit.toml")


def test_a_reply_that_no_link_takes_is_refused_without_a_value_to_set() -> None:
    assert LARGEST == kit.LARGEST
    check_size({"arrays": 2045 * MIB}, 1, LARGEST, "kit.toml")
    with pytest.raises(ConfigError) as caught:
        check_size({"arrays": 2400 * MIB}, 3, 2047 * MIB, "kit.toml")
    assert str(caught.value) == (
        'kit.toml: key "max-reply": expected at least 2402M for this run: the reply of a node with 3 clients '
        "has up to 2401.0M (arrays 2400.0M); got 2047M. No link takes replies of more than 2047M: send "
        "less (codec.up, a smaller model, fewer clients a node)"
    )


@pytest.mark.parametrize("limit", [2 * MIB, 6 * MIB])
def test_a_run_with_too_large_replies_trains_nobody(limit: int) -> None:
    grid = wards(pooled=False)
    run = FedAvg()
    run.engine.reply_limit = limit, "kit.toml"
    initial = wire.pack_arrays({"w": np.zeros(NUMBERS, np.float32)})
    if limit < 4 * MIB:
        with pytest.raises(ConfigError, match=r"max-reply.*expected at least 6M.*arrays 4\.0M"):
            run.start(grid, initial, 1, timeout=5.0)
        assert not [m for m in grid.sent if m.metadata.message_type.startswith("train")]
    else:
        run.engine.begin(1)
        run.engine.model = MODEL
        run.engine.trainable = ("w",)
        phase = Phase("train", run.entry, tuple(WARDS), {wire.ARRAYS: MODEL})
        assert Channel(run.engine).terms(phase, 1).most_bytes > 4 * MIB
        with pytest.raises(ConfigError, match="a node with 3 clients"):
            Channel(run.engine).terms(phase, 3)
