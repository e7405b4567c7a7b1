"""What survival curves and Cox's regression have in common: the bins of time in which persons are counted.

opening    by stratum and fate, which bins are too small for a site     before round 1; the merged bins

Events and ends without an event have bins of their own (`task.classical.bins`). A person whose observation
ends in a bin of events is at risk until its end at least.
"""

import numpy as np
import numpy.typing as npt

from strategies.engine.rule import Phases, RoundContext
from strategies.rules.exact_sums import ExactSums, totals_in
from task.catalogue.survivals import OBJECTIONS
from task.classical.bins import bits, merged
from task.classical.survival import EVENT, FATES, LEFT, Survival
from task.config.knobs import Config

Bins = npt.NDArray[np.int64]  # [strata, bins, fates]: the bin in which a person counts


class BinnedSums(ExactSums):
    """A rule that asks for sums by bin of time; see `strategies.rules.survival`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.bins: Bins | None = None  # as found before round 1, like `sites`

    def merge(self, survival: Survival, context: RoundContext) -> Phases:
        """Find the sites and the bins that all of them allow."""
        self.sites = tuple(context.names)
        strata, _, many, _ = survival.size
        each = bits(survival.last)
        replies = yield from self.ask("opening", context, strata * FATES * each)
        totals = iter(totals_in(replies, OBJECTIONS))
        found = np.zeros((strata, many, FATES), np.int64)
        for s in range(strata):
            for fate in range(FATES):
                found[s, :, fate] = merged(survival.last, [next(totals) for _ in range(each)])
        found[:, :, LEFT] = np.maximum(found[:, :, EVENT], found[:, :, LEFT])
        self.bins = found
        finest = (found == np.arange(many)[:, None]).all()
        if not finest:
            context.remark("bins of time are merged, as some are too small for a site's min-examples")


def as_sent(bins: Bins) -> npt.NDArray[np.float64]:
    """Return bins as they travel, [strata * bins, fates]."""
    return bins.reshape(-1, FATES).astype(np.float64)
