"""Every random number of a run, from (run seed, role, round, client name).

There is no global generator. Two calls with the same arguments give the same stream on every
machine, whatever ran before, in whichever process; two different roles never share a stream.

The run seed is that of the role's kind, `task.config.knobs.Seeds`: MODEL and STARTS have the model's;
PARTITION, FEATURES, STREAM, DRIFT, ARRIVE, SPLIT, VALIDATION, WIDTHS, SYNTHETIC, HELDOUT and which examples
are PUBLIC have the data's; and all others the training's.
"""

import hashlib
from typing import Final

import numpy as np

MODEL: Final = "model"  # initial parameters
STARTS: Final = "starts"  # how the initial models of several differ
SELECTION: Final = "selection"  # which clients train in a round
CYCLE: Final = "cycle"  # the order in which the model goes through the clients of a round
GRAPH: Final = "graph"  # which clients a random regular graph links
EVALUATION: Final = "evaluation"  # which clients evaluate in a round
STRAGGLERS: Final = "stragglers"  # which clients are slow and how slow
PARTITION: Final = "partition"  # who owns which examples
PUBLIC: Final = "public"  # which examples are public, and the order in which a round takes them
FEATURES: Final = "features"  # noise of the clients' images, and whose skew a global test row has
STREAM: Final = "stream"  # the order in which a client's examples arrive
DRIFT: Final = "drift"  # whose data change, and in which order examples do
ARRIVE: Final = "arrive"  # which clients join late
SPLIT: Final = "split"  # a client's own train/test split
BATCHES: Final = "batches"  # order of a client's examples in a round; without a name, of all parties' rows
ALA: Final = "ala"  # the examples that a client's aggregation weights are learnt on
VALIDATION: Final = "validation"  # the examples that a client compares others' models on
PEERS: Final = "peers"  # whose models a client gets besides those it has affinity to
AUGMENT: Final = "augment"  # how training examples are changed in an epoch
TORCH: Final = "torch"  # dropout and the like during local training
WIDTHS: Final = "widths"  # the width of a client's model
DROPOUT: Final = "dropout"  # the units of the model that a client trains in a round
NOISE: Final = "noise"  # noise that an algorithm adds to models in a round; never what protects
DEVICES: Final = "devices"  # a client's simulated speed
TIES: Final = "ties"  # who comes first among clients of equal loss
VOTES: Final = "votes"  # the vote of a client on a number whose gradient is 0
ATTACK: Final = "attack"  # who is malicious, and the noise that a malicious client sends
ORDERS: Final = "orders"  # the orders of clients by which their contributions are measured
POISON: Final = "poison"  # which examples of a malicious client have the trigger of a backdoor
CANARY: Final = "canary"  # the canaries of an audit: who is in, and their directions
CODEC: Final = "codec"  # the random draws of a client's code
DOWNLOAD: Final = "download"  # the random draws of the model's code
SYNTHETIC: Final = "synthetic"  # the generated data set
BUCKETS: Final = "buckets"  # which clients are averaged before a robust rule
COORDINATES: Final = "coordinates"  # the coordinates of updates that a robust rule samples
HELDOUT: Final = "heldout"  # which clients take no part in training
TREE_ROWS: Final = "tree-rows"  # the rows that a round's trees are grown from
TREE_COLUMNS: Final = "tree-columns"  # the columns that they may split
UNGROWN: Final = "ungrown"  # the rows that no tree is grown from


def seed_for(seed: int, role: str, server_round: int = 0, client: str = "") -> int:
    """Return a 63-bit seed that depends on all four arguments and on nothing else."""
    text = f"{seed}\x1f{role}\x1f{server_round}\x1f{client}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def rng_for(seed: int, role: str, server_round: int = 0, client: str = "") -> np.random.Generator:
    """Return a NumPy generator (PCG64) for this role, round and client."""
    return np.random.Generator(np.random.PCG64(seed_for(seed, role, server_round, client)))
