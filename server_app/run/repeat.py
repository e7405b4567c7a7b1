"""The run-config keys of an existing run, to repeat it."""

from pathlib import Path

from server_app.results.folder import CONFIG, RunFolder, environment, no_run, place_of
from task.config.knobs import CHANGE_NO_RESULT
from task.config.read import defaults
from task.config.sections import Value
from task.errors import ConfigError
from task.resolve.model_card import read_model

# The data's place is unchanged; a run on a link sets its own folders.
AGAIN_OTHERWISE = (CHANGE_NO_RESULT | {"node-names"}) - {"data-dir", "cache-dir"}
VERSIONS = ("bouquet", "git_commit", "torch", "numpy", "python")


def keys_of_run(run: Path) -> tuple[dict[str, Value], list[str]]:
    """Return the keys that a run was started with, and lines about what is different now.

    `run` is a result folder, finished or not, the name of one below runs/, or a model file. Keys at their
    default are left out, and so are name, folders of results and state, and waits.

    Raises:
        ConfigError: There is no such run, or a key of it does not exist in this version.
    """
    place = place_of(run)
    if not place.exists() or (place.is_dir() and not (place / CONFIG).exists()):
        raise no_run(f"--from: expected a result folder with {CONFIG}, or a model file", run)
    lines: list[str] = []
    if place.is_dir():
        record = RunFolder(place).config()
        keys, then = dict(record["run"]), record.get("environment", {})
        now = environment()
        different = [f"{k} {then[k]} -> {now[k]}" for k in VERSIONS if k in then and then[k] != now[k]]
        if different:
            lines = [f"{place} was made with other versions, so results may differ: {', '.join(different)}"]
    else:
        card = read_model(place)[0]
        keys = dict(card.run)
        if "initial-model" in card.left_out:
            lines.append(f'{place}: ignored "initial-model", since paths in a model file are not followed')
    default = defaults()
    if gone := sorted(keys.keys() - default.keys()):
        raise ConfigError(f"--from {run}: expected run-config keys of this version; got {', '.join(gone)}")
    if keys.get("dp.noise"):
        lines.append(f"{place} drew its noise from a secret, so this run will end in a different model")
    kept = {k: v for k, v in keys.items() if v != default[k] and k not in AGAIN_OTHERWISE}
    return kept, lines
