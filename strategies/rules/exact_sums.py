"""What every analysis by exact sums has in common: questions to all sites, and the digest of their answers.

The server asks all sites for sums over their rows, integers in units of 2^-51 (`task.numerics.row_sums`). So
what follows from them is that of the pooled rows, with the same bits for any division of the rows, under
secure aggregation or not. Every site that was there before round 1 must answer each question. A run ends
where one does not, and repeats the round when it is resumed.
"""

import hashlib
from collections.abc import Generator, Sequence

import numpy as np
import numpy.typing as npt

from strategies.engine.refusals import not_by_all
from strategies.engine.rule import TRAIN, Phase, Phases, RoundContext, Rule, TooFewRepliesError
from strategies.engine.state import AggregatedReplies
from task.config.knobs import Config
from task.errors import NodesError
from task.numerics.arrays import Arrays, NamedArrays, of_text, text_in
from task.numerics.row_sums import DIGITS, from_wire

ROWS = "rows"  # the one array of a record of rows
SHA256 = "sums-sha256"  # array of a result: digest of the integers of all questions, one after the other


class ExactSums(Rule):
    """A rule that asks all sites for exact sums; see `strategies.rules.exact_sums`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.sites: tuple[str, ...] = ()  # sorted; as found before round 1

    def needs(self) -> tuple[str, ...]:
        """Return all sites."""
        return self.sites

    def opening(self, context: RoundContext) -> Phases:
        """Find the sites."""
        self.sites = tuple(context.names)
        yield from ()

    @property
    def names(self) -> npt.NDArray[np.uint8]:
        """The names of the sites, as a state holds them."""
        return of_text("\n".join(self.sites))

    def check_sites(self, names: npt.NDArray[np.uint8], context: RoundContext) -> None:
        """Refuse to go on with other sites than those of the first round, whose `names` the state holds.

        Raises:
            NodesError: They differ.
        """
        if names.tobytes() != self.names.tobytes():
            began = text_in(names).replace("\n", ", ")
            raise NodesError(
                f"round {context.round}: expected the sites of round 1, {began}; got "
                f"{', '.join(self.sites)}. Start the others' nodes and resume the run, or begin another"
            )

    def ask(
        self,
        name: str,
        context: RoundContext,
        size: int,
        sent: NamedArrays | None = None,
        to: Sequence[str] = (),
        width: int = DIGITS,
    ) -> Generator[Phase, AggregatedReplies, AggregatedReplies]:
        """Yield a question to all sites for `size` numbers; return the sums over all rows.

        `name` is that of a phase of the entry, or "train"; `sent` are arrays [rows, width] by record; `to`
        are the sites, if not all. `width` is how many int64 a number takes.

        Raises:
            BouquetError: A site has not answered; a `NodesError` if another try may help. A round that is
                skipped while a node is away would only use up the run's rounds.
        """
        contract = context.entry if name == TRAIN else context.entry.phases[name]
        (record,) = contract.up
        rows = {record.name: (size, width)}
        records: dict[str, Arrays] = {}
        for of, numbers in (sent or {}).items():
            records[of] = {ROWS: numbers}
            rows[of] = (numbers.shape[0], numbers.shape[1])
        sites = tuple(to) or self.sites
        phase = Phase(name, contract, sites, records, {}, {"lr": context.lr}, least=len(sites), rows=rows)
        try:
            return (yield phase)
        except TooFewRepliesError as err:
            where = "before round 1" if name == "opening" else f"round {context.round}"
            allow = (
                "Drop or merge the columns that it names, or run without the site (run-config key "
                '"node-names")'
            )
            raise not_by_all(f"{where}: every site", name, err.rejected, "these sums", allow) from None


def totals_in(replies: AggregatedReplies, record: str) -> list[int]:
    """Return the integers of a question."""
    return from_wire(replies.arrays[record][ROWS])


def no_sums() -> Arrays:
    """Return the digest of a result before its first question."""
    return {SHA256: np.zeros(32, np.uint8)}


def hashed(arrays: Arrays, totals: Sequence[int]) -> Arrays:
    """Return a result whose digest has the integers of one more question."""
    return hashed_bytes(arrays, ",".join(map(str, totals)).encode())


def hashed_bytes(arrays: Arrays, totals: bytes) -> Arrays:
    """Return a result whose digest has one more question's integers, in a form that is always the same."""
    digest = hashlib.sha256(arrays[SHA256].tobytes() + totals).digest()
    return {**arrays, SHA256: np.frombuffer(digest, np.uint8)}
