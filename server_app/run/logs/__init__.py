"""What features write into the result folder while a run goes on: each in its file here, named after it."""

from collections.abc import Callable

from server_app.results.folder import RunFolder
from strategies.engine.journal import FeatureLog
from task.features import halves


def logs_of(folder: RunFolder, *, resume: bool) -> list[FeatureLog]:
    """Return the logs of a run; unless it is to `resume`, what an earlier run left there is deleted.

    Raises:
        StateError: A file is damaged.
    """
    found = (kind for kind in halves(__name__) if kind.__module__.startswith(__name__))
    kinds: list[Callable[..., FeatureLog]] = [kind for kind in found if issubclass(kind, FeatureLog)]
    return [kind(folder, resume=resume) for kind in kinds]
