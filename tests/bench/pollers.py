"""``python -m tests.bench.pollers``: what many waiting nodes cost a link, and how long a round is.

A Fleet API as it is deployed, without TLS, in this process, and light nodes with keys in another. They look
every 3 s as a stock SuperNode does, or leave a call with the link that it holds. A round gives each a message
and waits until all have answered. `--flood` adds one that calls 140 times a second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from flwr.common.constant import NOOP_FLWR_AID
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from server_app.deploy.calls.limits import Limits
from tests.faults.rawnode import Signer
from tests.support.fleet import Peer, Served, arrays, served

HOLD = ("bouquet-hold", "25")
STOCK_S = 3.0  # between looks of a stock SuperNode
FLOOD_S = 1 / 140
SIZE = 60_000  # bytes of a message and of a reply


def poll(address: str, key: bytes, how: str) -> None:
    """Be one node, for ever."""
    private = load_pem_private_key(key, None)
    public = private.public_key()
    channel = grpc.intercept_channel(
        grpc.insecure_channel(address),
        Signer((private, public)),  # type: ignore[arg-type]
    )
    node = Peer(FleetStub(channel), public_key_to_bytes(public))  # type: ignore[arg-type]
    node.activate()
    pause = {"stock": STOCK_S, "held": 0.0, "flood": FLOOD_S}[how]
    metadata = [HOLD] if how == "held" else None
    time.sleep(pause * os.urandom(1)[0] / 256)  # they did not all start at once
    content = arrays(SIZE)
    while True:
        began = time.monotonic()
        try:
            found = node.stub.PullMessages(PullMessagesRequest(node=node.node), metadata=metadata)
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                waiting = [tree]
                while waiting:
                    part = waiting.pop()
                    waiting += part.children
                    request = PullObjectRequest(
                        node=node.node, run_id=message.metadata.run_id, object_id=part.object_id
                    )
                    node.stub.PullObject(request)
                node.confirm(message)
                node.push(message, content)
        except grpc.RpcError as err:
            if how != "flood":
                print(err.code(), err.details(), flush=True)
        time.sleep(max(0.0, pause - (time.monotonic() - began)))


def poll_all(address: str, keys: Sequence[bytes], how: str) -> None:
    """Be many nodes, for ever."""
    for key in keys:
        threading.Thread(target=poll, args=(address, key, how), daemon=True).start()
    threading.Event().wait()


@contextmanager
def nodes(link: Served, count: int, how: str) -> Iterator[list[int]]:
    """Register nodes, let them poll in a process of their own, and yield their ids."""
    keys, ids = [], []
    for _ in range(count):
        private, public = generate_key_pairs()
        keys.append(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        ids.append(link.state.create_node(NOOP_FLWR_AID, "", public_key_to_bytes(public), 30, name=how))
    process = multiprocessing.get_context("spawn").Process(
        target=poll_all, args=(link.address, keys, how), daemon=True
    )
    process.start()
    try:
        while len(link.state.get_node_info(node_ids=ids, statuses=["online"])) < count:
            time.sleep(0.2)
        yield ids
    finally:
        process.kill()
        process.join()


def play(link: Served, ids: Sequence[int]) -> float:
    """Give each node a message; return after how many seconds all have answered."""
    began, content = time.monotonic(), arrays(SIZE)
    waiting = {link.order(node, content) for node in ids}
    while waiting:
        time.sleep(0.02)
        whole = link.delivery.whole(link.delivery.answered(waiting))
        link.delivery.forget(whole)
        waiting -= whole
    return time.monotonic() - began


def measure(link: Served, ids: Sequence[int], seconds: float, rounds: int) -> str:
    """Return a line with the CPU time of idle nodes, and of rounds."""
    time.sleep(2 * STOCK_S)
    before, began = time.process_time(), time.monotonic()
    time.sleep(seconds)
    idle = (time.process_time() - before) / (time.monotonic() - began)
    before = time.process_time()
    took = [play(link, ids) for _ in range(rounds)]
    cpu = (time.process_time() - before) / rounds
    return f"idle {100 * idle:5.1f} % of a core; a round {statistics.median(took):5.2f} s, CPU {cpu:5.2f} s"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pollers", description=__doc__)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--how", choices=["stock", "held"], action="append")
    parser.add_argument("--seconds", type=float, default=30.0, help="of idleness")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flood", action="store_true", help="with a node that calls 140 times a second")
    options = parser.parse_args()
    for how in options.how or ["stock", "held"]:
        with tempfile.TemporaryDirectory() as folder, served(Path(folder), Limits(10**9, 10**4)) as link:
            with nodes(link, options.nodes, how) as ids, nodes(link, int(options.flood), "flood"):
                line = measure(link, ids, options.seconds, options.rounds)
            flood = ", and one that floods" if options.flood else ""
            print(f"{options.nodes} nodes, {how}{flood}: {line}", flush=True)


if __name__ == "__main__":
    main()
