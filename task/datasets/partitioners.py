"""Split the training pool among clients: one function per partition.

Each takes a `Deal` and returns one array of row numbers per client. ``dirichlet``, ``dirichlet-capped`` and
``classes`` are flwr-datasets' partitioners. The others are ours, as flwr-datasets either has no such scheme
(``classes-unbalanced``, ``dirichlet-client``, ``power-law``), or deals rows in the order of the file without
a seed (its IID and size partitioners; the latter also gives all that rounding left over to one client), or
drops the rows that do not fill a shard (its shard partitioner).
"""

import inspect
import math
import tomllib
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from task.config.sections import DataConfig
from task.datasets.base import Rows, no_progress_thread
from task.datasets.parts import local_test_size
from task.errors import ConfigError, DataError, local
from task.numerics import seeds
from task.references import load_reference, place

Floats = npt.NDArray[np.float64]

LABEL = "label"  # column of the classes in the table that a partitioner of flwr-datasets gets
BASE = 5  # power-law: examples of a digit that each of its holders gets first


@dataclass(frozen=True, eq=False)
class Deal:
    """The examples to be split among K = ``config.num_clients`` clients."""

    size: int  # rows 0 .. size - 1
    labels: Rows | None  # their classes; None for data without one class per example
    num_classes: int
    config: DataConfig
    seed: int  # the run's

    def rng(self) -> np.random.Generator:
        """Return the generator of the partition."""
        return seeds.rng_for(self.seed, seeds.PARTITION)

    def classes(self) -> Rows:
        """Return the labels.

        Raises:
            ConfigError: The data have none.
        """
        if self.labels is None:
            raise ConfigError(
                f'run-config key "partition": "{self.config.partition}" deals by class, but the examples of '
                f'data set "{self.config.dataset}" have no class; expected natural, iid, quantity '
                "or bootstrap"
            )
        return self.labels


def iid(deal: Deal) -> list[Rows]:
    """Shuffle, then cut into K parts whose sizes differ by one at most."""
    return np.array_split(deal.rng().permutation(deal.size), deal.config.num_clients)


def whole(deal: Deal) -> list[Rows]:
    """Give all rows to each client, whose columns differ."""
    return [np.arange(deal.size)] * deal.config.num_clients


def shards(deal: Deal) -> list[Rows]:
    """Sort by class, cut into s K shards, give each client s of them at random (McMahan et al. 2017).

    On MNIST with K = 100 and s = 2 that is 200 shards of exactly 300. Shard sizes differ by one at most.
    """
    per_client, clients = deal.config.shards_per_client, deal.config.num_clients
    ordered = np.argsort(deal.classes(), kind="stable")
    pieces = np.array_split(ordered, per_client * clients)
    hands = deal.rng().permutation(len(pieces)).reshape(clients, per_client)
    return [np.concatenate([pieces[i] for i in hand]) for hand in hands]


def labels(deal: Deal) -> list[Rows]:
    """Give whole classes: client k holds those that are k modulo K (Wang et al. 2019, case 2).

    With more clients than classes those of one class share it evenly, shuffled.
    """
    clients = deal.config.num_clients
    return _by_label(np.arange(deal.size), deal.classes(), np.arange(deal.num_classes), clients, deal.rng())


def half_labels(deal: Deal) -> list[Rows]:
    """Deal the lower half of the classes evenly, the upper half by class (Wang et al. 2019, case 4).

    The first floor(K / 2) clients share the classes below C / 2, the others hold whole classes of the rest.

    Raises:
        ConfigError: Fewer than two clients or classes.
    """
    clients, classes = deal.config.num_clients, deal.num_classes
    if clients < 2 or classes < 2:
        raise ConfigError(
            f'run-config key "num-clients": partition "half-labels" halves the clients and the classes, so '
            f"expected >= 2 of each; got {clients} clients and {classes} classes"
        )
    rng, y = deal.rng(), deal.classes()
    lower = rng.permutation(np.flatnonzero(y < classes // 2))
    upper = np.flatnonzero(y >= classes // 2)
    owned = np.arange(classes // 2, classes)
    return [
        *np.array_split(lower, clients // 2),
        *_by_label(upper, y[upper], owned, clients - clients // 2, rng),
    ]


def _by_label(rows: Rows, y: Rows, classes: Rows, clients: int, rng: np.random.Generator) -> list[Rows]:
    """Give class i of `classes` to client i modulo K, or split it among the clients that are i modulo C."""
    hands: list[list[Rows]] = [[] for _ in range(clients)]
    for i, c in enumerate(classes):
        holders = range(i % clients, clients, len(classes))
        parts = np.array_split(rng.permutation(rows[y == c]), len(holders))
        for client, part in zip(holders, parts, strict=True):
            hands[client].append(part)
    return [np.concatenate(hand) for hand in hands]


def dirichlet(deal: Deal, capped: bool = False) -> list[Rows]:
    """Split each class among the clients by a draw from Dir(alpha 1_K).

    Sizes become as skewed as labels are. The whole draw is repeated, at most ten times, until every client
    keeps ``min-client-examples`` for training.

    `capped` splits each class among the clients that have no more than n/K examples so far, as NIID-Bench,
    MOON and PFLlib do: the two are not comparable. Classes that come later are split among fewer clients.
    PFLlib redraws until every client has min(B / (1 - 0.75), N / (2 K)) examples, its test quarter included:
    40 at B = 10, which is ``min-client-examples = 30`` with ``local-test-fraction = 0.25``.
    """
    return _by_library(
        deal,
        "DirichletPartitioner",
        "Raise dirichlet-alpha, or lower num-clients or min-client-examples, or try another seed.",
        alpha=deal.config.dirichlet_alpha,
        min_partition_size=_with_test_part(deal.config),
        self_balancing=capped,
    )


def classes(deal: Deal) -> list[Rows]:
    """Give every client exactly c classes, each class split evenly among its holders (NIID-Bench, "#C=c").

    Client k holds class k mod C and c - 1 others at random. With fewer clients than classes some classes may
    belong to no client and stay unused.
    """
    return _by_library(
        deal,
        "PathologicalPartitioner",
        "Lower classes-per-client or num-clients.",
        num_classes_per_partition=deal.config.classes_per_client,
        class_assignment_mode="first-deterministic",
    )


def classes_unbalanced(deal: Deal) -> list[Rows]:
    """Give every client c classes, of each a share of random size (PFLlib's and FedALA's pathological split).

    Class by class, in the order of their numbers, the first ceil(K c / C) clients that hold fewer than c
    classes so far are its holders: that many clients share the first c classes, the next as many the next
    c, and so on. Of a class of n examples, shuffled, each of its m holders but the last gets u, drawn
    uniformly from low .. high, both included, and the last gets the rest, at least as many as any other:
    high = floor(n / m) and low = max(floor(high / 10), least), at most high; least is the c-th part, rounded
    up, of what a client needs to keep ``min-client-examples`` for training. Classes that no client needs stay
    unused.

    Deviations from PFLlib: it deals a class in the order of the file; its least is
    min(B / (1 - 0.75), N / (2 K)) / C, which secures no size; and where the clients cannot be cut into such
    groups its last ones get fewer than c classes, which is refused here.

    Raises:
        ConfigError: Some client would get fewer than c classes.
        DataError: A class has fewer examples than holders.
    """
    config, labels, rng = deal.config, deal.classes(), deal.rng()
    clients, per_client = config.num_clients, config.classes_per_client
    block = math.ceil(clients * per_client / deal.num_classes)
    needed = per_client * math.ceil(clients / block)
    if needed > deal.num_classes:
        raise ConfigError(
            f'run-config key "classes-per-client": partition "classes-unbalanced" deals a class to {block} '
            f"of the {clients} clients, so expected {needed} classes, that all may have {per_client}; got "
            f"{deal.num_classes}. Choose classes-per-client c and num-clients K so that c divides the number "
            "of classes, and the quotient divides K."
        )
    least = math.ceil(_with_test_part(config) / per_client)
    hands: list[list[Rows]] = [[] for _ in range(clients)]
    for c in range(needed):
        first = c // per_client * block
        holders = range(first, min(first + block, clients))
        rows = rng.permutation(np.flatnonzero(labels == c))
        if len(rows) < len(holders):
            raise DataError(
                f'partition "classes-unbalanced": class {c} has {len(rows)} examples; expected one at least '
                f"for each of {len(holders)} clients. Lower num-clients, or raise max-examples."
            )
        high = len(rows) // len(holders)
        low = min(max(high // 10, least), high)
        ends = np.cumsum(rng.integers(low, high, len(holders) - 1, endpoint=True))
        for client, part in zip(holders, np.split(rows, ends), strict=True):
            hands[client].append(part)
    return [np.concatenate(hand) for hand in hands]


def _by_library(deal: Deal, kind: str, advice: str, **more: Any) -> list[Rows]:
    """Run one of flwr-datasets' partitioners."""
    from flwr_datasets import partitioner as library

    clients, seed = deal.config.num_clients, seeds.seed_for(deal.seed, seeds.PARTITION)
    made = getattr(library, kind)(
        num_partitions=clients, partition_by=LABEL, shuffle=False, seed=seed, **more
    )
    try:
        return _parts_of(deal, made)
    except ValueError as err:
        raise DataError(
            f'partition "{deal.config.partition}" of {deal.size} examples among {clients} clients '
            f"cannot be made: {' '.join(str(err).split())} {advice}"
        ) from err


def _parts_of(deal: Deal, partitioner: Any) -> list[Rows]:
    """Return the rows of each part that a partitioner makes of a table in memory: no file, no network."""
    import datasets

    no_progress_thread()
    partitioner.dataset = datasets.Dataset.from_dict({LABEL: deal.classes(), "row": np.arange(deal.size)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns at each repeated draw
        parts = [partitioner.load_partition(k) for k in range(partitioner.num_partitions)]
    if any("row" not in part.column_names for part in parts):
        raise ConfigError(
            f'run-config key "partition": "{deal.config.partition}": expected a partitioner of examples; '
            "got one of columns"
        )
    return [np.asarray(part.with_format("numpy")[:]["row"], dtype=np.int64) for part in parts]


def _with_test_part(config: DataConfig) -> int:
    """Return the smallest number of examples that leaves min-client-examples for training."""
    size = config.min_client_examples
    while size - local_test_size(size, config.local_test_fraction) < config.min_client_examples:
        size += 1
    return size


def dirichlet_client(deal: Deal) -> list[Rows]:
    """Give equal sizes; each client draws its class mix q ~ Dir(alpha p), p the global mix (Hsu et al. 2019).

    Examples are drawn without replacement; where a class has run out, q is renormalised over the others.
    """
    rng = deal.rng()
    shuffled = [rng.permutation(np.flatnonzero(deal.classes() == c)) for c in range(deal.num_classes)]
    stock = [rows for rows in shuffled if len(rows)]
    counts = np.array([len(rows) for rows in stock])
    prior, used = counts / counts.sum(), np.zeros_like(counts)
    out = []
    for part in np.array_split(np.arange(deal.size), deal.config.num_clients):
        mix = rng.dirichlet(deal.config.dirichlet_alpha * prior)
        taken = _draw(rng, mix, counts - used, len(part))
        out.append(np.concatenate([r[u : u + t] for r, u, t in zip(stock, used, taken, strict=True)]))
        used += taken
    return out


def _draw(rng: np.random.Generator, mix: Floats, left: Rows, size: int) -> Rows:
    """Draw `size` examples by class with these probabilities, never more of a class than are left."""
    taken = np.zeros(len(mix), dtype=np.int64)
    while missing := size - int(taken.sum()):
        open_mix = np.where(taken < left, mix, 0.0)
        if open_mix.sum() <= 0.0:  # a tiny alpha put all mass on classes that have run out
            open_mix = (left - taken).astype(np.float64)
        drawn = rng.multinomial(missing, open_mix / open_mix.sum())
        taken = np.minimum(taken + drawn, left)
    return taken


def quantity(deal: Deal) -> list[Rows]:
    """Skew sizes only: client sizes are proportional to 1, 2, ..., K to the power ``size-skew``, shuffled."""
    rng, clients = deal.rng(), deal.config.num_clients
    shares = np.arange(1, clients + 1, dtype=np.float64) ** deal.config.size_skew
    counts = apportion(rng.permutation(shares), deal.size)
    return np.split(rng.permutation(deal.size), np.cumsum(counts)[:-1])


def power_law(deal: Deal) -> list[Rows]:
    """FedProx's MNIST split: two classes a client and sizes after a lognormal law (Li et al. 2020).

    Client u holds classes u mod C and (u + 1) mod C; it gets 5 examples of each, then shares the rest of
    each class with the other holders in proportion to lognormal(0, 2) draws. Deviations from the published
    script: the training pool is split (there, training and test images together), no example is left over
    by rounding, K is free (there 1000), and pixels stay in [0, 1] (there standardised).
    """
    rng, clients = deal.rng(), deal.config.num_clients
    slots = min(2, deal.num_classes)
    held = (np.arange(clients)[:, None] + np.arange(slots)) % deal.num_classes
    weights = rng.lognormal(0.0, 2.0, held.shape)
    hands: list[list[Rows]] = [[] for _ in range(clients)]
    labels = deal.classes()
    for c in range(deal.num_classes):
        holders = np.argwhere(held == c)  # of (client, slot), in the order of the clients
        rows = rng.permutation(np.flatnonzero(labels == c))
        if not len(holders):
            continue
        base = min(BASE, len(rows) // len(holders))
        counts = base + apportion(weights[held == c], len(rows) - base * len(holders))
        for (client, _), part in zip(holders, np.split(rows, np.cumsum(counts)[:-1]), strict=True):
            hands[client].append(part)
    return [np.concatenate(hand) for hand in hands]


def apportion(shares: Floats, total: int) -> Rows:
    """Split `total` into whole parts proportional to `shares` (largest remainders get what is left)."""
    exact = shares / shares.sum() * total
    parts: Rows = np.floor(exact).astype(np.int64)
    order = np.argsort(parts - exact, kind="stable")
    parts[order[: total - int(parts.sum())]] += 1
    return parts


_ARGUMENTS = 'run-config key "partition-arguments"'


def arguments_in(text: str) -> dict[str, Any]:
    """Return what the run-config key ``partition-arguments`` says; lists of lists become arrays.

    Raises:
        ConfigError: It is not TOML, or sets what other keys say.
    """
    try:
        found = tomllib.loads(f"given = {{{text}}}")
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(
            f"{_ARGUMENTS}: expected TOML, \"alpha=0.5, mode='strict'\"; got {text!r}: {err}"
        ) from None
    if len(found) > 1:
        raise ConfigError(f"{_ARGUMENTS}: expected one line of TOML; got {text!r}")
    given: dict[str, Any] = found["given"]
    for name, ours in (("num_partitions", "num-clients"), ("seed", "data-seed")):
        if name in given:
            raise ConfigError(
                f'{_ARGUMENTS}: expected no {name}, which the run-config key "{ours}" says; got {text!r}'
            )
    nested = {name: np.array(v) for name, v in given.items() if isinstance(v, list) and np.ndim(v[:1]) > 1}
    return given | nested


def _own_parts(deal: Deal, own: Any) -> list[Any]:
    """Return what a callable deals, or a class of flwr-datasets' partitioners.

    A class gets ``num_partitions``, ``partition_by`` and ``seed`` where its constructor takes them.

    Raises:
        ConfigError: It does not take the arguments.
    """
    from flwr_datasets.partitioner import Partitioner

    given, clients = arguments_in(deal.config.partition_arguments), deal.config.num_clients
    library = isinstance(own, type) and issubclass(own, Partitioner)
    known = inspect.signature(own)
    seed = seeds.seed_for(deal.seed, seeds.PARTITION)
    ours = {"num_partitions": clients, "partition_by": LABEL, "seed": seed}
    first = () if library else (np.array(deal.classes()), clients, deal.rng())
    named = {name: value for name, value in ours.items() if library and name in known.parameters} | given
    try:
        known.bind(*first, **named)
    except TypeError as err:
        raise ConfigError(
            f"{_ARGUMENTS}: expected the arguments of {deal.config.partition}{known}; got "
            f"{deal.config.partition_arguments!r}: {err}"
        ) from None
    return list(_parts_of(deal, own(**named)) if library else own(*first, **named))


def brought(deal: Deal) -> list[Rows]:
    """Deal by a user's own callable ``(labels, num_clients, rng) -> list of arrays of row numbers``.

    Or by a partitioner of flwr-datasets, or one derived from its base class.

    Raises:
        ConfigError: It is neither.
        DataError: It fails, or its lists are not one for each client, disjoint and of existing rows.
    """
    name, clients = deal.config.partition, deal.config.num_clients
    key = f'run-config key "partition": "{name}"'
    own = load_reference("partition", name)
    if not callable(own):
        raise ConfigError(f"{key}: expected a callable (labels, num_clients, rng); got {type(own).__name__}")
    try:
        # Twice, as each node computes the partition for itself.
        parts, again = ([np.asarray(part) for part in _own_parts(deal, own)] for _ in range(2))
    except ConfigError:
        raise
    except Exception as err:  # whatever the user's code raises
        raise DataError(f"{key}: expected lists of rows; got an error: {local(place(err))}") from err
    if len(parts) != clients:
        raise DataError(f"{key}: expected {clients} lists of rows, one for each client; got {len(parts)}")
    if len(again) != clients or not all(map(np.array_equal, parts, again)):
        raise DataError(
            f"{key}: expected the same lists of rows at each call with the same arguments; got others at a "
            "second call. Draw with the rng that is given"
        )
    for k, part in enumerate(parts):
        if part.ndim != 1 or (part.dtype.kind not in "iu" and len(part)):
            got = f"{part.dtype}{list(part.shape)}"
            raise DataError(f"{key}: expected row numbers, integers [n], for client {k}; got {got}")
        if len(part) and not 0 <= part.min() <= part.max() < deal.size:
            wrong = int(part.min() if part.min() < 0 else part.max())
            raise DataError(f"{key}: expected rows from 0 to {deal.size - 1}; got {wrong} for client {k}")
    parts = [part.astype(np.int64) for part in parts]
    rows, clients_of = np.concatenate(parts), np.repeat(np.arange(clients), [len(part) for part in parts])
    order = np.argsort(rows, kind="stable")
    twice = np.flatnonzero(np.diff(rows[order]) == 0)
    if len(twice):
        first, second = order[twice[0] : twice[0] + 2]
        raise DataError(
            f"{key}: expected each row at one client at most; got row {int(rows[first])} at client "
            f"{int(clients_of[first])} and again at client {int(clients_of[second])}"
        )
    return parts
