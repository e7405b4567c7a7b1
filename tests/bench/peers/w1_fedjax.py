"""W1 in FedJAX: its ``federated_averaging`` with one compiled step."""

from __future__ import annotations

from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

from tests.bench.peers import common

# FedJAX 0.0.17 still uses this name, which jax has dropped; with a jax that has it, it is slower.
if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map


def first_model() -> dict[str, Any]:
    """Return the layers, drawn as torch draws them: uniform within 1 / sqrt(inputs)."""
    rng = np.random.default_rng(common.SEED)
    params = {}
    for i, (n, m) in enumerate(zip(common.LAYERS[:-1], common.LAYERS[1:], strict=True)):
        bound = n**-0.5
        params[f"w{i}"] = jnp.asarray(rng.uniform(-bound, bound, (n, m)), jnp.float32)
        params[f"b{i}"] = jnp.asarray(rng.uniform(-bound, bound, m), jnp.float32)
    return params


def logits(params: dict[str, Any], x: Any) -> Any:
    last = len(common.LAYERS) - 2
    for i in range(last):
        x = jax.nn.relu(x @ params[f"w{i}"] + params[f"b{i}"])
    return x @ params[f"w{last}"] + params[f"b{last}"]


def loss(params: dict[str, Any], batch: dict[str, Any], rng: Any) -> Any:
    scores = jax.nn.log_softmax(logits(params, batch["x"]))
    return -jnp.mean(jnp.take_along_axis(scores, batch["y"][:, None], axis=1))


@jax.jit
def right(params: dict[str, Any], x: Any, y: Any) -> Any:
    return jnp.sum(jnp.argmax(logits(params, x), 1) == y)


def main() -> None:
    task = common.Task()
    x, y = task.test
    starts = range(0, len(y), common.EVAL_BATCH)
    batches = [(x[i : i + common.EVAL_BATCH], y[i : i + common.EVAL_BATCH].astype(np.int32)) for i in starts]
    data = {
        k: fedjax.ClientDataset({"x": images, "y": labels.astype(np.int32)})
        for k, (images, labels) in ((k, task.client(k)) for k in range(common.CLIENTS))
    }
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(common.LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=common.BATCH, num_epochs=common.EPOCHS),
    )
    state = algorithm.init(first_model())
    key = jax.random.PRNGKey(common.SEED)

    def write() -> None:
        task.write(sum(int(right(state.params, xb, yb)) for xb, yb in batches) / len(y))

    write()
    for _ in range(task.rounds):
        key, *keys = jax.random.split(key, common.COHORT + 1)
        cohort = [(k, data[k], rng) for k, rng in zip(task.draw(), keys, strict=True)]
        state, _ = algorithm.apply(state, cohort)
        write()


if __name__ == "__main__":
    main()
