"""Options of a node on its machine, and how they reach its app and its processes."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from server_app.deploy.host.policy import Site
from server_app.deploy.kits.kit import NodeKit, Policy
from task.encryption import ckks
from task.errors import ConfigError
from task.privacy.noise_ledger import DELTA, MAX_EPSILON
from task.secagg.identity import REQUIRED


@dataclass(frozen=True)
class Options:
    """How a node runs on its machine.

    Attributes:
        data: Its data; None = it stands in for clients of the run's partition.
        partition: Which share of the partition, and of how many, where there is no data.
        max_memory: Most bytes that its processes use together; 0 = no limit.
        threads: Most threads of a task; 0 = no limit.
        bandwidth: Bytes per second to and from the SuperLink; 0 = no limit.
        may_train: Program that is asked before each training task.
        http: Whether the Fleet API is HTTP: that of a stock SuperLink (Flower 1.40 or later), or of a
            link's key fleet-http.
        width: Share of each hidden layer's units that its model has, one of a run's width.levels; 0 = the run
            says.
        model: Name of its model, one of a run's models.levels; "" = the run says.
        initial_model: File that has the frozen part of runs' models, which then does not travel; None = none.
        column_types: What the owner declares of a csv file's columns, as its header could; "" = nothing.
    """

    data: Path | None = None
    partition: tuple[int, int] | None = None
    max_memory: int = 0
    threads: int = 0
    bandwidth: float = 0.0
    may_train: str = ""
    http: bool = False
    width: float = 0.0
    model: str = ""
    initial_model: Path | None = None
    column_types: str = ""


def check(options: Options) -> None:
    """Refuse what cannot work, before anything is started.

    Raises:
        ConfigError: Naming the option.
    """
    if options.data is not None:
        if options.partition is not None:
            raise ConfigError("--partition: a node with --data trains on those data; give only one of them")
        if not options.data.exists():
            raise ConfigError(f"--data: expected a file or folder; got none at {options.data}")
        needs = os.R_OK | os.X_OK if options.data.is_dir() else os.R_OK
        if not os.access(options.data, needs):
            raise ConfigError(
                f"--data: expected a path that this user (uid {os.getuid()}) can read; got {options.data}"
            )
    if options.column_types and options.data is None:
        raise ConfigError("--column-types: expected with --data, a csv file; got it alone")
    if (options.width or options.model) and options.data is None:
        key = "--width" if options.width else "--model"
        raise ConfigError(
            f"{key}: expected with --data; without it, other nodes may train this one's clients"
        )
    if options.partition is not None and not 0 <= options.partition[0] < options.partition[1]:
        raise ConfigError(
            "--partition: expected I/N with I from 0 to N - 1; got {}/{}".format(*options.partition)
        )
    if options.initial_model and not os.access(options.initial_model, os.R_OK):
        raise ConfigError(f"--initial-model: expected a file that can be read; got {options.initial_model}")
    if options.may_train and not os.access(options.may_train, os.X_OK):
        raise ConfigError(f"--may-train: expected a program that can be run; got {options.may_train}")


def read_partition(text: str) -> tuple[int, int] | None:
    """Return I and N of ``I/N``; None for "".

    Raises:
        ConfigError: It is no such pair.
    """
    if not text:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise ConfigError(f"--partition: expected I/N, such as 0/3; got {text!r}")
    return int(match[1]), int(match[2])


def site(kit: NodeKit, options: Options) -> Site:
    """Return what the owner of this machine allows."""
    policy, audit = kit.policy, str(kit.logs / "audit.log")
    return Site(
        policy.apps, policy.max_rounds, policy.min_examples, policy.min_steps, options.may_train,
        options.threads, audit,
    )  # fmt: skip


def node_config(
    name: str, options: Options, policy: Policy, models: Path | None = None, key: Path | None = None
) -> dict[str, str | int | float | bool]:
    """Return the node config that the app gets: who the node is, and what its owner allows.

    `models` is the folder for models that the owner wants to keep, `key` the file of the key that nodes
    encrypt with, which may come later.
    """
    values: dict[str, str | int | float | bool] = {}
    if options.data is not None:
        values = {"client-name": name, "data-path": str(options.data.resolve())}
        values |= {"column-types": options.column_types} if options.column_types else {}
        values |= {"width": options.width} if options.width else {}
        values |= {"model": options.model} if options.model else {}
    elif options.partition is not None:
        values = {"partition-id": options.partition[0], "num-partitions": options.partition[1]}
    allowed: dict[str, str | int | float | bool] = {
        "min-examples": policy.min_examples, "min-steps": policy.min_steps, "run-paths": policy.run_paths,
        "packages": ",".join(policy.packages), REQUIRED: policy.secagg,
        "keep-models": str(models) if policy.keep_models and models else "",
        "names": policy.names, "own-model": policy.own_model,
        "max-questions": policy.max_questions, "missing-counts": policy.missing_counts,
        "pooled-counts": policy.pooled_counts,
        "initial-model": str(options.initial_model.resolve()) if options.initial_model else "",
        MAX_EPSILON: policy.max_epsilon, DELTA: policy.delta if policy.max_epsilon else 0,
        ckks.REQUIRED: policy.he, ckks.NODE_KEY: str(key) if key else "",
    }  # fmt: skip
    return values | {key: value for key, value in allowed.items() if value}


def environment(kit: NodeKit, options: Options) -> dict[str, str]:
    """Return what is added to the environment of the node's processes."""
    return kit.environment() | shared_environment(options)


def shared_environment(options: Options) -> dict[str, str]:
    """Return the part that does not depend on the kit; libraries read it when they are loaded."""
    env: dict[str, str] = {}
    if options.threads:
        env |= dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(options.threads)
        )
    if options.max_memory:
        env["MALLOC_ARENA_MAX"] = "2"  # each arena keeps its freed memory
    return env
