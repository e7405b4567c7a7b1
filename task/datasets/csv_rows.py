"""The rows of a csv file: UTF-8, commas, quotation marks where cells have commas or line ends."""

import csv
from collections.abc import Iterator
from pathlib import Path

from task.errors import DataError, local, reason

Cells = list[str]


def rows_of(path: Path) -> Iterator[tuple[int, Cells]]:
    """Yield the line on which each row begins, and its cells without spaces around; blank lines are skipped.

    Raises:
        DataError: The file cannot be read, or a row has more or fewer cells than the first, the header.
    """
    line, width = 1, 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            for cells in reader:
                if len(cells) > 1 or "".join(cells).strip():
                    width = width or len(cells)
                    if len(cells) != width:
                        raise DataError(
                            f"{local(path)}, line {line}: expected {width} cells as in the header; got "
                            f"{len(cells)}. Repair or remove the line."
                        )
                    yield line, [cell.strip() for cell in cells]
                line = reader.line_num + 1
    except UnicodeDecodeError as err:
        raise _not_utf8(path) from err
    except csv.Error as err:
        raise DataError(
            f"{local(path)}, line {line}: expected cells between commas, each quotation mark closed; got "
            f"{reason(err)}. Correct the line, or save the file again."
        ) from err
    except OSError as err:
        raise DataError(f"{local(path)}: expected a csv file; got {reason(err)}.") from err


def _not_utf8(path: Path) -> DataError:
    """Return the error that names the first cell that is not UTF-8."""
    place = ""
    with path.open("rb") as file:
        for line, raw in enumerate(file, 1):
            try:
                raw.decode()
            except UnicodeDecodeError as err:
                before = next(csv.reader([raw[: err.start].decode("latin-1")]), [])
                place = f", line {line}, column {max(len(before), 1)}"
                break
    return DataError(
        f"{local(path)}{place}: expected text in UTF-8; got another encoding, such as Latin-1. Save "
        'the file as UTF-8 (in Excel "CSV UTF-8"), or convert it: iconv -f latin1 -t utf-8'
    )
