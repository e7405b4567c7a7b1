"""The adapters of a run as `peft` reads them: ``adapters/`` in its result folder.

``PeftModel.from_pretrained(base, "runs/NAME/adapters")`` gives the final model. The folder is written when
the run ends or is stopped, so a run that failed has none; until then the configuration is in ``checkpoint/``.
Tensors that are trained without being an adapter or a module that `peft` saves are in
``adapters.safetensors`` and ``model.safetensors`` only.
"""

import json
import re
from pathlib import Path

from torch import nn

from server_app.results.folder import CHECKPOINT
from task.numerics.arrays import NamedArrays
from task.storage.files import make_folder, write_safetensors, write_text

FOLDER, CONFIG, TENSORS = "adapters", "adapter_config.json", "adapter_model.safetensors"
_ADAPTER = "default"  # what peft calls the adapter of a model that has one
_BASE = re.compile(r"(?:.*\.|)(base_model\.model\..+)")


def begin(run: Path, module: nn.Module) -> None:
    """Write the configuration of a model's adapters into the checkpoint of a run, if it has any."""
    config = next((found.peft_config for found in module.modules() if hasattr(found, "peft_config")), None)
    if not isinstance(config, dict) or _ADAPTER not in config:
        return
    made = config[_ADAPTER].to_dict() | {"inference_mode": True}
    make_folder(run / CHECKPOINT)
    write_text(run / CHECKPOINT / CONFIG, json.dumps(made, indent=2, sort_keys=True, default=_listed) + "\n")


def end(run: Path, trained: NamedArrays) -> None:
    """Write the tensors of a run's adapters and their configuration, if the checkpoint has one."""
    config = run / CHECKPOINT / CONFIG
    if config.exists():
        named = {peft_name(name): a for name, a in trained.items() if peft_name(name)}
        make_folder(run / FOLDER)
        write_safetensors(run / FOLDER / TENSORS, named, {"format": "pt"})
        write_text(run / FOLDER / CONFIG, config.read_text("utf-8"))


def peft_name(name: str) -> str:
    """Return what a tensor is called in peft's files; "" if it is not in them.

    >>> peft_name("base_model.model.h.0.lora_A.default.weight")
    'base_model.model.h.0.lora_A.weight'
    >>> peft_name("base_model.model.head.modules_to_save.default.bias")
    'base_model.model.head.bias'
    """
    if (match := _BASE.fullmatch(name)) is None:
        return ""
    if f".modules_to_save.{_ADAPTER}." in match[1]:
        return match[1].replace(f".modules_to_save.{_ADAPTER}.", ".", 1)
    head, found, rest = match[1].partition(".lora_")
    return head + found + re.sub(rf"\.{_ADAPTER}(\.|$)", r"\1", rest, count=1) if found else ""


def _listed(value: object) -> object:
    """Return what JSON does not know as it is written: sets as sorted lists."""
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
