"""The recorded order of arrival of an asynchronous run, for resuming and replay.

A line for each event, in the order in which they happened, written before what follows from it:

===========  ==============================================================================================
``event``    entries, besides ``round``, the server step in which it happened
===========  ==============================================================================================
``start``    ``client``, ``version`` of the model that it is given, ``lr``
``arrival``  ``client``, ``began`` (round of its start), ``version``, ``staleness``, ``weight`` by that,
             ``seconds`` since it was asked
``lost``     ``client``, ``began``, ``why`` its start was given up: nothing came, in time or at all, or an
             error; also of an update that had arrived, where a resumed run cannot have it again
``step``     ``updates``, the clients whose updates it takes; ``refused``, a line for each that the gate
             refused (``client``, ``field``, ``expected``, ``got``)
===========  ==============================================================================================

A repeated round, after a crash or in a replay, follows its lines first; then it continues with real arrivals.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from strategies.engine.journal import FeatureLog
from task.errors import StateError

Line = Mapping[str, Any]
ENTRIES: dict[str, dict[str, tuple[type, ...]]] = {
    "start": {"client": (str,), "version": (int,), "lr": (float, int)},
    "arrival": {
        "client": (str,),
        "began": (int,),
        "version": (int,),
        "staleness": (int,),
        "weight": (float, int),
    },
    "lost": {"client": (str,), "began": (int,), "why": (str,)},
    "step": {"updates": (list,), "refused": (list,)},
}


class ArrivalLog(FeatureLog):
    """The lines so far, and a function that appends one durably; a `closed` log is only followed.

    Raises:
        StateError: The lines are not what a run writes; names the line. `where` is the file's name.
    """

    name: ClassVar[str] = "arrivals"

    def __init__(
        self,
        lines: Iterable[Line] = (),
        write: Callable[[Line], object] = lambda line: None,
        where: str = "",
        *,
        closed: bool = False,
    ) -> None:
        self.closed, self._write = closed, write
        self._where = where or "the order of arrival"
        self._rounds: dict[int, deque[Line]] = {}
        self._lost: dict[tuple[str, int], str] = {}  # by client and round of its start: why
        self._left: deque[Line] = deque()  # events of the present round that are still to follow
        self._take(lines)

    def _take(self, lines: Iterable[Line]) -> None:
        begun, done = set[tuple[str, int]](), set[tuple[str, int]]()
        last, over = 0, 0  # round of the line before, and of the last step
        for number, line in enumerate(lines, start=1):

            def wrong(expected: str, number: int = number, line: Line = line) -> StateError:
                return StateError(f"{self._where}, event {number}: expected {expected}; got {dict(line)}")

            event, server_round = line.get("event"), line.get("round")
            entries = ENTRIES.get(str(event))
            if entries is None or not isinstance(server_round, int):
                raise wrong(f"a round and one of the events {', '.join(ENTRIES)}")
            if bad := [k for k, kinds in entries.items() if not isinstance(line.get(k), kinds)]:
                raise wrong(f"entry {bad[0]!r} in a line of event {event!r}")
            start = (str(line.get("client")), int(line.get("began", server_round)))
            again = event == "lost" and start in done and start not in self._lost
            if not again and (server_round < last or server_round == over):
                raise wrong(f"a round after {max(over, last - 1)}, since the events are in order")
            if event == "start" and start in begun:
                raise wrong(f"one start of {start[0]} in a round")
            if event in ("arrival", "lost") and (start not in begun or (start in done and not again)):
                raise wrong(f"{start[0]} at work since round {start[1]}")
            last, over = max(last, server_round), server_round if event == "step" else over
            if event == "start":
                begun.add(start)
            elif event != "step":
                done.add(start)
            if event == "lost":
                self._lost[start] = str(line["why"])
            if not again:
                self._rounds.setdefault(server_round, deque()).append(line)

    def steps(self) -> int:
        """Return the last round whose step is written down; 0 if none is."""
        return max((r for r, lines in self._rounds.items() if lines[-1]["event"] == "step"), default=0)

    def num_lost(self, last: int) -> int:
        """Return how many starts were given up in the rounds up to the last one."""
        events = (line for r, lines in self._rounds.items() if r <= last for line in lines)
        done = (x for x in events if x["event"] in ("arrival", "lost"))
        return sum(self.lost(str(x["client"]), int(x["began"])) is not None for x in done)

    def turn_to(self, server_round: int) -> None:
        """Begin a round."""
        self._left = deque(self._rounds.get(server_round, ()))

    def ahead(self) -> str:
        """Return the next event to follow; "" = none is left."""
        return str(self._left[0]["event"]) if self._left else ""

    def follow(self) -> Line:
        """Return the line of the next event."""
        return self._left.popleft()

    def lost(self, client: str, began: int) -> str | None:
        """Return why a start was given up; None = not given up, as far as is known."""
        return self._lost.get((client, began))

    def was_lost(self, client: str) -> bool:
        """Return whether some start of a client was given up."""
        return any(lost == client for lost, _ in self._lost)

    def refused(self) -> dict[str, Line]:
        """Return the updates that the gate refused in the next step, by client."""
        last = self._left[-1] if self._left else {}
        return {str(line["client"]): line for line in last.get("refused", ())}

    def too_short(self, server_round: int) -> StateError:
        """Return the error for a finished run whose log has no more events."""
        return StateError(
            f"{self._where}: expected all events of round {server_round}; got none, or too few: it ends "
            "before the run does"
        )

    def add(self, line: Line) -> None:
        """Write an event down.

        Raises:
            StateError: The log is one of a run that is over.
        """
        if self.closed:
            raise self.too_short(int(line["round"]))
        self._write(line)
        if line["event"] == "lost":
            self._lost[str(line["client"]), int(line["began"])] = str(line["why"])
