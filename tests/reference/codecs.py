"""Codecs from the papers and docs/reference/compression.md: strings of bits, Python's loops, float64.

STC, Golomb code:  Sattler et al., IEEE TNNLS 31(9) 2020, arXiv 1903.02891, algorithms 1, 3 and 4.
EDEN:              Vargaftik et al., ICML 2022; DRIVE: NeurIPS 2021, arXiv 2105.08339.
Random entries:    Konecny et al. 2016, arXiv 1610.05492, section 3.
"""

import math
import struct
from collections.abc import Iterator

import numpy as np

Vectors = dict[str, np.ndarray]  # flat
GOLDEN = (math.sqrt(5) + 1) / 2


def kept(keep: float, n: int) -> int:
    return min(n, max(math.ceil(keep * n), 1))


def choose(x: np.ndarray, k: int) -> list[int]:
    """The k largest magnitudes, the first of equal ones, none that is 0."""
    order = sorted(range(len(x)), key=lambda i: (-abs(float(x[i])), i))
    return sorted(i for i in order[:k] if x[i] != 0)


def stc(x: Vectors, keep: float) -> Vectors:
    """Algorithm 1: the ternary tensors, float64 with each magnitude a float32."""
    out = {}
    for name, a in x.items():
        places = choose(a, kept(keep, len(a)))
        out[name] = np.zeros(len(a))
        for i in places:
            mu = np.float32(sum(abs(float(a[j])) for j in places) / len(places))
            out[name][i] = math.copysign(mu, a[i])
    return out


def best(p: float) -> int:
    return max(0, 1 + math.floor(math.log2(math.log(GOLDEN - 1) / math.log(1 - p)))) if p < 1 else 0


def golomb(places: list[int], b: int) -> list[str]:
    """Algorithm 3: of each gap the quotient in unary with its stop bit, then the remainder."""
    words, before = [], -1
    for i in places:
        gap = i - before - 1
        low = f"{gap % 2**b:0{b}b}" if b else ""
        words.append("0" * (gap // 2**b) + "1" + low)
        before = i
    return words


def planes(places: list[int], flags: list[int] | None, b: int) -> bytes:
    """The same bits, apart: the remainders with their flags, then the unary parts."""
    low, unary = "", ""
    for i, word in enumerate(golomb(places, b)):
        stop = word.index("1") + 1
        unary += word[:stop]
        low += word[stop:] + (str(int(flags[i])) if flags else "")
    return packed(low) + packed(unary)


def packed(bits: str) -> bytes:
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))


def bits_of(data: bytes) -> str:
    return "".join(f"{byte:08b}" for byte in data)


def ungolomb(low: str, unary: str, count: int, b: int, flagged: bool) -> tuple[list[int], list[int]]:
    places, flags, place, at = [], [], -1, 0
    for i in range(count):
        word = low[i * (b + flagged) :][: b + flagged]
        stop = unary.index("1", at)
        place += 1 + (stop - at) * 2**b + int(word[:b] or "0", 2)
        at = stop + 1
        places.append(place)
        flags.append(int(word[b:] or "0"))
    return places, flags


def decode(name: str, code: bytes, base: Vectors, keep: float, bits: int, block: int) -> Vectors:
    """Return the new arrays, flat float64."""
    _, _, number, b, tensors, seed = struct.unpack("<4BIQ", code[:16])
    assert tensors == len(base)
    body, sizes = code[16:], [len(a) for a in base.values()]
    if name in ("top-k", "stc"):
        return _sparse(name == "stc", body, b, base)
    if name == "rand-k" and not bits:
        out, words, at = {}, _words(seed), 0
        for tensor, a in base.items():
            k = kept(keep, len(a))
            out[tensor] = a.astype(float)
            for i in places(words, len(a), k):
                out[tensor][i] += struct.unpack_from("<f", body, at)[0] * len(a) / k
                at += 4
        return out
    if name == "fp16":
        scales = struct.unpack_from(f"<{len(base)}f", body)
        halves = struct.unpack_from(f"<{sum(sizes)}e", body, 4 * len(base))
        of = [i for i, n in enumerate(sizes) for _ in range(n)]
        return _added([h * scales[i] for h, i in zip(halves, of, strict=True)], base)
    if name == "int8":
        steps = -(-sum(sizes) // 256)
        uppers = struct.unpack_from(f"<{steps}H", body)
        whole = struct.unpack_from(f"<{sum(sizes)}b", body, 2 * steps)
        step = [struct.unpack("<f", struct.pack("<I", u << 16))[0] for u in uppers]
        return _added([q * step[i // 256] for i, q in enumerate(whole)], base)
    size, blocks = block, -(-sum(sizes) // block)
    words = _words(seed)
    if number != 11:
        first, second = (_signs(words, blocks * size).reshape(blocks, size) for _ in range(2))
    if name == "eden":
        scales = struct.unpack_from(f"<{blocks}f", body)
        plane = [bits_of(body[4 * blocks + i * blocks * size // 8 :]) for i in range(bits)]
        cells = [sum(int(plane[1 + j][i]) << j for j in range(bits - 1)) for i in range(blocks * size)]
        y = [(-1) ** int(plane[0][i]) * lloyd_max(bits)[c] * scales[i // size] for i, c in enumerate(cells)]
    else:
        assert name == "rand-k"
        assert number in (7, 11)
        k = kept(keep, blocks * size)
        least = struct.unpack_from(f"<{blocks}f", body)
        most = struct.unpack_from(f"<{blocks}f", body, 4 * blocks)
        plane = [bits_of(body[8 * blocks + i * -(-k // 8) :]) for i in range(bits)]
        y = [0.0] * (blocks * size)
        for j, i in enumerate(places(words, blocks * size, k)):
            low, high = least[i // size], most[i // size]
            level = sum(int(plane[m][j]) << m for m in range(bits))
            y[i] = (low + (high - low) * level / (2**bits - 1)) * blocks * size / k
    if number == 11:
        return _added(y[: sum(sizes)], base)
    h = hadamard(size)
    turned = np.array(y).reshape(blocks, size)
    x = ((turned @ h) * second @ h) * first / size
    return _added(x.reshape(-1)[: sum(sizes)].tolist(), base)


def _sparse(ternary: bool, body: bytes, b: int, base: Vectors) -> Vectors:
    m = len(base)
    counts = struct.unpack_from(f"<{m}I", body)
    k = sum(counts)
    numbers = struct.unpack_from(f"<{m if ternary else k}f", body, 4 * m)
    data = body[4 * m + 4 * len(numbers) :]
    low_bytes = -(-k * (b + ternary) // 8)
    found, flags = ungolomb(bits_of(data[:low_bytes]), bits_of(data[low_bytes:]), k, b, ternary)
    new = np.concatenate([a.astype(float) for a in base.values()])
    of = [i for i, n in enumerate(counts) for _ in range(n)]
    for j, (i, negative) in enumerate(zip(found, flags, strict=True)):
        new[i] = new[i] + (-1) ** negative * numbers[of[j]] if ternary else numbers[j]
    return _cut(new, base)


def _added(update: list[float], base: Vectors) -> Vectors:
    return _cut(np.array(update) + np.concatenate([a.astype(float) for a in base.values()]), base)


def _cut(new: np.ndarray, base: Vectors) -> Vectors:
    ends = np.cumsum([len(a) for a in base.values()])[:-1]
    return dict(zip(base, np.split(new, ends), strict=True))


def _words(seed: int) -> Iterator[int]:
    generator = np.random.PCG64(seed)
    while True:
        yield int(generator.random_raw())


def _signs(words: Iterator[int], count: int) -> np.ndarray:
    bits = "".join(bits_of(next(words).to_bytes(8, "little")) for _ in range(-(-count // 64)))
    return np.array([(-1) ** int(b) for b in bits[:count]])


def places(words: Iterator[int], n: int, k: int) -> list[int]:
    few, chosen = min(k, n - k), set[int]()
    while len(chosen) < few:
        chosen.add(next(words) % n)
    return sorted(chosen if few == k else set(range(n)) - chosen)


def hadamard(n: int) -> np.ndarray:
    h = np.array([[1.0]])
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h


def lloyd_max(bits: int) -> list[float]:
    """Centroids of the 2^(bits - 1) cells of |N(0, 1)| that lose least, by Lloyd's iteration."""
    cells = 2 ** (bits - 1)
    if cells not in _LLOYD:
        c = [(i + 0.5) * 2.5 / cells for i in range(cells)]
        for _ in range(1000):
            t = [0.0, *((c[i] + c[i + 1]) / 2 for i in range(cells - 1)), math.inf]
            density = [math.exp(-u * u / 2) / math.sqrt(2 * math.pi) for u in t]
            tail = [math.erfc(u / math.sqrt(2)) / 2 for u in t]
            c = [(density[i] - density[i + 1]) / (tail[i] - tail[i + 1]) for i in range(cells)]
        _LLOYD[cells] = c
    return _LLOYD[cells]


_LLOYD: dict[int, list[float]] = {}
