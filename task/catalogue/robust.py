"""The catalogue's robust rules: they need every client's model, and withstand malicious clients.

See `task.catalogue.algorithms`.
"""

from dataclasses import replace
from functools import partial

from task.catalogue.entry import Algorithm
from task.catalogue.papers import paper
from task.catalogue.record import MODEL_UP

_YIN = paper("1803.01498")
_BLANCHARD = paper("1703.02757", "section 4")
# Rules over all the clients' models; the clients do as in FedAvg.
_robust = partial(Algorithm, up=(replace(MODEL_UP, reduce="collect"),), weight="uniform", equal_sizes=True)

_CAO = paper("2012.13995", "Algorithm 2")

ENTRIES = (
    _robust(
        "bulyan", "Bulyan", paper("1802.07927", "section 4"),
        about="Selects clients by Krum, then averages the values nearest the median in each coordinate.",
        reads=("robust.",),
        withstands=(4, 3),
        neutral={"robust.byzantine": 0.0},
        converges=False,
        biased="it leaves out numbers and clients far from the others, and does not use n_k",
    ),
    _robust(
        "centered-clipping", "Centered clipping", paper("2012.10333", "Algorithm 2"),
        about="Moves from the last update towards the clients' updates, by steps of limited length.",
        reads=("robust.", "centered-clipping."),
        withstands=(2, 1),
        neutral={"centered-clipping.radius": 1e30, "robust.byzantine": 0.0},
        biased="it cuts the updates of clients far from the others",
    ),
    _robust(
        "dnc", "DnC", paper("10.14722/ndss.2021.24498", "Algorithm 2"),
        about="Removes clients that are outliers along the direction in which all differ most.",
        reads=("robust.", "dnc."),
        withstands=(2, 1),
        neutral={"robust.byzantine": 0.0},
        biased="it leaves out clients far from the others",
    ),
    _robust(
        "fltrust", "FLTrust", _CAO,
        about="Weights each client by the cosine of its update with that of a trusted client.",
        phases={
            "root": Algorithm(
                "fltrust", "FLTrust, the root client", _CAO,
                trusted=True,
            )
        },
        group="robust",
        no_neutral="it follows the root client's update",
        biased="it follows the root client",
        equal_sizes=False,
    ),
    _robust(
        "geometric-median", "Geometric median (RFA)", paper("1912.13445", "Algorithm 2"),
        about="Takes the point with the smallest sum of distances to the clients' models.",
        reads=("robust.", "robust.nu", "robust.iterations", "robust.weighted"),
        withstands=(2, 1),
        neutral={"robust.nu": 1e9, "robust.byzantine": 0.0},
        biased="it minimises distances, not their squares",
    ),
    _robust(
        "krum", "Krum", _BLANCHARD,
        about="Takes the one client's model that is nearest to its neighbours.",
        reads=("robust.",),
        withstands=(2, 3),
        no_neutral="it takes the model of one client among at least three",
        converges=False,
        biased="it takes one client's model",
    ),
    _robust(
        "median", "Coordinate median", _YIN,
        about="Takes the median of the clients' models in each coordinate.",
        reads=("robust.",),
        withstands=(2, 1),
        neutral={"fraction-train": 0.0},
        biased="the median of gradients is not their mean",
    ),
    _robust(
        "meamed", "Mean around the median", paper("1802.10116", "Definition 4"),
        about="Averages the clients' values nearest the median in each coordinate.",
        reads=("robust.",),
        withstands=(2, 1),
        neutral={"robust.byzantine": 0.0},
        biased="it leaves out numbers far from the others, and does not use n_k",
    ),
    _robust(
        "multi-krum", "Multi-Krum", _BLANCHARD,
        about="Averages the clients' models that are nearest to their neighbours.",
        reads=("robust.", "robust.m"),
        withstands=(2, 3),
        neutral={"robust.byzantine": 0.0, "robust.m": 1_000_000},
        biased="it leaves out clients far from the others",
    ),
    _robust(
        "trimmed-mean", "Trimmed mean", _YIN,
        about="Averages the clients' models without the largest and smallest values of each coordinate.",
        reads=("robust.", "robust.trim"),
        withstands=(2, 1),
        neutral={"robust.trim": 0.0},
        biased="it leaves out numbers far from the others, and does not use n_k",
    ),
)  # fmt: skip
