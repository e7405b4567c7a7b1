"""``python -m tests.bench.gated SAY HEAR EVERY run ...``: Bouquet's command line, held up between rounds.

After round 0 and each EVERY rounds a byte is written to the file descriptor SAY, and the next round waits
for one from HEAR: somebody else's rounds can run in between, and both meet the same noise. Blocks of rounds,
because an engine that looks for messages at fixed times makes rounds that follow each other fall into step
with it, and a gate after each would break the step.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from server_app import cli, recorder


def main() -> None:
    say, hear, every = (int(word) for word in sys.argv[1:4])
    for descriptor in (say, hear):
        os.set_inheritable(descriptor, False)  # not for Ray's processes
    round_done = recorder.Recorder.round_done

    def gated(self: recorder.Recorder, row: dict[str, Any], *args: Any) -> None:
        round_done(self, row, *args)
        if row["round"] % every == 0:
            os.write(say, b".")
            os.read(hear, 1)

    recorder.Recorder.round_done = gated  # type: ignore[method-assign]
    sys.argv = ["bouquet", *sys.argv[4:]]
    cli.main()


if __name__ == "__main__":
    main()
