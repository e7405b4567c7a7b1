"""``codecs``: encoding an update, and decoding and folding its code, against reading its array once."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from task.codecs import codec_of
from task.numerics.held import Base
from task.numerics.reduce import Mean
from task.wire import checks
from tests.bench.folding import ASK, CNN, SMALL, in_turns, random_model
from tests.bench.readings import Row, paired, short
from tests.bench.rounds import Bench

UPDATES = 12  # different ones, 80 MB
# By row: name, keep, bits, and the targets of encoding and of decoding with the fold, in reads.
CODECS: dict[str, tuple[str, float, int, float | None, float | None]] = {
    "top-k-100": ("top-k", 1 / 100, 0, 30, 3),
    "stc-25": ("stc", 1 / 25, 0, 30, None),
    "stc-100": ("stc", 1 / 100, 0, 30, 3),
    "stc-400": ("stc", 1 / 400, 0, 30, 3),
    "rand-k-100": ("rand-k", 1 / 100, 0, None, None),
    "rand-k-16-2": ("rand-k", 1 / 16, 2, None, None),
    "fp16": ("fp16", 1, 0, None, None),
    "int8": ("int8", 1, 0, None, None),
    "eden-1": ("eden", 1, 1, None, None),
    "eden-2": ("eden", 1, 2, None, None),
}
ROWS = tuple(f"{way}-{name}" for name in CODECS for way in ("encode", "decode"))


def codecs(bench: Bench) -> Iterator[Row]:
    """Compare with torch's sum of the float32 arrays by one thread, from memory."""
    shapes, count, passes = (SMALL, 2, 2) if bench.quick else (CNN, UPDATES, max(7, bench.repeat))
    updates = [random_model(shapes, i) for i in range(count)]
    base = random_model(shapes, count)
    values = {name: base[name] + a for name, a in updates[0].items()}
    tensors = [[torch.from_numpy(a) for a in update.values()] for update in updates]
    size = sum(a.size for a in base.values())
    bases = {name: Base(a) for name, a in base.items()}
    threads = torch.get_num_threads()

    def start_side(name: str) -> None:
        torch.set_num_threads(1 if name == "read" else threads)

    def read(i: int) -> None:
        for tensor in tensors[i]:
            tensor.sum()

    for row, (name, keep, bits, most_encode, most_decode) in CODECS.items():
        codec, mean = codec_of(name, keep, bits, 4096), Mean(base)
        codes = [codec.encode(update, values, i)[0] for i, update in enumerate(updates)]

        def encode(i: int) -> None:
            codec.encode(updates[i], values, i)  # noqa: B023 - called within this turn of the loop

        def fold(i: int) -> None:
            arrays = codec.decode(codes[i], bases, "arrays")  # noqa: B023
            peaks = checks.check_arrays("arrays", arrays, base)
            checked = mean.check(arrays, ASK, str(i), peaks)  # noqa: B023
            mean.add(arrays, ASK, str(i), checked)  # noqa: B023

        ms = in_turns({"read": read, "encode": encode, "fold": fold}, range(count), passes, start_side)
        what = f"{size:,} parameters : reading them once"
        detail = f"{len(codes[0]):,} bytes, {short(4 * size / len(codes[0]))} times fewer"
        yield paired(
            f"encode-{row}", f"{name}: encode {what}", ms["encode"], ms["read"], most_encode, "ms", detail
        )
        what = f"{name}: decode, check and fold {what}"
        yield paired(f"decode-{row}", what, ms["fold"], ms["read"], most_decode, "ms", detail)
