"""``python -m tests.bench.gated SAY HEAR EVERY run ...``: Bouquet's command line, held up between rounds.

When the line of round 0 and of each EVERY-th round is written, a byte goes to the file descriptor SAY, and
the run goes on when one comes from HEAR. `held.Held` is at the other end.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from server_app.cli import main as cli
from server_app.run import recorder


def main() -> None:
    say, hear, every = (int(word) for word in sys.argv[1:4])
    for descriptor in (say, hear):
        os.set_inheritable(descriptor, False)  # not for the processes that it starts
    round_done = recorder.Recorder.round_done

    def gated(self: recorder.Recorder, row: dict[str, Any], *args: Any, **more: Any) -> None:
        round_done(self, row, *args, **more)
        if row["round"] % every == 0:
            os.write(say, b".")
            os.read(hear, 1)

    recorder.Recorder.round_done = gated  # type: ignore[method-assign]
    sys.argv = ["bouquet", *sys.argv[4:]]
    cli.main()


if __name__ == "__main__":
    main()
