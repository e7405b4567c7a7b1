"""A toy of each kind of thing that can be added to the project: its files, and a run that needs it.

`TOYS` has them by the words of the table in docs/explain/contributing.md. A new file is a text; a change of a
file is a line of it and what stands in place of that line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAME = "toy"
Change = str | tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Toy:
    """What is added.

    Attributes:
        files: By path, the whole text of a new file, or pairs of a text that the file has once and its
            replacement.
        keys: Run-config keys of a run that needs the toy; none = it is not run.
        seen: Whether a result folder shows that the toy did its work, given its files that are JSON.
    """

    files: Mapping[str, Change]
    keys: Mapping[str, Any] = field(default_factory=dict)
    seen: str = "True"  # an expression of `result`, `rounds`, `clients`

    def add_to(self, tree: Path) -> None:
        for path, change in self.files.items():
            file = tree / path
            if isinstance(change, str):
                assert not file.exists(), path
                file.write_text(change, "utf-8")
                continue
            text = file.read_text("utf-8")
            for old, new in change:
                assert text.count(old) == 1, (path, old)
                text = text.replace(old, new)
            file.write_text(text, "utf-8")


def above(line: str, new: str) -> tuple[str, str]:
    """Return the change that puts lines in front of one."""
    return line, new + line


CHALLENGES = "## Sums to compare with"
FEDPROX_SECTION = "class FedProxConfig(Section):"
FEDPROX_KEYS = "    fedprox: FedProxConfig ="
A_TEST = '"""Its values, by hand."""\n'

RULE = '''"""FedProx whose proximal term wanes: mu_t = mu decay^(t-1).

>>> replies = AggregatedReplies({"arrays": {"w": np.array([2.0])}}, ("a", "b"), np.array([1, 3]))
>>> server_update(ToyWaneState({"w": np.array([1.0])}, mu=0.5), replies, Config())[0].mu
0.25
"""

from dataclasses import dataclass, replace

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, ServerState, Updated
from task.config.knobs import Config
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class ToyWaneState(ServerState):
    """The model and mu."""

    mu: float = 0.0


def server_update(state: ToyWaneState, reduced: AggregatedReplies, config: Config) -> Updated[ToyWaneState]:
    """Replace the model by the weighted mean, and lower mu."""
    mu = state.mu * config.toy_wane.decay
    return replace(state, arrays=reduced.arrays["arrays"], mu=mu), {"proximal-mu": state.mu}


class ToyWane(Rule, algorithm="toy-wane", update=server_update, sends={"proximal-mu": "mu"}):
    """FedProx whose mu wanes; see `strategies.rules.toy_wane`."""

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ToyWaneState:
        """Start at the configured mu."""
        return ToyWaneState(arrays, mu=self.config.toy_wane.mu)
'''
SOLVER = '''"""FedProx's local steps, mu from the server."""

from client_app.solvers.sgd import Solver, proximal
from client_app.training.loop import LocalTask, Terms


class ToyWaneSolver(Solver, name="toy-wane"):
    """SGD on the proximal objective."""

    def terms(self, task: LocalTask) -> Terms:
        """Return mu w - mu w^t."""
        return proximal(task, self.scalars["proximal-mu"])
'''
REFERENCE = '''"""FedProx whose mu wanes: mu_t = mu decay^(t-1)."""

from dataclasses import dataclass

from tests.reference.driver import Reference, Round
from tests.reference.mlp import proximal


@dataclass
class ToyWane(Reference):
    algorithm = "toy-wane"
    active = {"toy-wane.mu": 0.9, "toy-wane.decay": 0.5}
    cases = {"two epochs": {"toy_wane__mu": 0.9, "toy_wane__decay": 0.5, "local_epochs": 2}}

    mu: float
    decay: float = 0.5

    def round(self, r: Round) -> None:
        prox = proximal(self.w, self.mu * self.decay ** (r.t - 1))
        trained = {k: r.sgd(k, self.w, prox) for k in r.cohort}
        if trained:
            self.w = r.mean(trained)
'''
ALGORITHM = Toy(
    {
        "task/catalogue/algorithms.py": (
            above(
                '    Algorithm(\n        "fedsgd", "FedSGD", MCMAHAN,',
                '    Algorithm(\n        "toy-wane", "ToyWane", LI_PROX,\n'
                '        about="FedProx whose proximal term wanes.",\n        takes_mean=True,\n'
                '        solver="toy-wane",\n'
                '        down_scalars=(Scalar("proximal-mu", "mu of the proximal term mu/2 |w - w^t|^2"),),\n'
                '        neutral={"toy-wane.mu": 0.0},\n    ),\n',
            ),
        ),
        "tests/golden/figures.json": (above('  "adaptive-tau"', '  "toy-wane": [],\n'),),
        "docs/howto/challenges.md": (above(CHALLENGES, "`toy-wane` is for nobody.\n\n"),),
        "tests/reference/toy_wane.py": REFERENCE,
        "strategies/rules/toy_wane.py": RULE,
        "client_app/solvers/toy_wane.py": SOLVER,
        "task/config/algorithm_sections.py": (
            above(
                FEDPROX_SECTION,
                'class ToyWaneConfig(Section):\n    """FedProx whose mu wanes."""\n\n'
                '    mu: float = knob(0.01, "mu of the first round; 0 = FedAvg", low=0)\n'
                '    decay: float = knob(0.5, "factor of mu after each round", low=0, high=1)\n\n\n',
            ),
            above(FEDPROX_KEYS, "    toy_wane: ToyWaneConfig = field(default_factory=ToyWaneConfig)\n"),
        ),
        "tests/strategies/test_toy_wane.py": A_TEST,
    },
    {"algorithm": "toy-wane", "toy-wane.mu": 0.8, "num-server-rounds": 2},
    "[row['metrics']['proximal-mu'] for row in rounds[1:]] == [0.8, 0.4]",
)
PERSONALISED = Toy(
    {
        "task/catalogue/personalised.py": (
            above(
                '    _averaged(\n        "fedbn",',
                '    _averaged(\n        "toy-first", "ToyFirst", paper("2102.07623"),\n'
                '        about="FedAvg in which all but the last layer stays at the client.",\n'
                '        keeps=(_PRIVATE,),\n        weight="uniform",\n        private="body",\n'
                '        newcomer=_FRESH_PART,\n        no_neutral="the lower layers are never averaged",\n'
                "    ),\n",
            ),
        ),
        "tests/golden/figures.json": (above('  "adaptive-tau"', '  "toy-first": [],\n'),),
        "docs/howto/challenges.md": (above(CHALLENGES, "`toy-first` is for nobody.\n\n"),),
        "tests/test_catalogue.py": (
            above('ACTIVE |= {"fedbn"', 'ACTIVE |= {"toy-first": {"model": "mlp"}}\n'),
        ),
    },
    {"algorithm": "toy-first", "fraction-evaluate": 1.0, "local-test-fraction": 0.25},
    "rounds[1]['client_accuracy'] > 0.1",
)
ANALYSIS = Toy(
    {
        "task/catalogue/toy_means.py": '''"""The catalogue's part of the means of columns."""

from task.catalogue.exact_sums import analysis, sums
from task.catalogue.papers import Paper

TOTALS = "toy-totals"
_DOE = Paper("Doe", 1805, "On the mean", "10.1000/1", "Section 1")
ENTRIES = (
    analysis(
        "toy-means", "Means", _DOE, "toy-means", (), sums(TOTALS, "n, sum and squares of each column"), {},
        about="Means of the pooled rows by exact sums.",
        example='toy-means.columns="age(0..120)"',
    ),
)  # fmt: skip
''',
        "task/config/algorithm_sections.py": (
            above(
                FEDPROX_SECTION,
                'class ToyMeansConfig(Section):\n    """Means of columns."""\n\n'
                '    columns: str = knob("", "columns with their ranges, such as age(0..120)")\n\n\n',
            ),
            above(FEDPROX_KEYS, "    toy_means: ToyMeansConfig = field(default_factory=ToyMeansConfig)\n"),
        ),
        "task/classical/toy_means.py": '''"""Means of declared columns."""

from task.classical.columns import Variable
from task.classical.moments import numbers_of
from task.config.knobs import Config


def means_of(config: Config) -> tuple[Variable, ...]:
    """Return the columns that a run asks for."""
    return numbers_of("toy-means.columns", config.toy_means.columns)


ANALYSES = {"toy-means": means_of}
''',
        "strategies/rules/toy_means.py": '''"""Means of the pooled rows by exact sums.

The rows 0 and 2 have the mean 1:

>>> config = read_config({"algorithm": "toy-means", "dataset": "csv", "toy-means.columns": "x(0..2)"})
>>> moments_in([int(t * 2**51) for t in (2, 0, 2)], 1, squares=True).mean(0, means_of(config)[0])
1.0
"""

from dataclasses import replace
from typing import Any

import numpy as np

from strategies.engine.rule import TRAIN, Phases, Round, RoundContext
from strategies.engine.state import AggregatedReplies, ServerState, Updated
from strategies.rules.exact_sums import ExactSums, hashed, no_sums, totals_in
from task.catalogue.toy_means import TOTALS
from task.classical.moments import moments_in, moments_size
from task.classical.toy_means import means_of
from task.config.knobs import Config
from task.numerics.arrays import Arrays


def server_update(state: ServerState, reduced: AggregatedReplies, config: Config) -> Updated[ServerState]:
    """Divide the sums."""
    asked, totals = means_of(config), totals_in(reduced, TOTALS)
    found = moments_in(totals, len(asked), squares=True)
    means = np.array([found.mean(j, v) for j, v in enumerate(asked)])
    return replace(state, arrays={**hashed(state.arrays, totals), "means": means}), {"rows": found.n}


class ToyMeans(ExactSums, algorithm="toy-means", update=server_update):
    """Means by exact sums; see `strategies.rules.toy_means`."""

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ServerState:
        """Return the state before round 1."""
        return ServerState({"means": np.zeros(0), **no_sums()})

    def opening(self, context: RoundContext) -> Phases:
        """Find the sites."""
        self.sites = tuple(context.names)
        yield from ()

    def round(self, state: Any, context: RoundContext) -> Round:
        """Ask for the sums."""
        size = moments_size(len(means_of(self.config)), squares=True)
        replies = yield from self.ask(TRAIN, context, size)
        return type(self).update(state, replies, self.config)

    def finished(self, state: Any) -> bool:
        """Return whether the means are there."""
        return bool(len(state.arrays["means"]))
''',
        "client_app/classical/toy_means.py": '''"""Sums over a client's rows for means."""

from collections.abc import Iterator

from client_app.classical.questions import answers
from client_app.data.node import Node
from client_app.stages.stage import Outcome
from task.catalogue.entry import Algorithm
from task.classical.moments import centred, moments_size, moments_sums
from task.classical.toy_means import means_of
from task.wire import messages as wire


def sum_columns(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer the question for each client."""
    asked = means_of(node.config)
    size = moments_size(len(asked), squares=True)
    sums = lambda client, table: moments_sums(centred(asked, table), squares=True)
    return answers(node, entry, order, size, sums)


WORK = {"toy-means": sum_columns}
''',
        "server_app/results/toy_means.py": '''"""The table of means in a result folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.results.written import ResultTable, write_printed
from task.classical.printed import Printed
from task.classical.toy_means import means_of
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays


def write_means(folder: Path, config: Config, arrays: NamedArrays) -> dict[str, Any]:
    """Write the table; return what result.json says of it."""
    names = [v.name for v in means_of(config)]
    rows = tuple(zip(names, arrays["means"].tolist(), strict=True))
    digest = arrays["sums-sha256"].tobytes().hex()
    return write_printed(folder, config, Printed("means", ("column", "mean"), rows, {}, digest))


def mean_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a table, as (label, text)."""
    return [(row["column"], f"{row['mean']:.6g}") for row in result["table"]["means"]]


TABLES = {"toy-means": ResultTable("no weights of a model: the means", write_means, mean_lines)}
''',
        "docs/howto/challenges.md": (above(CHALLENGES, "`toy-means` is for nobody.\n\n"),),
        "tests/classical/test_toy_means.py": A_TEST,
    },
    {
        "algorithm": "toy-means", "toy-means.columns": "age(0..120)", "dataset": "csv",
        "data-path": "PEOPLE", "partition": "natural", "num-clients": 0,
    },
    "result['table']['means'] == [{'column': 'age', 'mean': 40.0}]",
)  # fmt: skip
FEATURE_DECLARATION = '''"""The largest entry of each client's model, in ``clients.jsonl``."""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.record import Scalar
from task.config.knobs import Config
from task.features.feature import Feature

PEAK = Scalar("KEY", "the largest entry of the model that a client sends", required=False, low=0)


def _adds(_: Config, contract: Algorithm) -> Algorithm:
    return replace(contract, up_scalars=(*contract.up_scalars, PEAK), stages=(*contract.stages, "KEY"))


FEATURE = Feature("MODULE", PLACE, lambda config, _: config.server.MODULE, _adds)
'''
CLIENT_STAGE = '''"""Measure the largest entry of each client's model."""

from collections.abc import Iterable

import numpy as np

from client_app.stages.stage import Outcome, Stage, changed
from task.features.MODULE import PEAK
from task.wire import messages as wire


class CLASS(Stage):
    """Adds the largest entry to what each client sends."""

    names = ("KEY",)

    def send(self, outcomes: Iterable[Outcome]) -> Iterable[Outcome]:
        """Measure the models as they go up."""
        return changed(outcomes, self._measured)

    def _measured(self, client: str, upload: wire.ClientUpdate) -> wire.ClientUpdate:
        upload.scalars[PEAK.name] = max(float(np.abs(a).max()) for a in upload.arrays["arrays"].values())
        return upload
'''
SERVER_STAGE = '''"""Say in each round's row that clients measure their peaks."""

from collections.abc import Mapping
from typing import Any

from strategies.engine.stage import ServerStage


class CLASS(ServerStage):
    """Adds a number to the round's row."""

    name = "MODULE"

    def row(self) -> Mapping[str, Any]:
        """Return the number."""
        return {"toy_seen": 1}
'''


def _feature(key: str, place: int, *, server: bool) -> dict[str, Change]:
    module = key.replace("-", "_")

    def named(text: str) -> str:
        kind = module.title().replace("_", "")
        return (
            text.replace("MODULE", module)
            .replace("CLASS", kind)
            .replace("PLACE", str(place))
            .replace("KEY", key)
        )

    return {
        "task/config/sections.py": (
            above(
                "    norms: bool = knob(", f'    {module}: bool = knob(False, "a toy; changes no model")\n'
            ),
        ),
        f"task/features/{module}.py": named(FEATURE_DECLARATION),
        f"client_app/stages/{module}.py": named(CLIENT_STAGE),
        f"tests/task/test_{module}.py": A_TEST,
        **({f"strategies/stages/{module}.py": named(SERVER_STAGE)} if server else {}),
    }


TOYS: dict[str, Toy] = {
    "a model": Toy(
        {
            "task/models/__init__.py": (
                above('    "2nn": _perceptron(', '    "toy-net": _perceptron("three hidden units", 3),\n'),
            )
        },
        {"model": "toy-net"},
    ),
    "a metric": Toy(
        {
            "task/tasks/metrics.py": (
                above(
                    '    "balanced-accuracy": Metric("confusion", _balanced),\n',
                    '    "toy-rows": Metric("confusion", lambda sums: int(sums["confusion"].sum())),\n',
                ),
            )
        },
        {"metrics": "accuracy,toy-rows"},
        "result['metrics']['toy-rows'] > 50 if 'metrics' in result else rounds[1]['toy-rows'] > 50",
    ),
    "a partition": Toy(
        {
            "task/datasets/partitioners.py": (
                above(
                    "def iid(deal: Deal)",
                    "def toy_rows(deal: Deal) -> list[Rows]:\n"
                    '    """Cut into parts in the order of the file."""\n'
                    "    return np.array_split(np.arange(deal.size), deal.config.num_clients)\n\n\n",
                ),
            ),
            "task/datasets/partition.py": (
                above(
                    '    "iid": PartitionSpec(',
                    '    "toy-rows": PartitionSpec("in order", deals.toy_rows),\n',
                ),
            ),
        },
        {"partition": "toy-rows"},
    ),
    "a data set": Toy(
        {
            "task/datasets/toy_data.py": '''"""The digits upside down."""

from dataclasses import replace

from task.datasets import generated
from task.datasets.base import Decoded, Request, Source


def locate(request: Request) -> Source:
    """Return no files: the digits come with scikit-learn."""
    return Source()


def decode(request: Request, source: Source) -> Decoded:
    """Read the digits and turn them."""
    digits = generated.decode_digits(request, source)
    return replace(digits, x=digits.x[:, ::-1].copy())
''',
            "task/datasets/catalogue.py": (
                ("    domains,\n", "    domains,\n    toy_data,\n"),
                above(
                    '    "digit-5": DatasetSpec(',
                    '    "toy-data": DatasetSpec(\n        "the digits upside down", "bundled",\n'
                    '        "mlp", toy_data.locate, toy_data.decode,\n    ),\n',
                ),
            ),
        },
        {"dataset": "toy-data"},
    ),
    "an attack": Toy(
        {
            "task/config/attack_section.py": (
                ('MOVED = ("sign-flip",', 'MOVED = ("toy-half", "sign-flip",'),
                ('choices=("none", "sign-flip",', 'choices=("none", "toy-half", "sign-flip",'),
            ),
            "client_app/stages/attacks.py": (
                ('DEFAULT_SCALE = {"sign-flip"', 'DEFAULT_SCALE = {"toy-half": 0.5, "sign-flip"'),
            ),
        },
        {"attack.kind": "toy-half", "attack.fraction": 0.5},
    ),
    "a codec": Toy(
        {
            "task/codecs/toy_code.py": '"""Half precision under another name."""\n\n'
            "from task.codecs.half import Half\n\n\n"
            'class ToyCode(Half):\n    """The same code."""\n\n    name, number = "toy-code", 99\n',
            "task/config/sections.py": (('CODECS = ("fp16",', 'CODECS = ("toy-code", "fp16",'),),
            "docs/reference/compression.md": (
                above("| `fp16` | 1 |", "| `toy-code` | 99 | as `fp16` | | | |\n"),
            ),
            "tests/reference/codecs.py": (('if name == "fp16":', 'if name in ("fp16", "toy-code"):'),),
            "tests/task/test_codecs.py": (above('    ("fp16", 0),\n    ("int8"', '    ("toy-code", 0),\n'),),
        },
        {"codec.up": "toy-code"},
    ),
    "a fault": Toy(
        {
            "tests/faults/cases_nodes.py": (
                above(
                    '@case(\n    "R1",',
                    '@case("R99", "Toy", "nothing", "nothing is done")\n'
                    'def toy(rig: Rig) -> str:\n    return "nothing"\n\n\n',
                ),
            )
        }
    ),
    "an algorithm": ALGORITHM,
    "a personalised algorithm": PERSONALISED,
    "an analysis": ANALYSIS,
    "a feature": Toy(
        _feature("toy-peak", 141, server=True),
        {"toy-peak": True},
        "rounds[1]['toy_seen'] == 1 and all(c['metrics']['toy-peak'] > 0 for c in clients)",
    ),
    "a stage": Toy(
        _feature("toy-top", 142, server=False),
        {"toy-top": True},
        "all(c['metrics']['toy-top'] > 0 for c in clients)",
    ),
}
PEOPLE = "age,client,label:target(no|yes)\n" + "".join(
    f"{age},{ward},{label}\n"
    for ward in ("east", "west")
    for age, label in [(20, "no"), (40, "yes"), (60, "no")] * 5
)
