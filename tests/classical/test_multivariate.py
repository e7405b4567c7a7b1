"""k-means and principal components are scikit-learn's on the pooled rows, for any division of these."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from client_app.classical.multivariate import check_centres, check_clusters
from strategies import strategy_of
from strategies.engine.rule import Phase, RoundContext
from task.catalogue.multivariate import CENTRES, OPENING, STEP, WEIGHTS
from task.classical.clusters import clustering_of, clusters_table, nearest, step_sums
from task.classical.columns import NamedColumns
from task.classical.components import components_of, components_table
from task.classical.moments import centred, moments_sums
from task.classical.printed import Printed
from task.config.knobs import Config
from task.errors import BouquetError, ConfigError, DataError, RefusedError, WireError
from task.numerics.jacobi import eigen
from task.resolve.read import read_config
from tests.classical.support import ROWS, answered, declared, splits
from tests.classical.test_runs import at_sites
from tests.support.federation import in_one_process, play

CLUSTERS, COMPONENTS = {"algorithm": "k-means"}, {"algorithm": "pca", "num-server-rounds": 1}


def table(frame: pd.DataFrame) -> NamedColumns:
    return NamedColumns({n: frame[n].to_numpy(np.float64) for n in frame.columns}, {})


def config_of(columns: str, base: dict[str, Any] = CLUSTERS, **more: Any) -> Config:
    name = base["algorithm"]
    keys = {"dataset": "csv", "num-server-rounds": 60, **base, f"{name}.columns": columns}
    return read_config(keys | {f"{name}.{k}": v for k, v in more.items()})


class Played:
    """The result over parts of a table: the real rule and the real sums, without messages."""

    def __init__(self, config: Config, parts: Sequence[pd.DataFrame]) -> None:
        self.config, self.tables = config, [table(part) for part in parts]
        rule = strategy_of(config.entry.rule)(config).rule
        names = tuple(f"site-{i}" for i in range(len(parts)))
        context = RoundContext(rule, config.entry, 0, 1.0, (), names, (), lambda names: {})
        self._run(rule.opening(context))
        self.asked: list[np.ndarray] = []  # the centres of each round
        state: Any = rule.initial_state({}, ())
        self.rows: list[Any] = []
        while not rule.finished(state) and len(self.rows) < config.server.num_server_rounds:
            state, metrics = self._run(rule.round(state, context))
            self.rows.append(metrics)
        self.arrays = state.arrays
        self.bits = {name: array.tobytes() for name, array in state.arrays.items()}

    def _run(self, phases: Any) -> Any:
        return answered(phases, lambda name, phase: [self._sums(name, phase, t) for t in self.tables])

    def _sums(self, name: str, phase: Phase, t: NamedColumns) -> list[int]:
        if name == STEP:
            asked = clustering_of(self.config)
            centres, weights = (phase.records[of][ROWS] for of in (CENTRES, WEIGHTS))
            self.asked.append(centres)
            return step_sums(asked, [t.of(v) for v in asked.variables], centres, weights[:, 0].tolist())
        model = clustering_of(self.config) if name == OPENING else components_of(self.config)
        return moments_sums(centred(model.variables, t), squares=name == OPENING)

    @property
    def table(self) -> Printed:
        """The table."""
        if self.config.algorithm == "pca":
            found = components_table(components_of(self.config), self.arrays)
        else:
            found = clusters_table(clustering_of(self.config), self.arrays)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def cancer() -> pd.DataFrame:
    """Breast cancer, each column divided by a power of two, so that all are at most 1."""
    frame = load_breast_cancer(as_frame=True).data
    return frame / 2.0 ** np.ceil(np.log2(frame.max()))


def start_rows(frame: pd.DataFrame, *rows: int) -> str:
    return "; ".join(",".join(repr(float(x)) for x in frame.iloc[i]) for i in rows)


def unit_ranges(frame: pd.DataFrame) -> str:
    return ", ".join(f"{name}(0..1)" for name in frame.columns)


# -------------------------------------------------------------------------------------------- k-means


def test_clusters_of_any_division_are_scikit_learns(cancer: pd.DataFrame) -> None:
    config = config_of(unit_ranges(cancer), start=start_rows(cancer, 0, 100, 300))
    parts = splits(cancer)
    one = Played(config, parts["1"])
    for name in ("3", "every tenth"):
        assert Played(config, parts[name]).bits == one.bits
    want = KMeans(3, init=cancer.to_numpy()[[0, 100, 300]], n_init=1, tol=0, max_iter=100).fit(
        cancer.to_numpy()
    )
    assert [row[1] for row in one.table.rows] == [81, 336, 152]
    assert len(one.rows) == want.n_iter_ == 31
    np.testing.assert_allclose(one.arrays["centres"], want.cluster_centers_, rtol=1e-9, atol=0)
    figures = one.table.figures
    assert figures["inertia"] == pytest.approx(want.inertia_, rel=1e-11)
    assert figures["total"] == pytest.approx(((cancer - cancer.mean()) ** 2).to_numpy().sum(), rel=1e-11)
    assert figures["empty"] == []


def test_standardised_clusters_are_scikit_learns_of_the_scaled_columns() -> None:
    frame = load_breast_cancer(as_frame=True).data
    frame = frame[["mean radius", "mean texture", "mean area", "worst symmetry"]]
    config = config_of(declared(frame, *frame.columns), clusters=4, scaling="sd")
    one, ten = (Played(config, splits(frame)[name]) for name in ("1", "every tenth"))
    assert one.bits == ten.bits
    scaler = StandardScaler().fit(frame.to_numpy())
    start = scaler.transform(one.asked[0])
    want = KMeans(4, init=start, n_init=1, tol=0, max_iter=200).fit(scaler.transform(frame.to_numpy()))
    np.testing.assert_allclose(
        one.arrays["centres"], scaler.inverse_transform(want.cluster_centers_), rtol=1e-9
    )
    assert one.table.figures["inertia"] == pytest.approx(want.inertia_, rel=1e-9)
    assert one.table.figures["total"] == pytest.approx(4 * len(frame), rel=1e-9)
    np.testing.assert_allclose(1 / one.arrays["weights"], scaler.scale_, rtol=1e-12)


def test_a_cluster_without_rows_keeps_its_centre_and_is_named() -> None:
    frame = pd.DataFrame({"a": [1.0, 2, 3, 8, 9, 10]})
    played = Played(config_of("a(0..100)", start="2; 90; 9"), [frame.iloc[:2], frame.iloc[2:]])
    assert played.arrays["centres"][:, 0].tolist() == [2, 90, 9]
    assert played.table.figures["empty"] == [1]
    assert played.table.figures["inertia"] == pytest.approx(4)
    assert [row[:2] for row in played.table.rows] == [(0, 3), (1, 0), (2, 3)]
    assert len(played.rows) == 1  # the start is where it ends


def test_a_row_between_two_centres_belongs_to_the_first() -> None:
    which, distance = nearest([np.array([0.0, 1, 2])], np.array([[2.0], [0.0]]), [0.5])
    assert which.tolist() == [1, 0, 0]
    assert distance.tolist() == [0, 0.25, 0]


def test_the_first_centres_are_spread_and_depend_on_the_seed_alone(cancer: pd.DataFrame) -> None:
    frame = cancer[["mean radius", "mean texture"]]
    keys: dict[str, Any] = {"columns": unit_ranges(frame), "clusters": 5}
    first = Played(config_of(**keys), [frame]).asked[0]
    again = Played(config_of(**keys), splits(frame)["3"]).asked[0]
    other = Played(config_of(base={**CLUSTERS, "seed": 2}, **keys), [frame]).asked[0]
    assert first.tobytes() == again.tobytes() != other.tobytes()
    for j, name in enumerate(frame.columns):
        mean, spread = frame[name].mean(), frame[name].std(ddof=0)
        parts = np.sort((first[:, j] - (mean - 2 * spread)) / (4 * spread) * 5)
        np.testing.assert_allclose(parts, [0.5, 1.5, 2.5, 3.5, 4.5], rtol=1e-9)


def test_an_iteration_that_has_not_ended_has_no_table(cancer: pd.DataFrame) -> None:
    config = config_of(unit_ranges(cancer), base={**CLUSTERS, "num-server-rounds": 2})
    assert clusters_table(clustering_of(config), Played(config, [cancer]).arrays) is None


@pytest.mark.parametrize(
    ("columns", "more", "why"),
    [
        ("", {}, "k-means.columns"),
        ("sex(f|m)", {}, r"columns of numbers .* category 'sex'"),
        ("a(0..1), a(0..1)", {}, "each column once; got a"),
        ("a(0..1), b(0..1)", {"start": "0,1; 2,0"}, r"centres of 2 numbers within .* got '2,0'"),
        ("a(0..1), b(0..1)", {"start": "0,1; 1"}, r"centres of 2 numbers .* got '1'"),
        ("a(0..1)", {"start": "x"}, "got 'x'"),
        (", ".join(f"c{i}(0..1)" for i in range(129)), {}, "at most 128 columns"),
    ],
)
def test_a_wrong_declaration_is_refused(columns: str, more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config_of(columns, **more)


def test_fewer_rows_than_clusters_are_refused() -> None:
    with pytest.raises(DataError, match="as many rows as the 3 clusters, or more; got 2"):
        Played(config_of("a(0..9)"), [pd.DataFrame({"a": [1.0, 2]})])


# ----------------------------------------------------------------------------------------- components


def test_components_of_any_division_are_scikit_learns(cancer: pd.DataFrame) -> None:
    config = config_of(unit_ranges(cancer), COMPONENTS)
    parts = splits(cancer)
    one = Played(config, parts["1"])
    for name in ("3", "every tenth"):
        assert Played(config, parts[name]).bits == one.bits
    want = PCA(svd_solver="full").fit(cancer.to_numpy())
    found = one.arrays["variances"]
    first = [0.1414524537, 0.03740887343, 0.01726350427, 0.01307881433, 0.009904666088]
    assert found[:5].tolist() == pytest.approx(first, rel=1e-9)
    np.testing.assert_allclose(found, want.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(one.arrays["mean"], want.mean_, rtol=1e-12)
    np.testing.assert_allclose(one.arrays["covariance"], np.cov(cancer.to_numpy().T), rtol=1e-9, atol=1e-15)
    ours, theirs = one.arrays["components"], want.components_
    signs = np.sign((ours * theirs).sum(axis=1))
    # The gap to the next eigenvalue bounds how well a vector is known.
    np.testing.assert_allclose(ours[:8], theirs[:8] * signs[:8, None], atol=1e-11)
    assert (ours[np.arange(30), np.abs(ours).argmax(axis=1)] > 0).all()
    shares = np.array([row[2] for row in one.table.rows], float)
    np.testing.assert_allclose(shares, want.explained_variance_ratio_, rtol=1e-9)


def test_standardised_components_are_those_of_the_correlation_matrix() -> None:
    frame = load_breast_cancer(as_frame=True).data
    config = config_of(declared(frame, *frame.columns), COMPONENTS, components=3, scaling="sd")
    one, ten = (Played(config, splits(frame)[name]) for name in ("1", "10"))
    assert one.bits == ten.bits
    x = frame.to_numpy()
    want = PCA(3, svd_solver="full").fit((x - x.mean(axis=0)) / x.std(axis=0, ddof=1))
    np.testing.assert_allclose(one.arrays["variances"], want.explained_variance_, rtol=1e-9)
    theirs = want.transform((x - x.mean(axis=0)) / x.std(axis=0, ddof=1))
    scores = (x - one.arrays["mean"]) / one.arrays["scale"] @ one.arrays["components"].T
    np.testing.assert_allclose(np.abs(scores), np.abs(theirs), atol=1e-9)
    figures = one.table.figures
    assert figures["total_variance"] == pytest.approx(30, rel=1e-12)
    assert one.table.rows[2][3] == pytest.approx(want.explained_variance_ratio_.sum(), rel=1e-9)
    assert figures["scale"]["mean area"] == pytest.approx(frame["mean area"].std(), rel=1e-12)


def test_a_column_far_from_zero_keeps_its_digits() -> None:
    """Squares of the year itself would leave 2^-51 * 2^22 of a variance of 1e-6."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"year": 2020 + rng.normal(0, 1e-3, 500), "b": rng.normal(0, 1e-3, 500)})
    played = Played(config_of("year(2019..2021), b(-1..1)", COMPONENTS), [frame])
    np.testing.assert_allclose(played.arrays["covariance"], np.cov(frame.to_numpy().T), rtol=1e-8)


def test_columns_of_one_value_are_refused_and_named() -> None:
    frame = pd.DataFrame({"a": [3.0, 3, 3], "b": [1.0, 2, 4]})
    with pytest.raises(DataError, match="column a: expected values that differ"):
        Played(config_of("b(0..9), a(0..9)", COMPONENTS, scaling="sd"), [frame])
    with pytest.raises(DataError, match="one value in each"):
        Played(config_of("a(0..9)", COMPONENTS), [frame])
    with pytest.raises(DataError, match="column a: expected values that differ"):
        Played(config_of("b(0..9), a(0..9)", clusters=2), [frame])
    with pytest.raises(DataError, match="two rows or more; got 1"):
        Played(config_of("a(0..9)", COMPONENTS), [frame.iloc[:1]])
    with pytest.raises(ConfigError, match="at most the 1 columns; got 2"):
        config_of("a(0..9)", COMPONENTS, components=2)


def test_eigenvalues_by_hand() -> None:
    """[[2, 1], [1, 2]] has 3 along (1, 1) and 1 along (1, -1), of whose equal loadings the first is > 0."""
    values, vectors = eigen(np.array([[2.0, 1.0], [1.0, 2.0]]))
    np.testing.assert_allclose(values, [3, 1], rtol=1e-15)
    np.testing.assert_allclose(vectors, np.array([[1, 1], [1, -1]]) / math.sqrt(2), rtol=1e-15)


@pytest.mark.parametrize("rank", [40, 17])
def test_eigenvectors_are_orthogonal_and_give_the_matrix_back(rank: int) -> None:
    x = np.random.default_rng(rank).normal(size=(rank, 40)) * np.logspace(0, -4, 40)
    matrix = x.T @ x
    values, vectors = eigen(matrix)
    size = np.abs(matrix).max()
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(40), atol=1e-13)
    np.testing.assert_allclose(vectors.T * values @ vectors, matrix, atol=1e-14 * 40 * size)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[::-1], atol=1e-14 * 40 * size)


def test_small_eigenvalues_of_a_graded_matrix_keep_their_digits() -> None:
    """LAPACK's eigh is wrong in the smallest one here: it is within 2^-53 of the largest only."""
    scale = np.diag([1.0, 1e-6, 1e-12])
    core = np.array([[1.0, 0.5, 0.25], [0.5, 1.0, 0.5], [0.25, 0.5, 1.0]])
    values, _ = eigen(scale @ core @ scale)
    # det = 9/16 e-36; the leading 2 x 2 minor is 3/4 e-12
    assert np.prod(values) == pytest.approx(0.5625e-36, rel=1e-12)
    assert values[0] * values[1] == pytest.approx(0.75e-12, rel=1e-10)


# ----------------------------------------------------------------------------------------------- runs

RNG = np.random.default_rng(5)
N = 240
CENTRE = np.repeat([[30.0, 140.0], [60.0, 120.0], [75.0, 160.0]], N // 3, axis=0)
PEOPLE = (
    pd.DataFrame(np.clip(CENTRE + RNG.normal(0, 4, (N, 2)), 1, 199).round(3), columns=["age", "pressure"])
    .sample(frac=1, random_state=1, ignore_index=True)
    .assign(smoker=RNG.permutation(np.repeat([0, 1], N // 2)))
)
HEADER = ["age:number", "pressure:number", "smoker:target"]
KEYS = {
    "dataset": "csv", "partition": "natural", "num-clients": 0, "num-server-rounds": 40,
    "k-means.columns": "age(0..120), pressure(0..200)", "k-means.scaling": "sd",
    "pca.columns": "age(0..120), pressure(0..200), smoker(0..1)",
}  # fmt: skip


def keys_of(name: str, **more: Any) -> dict[str, Any]:
    other = {"k-means": "pca.", "pca": "k-means."}[name]
    return {k: v for k, v in KEYS.items() if not k.startswith(other)} | {"algorithm": name} | more


def written(folder: Path, owners: int) -> dict[str, Any]:
    path = folder / f"people-{owners}.csv"
    named = PEOPLE.assign(client=[f"site-{i % owners}" for i in range(N)])
    named.to_csv(path, index=False, header=[*HEADER, "client"])
    return {"data-path": str(path)}


@pytest.mark.parametrize("name", ["k-means", "pca"])
@pytest.mark.parametrize(
    ("owners", "nodes", "more"),
    [(1, 1, {}), (3, 3, {}), (10, 10, {}), (10, 4, {"secagg": True})],
)
def test_a_run_is_that_of_the_pooled_rows(
    name: str, owners: int, nodes: int, more: dict[str, Any], tmp_path: Path
) -> None:
    keys = keys_of(name, **more)
    played = play(keys | written(tmp_path, owners), nodes=nodes)
    frame = PEOPLE.astype(np.float64)
    want = Played(read_config({k: v for k, v in keys.items() if k not in more}), [frame])
    found = played.arrays(len(played.rows) - 1)
    assert {n: a.tobytes() for n, a in found.items()} == want.bits


@pytest.mark.parametrize("name", ["k-means", "pca"])
def test_a_folder_has_the_table_and_a_resumed_run_ends_alike(name: str, tmp_path: Path) -> None:
    keys = keys_of(name) | written(tmp_path, 3)
    folder = in_one_process(keys | {"run-name": "whole"}, tmp_path, nodes=3)
    found = json.loads((folder / "result.json").read_text())["table"]
    assert found["rows"] == N
    rows = pd.read_csv(folder / "table.csv")
    if name == "pca":
        assert rows.columns.tolist() == [
            "component", "variance", "share", "cumulative", "age", "pressure", "smoker",
        ]  # fmt: skip
        assert rows.cumulative.iloc[-1] == pytest.approx(1)
        return
    assert sorted(rows.rows) == [80, 80, 80]  # the groups that the rows were made of
    short = keys | {"run-name": "short", "num-server-rounds": 1}
    cut = in_one_process(short, tmp_path, nodes=3)
    assert json.loads((cut / "result.json").read_text())["table"] == {"converged": False}
    again = in_one_process(short | {"num-server-rounds": 40, "resume": True}, tmp_path, nodes=3)
    assert json.loads((again / "result.json").read_text())["table"] == found
    assert (again / "table.tex").read_text() == (folder / "table.tex").read_text()


# --------------------------------------------------------------------------------------------- policy


def at_wards(folder: Path, name: str, frames: list[pd.DataFrame], **more: Any) -> Path:
    keys = {k: v for k, v in keys_of(name).items() if k != "partition"}
    return at_sites(folder, frames, 5, keys=keys, header=HEADER, **more)


def parts() -> list[pd.DataFrame]:
    return [PEOPLE.iloc[rows] for rows in np.array_split(np.arange(N), 3)]


def test_clusters_of_sites_with_a_bound_need_masks(tmp_path: Path) -> None:
    with pytest.raises(BouquetError, match=r"few rows change their cluster .* Use secagg = true"):
        at_wards(tmp_path, "k-means", parts())


def test_masked_clusters_of_sites_with_a_bound(tmp_path: Path) -> None:
    folder = at_wards(tmp_path, "k-means", parts(), secagg=True)
    found = json.loads((folder / "result.json").read_text())["table"]
    assert [row["rows"] for row in found["clusters"]] == [80, 80, 80]


@pytest.mark.parametrize("left", [0, 4])
def test_components_refuse_a_small_cell(left: int, tmp_path: Path) -> None:
    frames = parts()
    smokers = frames[1].index[frames[1].smoker == 1]
    frames[1] = frames[1].drop(smokers[left:])
    if not left:  # a column that is 0 throughout has no cell
        folder = at_wards(tmp_path, "pca", frames)
        assert json.loads((folder / "result.json").read_text())["table"]["rows"] == sum(map(len, frames))
        return
    with pytest.raises(BouquetError, match="smoker would have a cell of fewer persons of client ward-1"):
        at_wards(tmp_path, "pca", frames)


def test_components_refuse_few_rows(tmp_path: Path) -> None:
    frames = parts()
    frames[2] = frames[2].iloc[:29]
    with pytest.raises(BouquetError, match="a design of 3 columns needs 30 rows of client ward-2"):
        at_wards(tmp_path, "pca", frames)


def test_a_cluster_of_few_rows_is_refused_and_an_empty_one_is_not() -> None:
    asked = clustering_of(config_of("a(0..100)", start="10; 50; 90"))
    centres = np.array([[10.0], [50.0], [90.0]])
    few = table(pd.DataFrame({"a": [9.0] * 9 + [51.0] * 4}))
    with pytest.raises(RefusedError, match="cluster 1 would have fewer rows of client ward"):
        check_clusters(asked, few, centres, [1.0], 5, "ward", masked=True)
    check_clusters(asked, few, centres, [1.0], 4, "ward", masked=True)


@pytest.mark.parametrize(
    ("centre", "weight", "why"),
    [(101.0, 1.0, "centres within the declared ranges"), (50.0, 0.0, "weights above 0")],
)
def test_a_hostile_order_is_refused(centre: float, weight: float, why: str) -> None:
    asked = clustering_of(config_of("a(0..100)", start="10"))
    with pytest.raises(WireError, match=why):
        check_centres(asked, np.array([[centre]]), np.array([weight]))
