"""A run that has trained, and whose clients then all fail for a reason that lasts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from flwr.app import Message

from task.wire import messages as wire
from task.wire.messages import RejectedReply
from tests.support.federation import SIZES, in_one_process, owners_config
from tests.support.grid import LocalGrid


def fails(node: int, reply: Message) -> Message:
    """From round 3 on no client can read its data."""
    trains = wire.METRICS in reply.content and "roll_call" not in reply.content
    if trains and int(reply.metadata.group_id) >= 3:
        lines = [RejectedReply(name, node, "", "a trained client", "data: line 3 is gone") for name in SIZES]
        reply.content.clear()
        reply.content.update(wire.reply_content(wire.NodeReply([], {}, failed=lines)))
    return reply


def test_it_ends_as_a_stopped_run_which_goes_on_when_they_are_well_again(
    owners: Path, tmp_path: Path
) -> None:
    keys = owners_config(owners, num_server_rounds=6, run_name="once")
    folder = in_one_process(keys, tmp_path, nodes=1, grid_type=partial(LocalGrid, tamper=fails))
    result = json.loads((folder / "result.json").read_text())
    assert (result["rounds"], result["ended_by"]) == (4, None)
    assert result["stopped"].startswith("after round 4: rounds 3 to 4: expected 1 or more usable replies")
    assert result["stopped"].endswith("line 3 is gone. Correct these data, and resume the run.")
    resumed = in_one_process(keys | {"resume": True}, tmp_path, nodes=1)
    result = json.loads((resumed / "result.json").read_text())
    assert (result["rounds"], result["ended_by"]) == (6, "num-server-rounds")
    assert "stopped" not in result
