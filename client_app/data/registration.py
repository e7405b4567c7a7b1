"""The content of a node's registration, after a trial of the run's work on its data."""

import numpy as np

from client_app.data.frozen import hold, in_store
from client_app.data.node import Node, OneClient, app_version
from client_app.solvers import solver_of
from task.config.paths import state_root
from task.config.read import as_run_config
from task.datasets.base import compared
from task.datasets.description import described, meaning_of
from task.datasets.public import CODE
from task.encryption.ckks import KEY_FILE
from task.errors import ConfigError
from task.features.frozen import FEATURE
from task.numerics.kernels import kernels
from task.portable import KERNELS
from task.privacy.canaries import CLAIMED, canary_names
from task.references import code_of, is_reference, references_in
from task.resolve.contract import contract_of
from task.resolve.model_checks import check_augment, check_levels, check_model
from task.tasks.base import check_fits
from task.wire.frozen import OWN_FROZEN
from task.wire.registration import Registration


def registration_of(node: Node) -> Registration:
    """Return what a node registers with.

    Raises:
        ConfigError: It cannot do the work of the run on its data, naming the key; before round 1.
    """
    config, data, entry = node.config, node.dataset, contract_of(node.config)
    _try_work(node)
    own, canaries = isinstance(node.clients, OneClient), canary_names(config)
    if own and canaries:
        raise ConfigError(
            'run-config key "audit.canaries": expected 0 where nodes bring their own data, as '
            f"canaries are clients of a partition; got {len(canaries)}"
        )
    names, counts = node.clients.names, node.clients.num_train()
    if canaries:
        names, counts = [*names, *canaries], np.concatenate([counts, np.full(len(canaries), CLAIMED)])
    # Of a party's columns the others see embeddings only.
    shape = (config.vertical.cut,) if entry.vertical else data.input_shape
    return Registration(
        names, counts, node.pool, node.share, app_version(), shape, data.num_classes,
        code=_code(node), width=node.width, model=node.named, meaning=meaning_of(data),
        names=described(data) if node.owner.names else None, frozen=_frozen(node), lacks=node.lacks,
    )  # fmt: skip


def _try_work(node: Node) -> None:
    """Refuse a model, task, loss, solver or level that cannot be trained on the data of a node."""
    config, task, entry = node.config, node.task, contract_of(node.config)
    if entry.statistics:
        return  # no model reads the rows, which may lack values
    shape, classes = node.dataset.input_shape, node.dataset.num_classes
    check_augment(config, shape, node.dataset.kind)
    # Only this node has examples to try a user's model on; a party's model is made for what it sends.
    if isinstance(node.clients, OneClient) and not entry.vertical:
        check_model(config, shape, classes, task.name, node.dataset)
    if not task.plain or task.measures.own or is_reference(config.model) or node.dataset.form:
        check_fits(task, node.model(), node.dataset)
    for part in (entry, *(p for p in entry.phases.values() if p.work == "train")):
        solver_of(part.solver)  # a user's own may be none
    if config.parted:
        node.local_model()  # which the run's model may not have
    names = config.model_names
    if node.named and node.named not in names:
        raise ConfigError(
            f'node config "model": expected one of the run\'s, {", ".join(names)} (run-config key '
            f'"models.levels"); got "{node.named}"'
        )
    check_levels(config, shape, classes, node.dataset)
    levels = [r for r, _ in config.widths]
    if node.width and node.width not in levels:
        has = ", ".join(f"{r:g}" for r in levels)
        raise ConfigError(
            f'node config "width": expected one of the run\'s levels, {has} (run-config key '
            f'"{config.part_key}"); got {node.width:g}'
        )


def _frozen(node: Node) -> tuple[str, ...]:
    """Return the digests of the frozen parts that a node has."""
    if not FEATURE.active(node.config, contract_of(node.config)):
        return ()
    mine, arrays = node.own_frozen()
    if mine:
        hold(mine, arrays)
    return (mine, *in_store(state_root(node.config))) if mine else ()


def _code(node: Node) -> dict[str, str]:
    """Return the digests of a node's inputs besides the installed app: user code, public examples."""
    code = code_of(references_in(as_run_config(node.config)))
    if node.config.server.he:
        code[KEY_FILE] = node.key().id
    if node.config.train.portable:
        code[KERNELS] = kernels()
    if node.owner.initial_model and (mine := _frozen(node)):
        code[OWN_FROZEN] = mine[0]
    if public := node.public():
        code[CODE] = public.sha256
    if not isinstance(node.clients, OneClient):
        code |= compared(node.dataset, node.config.data)
    return code
