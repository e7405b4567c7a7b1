"""A run of exact sums in which a site does not answer, and which is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from task.errors import NodesError
from tests.support.federation import in_one_process
from tests.support.grid import LocalGrid


def lost_and_resumed(keys: Mapping[str, Any], folder: Path, lost: int = 3, in_round: int = 0) -> Path:
    """Lose a node's answer to a question, see the run end with the reason, resume it; return its folder.

    `lost` counts the questions of the rounds to that node, and `in_round` is the one that it is of,
    0 = there is one question a round.
    """

    def tamper(node: int, reply: Message) -> Message | None:
        of_train = reply.metadata.message_type == "train" and node == 1
        sent.append(of_train)
        return None if of_train and sum(sent) == lost else reply

    sent: list[bool] = []
    keys = {**keys, "run-name": "lost", "round-timeout": 1.0}
    why = f"round {in_round or lost}: every site is needed, and the phase .* lacks a usable reply.* resume"
    with pytest.raises(NodesError, match=why):
        in_one_process(keys, folder, nodes=3, grid_type=partial(LocalGrid, tamper=tamper))
    return in_one_process({**keys, "resume": True}, folder, nodes=3)
