"""Server half of ``codec.down``: sends the model as codes.

With w^t the model that clients have, w the rule's next one and C the codec:

    A += w - w^t;  c = C(A);  w^{t+1} = w^t + c;  A -= c        (Sattler et al. 2020, Algorithm 2; biased C)
    c = C(w - w^t);  w^{t+1} = w^t + c                          (unbiased C, which need no memory)

The run's model is w^{t+1}: clients train from it, it is what is measured, written down and what the rule
works with in the next round. Buffers go as they are.

A node that has the model of a former round is sent the codes since then, if they are smaller than the model.
Models are identified by the SHA-256 of their arrays, and the node checks its result. A node that has lost its
copy reports it, and is sent the whole model.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from strategies.engine.channel import Opened
from strategies.engine.fold import Folded
from strategies.engine.stage import Outgoing, ServerStage
from task.codecs import codec_by
from task.config.knobs import Config
from task.numerics import seeds
from task.numerics.arrays import Arrays, NamedArrays, of_text, sha256, text_in
from task.numerics.held import dense
from task.wire import messages as wire
from task.wire.replica import BASE, LOST, MODEL, Step, Steps, codable, steps_record

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine

RESIDUAL, OWNER, NEWEST = "download/residual/", "download/owner", "download/newest"
MOST_STEPS = 1000  # codes that are held for nodes that were away


class Download:
    """The downloads that later codes may build on."""

    def __init__(self, config: Config) -> None:
        self.seed = config.seeds.train
        self.codec = codec_by(config.codec.down, config.codec)
        self.residual: Arrays = {}  # A
        self.owner = ""  # the model that lacks A; other models lack nothing
        self.newest = 0  # bytes of the code that has come to it
        self.steps: list[Step] = []  # the last codes, in the order of rounds
        self.known: dict[int, str] = {}  # by node, the model that it has
        self._named: tuple[Arrays, str] = {}, ""

    def coded(self, old: Arrays, new: Arrays, trainable: Sequence[str], server_round: int) -> Arrays:
        """Return the model that clients will have, given the one that they have and the rule's next one."""
        if self.codec is None:
            return new
        names, owed = codable(new, trainable), self.residual if self.id_of(old) == self.owner else {}
        target = {n: new[n] + owed[n] if owed else new[n] for n in names}
        x = {n: target[n] - old[n] for n in names}
        code, left = self.codec.encode(x, target, seeds.seed_for(self.seed, seeds.DOWNLOAD, server_round))
        made = self.codec.decode(code, {n: old[n] for n in names}, wire.ARRAYS)
        model = {**new, **{n: dense(a) for n, a in made.items()}}
        before, self.owner, self.newest = self.id_of(old), self.id_of(model), len(code)
        self.residual = {n: dense(a) for n, a in left.items()}
        chain = (
            self.steps if self.steps and self.steps[-1].after == before else []
        )  # otherwise the run was rolled back
        self.steps = [*chain, Step(before, self.owner, code)][-MOST_STEPS:]
        return model

    def bytes_of(self, model: Arrays, trainable: Sequence[str]) -> int:
        """Return the bytes of a model on its way down to a device that has the one before it."""
        whole = sum(a.nbytes for a in model.values())
        if self.codec is None or self.id_of(model) != self.owner:
            return whole
        return min(whole, whole - sum(model[n].nbytes for n in codable(model, trainable)) + self.newest)

    def id_of(self, model: Arrays) -> str:
        """Return the id of a model."""
        if self._named[0] is not model:
            self._named = model, sha256(model)
        return self._named[1]

    def steps_for(self, node: int, model: Arrays) -> Steps:
        """Return the codes that update a node to a model, or no base if the whole model is smaller."""
        goal, since = self.id_of(model), self.known.get(node, "")
        if since == goal:
            return Steps(goal, since, ())
        begins = [i for i, step in enumerate(self.steps) if step.before == since]
        ends = [i for i, step in enumerate(self.steps) if step.after == goal]
        if begins and ends:
            codes = tuple(step.code for step in self.steps[begins[-1] : ends[-1] + 1])
            if 0 < sum(map(len, codes)) < sum(a.nbytes for a in model.values()):
                return Steps(goal, since, codes)
        return Steps(goal, "", ())

    def dump(self) -> Arrays:
        """Return what the next round depends on, for a checkpoint."""
        if not self.owner:
            return {}
        owner = of_text(self.owner)
        return {
            OWNER: owner,
            NEWEST: np.array(self.newest),
            **{f"{RESIDUAL}{n}": a for n, a in self.residual.items()},
        }

    def load(self, arrays: NamedArrays) -> None:
        """Take up what `dump` returned; nodes get the whole model next."""
        self.steps, self.known = [], {}
        self.owner = text_in(arrays[OWNER]) if OWNER in arrays else ""
        self.newest = int(arrays.get(NEWEST, 0))
        self.residual = {n.removeprefix(RESIDUAL): a for n, a in arrays.items() if n.startswith(RESIDUAL)}


class ReplicaStage(ServerStage):
    """Sends codes of the model to nodes that have an earlier one."""

    name = "replica"
    lacks = LOST

    def __init__(self, engine: "PhaseEngine") -> None:
        super().__init__(engine)
        self.download = Download(engine.config)

    def coded(self, arrays: Arrays) -> Arrays:
        """Return the model that clients will have when a rule has made this one."""
        engine = self.engine
        return self.download.coded(engine.model, arrays, engine.trainable, engine.round)

    def attach(self, opened: Opened, out: Outgoing) -> None:
        """Send codes instead of the model, if the node has their base."""
        engine = self.engine
        if opened.phase.records.get(wire.ARRAYS) is not engine.model:
            return
        if engine.registry.membership.claims[out.node].registration.stock:  # its app reads no codes
            return
        steps = self.download.steps_for(out.node, engine.model)
        out.entries[MODEL] = steps.model
        if steps.base:
            out.entries[BASE] = steps.base
            out.records[wire.ARRAYS] = steps_record(steps, engine.model, engine.trainable)

    def whole(self, content: RecordDict) -> RecordDict:
        """Return an order's content with the model whole, for a node that cannot go on from another one."""
        config = wire.records_of(content, ConfigRecord)[wire.CONFIG]
        if BASE not in config:
            return content
        rest = ConfigRecord({k: v for k, v in config.items() if k != BASE})
        arrays = self.engine.record(self.engine.model)
        return RecordDict({**content, wire.ARRAYS: arrays, wire.CONFIG: rest})

    def bytes_down(self, model: Arrays) -> int:
        """Return the bytes of a model on its way down to a device that has the one before it."""
        return self.download.bytes_of(model, self.engine.trainable)

    def after_fold(self, opened: Opened, folded: Folded) -> None:
        """Take note of the models that nodes have: those that answered well have what they were sent."""
        for m in opened.requests:
            if model := wire.entry_of(m.content, MODEL):
                node = m.metadata.dst_node_id
                self.download.known[node] = str(model) if node in opened.reached else ""

    def dump(self) -> Arrays:
        """Return what the next round depends on, for a checkpoint."""
        return self.download.dump()

    def load(self, arrays: NamedArrays, done: int) -> None:
        """Take up what `dump` returned; nodes get the whole model next."""
        self.download.load(arrays)
