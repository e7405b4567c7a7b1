"""Start from a file: parameters and buffers of ``initial-model`` replace the randomly drawn ones.

The server reads the file, once, when a run begins. Nodes read none for it: private parts, such as FedPer's
head, are drawn by seed as usual. But a site may have a file of its own for what is frozen (node config
``initial-model``), which then does not travel to it. A resumed run continues from its checkpoint and reads
no file.
"""

from collections.abc import Mapping
from types import MappingProxyType

from server_app.results.folder import CHECKPOINT, RunFolder
from server_app.run.checkpoint import Checkpoint
from task.config.knobs import Config
from task.errors import ConfigError
from task.models.model_file import Loaded, load
from task.numerics.arrays import Arrays

KEY = 'run-config key "initial-model"'


def initial_model(
    config: Config,
    shared: Arrays,
    private: tuple[str, ...],
    resumed: RunFolder | None = None,
    *,
    ties: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Arrays, Loaded]:
    """Return the model that a run begins with, and how the file's tensors were used.

    A run with a checkpoint continues from it: its model is unchanged, and no file is read.

    Args:
        config: The run, with a file to start from.
        shared: The model as drawn by seed, as far as the server knows it.
        private: Names of its other tensors.
        resumed: The folder of the run, if it is resumed.
        ties: By each further name of a tied tensor, the one that it has in `shared`.

    Raises:
        ConfigError: As from `load`, or the file is another one than the run began with.
    """
    before = resumed.config().get("initial_model") if resumed else None
    if before and resumed and Checkpoint(resumed.path / CHECKPOINT).latest.exists():
        return shared, Loaded(**before)
    strict = config.initial_model_strict
    arrays, loaded = load(KEY, config.initial_model, shared, private, strict=strict, ties=ties)
    if before and before["sha256"] != loaded.sha256:
        raise ConfigError(
            f"{KEY}: {loaded.file}: expected the file that the run started with, SHA-256 "
            f"{before['sha256'][:12]}; got {loaded.sha256[:12]}. Restore it, or start a new run"
        )
    return arrays, loaded
