"""Which cells that few persons of a site are in may be shown in a masked sum, as enough of all sites are.

By default a cell that one site closes is closed for all. Under secure aggregation, where nobody sees a site's
own count, an owner may allow it if at least M persons of all sites together are in the cell (run-config key
``statistics.pooled-least``, no less than the owner's ``min-examples``). Whether there are must be known
before the sum is opened, and without it. So a site says of each cell

strict   whether it closes the cell by its own rows (`task.classical.disclosure`)
hard     the same for what its persons in the cell alone do not decide; all that is strict, if its owner does
         not allow it
small    whether it has persons in it, but fewer than ``min-examples``
halves   how many halves of M it has in it, 2 at most: 2 of all sites together are M persons or more

Tables that hang together by their totals open together: if all their cells may be shown, nothing is closed
from which another cell could follow; else all of them are closed as the sites say by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from task.classical.disclosure import Flags, Vetoes, few, is_line_of_one, lines_of
from task.classical.survey import SiteColumns, Survey

_BITS = 20  # of each of the four numbers: 2^20 sites, twice over
STRICT, HARD, SMALL, HALVES = range(4)


def words_of(
    site: SiteColumns, strict: Flags, vetoes: Vetoes, least: int, most: int, *, allowed: bool
) -> list[int]:
    """Return what a site says of each cell, as one integer.

    Args:
        site: Its rows.
        strict: What it closes by itself, bool [cells].
        vetoes: What it closes for another reason than few persons, and cells whose count may be any.
        least: Its owner's ``min-examples``.
        most: M.
        allowed: Whether its owner allows it.
    """
    hard = np.isin(np.arange(len(strict)), list(vetoes.hard)) if allowed else strict
    found = []
    for cell, (closed, veto) in enumerate(zip(strict.tolist(), hard.tolist(), strict=True)):
        count = site.counts[cell] if cell < site.survey.counts else 0
        small = few(count, least) and cell not in vetoes.free
        parts = int(closed), int(veto), int(small), min(2 * count // most, 2)
        found.append(sum(part << place * _BITS for place, part in enumerate(parts)))
    return found


def closed_by(survey: Survey, totals: Sequence[int]) -> list[int]:
    """Return for each cell how many sites close it, given the sums of what they say; 0 = it is shown.

    >>> from task.classical.columns import Variable
    >>> survey = Survey((Variable("sex", "statistics.columns", levels=("f", "m")),))
    >>> few, many = (1 << 0) + (1 << 40), 4 << 60  # one site has few women, others have many; all have men
    >>> closed_by(survey, [few + many, many, 0]), closed_by(survey, [few, many, 0])
    ([0, 0, 0], [1, 0, 0])
    """
    said = np.array([[total >> place * _BITS & (1 << _BITS) - 1 for place in range(4)] for total in totals])
    small, halves = said[: survey.counts, SMALL], said[: survey.counts, HALVES]
    unsafe = (said[: survey.counts, HARD] > 0) | ((small > 0) & (halves < 2))
    there = (small > 0) | (halves > 0)
    for line in lines_of(survey):
        unsafe[line] |= is_line_of_one(there[line])
    group = _groups(survey)
    shut = np.isin(group, group[unsafe])
    of_sums = [survey.starts[i] for i in survey.numbers] + [survey.complete] * survey.correlation
    by_site = np.concatenate([shut, shut[of_sums]]) if of_sums else shut
    return [int(n) for n in np.where(by_site, said[:, STRICT], said[:, HARD])]


def _groups(survey: Survey) -> np.ndarray:
    """Return for each cell with a count the least of those that hang together with it by totals."""
    found = np.arange(survey.counts)
    again = True
    while again:
        again = False
        for cells, total in survey.equations:
            members = [*cells, *([total] if total >= 0 else [])]
            least = found[members].min()
            again |= bool((found[members] != least).any())
            found[members] = least
    return found
