"""Keys, key derivation, encryption and keystreams, all by the package ``cryptography``.

Every derived key is of one purpose: its label, the session and what else it depends on go into HKDF's
``info``, each with its length, so that no two inputs read alike.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.poly1305 import Poly1305

from task.errors import SecureAggregationError

KEY_BYTES = 32
_ONCE = bytes(12)  # the nonce of a key that encrypts one text
_FIRST = bytes(16)  # counter block at which a key's one keystream begins


def encode(*parts: str | bytes | int) -> bytes:
    """Return the parts as bytes that no other parts give: each with its type and its length."""
    out = []
    for part in parts:
        if isinstance(part, int):
            kind, raw = b"i", part.to_bytes(8, "big")
        else:
            kind, raw = (b"s", part.encode()) if isinstance(part, str) else (b"b", part)
        out.append(kind + len(raw).to_bytes(8, "big") + raw)
    return b"".join(out)


def digest(*parts: str | bytes | int) -> bytes:
    """Return the SHA-256 of the parts, 32 bytes."""
    made = Hash(SHA256())
    made.update(encode(*parts))
    return made.finalize()


def tag(key: bytes, *parts: bytes | memoryview) -> bytes:
    """Return Poly1305's tag, 16 bytes, of the concatenated parts, under a secret one-time key.

    Who does not know the key finds no second text of the same tag, nor a first of two, but by chance.
    """
    made = Poly1305(key)
    for part in parts:
        made.update(part)
    return made.finalize()


def derive(
    secret: bytes, session: bytes, label: str, *more: str | bytes | int, size: int = KEY_BYTES
) -> bytes:
    """Return a key of one purpose by HKDF-SHA256: salt = the session, info = the label and `more`."""
    return HKDF(SHA256(), size, salt=session, info=encode(label, *more)).derive(secret)


def public_of(private: bytes) -> bytes:
    """Return the X25519 public key of a private one, 32 bytes each."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    """Return the secret that two X25519 keys agree on, 32 bytes.

    Raises:
        SecureAggregationError: The public key is not one, or of low order.
    """
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as err:
        raise SecureAggregationError(f"expected an X25519 public key of {KEY_BYTES} bytes; got none") from err


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    """Encrypt a text under a key that encrypts nothing else; `about` is authenticated with it."""
    return ChaCha20Poly1305(key).encrypt(_ONCE, text, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Decrypt what `seal` returned.

    Raises:
        SecureAggregationError: It was not sealed under this key, about this.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_ONCE, sealed, about)
    except InvalidTag:
        raise SecureAggregationError("expected shares that their sender encrypted for this node") from None


class Keystream:
    """The keystream of a key that gives no other, piece by piece: AES-256 in counter mode.

    A key gives fewer than 2^32 blocks, so that the chance to tell it from random bytes is below 2^-64.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(AES(key), CTR(_FIRST)).encryptor()

    def fill(self, buffer: memoryview, zeros: memoryview) -> None:
        """Write the next bytes into a buffer; `zeros` are as many zeros."""
        self._cipher.update_into(zeros, buffer)

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        return self._cipher.update(bytes(size))
