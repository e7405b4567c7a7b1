"""Encrypted models: CKKS (Cheon, Kim, Kim & Song 2017, ePrint 2016/421) by TenSEAL, for additions only.

All nodes share one secret key. A node encrypts sum_k (n_k / n) x_k and sum_k n_k / n over its own clients, n
being the weight of all clients that were asked; after decryption, the sum over nodes is divided by the other
sum.

=========  =============  ==========================================================================
symbol     variable       meaning
=========  =============  ==========================================================================
N          ``DEGREE``     of the ring; a ciphertext holds N/2 numbers
q_0, p     ``BITS``       bits of the data prime and of the special prime. Additions need one level,
                          and 128 bits of security allow 109 bits in all (HomomorphicEncryption.org)
Delta      ``SCALE``      a number x is the integer Delta x
B          ``MOST``       largest |x| that is encrypted
=========  =============  ==========================================================================

No sum can wrap: the weights n_k / n add up to 1 at most, so that a sum over clients keeps to B as each client
does, and B Delta = 2^52 is half of q_0 / 2. The error of a sum is some 1e-9, that of fresh ciphertexts: the
slots' noise has a standard deviation of about 2^-32.

An encrypted record is two arrays of bytes, the ciphertext and the names, shapes and dtypes of what is in it.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from task.errors import ConfigError, WireError
from task.extras import from_extra
from task.numerics.arrays import Arrays, NamedArrays
from task.storage.files import write_once

DEGREE, BITS, SCALE = 4096, (54, 54), 2.0**40
WHERE = 'run-config key "he"'
SLOTS = DEGREE // 2
MOST = 2.0**12
LEAST_SHARE = 2.0**-20  # of the asked clients' weight; a mean over less would be noise
SLACK = 1e-6  # tolerance for noise on a share
CIPHERTEXT, FORM = "ciphertext", "form"  # the arrays of an encrypted record
KEY_FILE, PUBLIC_FILE = "he.context", "he.json"  # of a node: context with the secret key; of the link
NODE_KEY, REQUIRED = "he-key", "he-required"  # in the node config: the key's file; whether runs must encrypt


def tenseal() -> Any:
    """Return the library.

    Raises:
        ConfigError: It is not installed.
    """
    from_extra("he", "tenseal.sealapi", WHERE)  # without it a ciphertext has no scale
    return from_extra("he", "tenseal", WHERE)


def public_of(context: bytes) -> dict[str, Any]:
    """Return a context's public description for the link's kit: its parameters and its id."""
    parameters = {"scheme": "CKKS", "degree": DEGREE, "bits": list(BITS), "scale": SCALE}
    return {"id": id_of(context), "parameters": parameters}


def public_context() -> Any:
    """Return a context that adds: parameters without any key."""
    return _context(_public())


@lru_cache(maxsize=1)
def _public() -> bytes:
    return _serialized(_new(), secret=False)


_CONTEXTS: dict[tuple[int, bytes], Any] = {}  # by process and by what they were read from


def _context(data: bytes) -> Any:
    """Return a context of this process.

    Each has a thread, which a forked process lacks: it would wait for it for ever when it uses or drops the
    context. So a forked process gets its own context, and its parent's are kept unused.
    """
    key = os.getpid(), data
    if key not in _CONTEXTS:
        _CONTEXTS[key] = tenseal().context_from(data, 1)
    return _CONTEXTS[key]


def _serialized(context: Any, *, secret: bool) -> bytes:
    others = {f"save_{what}": False for what in ("public_key", "galois_keys", "relin_keys")}
    found: bytes = context.serialize(save_secret_key=secret, **others)
    return found


def _new() -> Any:
    ts = tenseal()
    made = ts.context(
        ts.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(BITS),
        encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC, n_threads=1,
    )  # fmt: skip
    made.global_scale = SCALE
    return made


def new_key() -> bytes:
    """Return a new context with its secret key, as `Key` reads it."""
    return _serialized(_new(), secret=True)


def simulated_key(folder: Path) -> Path:
    """Return the file of the key in the state folder of a simulation, whose first process makes it."""
    write_once(folder / KEY_FILE, new_key)
    return folder / KEY_FILE


def id_of(context: bytes) -> str:
    """Return the id of a context: a SHA-256 of its parameters and its key, which it does not reveal."""
    return hashlib.sha256(b"bouquet: CKKS context" + context).hexdigest()


@lru_cache(maxsize=4)
def read_key(path: Path) -> "Key":
    """Read the file of a secret key.

    Raises:
        ConfigError: It is missing, or holds another context than ours.
    """
    try:
        return Key(path.read_bytes())
    except OSError as err:
        raise ConfigError(
            f'{path}: expected the key of the nodes\' encryption (run-config key "he"); got '
            f"{err.strerror}. `bouquet provision --he` makes it"
        ) from None
    except (ValueError, RuntimeError):
        raise ConfigError(f"{path}: expected the key of the nodes' encryption; got another file") from None


class Key:
    """The key that nodes encrypt and decrypt with.

    Raises:
        ValueError: The bytes are no context with a secret key and our parameters.
    """

    def __init__(self, context: bytes) -> None:
        self.id, self._read = id_of(context), context
        if not self._context.is_private() or _serialized(self._context, secret=False) != _public():
            raise ValueError("expected a secret key of our parameters")

    @property
    def _context(self) -> Any:
        return _context(self._read)

    def seal(self, values: np.ndarray) -> np.ndarray:
        """Return the ciphertext of some numbers, float64 [n], as bytes.

        Raises:
            ValueError: A number is beyond `MOST`, which a sum could not hold.
        """
        if not np.abs(values).max(initial=0.0) <= MOST:
            raise ValueError(f"expected numbers of at most {MOST:g} in size")
        ts, rows = tenseal(), _ciphertexts(values.size)
        # Slot s of ciphertext c holds the number c * SLOTS + s.
        slots = np.zeros((rows, SLOTS))
        slots.reshape(-1)[: values.size] = values
        plain = ts.plain_tensor(slots.T.reshape(-1).tolist(), [SLOTS, rows])
        return np.frombuffer(ts.ckks_tensor(self._context, plain, batch=True).serialize(), np.uint8)

    def unseal(self, ciphertext: np.ndarray, size: int) -> np.ndarray:
        """Return the first numbers of a ciphertext, float64 [size].

        Raises:
            WireError: It is none, or of another size.
        """
        found = load(ciphertext, size, self._context)
        slots = np.array(found.decrypt().raw).reshape(SLOTS, _ciphertexts(size))
        return slots.T.reshape(-1)[:size]

    def open(self, record: NamedArrays) -> Arrays:
        """Return the mean that an encrypted record holds, in the dtypes of its form.

        Raises:
            WireError: The record is damaged, of another key, or a sum in which clients count twice.
        """
        like = form_of(record)
        *values, share = self.unseal(record[CIPHERTEXT], size_of(like))
        if not LEAST_SHARE <= share <= 1 + SLACK:
            raise WireError(
                "an encrypted model: expected one under this node's key, over clients that count once; got "
                "another key's, or another sum. Give all nodes one key: bouquet provision --he",
                CIPHERTEXT,
            )
        flat, at, found = np.array(values) / share, 0, {}
        for name in sorted(like):
            a = like[name]
            found[name] = flat[at : at + a.size].reshape(a.shape).astype(a.dtype)
            at += a.size
        return {name: found[name] for name in like}


def size_of(like: NamedArrays) -> int:
    """Return how many numbers an encrypted record holds: the arrays' and the share of the weight."""
    return sum(a.size for a in like.values()) + 1


def most_bytes(like: NamedArrays) -> int:
    """Return the bytes that an encrypted record can have at most."""
    return _ciphertexts(size_of(like)) * (2 * 8 * DEGREE + 512) + 4096 + len(_described(like))


def sealed(arrays: NamedArrays) -> bool:
    """Return whether arrays are an encrypted record."""
    return arrays.keys() == {CIPHERTEXT, FORM}


def record_of(ciphertext: np.ndarray, like: NamedArrays) -> Arrays:
    """Return an encrypted record of arrays of this form."""
    return {CIPHERTEXT: ciphertext, FORM: np.frombuffer(_described(like), np.uint8)}


def form_of(arrays: NamedArrays) -> Arrays:
    """Return arrays of the form of those that a record holds; of one in clear the arrays themselves.

    Raises:
        WireError: What says the form of an encrypted record is damaged.
    """
    if not sealed(arrays):
        return dict(arrays)
    try:
        form: Mapping[str, Any] = json.loads(arrays[FORM].tobytes())
        made = {
            str(name): np.broadcast_to(np.zeros((), dtype), [int(n) for n in shape])
            for name, (dtype, shape) in form.items()
        }
    except (ValueError, TypeError, AttributeError) as err:
        raise WireError(f"an encrypted record: expected its form; got {err}", FORM) from None
    return made


def load(ciphertext: np.ndarray, size: int, context: Any) -> Any:
    """Return the ciphertexts of this number of numbers that the bytes hold.

    Raises:
        WireError: They hold none.
    """
    raw, rows = ciphertext.tobytes(), _ciphertexts(size)
    if not _framed(raw, rows):
        raise WireError(f"expected {rows} ciphertexts of our parameters; got others", CIPHERTEXT)
    try:
        found = tenseal().ckks_tensor_from(context, raw)
        if any((c.scale, c.size(), c.coeff_modulus_size()) != (SCALE, 2, 1) for c in found.ciphertext()):
            raise ValueError("another scale or size")
        return found
    except (ValueError, RuntimeError) as err:
        raise WireError(f"expected ciphertexts of our parameters; got {err}", CIPHERTEXT) from None


def _framed(raw: bytes, rows: int) -> bool:
    """Return whether bytes are TenSEAL's frame of this number of SEAL ciphertexts, at our scale.

    TenSEAL trusts the frame (its message CKKSTensorProto), and a wrong one can end the process; SEAL checks
    its content.
    """
    shape, end = _varint(rows), b"\x19" + struct.pack("<d", SCALE) + b"\x20" + _varint(SLOTS)
    begin = b"\x0a" + _varint(len(shape)) + shape
    if not (raw.startswith(begin) and raw.endswith(end)):
        return False
    at, last = len(begin), len(raw) - len(end)
    for _ in range(rows):
        # A ciphertext's own header has its size, by which the frame must go.
        head = next((raw[at + 1 + n : at + 17 + n] for n in (1, 2, 3, 4) if raw[at + n] < 128), b"")
        size = int.from_bytes(head[8:], "little")
        if head[:3] != b"\x5e\xa1\x10" or raw[at : (at := at + 1 + len(_varint(size)))] != b"\x12" + _varint(
            size
        ):
            return False
        at += size
        if at > last:
            return False
    return at == last


def _varint(value: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _ciphertexts(size: int) -> int:
    return max(2, math.ceil(size / SLOTS))  # of one column TenSEAL repeats the first number


def _described(like: NamedArrays) -> bytes:
    return json.dumps({name: [a.dtype.str, list(a.shape)] for name, a in like.items()}).encode()
