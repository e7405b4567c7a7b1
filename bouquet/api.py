"""The functions of `bouquet`; importing this module imports all that a run needs, torch included."""

import sys
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from bouquet.objects import with_references
from server_app.engines.simulate import simulate
from server_app.results.folder import CONFIG, no_run
from server_app.run.beforehand import check_beforehand
from server_app.run.naming import remove_run
from server_app.run.notebook import in_notebook
from server_app.run.repeat import keys_of_run
from server_app.run.same_run import keys_to_resume
from server_app.takeout.result import RunResult
from task import trust
from task.config.read import read_recipe
from task.errors import ConfigError
from task.references import check_origin, references_in
from task.resolve.read import fuse, read_config


def run(
    algorithm: Any,
    recipe: str,
    repeat: str | PathLike[str],
    overwrite: bool,
    code: str | Iterable[str],
    nodes: int,
    gpus: int,
    keys: Mapping[str, Any],
) -> RunResult:
    """See `bouquet.run`."""
    allow(code)
    if recipe and repeat:
        raise ConfigError("run: expected recipe or repeat; got both")
    base = read_recipe(recipe) if recipe else keys_of_run(Path(repeat))[0] if repeat else {}
    own = with_references({**({"algorithm": algorithm} if algorithm else {}), **kebab(keys)})
    trust.user_named(references_in(own))
    check_origin({**base, **own}, recipe or str(repeat))
    given = {**base, **own}
    if overwrite and (given.get("resume") or not given.get("run-name")):
        raise ConfigError("overwrite=True: expected run_name with it, and no resume")
    merged, unread = fuse({**keys_to_resume(given), **base}, own)
    for key, why in unread.items():
        if key in base:
            print(f"ignored {key}, which is for {why}", file=sys.stderr)
    config = read_config(merged)
    path = check_beforehand(config, overwrite=overwrite)
    if overwrite:
        remove_run(Path(config.output.runs_dir).expanduser(), config.run_name)
    try:
        return simulate(merged, nodes, gpus=gpus)
    except KeyboardInterrupt:
        if not in_notebook() or not (path / CONFIG).exists():
            raise
        print(f"stopped; the rounds so far are in {path}", file=sys.stderr)
        return RunResult(path)


def kebab(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return run-config keys as files spell them: hyphens for underscores, a dot after a section."""
    flat: dict[str, Any] = {}
    for name, value in keys.items():
        key = name.rstrip("_").replace("_", "-")  # `lambda_`: lambda is a word of Python's
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": v for inner, v in kebab(value).items()}
        else:
            flat[key] = str(value) if isinstance(value, PathLike) else value
    return flat


def allow(code: str | Iterable[str]) -> None:
    """Let files name code of these packages from now on."""
    trust.allow([code] if isinstance(code, str) and code else code, "code")


def load(run: str | PathLike[str], code: str | Iterable[str] = ()) -> RunResult:
    """See `bouquet.load`."""
    allow(code)
    place = next((p for p in (Path(run), Path("runs") / run) if (p / CONFIG).exists()), None)
    if place is None:
        raise no_run(
            f"load: expected a result folder with {CONFIG}, or the name of a run below runs/ in this folder, "
            f"{Path('runs').absolute()}; a run of another runs_dir has its whole path",
            Path(run),
        )
    return RunResult(place)
