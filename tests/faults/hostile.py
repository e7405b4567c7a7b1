"""A node with a good key that means ill: its replies are wrong in every way that somebody could think of."""

from __future__ import annotations

import io
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.supercore.inflatable.inflatable_object import get_object_tree

from task.datasets.description import Description
from task.datasets.header import TypedColumn
from task.wire import messages as wire
from task.wire import registration
from task.wire.packing import unpacked
from tests.faults.rawnode import RawNode, outcome, read_keys

Honest = dict[str, np.ndarray]
CHUNK = 4 << 20
FLOOD_S, FLOOD_THREADS, FLOOD_CALLS = 10.0, 32, 2000
LAST_S = 30.0  # that a hostile node stays after its last attack, unless it is asked again


# What the honest nodes' tables mean, see `tests.faults.runs.write_ward`.
WARDS = Description("features", tuple(map(TypedColumn, "abcd")), ("label",), ("0", "1")).meaning


class FloodError(Exception):
    """How a flood ended."""


def _content(arrays: ArrayRecord, **metrics: Any) -> RecordDict:
    told = {"num-examples": 50, "train-loss": 0.5} | {k.replace("_", "-"): v for k, v in metrics.items()}
    return RecordDict({"arrays": arrays, "metrics": MetricRecord(told)})


def _first(model: Honest, change: Callable[[np.ndarray], np.ndarray]) -> ArrayRecord:
    name = next(iter(model))
    return wire.pack_arrays(model | {name: change(model[name].copy())})


def _raw(
    model: Honest, data: bytes, dtype: str = "", stype: str = "numpy.ndarray", shape: Any = None
) -> ArrayRecord:
    """Return the model with bytes of our own in the place of its first array."""
    record = wire.pack_arrays(model)
    name = next(iter(model))
    told = Array(dtype or str(model[name].dtype), tuple(shape or model[name].shape), stype, data)
    return ArrayRecord({key: told if key == name else record[key] for key in record})


def _bomb(model: Honest) -> ArrayRecord:
    """An .npy header that claims 30 GB."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f8", "fortran_order": False, "shape": (4_000_000_000,)}
    )
    return _raw(model, buffer.getvalue() + b"0" * 64)


def _pickle(model: Honest) -> ArrayRecord:
    """An .npy file that holds Python objects, which would run code."""

    class Evil:
        def __reduce__(self) -> Any:
            return (open, ("/tmp/bouquet-was-here", "w"))

    buffer = io.BytesIO()
    np.save(buffer, np.array([Evil()], dtype=object), allow_pickle=True)
    return _raw(model, buffer.getvalue())


def _nan(a: np.ndarray) -> np.ndarray:
    a.flat[0] = np.nan
    return a


def _many(a: np.ndarray) -> np.ndarray:
    return np.zeros((a.shape[0] + 1, *a.shape[1:]), a.dtype)


# By name: what goes up instead of a reply. `None`: another way of sending, see `_special`.
REPLIES: dict[str, Callable[[Honest], RecordDict]] = {
    "NaN": lambda m: _content(_first(m, _nan)),
    "infinity": lambda m: _content(_first(m, lambda a: np.full_like(a, np.inf))),
    "another shape": lambda m: _content(_first(m, _many)),
    "another dtype": lambda m: _content(_first(m, lambda a: a.astype(np.float64))),
    "a missing array": lambda m: _content(wire.pack_arrays(dict(list(m.items())[1:]))),
    "an array more": lambda m: _content(wire.pack_arrays(m | {"more": np.zeros(3, np.float32)})),
    "-1000 examples": lambda m: _content(wire.pack_arrays(m), num_examples=-1000),
    "infinitely many examples": lambda m: _content(wire.pack_arrays(m), num_examples=float("inf")),
    "a loss of NaN": lambda m: _content(wire.pack_arrays(m), train_loss=float("nan")),
    "a loss below 0": lambda m: _content(wire.pack_arrays(m), train_loss=-1.0),
    "more examples than it registered": lambda m: _content(wire.pack_arrays(m), num_examples=51),
    "an accuracy of 1e30": lambda m: _content(wire.pack_arrays(m), test_accuracy=1e30),
    "-40 test examples": lambda m: _content(wire.pack_arrays(m), test_examples=-40),
    "an .npy of 30 GB": lambda m: _content(_bomb(m)),
    "a pickle": lambda m: _content(_pickle(m)),
    "an unknown form": lambda m: _content(_raw(m, b"xx", stype="evil")),
    "no metrics": lambda m: RecordDict({"arrays": wire.pack_arrays(m)}),
    "another's clients": lambda m: RecordDict(
        {
            "arrays": wire.pack_arrays(m),
            "metrics": MetricRecord({"num-examples": [50], "train-loss": [0.5]}),
            "answered": ConfigRecord({"clients": ["ward-1"]}),
        }
    ),
}
# Finite, and no larger than one reply may be: a model from which the others' training overflows.
SPOILING: dict[str, Callable[[Honest], RecordDict]] = {
    "a model times 2e7": lambda m: _content(
        wire.pack_arrays({n: a * a.dtype.type(2e7) for n, a in m.items()})
    ),
}
SPECIAL = ("a reply in another node's name", "a reply too large", "half a reply", "a replay", "a flood")


def hostile(
    address: str, certificates: str, key: str, name: str, most_reply: str, attacks: str
) -> dict[str, Any]:
    """Join as a client and attack once a round, until the run ends or nothing was asked for 60 s.

    Returns:
        By attack: its round and what the SuperLink said; and the bytes that were sent.
    """
    node = RawNode(address, certificates, read_keys(key))
    node.activate()
    print("here", file=sys.stderr, flush=True)
    waiting = list(json.loads(attacks))
    done: dict[str, Any] = {}
    heard = beat = time.monotonic()
    while waiting and time.monotonic() - heard < 60.0:
        if time.monotonic() - beat > 10:
            outcome(node.beat)
            beat = time.monotonic()
        try:
            order = node.pull()
        except grpc.RpcError as err:
            done.setdefault("errors", []).append(f"{err.code().name}: {err.details()}")
            time.sleep(1)
            continue
        if order is None:
            time.sleep(0.05)
            continue
        heard = time.monotonic()
        if order.metadata.message_type.startswith("query"):
            told = registration.Registration(
                (name,), np.array([50]), f"pool/{name}", version="", shape=(4,), classes=2, meaning=WARDS
            )
            node.push(Message(registration.registration_content(told), reply_to=order))
            continue
        model = wire.read_arrays(unpacked(order.content)["arrays"])  # type: ignore[arg-type]
        attack = waiting.pop(0)
        server_round = int(order.content["config"]["server-round"])  # type: ignore[arg-type]
        try:
            said = outcome(partial(_attack, node, order, model, attack, int(most_reply)))
        except FloodError as err:
            said = str(err)
        done[attack] = {"round": server_round, "said": said}
    until = time.monotonic() + LAST_S  # a node that leaves at once takes its last reply with it
    while time.monotonic() < until and not _is_asked(node):
        time.sleep(0.2)
    done["leave"] = outcome(node.deactivate)
    return done


def _is_asked(node: RawNode) -> bool:
    try:
        return node.pull() is not None
    except grpc.RpcError:  # after a flood
        return False


def _attack(node: RawNode, order: Message, model: Honest, attack: str, most_reply: int) -> None:
    if attack in REPLIES or attack in SPOILING:
        node.push(Message((REPLIES | SPOILING)[attack](model), reply_to=order))
        return
    reply = Message(REPLIES["NaN"](model), reply_to=order)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    if attack == "a reply in another node's name":
        reply.metadata.__dict__["_src_node_id"] = node.node.node_id + 1
        node.push(reply)
    elif attack == "a reply too large":
        huge = {f"w{i}": np.random.default_rng(i).bytes(CHUNK) for i in range(2 * most_reply // CHUNK + 1)}
        arrays = {k: np.frombuffer(v, np.uint8) for k, v in huge.items()}
        node.push(Message(_content(wire.pack_arrays(arrays)), reply_to=order))
    elif attack == "half a reply":
        node.push_head(remove_content_from_message(reply), get_object_tree(reply))
    elif attack == "a flood":
        head, tree = remove_content_from_message(reply), get_object_tree(reply)
        until = time.monotonic() + FLOOD_S

        def pour(_: int) -> str:
            return outcome(partial(node.push_head, head, tree)) if time.monotonic() < until else ""

        with ThreadPoolExecutor(FLOOD_THREADS) as threads:
            said = Counter(threads.map(pour, range(FLOOD_CALLS)))
        refused = [word for word in said if word.startswith("RESOURCE_EXHAUSTED")]
        raise FloodError(
            f"{refused[0]} ({sum(said[w] for w in refused)} of {said.total()} calls)"
            if refused
            else str(said)
        )
    elif attack == "a replay":
        node.push(reply)
        node.push(reply)
        node.signer.again = node.signer.last
        try:
            node.push_head(remove_content_from_message(reply), get_object_tree(reply))
        finally:
            node.signer.again = None
