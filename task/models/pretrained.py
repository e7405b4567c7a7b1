"""Models of `transformers` from a folder of this machine: ``model="transformers:./gpt2"``.

The folder is what ``save_pretrained`` writes: ``config.json``, which names the class, and weights as
safetensors; without weights the model is drawn by the run's seed. Nothing is downloaded, no code of the
folder runs, and pickled weights (``.bin``) are refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

from task.errors import ConfigError, choose_from, local
from task.extras import from_extra

_WEIGHTS = (".safetensors", ".bin", ".pt", ".h5")


@dataclass(frozen=True)
class Pretrained:
    """Makes the model of a folder."""

    folder: Path

    def __call__(self, num_classes: int) -> nn.Module:
        """Return the model; one that classifies has a head for this number of classes.

        Raises:
            ConfigError: The folder has no such model.
        """
        transformers = from_extra("adapters", "transformers", self._where)
        name = self._class()
        made: Any = getattr(transformers, name, None)
        if not (isinstance(made, type) and issubclass(made, transformers.PreTrainedModel)):
            known = [n for n in dir(transformers) if n.endswith(("LMHeadModel", "LM", "Classification"))]
            raise ConfigError(choose_from(f'{self._where}: "architectures" in config.json', name, known))
        kind: Any = made
        config = kind.config_class.from_pretrained(self.folder, local_files_only=True)
        if "Classification" in name and config.num_labels != num_classes:
            config.num_labels = num_classes
        config.use_cache = False  # what a next call would need is no output
        weights = [
            p.name for p in self.folder.iterdir() if p.suffix in (".safetensors", ".bin", ".pt", ".h5")
        ]
        if not weights:
            return cast(nn.Module, kind(config))
        if not any(name.endswith(".safetensors") for name in weights):
            raise self._refused("weights as safetensors, as save_pretrained writes them", sorted(weights)[0])
        log: Any = transformers.utils.logging
        before = log.get_verbosity()
        log.set_verbosity_error()  # that a head is new, the user has said
        log.disable_progress_bar()
        try:
            model = kind.from_pretrained(
                self.folder, config=config, local_files_only=True, use_safetensors=True,
                ignore_mismatched_sizes=True, dtype="auto",
            )  # fmt: skip
            return cast(nn.Module, model)
        finally:
            log.set_verbosity(before)
            log.enable_progress_bar()

    @property
    def _where(self) -> str:
        return f'run-config key "model": {local(str(self.folder))}'

    def _class(self) -> str:
        try:
            names = json.loads((self.folder / "config.json").read_text("utf-8"))["architectures"]
            return str(names[0])
        except (OSError, ValueError, KeyError, TypeError, IndexError) as err:
            got = f"{type(err).__name__}: {err}"
            raise self._refused(
                'config.json with "architectures", as save_pretrained writes it', got
            ) from None

    def _refused(self, expected: str, got: str) -> ConfigError:
        return ConfigError(f"{self._where}: expected {expected}; got {local(got)}")
