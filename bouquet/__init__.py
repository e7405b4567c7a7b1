"""Bouquet from Python: run a federation, read its results, use its model.

::

    from bouquet import load, run

    result = run("fedprox", dataset="mnist", model="2nn", learning_rate=0.1, fedprox={"mu": 0.1})
    result.rounds[["round", "accuracy", "loss"]]
    result.plot()
    result.predict("new.csv")
    result = load("runs/fedprox-mnist-1")

`run` and `statistics` start runs, with the keys that `bouquet run --help-keys` lists; `load` reads a run's
folder as a `RunResult`. Other commands, such as `compare` and `audit`, have no function. The
strategies are in `bouquet.strategies`, and what algorithms of your own are made from is in `bouquet.extend`.
Each error that Bouquet raises on purpose is a `BouquetError`.
"""

from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any

from bouquet.packages import claim

if TYPE_CHECKING:
    from server_app.takeout.result import RunResult
    from task.errors import BouquetError, ConfigError, DataError, StateError


def run(
    algorithm: Any = "",
    /,
    *,
    recipe: str = "",
    repeat: str | PathLike[str] = "",
    overwrite: bool = False,
    code: str | Iterable[str] = (),
    nodes: int = 0,
    gpus: int = 0,
    **keys: Any,
) -> "RunResult":
    """Run a federation as a simulation, in this process and its workers; return the result.

    `keys` are run-config keys with underscores instead of hyphens. The keys of a section are a dictionary:
    ``learning_rate=0.1, fedprox={"mu": 0.1}``. A key that is a word of Python has an underscore behind it,
    ``fedacg={"lambda_": 0.8}``, and a key of several values takes a list, ``metrics=["auroc", "f1-macro"]``.

    They override those of a `recipe`, of a run to `repeat` (a result folder), or of the run that
    ``resume=True, run_name="mine"`` continues. Code that such a file names, ``net:Small``, runs only if its
    package is in `code` or if `keys` name it, too. You may call this function as often as you like. In a
    notebook, Ctrl-C (the stop button) ends the run and returns the rounds so far; elsewhere `load` reads
    them.

    The clients train on this number of virtual `nodes`, 0 = one per CPU, and of `gpus`, 0 = all; neither
    changes the result. With a number of gpus, 0 nodes means one per GPU.

    Keys that take ``module:name`` take Python objects, too: ``model`` a class, a function or a module, whose
    values are the initial ones; ``dataset`` arrays ``(x, y)`` or ``(x, y, x_test, y_test)``, Datasets, or a
    function that loads them; ``algorithm``, ``loss``, ``metrics``, ``optimizer``, ``augment`` and
    ``partition`` what a reference names. A run with objects that cannot be imported cannot be repeated from
    its config alone.

    Raises:
        BouquetError: A key is wrong, or the run cannot start or go on.
    """
    if keys.get("portable"):
        claim("task")
        from task import portable

        portable.set_up()  # before NumPy and torch are loaded
    claim()
    from bouquet import api

    return api.run(algorithm, recipe, repeat, overwrite, code, nodes, gpus, keys)


def statistics(
    columns: str,
    data: str | PathLike[str] = "",
    /,
    *,
    quantiles: str = "0, 0.25, 0.5, 0.75, 1",
    bins: int = 16,
    cross: str = "",
    correlation: bool = False,
    by_site: bool = True,
    site_quantiles: bool = False,
    **keys: Any,
) -> "RunResult":
    """Describe the columns of sites in a simulation, by site and pooled; `result.table` has the figures.

    `columns` have ranges or levels, ``"age(0..120), sex(F|M)"``, and `data` is a csv file with a column
    ``client``, or a folder with a csv file for each site. `cross` names pairs of categories, ``"sex*ward"``.
    Further `keys` are as of `run`; with ``secagg=True`` there are no figures by site.

    Raises:
        BouquetError: As `run`.
    """
    asked = {"columns": columns, "quantiles": quantiles, "bins": bins, "cross": cross}
    asked |= {"correlation": correlation, "by_site": by_site and not keys.get("secagg")}
    asked |= {"site_quantiles": True} if site_quantiles else {}
    own = {"data_path": data} if data else {}
    defaults = {"dataset": "csv", "partition": "natural", "num_clients": 0, "num_server_rounds": 100}
    return run("statistics", **{**defaults, **own, **keys, "statistics": asked})


def load(run: str | PathLike[str], code: str | Iterable[str] = ()) -> "RunResult":
    """Return the result of a run, finished or not: of its folder, or of its name below ./runs.

    `code` names the packages of the user's own code that the folder may name, ``"net"`` for ``net:Small``.

    Raises:
        ConfigError: There is no such run.
    """
    claim()
    from bouquet import api

    return api.load(run, code)


def __getattr__(name: str) -> Any:
    """Import the class of results and those of errors when they are first used: results take a second."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "RunResult":
        claim()
        from server_app.takeout import result as module
    else:
        claim("task")
        from task import errors as module  # type: ignore[no-redef]
    return getattr(module, name)


__all__ = [
    "BouquetError",
    "ConfigError",
    "DataError",
    "RunResult",
    "StateError",
    "load",
    "run",
    "statistics",
]
