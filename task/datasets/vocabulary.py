"""Check ids of tokens against the vocabulary of the model that reads them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from task.datasets.base import Dataset
from task.errors import DataError, local
from task.inputs import read_form

if TYPE_CHECKING:  # importing torch takes seconds
    import torch

_MANY_ROWS = 1 << 14  # rows that are looked at together


def check_ids(model: torch.nn.Module, dataset: Dataset) -> None:
    """Refuse ids for which an embedding that reads them has no row; of other data do nothing.

    Which embedding reads which input is seen in a run on one example; nothing is drawn or changed.

    Raises:
        DataError: Naming the input, the example's row and the id.
    """
    form = read_form(dataset.form)
    ends = np.cumsum([0, *(one.size for one in form)])
    flat = dataset.x.reshape(len(dataset.x), -1) if form else dataset.x
    columns = {one.name: flat[:, ends[i] : ends[i + 1]] for i, one in enumerate(form) if one.dtype == "int64"}
    if not columns:
        return
    for name, rows in _embeddings(model, dataset, columns).items():
        for start in range(0, len(flat), _MANY_ROWS):
            ids = columns[name][start : start + _MANY_ROWS]
            row, place = np.unravel_index(np.argmax(ids), ids.shape)
            if ids[row, place] >= rows:
                raise DataError(
                    f"{local(dataset.source)}: expected ids below {rows}, the rows of the model's embedding, "
                    f"in {name or 'x'}; got {local(int(ids[row, place]))} at place {place} of example "
                    f"{start + row}. Were the ids made with this model's vocabulary?"
                )


def _embeddings(model: torch.nn.Module, dataset: Dataset, columns: dict[str, np.ndarray]) -> dict[str, int]:
    """Return the rows of the smallest embedding that reads an input, by its name."""
    import torch

    device = next(model.parameters()).device
    x = dataset.inputs(np.arange(1))
    given = {name: torch.from_numpy(np.array(ids[:1], np.int64)).flatten() for name, ids in columns.items()}
    found: dict[str, int] = {}

    def note(module: Any, args: Any, named: Any) -> None:
        ids = [*args, *named.values()][0].detach().cpu().flatten()
        for name, own in given.items():
            if ids.dtype == own.dtype and torch.equal(ids, own):
                found[name] = min(found.get(name, module.num_embeddings), module.num_embeddings)

    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    hooks = [
        m.register_forward_pre_hook(note, with_kwargs=True) for m in model.modules() if isinstance(m, kinds)
    ]
    was_training = model.training
    forked = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    try:
        with forked, torch.no_grad(), suppress(Exception):  # the caller's own run says what fails
            model.eval()(x.to(device))
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return found
