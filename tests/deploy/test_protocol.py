"""Facts of Flower's protocols, against the installed Flower."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common import constant
from flwr.supercore import constant as more
from flwr.supercore.primitives import asymmetric
from flwr.supercore.utils import get_metadata_bytes, get_metadata_str, int64_to_uint64, uint64_to_int64

from server_app.deploy.calls import protocol

OURS = {
    "PUBLIC_KEY_HEADER": constant.PUBLIC_KEY_HEADER,
    "SIGNATURE_HEADER": constant.SIGNATURE_HEADER,
    "TIMESTAMP_HEADER": constant.TIMESTAMP_HEADER,
    "TASK_TOKEN_HEADER": more.TASK_TOKEN_HEADER,
    "TIMESTAMP_TOLERANCE": constant.TIMESTAMP_TOLERANCE,
    "SYSTEM_TIME_TOLERANCE": constant.SYSTEM_TIME_TOLERANCE,
    "HEARTBEAT_PATIENCE": constant.HEARTBEAT_PATIENCE,
    "PUSH_SESSION_S": more.OBJECT_PUSH_SESSION_TTL_SECONDS,
    "SUPERLINK_NODE_ID": constant.SUPERLINK_NODE_ID,
}


@pytest.mark.parametrize("name", OURS)
def test_a_fact_is_the_installed_flowers(name: str) -> None:
    assert getattr(protocol, name) == OURS[name]


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_ids_are_stored_as_flower_stores_them(number: int) -> None:
    assert protocol.signed(number) == uint64_to_int64(number)
    assert protocol.unsigned(protocol.signed(number)) == number == int64_to_uint64(protocol.signed(number))


HEADERS = {
    "none": [],
    "one": [("a", "x"), ("b", b"y")],
    "twice": [("a", "x"), ("a", "x"), ("b", b"y"), ("b", b"z")],
    "other kind": [("a", b"x"), ("b", "y")],
    "empty": [("a", ""), ("b", b"")],
}


@pytest.mark.parametrize("metadata", [*HEADERS.values(), None], ids=[*HEADERS, "no metadata"])
def test_a_header_counts_as_flower_counts_it(metadata: list[tuple[str, str | bytes]] | None) -> None:
    assert protocol.header(metadata, "a", str) == get_metadata_str(metadata, "a")
    assert protocol.header(metadata, "b", bytes) == get_metadata_bytes(metadata, "b")


def test_keys_and_signatures_are_flowers() -> None:
    private, public = asymmetric.generate_key_pairs()
    pem = protocol.write_public_key(public)
    assert pem == asymmetric.public_key_to_bytes(public)
    signature = asymmetric.sign_message(private, b"now")
    assert protocol.is_signed(protocol.read_public_key(pem), b"now", signature)
    assert not protocol.is_signed(protocol.read_public_key(pem), b"later", signature)


def test_a_key_of_another_kind_is_refused() -> None:
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    with pytest.raises(ValueError, match="expected a key of an elliptic curve; got Ed25519PublicKey"):
        protocol.read_public_key(other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(ValueError, match=r"."):
        protocol.read_public_key(b"none")
