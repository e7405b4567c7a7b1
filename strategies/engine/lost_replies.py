"""Replies that the server did not use, though their clients have taken them for used.

A client under a codec with error feedback subtracts what its code carries from what it still owes. If the
reply comes late, is refused, or its round keeps the model, the client must hear of it, else that mass is
gone. So an order names the rounds of which that holds for its clients.
"""

import json
from collections.abc import Collection

import numpy as np

from task.numerics.arrays import Arrays, NamedArrays

NAME = "lost-replies"
MOST = 8  # rounds by client from before a reply that was used, to which the run may go back


class LostReplies:
    """By client, the last rounds in which it was asked and its reply was not used."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[int]] = {}

    def note(self, server_round: int, asked: Collection[str], used: Collection[str]) -> None:
        """Take note of a round's clients."""
        for client in asked:
            rounds = self.rounds.get(client, [])
            if client not in used:  # its last code may be of any round since the last reply that was used
                self.rounds[client] = [*rounds, server_round]
            elif rounds:
                self.rounds[client] = rounds[-MOST:]

    def dump(self) -> Arrays:
        """Return all for a checkpoint, under a name of its own."""
        if not self.rounds:
            return {}
        text = json.dumps(self.rounds, sort_keys=True).encode()
        return {NAME: np.frombuffer(text, np.uint8).copy()}

    def load(self, arrays: NamedArrays) -> None:
        """Take up what `dump` returned."""
        self.rounds = json.loads(arrays[NAME].tobytes()) if NAME in arrays else {}
