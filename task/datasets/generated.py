"""Data that need no file: scikit-learn's digits and breast cancer, Synthetic(alpha, beta), and FCUBE."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from task import portable
from task.datasets.base import Decoded, Request, Source, by_owner, decoded_images
from task.numerics import seeds

Floats = npt.NDArray[np.float64]

FEATURES = 60
CLASSES = 10
DEVICES = 30  # of the published data set
PARTIES, POINTS, TEST_POINTS = 4, 1000, 1000  # of FCUBE: training points of each party; test points
_STD_X = np.arange(1, FEATURES + 1) ** -0.6  # Sigma_jj = j^-1.2 is a variance


def decode_digits(request: Request, source: Source) -> Decoded:
    """Read the 1,797 images; every fifth of each class, in the order of the file, is a test image.

    The file is read without importing scikit-learn, which costs each process two seconds.
    """
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, np.uint8, delimiter=",")
    images, labels = table[:, :-1], table[:, -1]
    rows, num_train = _fifth_tested(labels)
    x, y = images[rows].reshape(-1, 8, 8), labels[rows].astype(np.int64)
    return decoded_images(x, y, num_train, num_classes=10, scale=16.0, source="scikit-learn")


def _fifth_tested(labels: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the order of rows with the test rows last, every fifth of a class, and the number of others."""
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        test[np.flatnonzero(labels == label)[4::5]] = True
    return np.concatenate([np.flatnonzero(~test), np.flatnonzero(test)]), int((~test).sum())


def decode_breast_cancer(request: Request, source: Source) -> Decoded:
    """Read the 569 rows; every fifth of each class, in the order of the file, is a test row."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    rows, num_train = _fifth_tested(found.target)
    return Decoded(
        x=found.data[rows].astype(np.float32),
        y=found.target[rows].astype(np.int64),
        num_train=num_train,
        num_classes=2,
        input_shape=(found.data.shape[1],),
        kind="features",
        classes=tuple(str(name) for name in found.target_names),
        columns=(*map(str, found.feature_names), "diagnosis"),
        description=f"{num_train} training and {len(rows) - num_train} test rows of 30 columns",
        source="scikit-learn",
    )


@dataclass(frozen=True)
class Device:
    """One device of Synthetic(alpha, beta): its model and its data."""

    weights: Floats  # W_k, [60, 10]
    bias: Floats  # b_k, [10]
    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]


def locate_synthetic(request: Request) -> Source:
    """Nothing to find; the data depend on the seed, the knobs and the number of devices."""
    s = request.synthetic
    keys = {"alpha": s.alpha, "beta": s.beta, "iid": s.iid, "seed": request.seed}
    if s.size_spread != 2.0:
        keys["size_spread"] = s.size_spread
    return Source(keys=keys | {"devices": request.num_clients or DEVICES} | portable.cache_key())


def devices(request: Request) -> list[Device]:
    """Draw all devices as Li et al. (FedProx, 2020) do; legend below.

    ========  =====================================================================
    symbol    law
    ========  =====================================================================
    n_k       floor(lognormal(4, 2)) + 50; ``size-spread`` replaces the 2
    u_k       N(0, alpha); alpha is the *standard deviation*, as in the published code
    B_k       N(0, beta); the same
    W_k, b_k  entries N(u_k, 1): 60 x 10 and 10
    v_k       entries N(B_k, 1): 60
    x         N(v_k, Sigma), Sigma diagonal, Sigma_jj = j^-1.2
    y         argmax(x W_k + b_k)
    ========  =====================================================================

    Kept as published, though u_k shifts the ten scores of an example alike, so that the labels do not
    depend on alpha: models differ because W_k and b_k are drawn for each device.

    iid: one W, b with entries N(0, 1) for all and v_k = 0; the sizes have the same law. Inputs are
    rounded to float32 before they are labelled, so that the labels are exact for the stored inputs.
    """
    knobs = request.synthetic
    count = request.num_clients or DEVICES
    rng = seeds.rng_for(request.seed, seeds.SYNTHETIC)
    sizes = rng.lognormal(4.0, knobs.size_spread, count).astype(np.int64) + 50
    model_means = rng.normal(0.0, 1.0, count) * knobs.alpha
    input_means = rng.normal(0.0, 1.0, count) * knobs.beta
    shared = rng.normal(0.0, 1.0, (FEATURES + 1, CLASSES))
    out = []
    for k in range(count):
        if knobs.iid:
            model, center = shared, np.zeros(FEATURES)
        else:
            model = rng.normal(model_means[k], 1.0, (FEATURES + 1, CLASSES))
            center = rng.normal(input_means[k], 1.0, FEATURES)
        x = rng.normal(center, _STD_X, (sizes[k], FEATURES)).astype(np.float32)
        y = np.argmax(x.astype(np.float64) @ model[:-1] + model[-1], axis=1).astype(np.int64)
        out.append(Device(model[:-1], model[-1], x, y))
    return out


def decode_synthetic(request: Request, source: Source) -> Decoded:
    """Generate; the first 90 % of each device (its rows are exchangeable) train, the rest test.

    The paper's text says 80 %, the published code 90 %; the code made the published figures. The global
    test set is the union of the devices' test sets.
    """
    drawn = [(d.x, d.y, int(0.9 * len(d.y))) for d in devices(request)]
    train = [(x[:cut], y[:cut]) for x, y, cut in drawn]
    test = [(x[cut:], y[cut:]) for x, y, cut in drawn]
    digits = len(str(len(drawn) - 1))
    names = [f"device-{k:0{digits}d}" for k in range(len(drawn))]
    knobs = request.synthetic
    law = "iid" if knobs.iid else f"({knobs.alpha:g}, {knobs.beta:g})"
    return Decoded(
        **by_owner(names, train, test),
        num_classes=CLASSES,
        input_shape=(FEATURES,),
        kind="features",
        description=f"Synthetic{law}: {len(drawn)} devices, {sum(len(y) for _, y, _ in drawn)} examples",
        source="generated",
    )


def locate_fcube(request: Request) -> Source:
    """Nothing to find; the points depend on the seed alone."""
    return Source(keys={"seed": request.seed})


def decode_fcube(request: Request, source: Source) -> Decoded:
    """Draw FCUBE (Li et al. 2022, NIID-Bench): points of the cube [-1, 1]^3; class 0 where x1 > 0, else 1.

    The planes x1 = 0, x2 = 0 and x3 = 0 divide the cube into eight octants. Each of the four parties has an
    octant and the one opposite to it through the origin, 500 points each, so that it has both classes. The
    test points are uniform in the whole cube and belong to no party.
    """
    rng = seeds.rng_for(request.seed, seeds.SYNTHETIC, client="fcube")
    opposite = np.where(np.arange(POINTS) % 2, -1, 1)[:, None]
    parties = []
    for party in range(PARTIES):
        octant = np.array([1, -1 if party & 2 else 1, -1 if party & 1 else 1])
        inside = 1.0 - rng.random((POINTS, 3))  # in (0, 1]: no point lies on a plane between classes
        parties.append(_labelled(inside * octant * opposite))
    nothing = [(x[:0], y[:0]) for x, y in parties]
    drawn = by_owner([f"party-{i}" for i in range(PARTIES)], parties, nothing)
    test = _labelled(rng.random((TEST_POINTS, 3)) * 2 - 1)
    drawn["x"], drawn["y"] = (
        np.concatenate([drawn[key], part]) for key, part in zip("xy", test, strict=True)
    )
    return Decoded(
        **drawn,
        num_classes=2,
        input_shape=(3,),
        kind="features",
        description=f"FCUBE: {PARTIES} parties of {POINTS} points, {TEST_POINTS} test points",
        source="generated",
    )


def _labelled(x: Floats) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    stored = x.astype(np.float32)
    return stored, (stored[:, 0] <= 0).astype(np.int64)
