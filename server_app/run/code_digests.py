"""Digests of a run's inputs besides the installed app: user code, public examples, key and kernels."""

from collections.abc import Mapping
from typing import Any

from server_app.run.encryption import check_key
from server_app.run.public_examples import check_public
from task.config.knobs import Config
from task.datasets import Dataset
from task.datasets.base import compared
from task.datasets.public import CODE
from task.numerics.kernels import kernels
from task.portable import KERNELS
from task.references import code_of, references_in
from task.resolve.contract import contract_of


def code_of_run(config: Config, keys: Mapping[str, Any], dataset: Dataset | None) -> dict[str, str]:
    """Return all digests by name; `dataset` is the server's.

    Raises:
        BouquetError: A part of it is missing, or cannot be that of all parties.
    """
    code = {**code_of(references_in(keys)), **check_key(config), **check_public(config, dataset)}
    return code | {KERNELS: kernels()} if config.train.portable else code


def expected_of_nodes(config: Config, code: Mapping[str, str], dataset: Dataset | None) -> dict[str, str]:
    """Return what nodes have to register: the same code, and the same data where the server has them."""
    public = contract_of(config).public
    expected = {name: digest for name, digest in code.items() if public or name != CODE}
    return expected | (compared(dataset, config.data) if dataset else {})
