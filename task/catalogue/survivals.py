"""The catalogue's part of times to an event: what goes up are counts by bin of time, and exact sums.

What the numbers of each question are stands in `task.classical.survival`, `bins` and `cox`, and what follows
from them in `strategies.rules.kaplan_meier` and `strategies.rules.cox`.
"""

from task.catalogue.entry import Algorithm
from task.catalogue.exact_sums import analysis, numbers, question, sums
from task.catalogue.papers import Paper, paper
from task.catalogue.record import Record

OBJECTIONS, COUNTS, RISK_SUMS = "objections", "counts", "risk-sums"  # names of the records
_KAPLAN = paper("10.1080/01621459.1958.10501452", "Section 2, with Greenwood's variance")
_HARRELL = paper("10.1001/jama.1982.03320430047030", "the index of concordance")
_COX = paper("10.1111/j.2517-6161.1972.tb00899.x", "Section 4, with Breslow's or Efron's ties")
_BINS = numbers("bins", "by stratum, bin and fate the bin in which a person counts")
_OBJECTIONS = sums(OBJECTIONS, "which bins of time would have fewer persons than the site's owner allows")
_COUNTS = sums(COUNTS, "persons by stratum, group, bin of time, and whether the event happened")
_COEFFICIENTS = numbers("coefficients", "beta, one number for each column")
_CELLS = numbers("cells", "by stratum, bin and fate with whom a person is summed up")
_AT = (_CELLS, _COEFFICIENTS)
_SCORES = numbers("score-bins", "by bin of the risk score the last one that it is merged with")
_RANKS = sums(COUNTS, "persons by cell of time and bin of the risk score")
_RISK_SUMS = sums(
    RISK_SUMS, "sum of r, r z and r z z' by cell of time, r = exp(eta), and how many |eta| > 20"
)

_EXAMPLE = 'survival.time="week(0..52)" survival.event="arrest(0..1)"'


def _asked(
    name: str, title: str, source: Paper, down: tuple[Record, ...], up: tuple[Record, ...]
) -> Algorithm:
    """Return the contract of a question that both analyses have."""
    return question(name, title, source, "survival", down, up)


ENTRIES = (
    analysis(
        "kaplan-meier", "Survival curves and log-rank test", _KAPLAN, "survival", (_BINS,), _COUNTS,
        {"opening": _asked("kaplan-meier", "Survival curves, bins", _KAPLAN, (), _OBJECTIONS)},
        about="Kaplan-Meier and Nelson-Aalen curves of the pooled rows with limits, medians and the log-rank "
        "test.",
        differs="Times are rounded up to a declared grid; bins that are too small for a site are merged.",
        reads=("survival.", "survival.groups"),
        example=_EXAMPLE,
    ),
    analysis(
        "cox", "Cox's regression", _COX, "hazards", _AT, _RISK_SUMS,
        {
            "opening": _asked("cox", "Cox's regression, bins", _COX, (), _OBJECTIONS),
            "counts": _asked("cox", "Cox's regression, counts", _COX, (_BINS,), _COUNTS),
            "null": question("cox", "Cox's regression, null", _COX, "hazards", _AT, _RISK_SUMS),
            "scores": question(
                "cox", "Cox's regression, bins of the score", _HARRELL, "ranks", _AT, _OBJECTIONS
            ),
            "concordance": question(
                "cox", "Cox's regression, concordance", _HARRELL, "ranks", (*_AT, _SCORES), _RANKS
            ),
        },
        about="Hazard ratios of the pooled rows with errors, baseline, a test of proportional hazards, and "
        "Harrell's c if asked for.",
        differs="Times are rounded up to a declared grid; bins that are too small for a site are merged.",
        reads=("survival.", "survival.columns", "survival.ties", "survival.concordance"),
        example=f'{_EXAMPLE} survival.columns="age(0..120), sex(Female|Male)"',
    ),
)  # fmt: skip
