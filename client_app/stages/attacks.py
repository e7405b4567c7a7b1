"""Simulated malicious clients, to test rules; run-config keys ``attack.*``, off by default.

With Delta_k = w_k - w^t, s = ``attack.scale`` and z = ``attack.deviations``, a malicious client k sends
instead of its model:

====================  ==================================================================  ================
kind                  what goes up                                                        s, z if 0
====================  ==================================================================  ================
sign-flip             w^t - s Delta_k                                                     1
scale                 w^t + s Delta_k                                                     10
gaussian              w^t + ``attack.std`` N(0, 1), drawn by seed, round and name
label-flip            w_k after training on labels C - 1 - y; what it sends is honest
little-is-enough      mean_j - z std_j of the benign clients, for each coordinate j       z_max
inner-product         w^t - s mean of the benign clients' Delta_j                         0.1
min-max, min-sum      their mean less z deviations, which no distance shows         the largest
mimic                 what the first benign client by name sends
backdoor              w_k after training on examples with a trigger
distributed-backdoor  w^t + s Delta_k of a training on examples with a part of it         1
model-replacement     w^t + s Delta_k, Delta_k of a backdoor's training                   C K
====================  ==================================================================  ================

`client_app.stages.crafted` has the ones that know the benign clients' updates. A backdoor is put into a share
``attack.poison`` of a malicious client's examples: a patch (`task.datasets.trigger`), and the label
``attack.target``. Where the server has a test set, ``attack-success`` says of each model how many of its
examples of other classes the patch brings there. Model replacement (Bagdasaryan et al., AISTATS 2020, arXiv
1807.00459) scales the update by n_S / n_k, here C K for K clients on the node, so that the mean becomes the
malicious client's model. A distributed backdoor (Xie, Huang, Chen, Li, ICLR 2020) cuts the trigger into four;
the malicious clients of a node have the parts in turn, by name, and one with data of its own draws its part.

Little-is-enough: Baruch, Baruch, Goldberg, NeurIPS 2019, arXiv 1902.06156, Algorithm 3. z_max is the z with
Phi(z) = (n - m - h) / (n - m), where m of the n clients are malicious and h = floor(n/2 + 1) - m honest ones
have to side with them. Here the attackers are omniscient: they know the benign updates of the round, as far
as those train on the same node. With one node that is the whole cohort; with several each node's attackers
know, and count, their own node's clients. It takes two benign clients on the node; with fewer the malicious
fail, and are quarantined by name. The attackers' own training does not count.

Only parameters are attacked: buffers, example counts and losses go up as they are. Of a record
that is a change itself, such as a gradient (`Record.base`), Delta_k is the record.

Who is malicious is drawn by seed and client name, for the whole run. Where a node knows all clients, as
nodes of one partition do, the round(fraction K) clients with the lowest draws are malicious; a node with data
of its own knows one client, which is malicious if its draw is below the fraction.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import torch

from client_app.data.node import Node
from client_app.stages.crafted import Vectors, crafted, vectors_of
from client_app.stages.stage import Outcome, Stage
from client_app.training.loop import Examples
from task.catalogue.entry import Algorithm
from task.config.attack_section import DEVIATING, INFORMED
from task.config.knobs import Config
from task.datasets.base import centre
from task.datasets.trigger import stamped
from task.errors import FieldError
from task.numerics.arrays import Arrays
from task.numerics.seeds import ATTACK, POISON, rng_for
from task.privacy.canaries import is_canary
from task.wire import messages as wire
from task.wire.layouts import base_of

DEFAULT_SCALE = {"sign-flip": 1.0, "scale": 10.0, "distributed-backdoor": 1.0}


class Attack(Stage):
    """Makes a node's malicious clients train or send as the attack demands."""

    names = ("attack",)

    def __init__(self, node: Node, entry: Algorithm, order: wire.TrainOrder) -> None:
        super().__init__(node, entry, order)
        self._made: Vectors = {}  # what all malicious clients that know the benign ones send

    def examples(self, examples: Examples, cohort: Sequence[str]) -> Examples:
        """Flip the labels of the malicious, or put the trigger into a share of their examples."""
        config, bad = self.node.config, self._malicious()
        attack, classes = config.attack, self.node.dataset.num_classes
        y, sizes = examples.y, examples.sizes
        if attack.kind == "label-flip":
            flipped = torch.from_numpy(np.repeat([c in bad for c in cohort], sizes))
            flipped = flipped.to(y.device).view(-1, *[1] * (y.dim() - 1))
            return replace(examples, y=torch.where(flipped, flip_labels(y, classes), y))
        if not attack.backdoor or not bad.intersection(cohort):
            return examples
        drawn = []
        for client, n in zip(cohort, sizes, strict=True):
            order = rng_for(config.seeds.train, POISON, 0, client).permutation(n)
            drawn.append(order < round(attack.poison * n) if client in bad else np.zeros(n, bool))
        rows = torch.from_numpy(np.concatenate(drawn)).to(y.device)
        held, y = examples.held.clone(), y.clone()
        x = centre(held, self.node.dataset.crop)  # what a model reads without augmentation, a view
        if attack.parts == 1:
            x[rows] = stamped(x[rows])
        else:
            owner = torch.from_numpy(np.repeat([self._part(c) for c in cohort], sizes)).to(y.device)
            for part in range(attack.parts):
                mine = rows & (owner == part)
                x[mine] = stamped(x[mine], attack.parts, part)
        y[rows] = attack.target
        return replace(examples, given=held, y=y)

    def _part(self, client: str) -> int:
        """Return which part of a trigger that is cut a client has; -1 = none, it is not malicious."""
        config, bad = self.node.config, sorted(self._malicious())
        if client not in bad:
            return -1
        if len(self.node.clients.names) == 1:
            return int(rng_for(config.seeds.train, POISON, 1, client).integers(config.attack.parts))
        return bad.index(client) % config.attack.parts

    def send(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Pass on the clients' uploads as they come, with those of the malicious replaced."""
        kind, bad = self.node.config.attack.kind, self._malicious()
        parameters = self.node.parts().trainable
        benign, waiting, known = _Moments(parameters), [], dict[str, wire.ClientUpdate]()
        for client, outcome in outcomes:
            if isinstance(outcome, Exception) or kind in ("none", "label-flip", "backdoor"):
                yield client, outcome
            elif client not in bad:
                if kind == "little-is-enough":
                    benign.add(outcome.arrays)
                elif kind in INFORMED:
                    known[client] = outcome
                yield client, outcome
            elif kind in INFORMED:
                waiting.append((client, outcome))
            else:
                yield client, self.remeasured(client, self._alone(client, outcome))
        count, least = max(benign.count, len(known)), 1 if kind in ("inner-product", "mimic") else 2
        vectors = [vectors_of(known[c].arrays, parameters) for c in sorted(known)]
        for client, upload in waiting:
            if count < least:
                wanted = f"{least} or more benign clients on the node, to imitate them"
                yield client, FieldError("", wanted, str(count))
            elif kind != "little-is-enough":
                yield client, self.remeasured(client, self._crafted(client, upload, vectors))
            else:
                z = self.node.config.attack.deviations or z_max(benign.count + len(waiting), len(waiting))
                arrays = benign.shifted(upload.arrays, -z)
                yield client, self.remeasured(client, replace(upload, arrays=arrays, codes={}))

    def _crafted(
        self, client: str, upload: wire.ClientUpdate, benign: Sequence[Vectors]
    ) -> wire.ClientUpdate:
        """Return the upload of a malicious client that knows the benign ones'."""
        attack, out = self.node.config.attack, {field: dict(a) for field, a in upload.arrays.items()}
        if not self._made:
            base = vectors_of(self._bases(client, upload), self.node.parts().trainable)
            zero = {at: base.get(at, np.zeros(1)) for at in benign[0]}
            s = attack.scale if attack.kind == "inner-product" else 0.0
            z = attack.deviations if attack.kind in DEVIATING else 0.0
            self._made = crafted(attack.kind, benign, zero, s or z)
        for (field, name), values in self._made.items():
            out[field][name] = values.astype(out[field][name].dtype)
        return replace(upload, arrays=out, codes={})

    def _bases(self, client: str, upload: wire.ClientUpdate) -> dict[str, Arrays]:
        """Return by record what the parameters of an upload are relative to, where they are."""
        parameters, records = self.node.parts().trainable, {r.name: r for r in self.entry.up}
        found = {f: base_of(records[f], self.order.received(client), parameters) for f in upload.arrays}
        return {field: base for field, base in found.items() if base}

    def _alone(self, client: str, upload: wire.ClientUpdate) -> wire.ClientUpdate:
        """Return the upload of a malicious client that needs no other client's."""
        config, parameters = self.node.config, self.node.parts().trainable
        kind, rng = config.attack.kind, rng_for(config.seeds.train, ATTACK, self.order.round, client)
        out: dict[str, Arrays] = {}
        records = {r.name: r for r in self.entry.up}
        for field, arrays in upload.arrays.items():
            bases = base_of(records[field], self.order.received(client), parameters)
            assert bases is not None  # else the attack was refused before round 1
            out[field] = dict(arrays)
            for name in (n for n in parameters if n in arrays):
                a = arrays[name]
                base = bases[name].astype(np.float64) if name in bases else 0.0
                if kind == "gaussian":
                    sent = base + config.attack.std * rng.standard_normal(a.shape)
                else:
                    s = config.attack.scale or DEFAULT_SCALE.get(kind) or self._cohort()
                    sent = base + (-s if kind == "sign-flip" else s) * (a - base)
                out[field][name] = sent.astype(a.dtype)
        return replace(upload, arrays=out, codes={})

    def _cohort(self) -> float:
        """Return C K, K the clients that the node knows: what a mean divides an update by, if equal."""
        return float(max(round(self.node.config.server.fraction_train * len(self.node.clients.names)), 1))

    def _malicious(self) -> frozenset[str]:
        return malicious(self.node.config, tuple(self.node.clients.names))


def drawn(node: Node, clients: Collection[str]) -> bool:
    """Return whether some clients' uploads all follow from the run's seed and what they received."""
    config = node.config
    bad = malicious(config, tuple(node.clients.names)) if config.attack.kind == "gaussian" else frozenset()
    return bool(clients) and all(c in bad or is_canary(config, c) for c in clients)


@lru_cache(maxsize=4)
def malicious(config: Config, names: tuple[str, ...]) -> frozenset[str]:
    """Return the malicious ones among all clients that a node knows; none if there is no attack."""
    attack = config.attack
    if attack.kind == "none":
        return frozenset()
    draws = {name: rng_for(config.seeds.train, ATTACK, 0, name).random() for name in names}
    if len(names) == 1:
        return frozenset(name for name, draw in draws.items() if draw < attack.fraction)
    return frozenset(sorted(draws, key=draws.__getitem__)[: round(attack.fraction * len(names))])


def flip_labels(y: torch.Tensor, classes: int) -> torch.Tensor:
    """Return C - 1 - y; padding (negative targets) stays."""
    return torch.where(y >= 0, classes - 1 - y, y)


def z_max(n: int, m: int) -> float:
    """Return the largest z that passes for benign, of n clients with m malicious; at least 0.

    If the malicious clients are the majority, they need no supporters; the limit is that of one more client.
    """
    h = max(math.floor(n / 2 + 1) - m, 1)
    share = (n - m - h) / (n - m)
    return max(NormalDist().inv_cdf(share), 0.0) if 0 < share < 1 else 0.0


@dataclass
class _Moments:
    """Running mean and sum of squared deviations (Welford) of the benign clients' parameters."""

    parameters: Sequence[str]

    def __post_init__(self) -> None:
        self.count = 0
        self.mean: dict[tuple[str, str], np.ndarray] = {}
        self.squares: dict[tuple[str, str], np.ndarray] = {}

    def add(self, records: dict[str, Arrays]) -> None:
        """Take in one client's records."""
        self.count += 1
        for field, arrays in records.items():
            for name in (n for n in self.parameters if n in arrays):
                x, at = arrays[name].astype(np.float64), (field, name)
                mean = self.mean.setdefault(at, np.zeros(x.shape))
                step = x - mean
                mean += step / self.count
                self.squares[at] = self.squares.get(at, 0.0) + step * (x - mean)

    def shifted(self, records: dict[str, Arrays], z: float) -> dict[str, Arrays]:
        """Return mean + z std (over all that were added) of the parameters, and the rest of `records`."""
        out = {field: dict(arrays) for field, arrays in records.items()}
        for (field, name), mean in self.mean.items():
            std = np.sqrt(self.squares[field, name] / self.count)
            out[field][name] = (mean + z * std).astype(records[field][name].dtype)
        return out
