"""W1 in other people's simulators, one small script each: what ``make bench-peers`` runs.

Each script is a command of its own, ``python -m tests.bench.peers.w1_NAME MNIST FOLDER ROUNDS``, run by the
Python of the peer's own environment, so it imports numpy, the peer and what the peer brings, nothing of
Bouquet. All do the same work (`common`) and append a line to FOLDER/rounds.jsonl after each round. Written
from the peers' documentation; no code is copied.
"""
