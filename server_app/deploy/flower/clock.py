"""How far this machine's clock is from the SuperLink's, found by asking.

Flower's nodes sign the time with every call, and the SuperLink refuses a time that lies more than 5 s in
its future or 305 s in its past. It says no more than that. A node may sign any time, though: calls that do
nothing, signed with shifted times, find where the refusals begin.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.client.grpc_rere_client.node_auth_client_interceptor import NodeAuthClientInterceptor
from flwr.common.constant import (
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.node_pb2 import Node
from flwr.supercore.date import now
from flwr.supercore.grpc import create_channel
from flwr.supercore.interceptors import RuntimeVersionClientInterceptor
from flwr.supercore.primitives.asymmetric import sign_message

REFUSAL = "Invalid timestamp"
STEP_S = 300.0  # less than the width of what is accepted
FAR_S = 13 * 3600.0  # a wrong time zone
FINE_S = 0.25
CALL_S = 5.0


def ahead_s(accepted: Callable[[float], bool], ahead: float = SYSTEM_TIME_TOLERANCE) -> float | None:
    """Return how far this clock is ahead, in seconds, to a quarter of a second; None if very far.

    Args:
        accepted: Whether a time is, which is this clock's plus so many seconds.
        ahead: How far a time may be ahead.
    """
    steps = [sign * i * STEP_S for i in range(int(FAR_S / STEP_S)) for sign in (1, -1)][1:]
    low = next((step for step in steps if accepted(step)), None)
    if low is None:
        return None
    high = low + TIMESTAMP_TOLERANCE + 2 * SYSTEM_TIME_TOLERANCE
    while high - low > FINE_S:
        middle = (low + high) / 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    return ahead - (low + high) / 2


def in_words(ahead: float | None) -> str:
    """Say how far the clock is from the SuperLink's and what to do."""
    if ahead is None:
        what = f"more than {FAR_S / 3600:g} h off the SuperLink's"
    else:
        what = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the SuperLink's"
    return (
        f"this machine's clock is {what}: it may be at most {SYSTEM_TIME_TOLERANCE} s ahead and "
        f"{TIMESTAMP_TOLERANCE} s behind. Set it right, for example with NTP"
    )


class _Shifted(NodeAuthClientInterceptor):
    """Signs a shifted time."""

    shift_s = 0.0

    def intercept_unary_unary(
        self,
        continuation: Callable[..., grpc.Call],
        client_call_details: grpc.ClientCallDetails,
        request: object,
    ) -> grpc.Call:
        """Add key, time and signature to a call."""
        stamp = (now() + datetime.timedelta(seconds=self.shift_s)).isoformat()
        metadata = [
            *(client_call_details.metadata or []),
            (PUBLIC_KEY_HEADER, self.public_key_bytes),
            (TIMESTAMP_HEADER, stamp),
            (SIGNATURE_HEADER, sign_message(self.private_key, stamp.encode("ascii"))),
        ]
        return continuation(client_call_details._replace(metadata=metadata), request)


def measure(
    address: str,
    certificates: bytes | None,
    keys: tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey],
) -> float | None:
    """Ask a SuperLink how far this clock is ahead of its own, in seconds; None if very far.

    Args:
        address: Its Fleet API.
        certificates: Root certificates; None = plaintext.
        keys: Private and public key; the SuperLink need not know them.

    Raises:
        grpc.RpcError: It does not answer.
    """
    signer = _Shifted(*keys)
    version = RuntimeVersionClientInterceptor(component_name="SuperNode")
    channel = create_channel(address, certificates is None, certificates, interceptors=[version, signer])
    stub = FleetStub(channel)

    def accepted(shift: float) -> bool:
        signer.shift_s = shift
        try:
            stub.PullMessages(PullMessagesRequest(node=Node(node_id=0)), timeout=CALL_S)
        except grpc.RpcError as err:
            if err.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            return bool(err.details() != REFUSAL)
        return True

    try:
        return ahead_s(accepted)
    finally:
        channel.close()
