"""Check before torch is imported what can be: the name of the run, its data files and its modules."""

from pathlib import Path

from server_app.run.naming import folder_of_run
from server_app.run.same_run import check_resumed
from task.config.knobs import Config
from task.config.read import as_run_config
from task.datasets import find_files, spec_of
from task.references import check_modules, is_reference


def check_beforehand(config: Config, *, overwrite: bool = False) -> Path:
    """Return the result folder of a run that is about to start.

    `server_app.run.prepare` checks the same and more, after imports of many seconds. With `overwrite` the
    folder may hold a run, which the caller deletes.

    Raises:
        ConfigError: The name is taken, there is nothing to resume or it was started with other keys, or a
            module that the run names is not there.
        DataError: The data files are missing.
    """
    runs = Path(config.output.runs_dir).expanduser()
    path = runs / config.run_name if overwrite else folder_of_run(config)
    if config.output.resume:
        check_resumed(config, path)
    check_modules(as_run_config(config))
    data = config.data
    if not is_reference(data.dataset) and (data.data_path or not spec_of(data.dataset).own):
        find_files(data, config.synthetic, config.seeds.data)
    return path
