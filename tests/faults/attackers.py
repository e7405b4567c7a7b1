"""What attackers do, each a program: ``python -m tests.faults.attackers WHAT ...`` prints JSON.

They run in a network namespace of their own, with no more than what the case gives them: an address, the
public ca.crt, perhaps a node's key.
"""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import (
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    SUPERLINK_NODE_ID,
    TIMESTAMP_HEADER,
)
from flwr.proto import control_pb2, fleet_pb2, runtime_pb2
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from server_app.deploy.calls.limits import fingerprint, raise_files
from server_app.deploy.kits.parsing import read_address
from tests.faults.hostile import hostile
from tests.faults.rawnode import CALL_S, RawNode, new_keys, outcome, read_keys

DIAL_S = 3.0
SHIFTS = {"6 s ahead": 6.0, "10 min ahead": 600.0, "10 min behind": -600.0, "60 s behind": -60.0}


def dial(host: str, *ports: str) -> dict[str, str]:
    """Try to connect to ports; return "open" or why not, by port."""
    found = {}
    for port in ports:
        try:
            socket.create_connection((host, int(port)), timeout=DIAL_S).close()
            found[port] = "open"
        except OSError as err:
            found[port] = str(err.strerror or err)
    return found


def services(address: str, certificates: str) -> dict[str, str]:
    """Call every method of the Control and the Runtime API on the Fleet API's port; return the answers."""
    roots = Path(certificates).read_bytes()
    channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(roots))
    found = {}
    for module in (control_pb2, runtime_pb2, fleet_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                call = channel.unary_unary(f"/{service.full_name}/{method.name}")
                found[f"{service.name}/{method.name}"] = outcome(partial(call, b"", timeout=10))
    return found


def outsider(address: str, certificates: str) -> dict[str, dict[str, int]]:
    """Call every method of the Control API with guessed proofs; return the answers, counted, by method."""
    context = ssl.create_default_context(cafile=certificates)
    found: dict[str, Counter[str]] = {}
    for guess in (None, "", "Bearer", "Bearer x", "Bearer " + "0" * 64, "Basic Og=="):
        client = ControlHttpClient(f"https://{address}", verify=context)
        client._client.headers.update({} if guess is None else {"Authorization": guess})
        (service,) = control_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods:
            try:
                answer = getattr(client, method.name)(getattr(control_pb2, method.input_type.name)())
                word = "an answer" if hasattr(answer, "DESCRIPTOR") else str(next(answer, "a stream"))
            except httpx.HTTPStatusError as err:
                word = str(err.response.status_code)
            except httpx.HTTPError as err:
                word = type(err).__name__
            found.setdefault(method.name, Counter())[word] += 1
    return {method: dict(said) for method, said in found.items()}


def idle(address: str, count: str, seconds: str) -> dict[str, float]:
    """Open connections and say nothing; return how many were closed, and when the last of them was."""
    raise_files()
    host, port = read_address(address, "")
    held = [socket.create_connection((host, port), timeout=DIAL_S) for _ in range(int(count))]
    began = time.monotonic()
    print(len(held), file=sys.stderr, flush=True)
    open_yet = list(held)
    while open_yet and time.monotonic() - began < float(seconds):
        time.sleep(0.5)
        open_yet = [connection for connection in open_yet if _is_open(connection)]
    return {"closed": len(held) - len(open_yet), "seconds": time.monotonic() - began}


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def theft(address: str, certificates: str, seconds: str) -> dict[str, int]:
    """Ask for tasks of the ServerApp, and of others, again and again; return how often which answer came."""
    roots = Path(certificates).read_bytes()
    found: dict[str, int] = {}
    deadline = time.monotonic() + float(seconds)
    clients = []
    for secret in (None, b"", b"guess" * 10):
        interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
        if secret is not None:
            method = {"/flwr.proto.Runtime/AcquireTask"}
            interceptors.append(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=method))
        clients.append(
            RuntimeHttpClient.from_server_address(
                server_address=address, insecure=False, root_certificates=roots, interceptors=interceptors
            )
        )
    while time.monotonic() < deadline:
        for client in clients:
            try:
                answer = client.AcquireTask(
                    AcquireTaskRequest(
                        supported_task_types=["flwr-serverapp", "flwr-clientapp", "flwr-simulation"]
                    )
                )
                word = "a task" if answer.HasField("task") else "an answer"
            except Exception as err:
                response = getattr(err, "response", None)
                word = str(response.status_code) if response is not None else type(err).__name__
            found[word] = found.get(word, 0) + 1
        time.sleep(0.02)
    return found


def strangers(address: str, certificates: str, count: str) -> dict[str, Any]:
    """Come with keys that nobody registered, with none, and with broken signatures; return the answers."""
    said: dict[str, Counter[str]] = {"activate": Counter(), "register": Counter()}
    found: dict[str, Any] = {}
    began = time.monotonic()
    for i in range(int(count)):
        node = RawNode(address, certificates, new_keys())
        said["activate"][outcome(node.activate)] += 1
        said["register"][outcome(node.register)] += 1
        if i == 0:
            found["fingerprint"] = fingerprint(node.public)
            found["pull"] = outcome(node.look)
            for header in (PUBLIC_KEY_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER):
                node.signer.without = {header}
                found[f"without {header}"] = outcome(node.activate)
            node.signer.without, node.signer.signature = set(), b"0" * 96
            found["bad signature"] = outcome(node.activate)
        node.channel.close()
    return found | said | {"seconds": time.monotonic() - began}


def member(address: str, certificates: str, key: str) -> dict[str, str]:
    """Do, with a key that is registered, what no node may; return the answers."""
    node, another = RawNode(address, certificates, read_keys(key)), RawNode(address, certificates, new_keys())
    found = {"activate": outcome(node.activate), "pull": outcome(node.look)}
    node.signer.again = node.signer.last  # what somebody on the wire could have captured
    found["the same call again"] = outcome(node.look)
    node.signer.again = None
    for name, shift_s in SHIFTS.items():
        node.signer.shift_s = shift_s
        found[name] = outcome(node.look)
    node.signer.shift_s = 0.0
    found["as another node"] = outcome(partial(node.look, Node(node_id=node.node.node_id + 1)))
    found["activate another's key"] = outcome(partial(node.activate, another.public))
    found["leave"] = outcome(node.deactivate)
    return found


def foreign(address: str, certificates: str, key: str, run: str, ward: str, message: str) -> dict[str, Any]:
    """Answer, fetch and fill what is another node's; return the answers."""
    node = RawNode(address, certificates, read_keys(key))
    node.activate()
    metadata = Metadata(
        run_id=int(run), message_id=message, src_node_id=SUPERLINK_NODE_ID, dst_node_id=node.node.node_id,
        reply_to_message_id="", group_id="1", created_at=time.time(), ttl=600.0, message_type="train",
    )  # fmt: skip
    order = make_message(metadata=metadata, content=RecordDict({"config": ConfigRecord({"n": 1})}))
    found: dict[str, Any] = {
        "a reply to another's message": outcome(partial(node.push, Message(RecordDict(), reply_to=order)))
    }
    part = node.stub.PullObject(PullObjectRequest(node=node.node, run_id=int(run), object_id=message))
    found["a part of another's message"] = "some" if part.object_content else "none"
    stored = []

    def fill(number: int) -> str:
        content = number.to_bytes(8, "big") * 4096
        request = PushObjectRequest(
            node=node.node, run_id=int(run), session_id=f"{number % 7}", object_content=content,
            object_id=hashlib.sha256(content).hexdigest(),
        )  # fmt: skip
        return outcome(lambda: stored.append(node.stub.PushObject(request, timeout=CALL_S).stored))

    with ThreadPoolExecutor(32) as threads:
        found["a flood of objects"] = dict(Counter(threads.map(fill, range(3000))))
    found["leave"] = outcome(node.deactivate)
    return found | {"stored": sum(stored)}


def still(address: str, certificates: str, key: str, seconds: str) -> dict[str, Any]:
    """Stay with a key until the SuperLink refuses it; return what it said, and when."""
    node = RawNode(address, certificates, read_keys(key))
    node.activate()
    print("here", file=sys.stderr, flush=True)
    deadline = time.monotonic() + float(seconds)
    while time.monotonic() < deadline:
        said = outcome(node.look)
        if said != "ok":
            return {"refused": said, "at": time.time(), "again": outcome(node.activate)}
        time.sleep(0.1)
    return {"refused": ""}


def handshakes(address: str, certificates: str) -> dict[str, str]:
    """Come without TLS, with an old one, and with another authority; return what happened."""
    host, port = read_address(address, "address")
    found = {}

    def attempt(name: str, context: ssl.SSLContext) -> None:
        try:
            with (
                socket.create_connection((host, port), timeout=DIAL_S) as raw,
                context.wrap_socket(raw, server_hostname=host) as wrapped,
            ):
                found[name] = f"accepted {wrapped.version()}"
        except (ssl.SSLError, OSError) as err:
            found[name] = f"refused: {getattr(err, 'reason', None) or err}"

    for name, version in (
        ("TLS 1.0", ssl.TLSVersion.TLSv1),
        ("TLS 1.1", ssl.TLSVersion.TLSv1_1),
        ("TLS 1.2", ssl.TLSVersion.TLSv1_2),
        ("TLS 1.3", ssl.TLSVersion.TLSv1_3),
    ):
        context = ssl.create_default_context(cafile=certificates)
        context.set_ciphers("ALL:@SECLEVEL=0")  # else this side would refuse the old ones itself
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        attempt(name, context)
    attempt("the world's authorities", ssl.create_default_context())
    with socket.create_connection((host, port), timeout=DIAL_S) as raw:
        raw.settimeout(DIAL_S)
        raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        try:
            answer = raw.recv(100)
            found["plaintext"] = (
                f"answered {answer!r}" if answer and answer[0] not in (0x15,) else "refused: closed"
            )
        except OSError as err:
            found["plaintext"] = f"refused: {err}"
    node = RawNode(address, "", new_keys())
    found["plaintext gRPC"] = outcome(node.look)
    return found


def other_app(kit: str) -> dict[str, str]:
    """Submit another app with the link's kit; return how its run ended."""
    from server_app.deploy.calls.control import Control
    from server_app.deploy.kits.kit import read_link_kit
    from tests.support.runtime import crashing_bundle

    control = Control(read_link_kit(kit))
    with tempfile.TemporaryDirectory() as folder:
        run = control.start(crashing_bundle(Path(folder) / "app"), {})
    deadline = time.monotonic() + 90
    while (state := control.run(run)) is not None and not state.finished:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert state is not None
    return {"status": state.status, "how": state.how, "details": state.details}


PROGRAMS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        dial,
        services,
        outsider,
        idle,
        theft,
        strangers,
        member,
        foreign,
        still,
        handshakes,
        hostile,
        other_app,
    )
}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](*sys.argv[2:])))
