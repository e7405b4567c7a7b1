"""Texts as numbers of words, the same on every machine, and AG News.

A word's number is its hash (Weinberger et al. 2009, arXiv 0902.2206, "the hashing trick"; fastText does so
with its n-grams), so no vocabulary has to be agreed on, and no client reveals which words it has. Two words
meet in a number with probability 1 / 31,999.
"""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Request, Source
from task.errors import DataError, local
from task.models import WORD_BUCKETS

NEWS = 200  # words of a news item that count, as in PFLlib
_WORD = re.compile(r"\w+|[^\w\s]")
_TOPICS = ("World", "Sports", "Business", "Sci/Tech")  # of labels 1 to 4
_FILES = ("train.csv", "test.csv")


def numbered(texts: Sequence[str], length: int) -> npt.NDArray[np.int32]:
    """Return the numbers of the first `length` words of each text, int32 ``[N, length]``, padded with 0.

    Words are runs of letters and digits in lower case, and single signs. Their numbers go from 1 to
    `WORD_BUCKETS` - 1.
    """
    out = np.zeros((len(texts), length), np.int32)
    for row, text in zip(out, texts, strict=True):
        words = _WORD.findall(text.lower())[:length]
        row[: len(words)] = [1 + zlib.crc32(word.encode()) % (WORD_BUCKETS - 1) for word in words]
    return out


def locate_news(request: Request) -> Source:
    """Find ``train.csv`` and ``test.csv`` in ``<data-dir>/ag-news`` or in the folder that they come in."""
    folder = request.data_dir / request.name
    for place in (folder, folder / "ag_news_csv"):
        files = tuple(place / name for name in _FILES)
        if all(path.is_file() for path in files):
            return Source(files)
    raise DataError(
        f"{local(folder)}: expected train.csv and test.csv of AG News, lines of class, title and "
        "description; got none. They come as ag_news_csv.tgz with Zhang, Zhao and LeCun 2015 (arXiv "
        '1509.01626). Put them there, or set the run-config key "data-dir" (or $BOUQUET_DATA) to the folder '
        "above."
    )


def decode_news(request: Request, source: Source) -> Decoded:
    """Read titles and descriptions as numbers of words."""
    parts = [_news(path) for path in source.files]
    num_train = len(parts[0][0])
    return Decoded(
        x=numbered([text for texts, _ in parts for text in texts], NEWS),
        y=np.array([label for _, labels in parts for label in labels], np.int64),
        num_train=num_train,
        num_classes=len(_TOPICS),
        input_shape=(NEWS,),
        kind="text",
        classes=_TOPICS,
        description=f"{num_train} training and {len(parts[1][0])} test texts of news",
        source=str(source.files[0].parent),
    )


def _news(path: Path) -> tuple[list[str], list[int]]:
    texts, labels = [], []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            for row in reader:
                if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                    raise DataError(
                        f"{local(path)}, line {reader.line_num}: expected a class from 1 to 4, a title and a "
                        f"description; got {local(repr(row)[:80])}. Repair or remove the line."
                    )
                labels.append(int(row[0]) - 1)
                texts.append(f"{row[1]} {row[2]}")
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        raise DataError(
            f"{local(path)}: expected a csv file in UTF-8; got {local(err)}. Fetch it again."
        ) from err
    if not texts:
        raise DataError(f"{local(path)}: expected a line for each text; got none. Fetch it again.")
    return texts, labels
