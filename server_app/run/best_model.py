"""The best model so far, ``checkpoint/best.safetensors``: in clear, a frozen part in a file beside it."""

from collections.abc import Mapping

from server_app.results.folder import CHECKPOINT, RunFolder
from server_app.run.encryption import in_clear
from server_app.run.frozen import FILE, RECORD
from task.config.read import read_checked
from task.encryption.ckks import sealed
from task.numerics.arrays import NamedArrays
from task.resolve.model_card import BESIDE
from task.storage.files import write_safetensors


def write_best(folder: RunFolder, model: NamedArrays, card: Mapping[str, str]) -> None:
    """Write a run's best model; nothing if all of it stays at the clients, or stays encrypted here.

    `card` is the metadata of the file.
    """
    config = folder.config()
    arrays = in_clear(read_checked(config["run"]), model)
    if not arrays or sealed(arrays):
        return
    about = {**card, **({BESIDE: FILE} if RECORD in config else {})}
    write_safetensors(folder.path / CHECKPOINT / "best.safetensors", arrays, about or None)
