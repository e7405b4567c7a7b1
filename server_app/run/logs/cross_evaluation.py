"""The table of a run's cross-evaluation, ``RUN/cross-evaluation.csv``."""

from typing import Any

from server_app.results.folder import RunFolder
from strategies.stages.cross_evaluation import CrossTests


class CrossTestsFile(CrossTests):
    """Writes the table into the result folder."""

    def __init__(self, folder: RunFolder, *, resume: bool) -> None:
        self.folder = folder

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Write the table."""
        self.folder.write_cross_evaluation(rows)
