"""Decide which node represents a client if several claim its name, or if nodes' data do not fit together.

A node *brings its own data* if it hosts one client in a pool of that client's name; any other hosts clients
of the run's partition, which several nodes may (see `strategies.membership.client_registry`). A node's own
data have one owner, and it is never guessed which:

* Where nodes are enrolled by name (``flwr supernode register --name``), a node may bring its own data only
  under its own name, and no node may host a partition in the same run.
* Of two pools that bring one name, the one that held it before keeps it as long as a node of it is online;
  else the one whose node was registered first with the SuperLink has it. The other is refused, by name.
* Of two nodes of one pool the one that registered last takes the other's place: the former is the ghost of a
  node that was killed and came back.
* Nodes of a partition must agree on the number of its clients. The number that more than half of them count
  holds for the run; the others are refused, by name.
* Where the run's data are the nodes' own, the same goes for the shape of an example and the number of
  classes; see `strategies.membership.client_registry.ClientRegistry.shape_of_data`. So it does for what all
  data mean: columns, categories, targets and classes; see `strategies.membership.agreement`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from strategies.membership.agreement import Agreement, Voter, agree
from task.datasets.base import ROWS
from task.datasets.public import CODE as PUBLIC
from task.encryption.ckks import KEY_FILE
from task.population import ClientNames, some
from task.portable import KERNELS
from task.wire.frozen import OWN_FROZEN
from task.wire.registration import Data, Registration


def in_words(data: Data) -> str:
    """Return a shape and a number of classes as errors have them."""
    return f"shape {list(data[0])}, {data[1]} classes"


@dataclass(frozen=True)
class OnlineNode:
    """A node that is online, as the SuperLink lists it."""

    id: int
    name: str = ""  # the name that it was enrolled under, "" if none
    since: str = ""  # changes each time the node is back
    registered: str = ""  # when it was registered with the SuperLink, as text that sorts

    def __str__(self) -> str:
        return f"node {self.name or self.id}"


@dataclass(frozen=True)
class Claim:
    """What a node registered, and its place in the sequence of registrations."""

    node: OnlineNode
    registration: Registration
    sequence: int

    @property
    def own(self) -> str:
        """The client whose data the node brings; "" if it hosts clients of a partition."""
        clients, pool = self.registration.clients, self.registration.pool
        return clients[0] if len(clients) == 1 and clients[0] and pool.endswith(f"/{clients[0]}") else ""


@dataclass
class Admission:
    """Which nodes take part."""

    admitted: set[int] = field(default_factory=set)  # nodes that do
    refused: dict[int, str] = field(default_factory=dict)  # by node, why it does not
    # By replaced node, the new node and the client.
    replaced: dict[int, tuple[int, str]] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)  # by client that a node brings, the pool of its data
    size: int = 0  # clients of the partition; 0 if no node hosts one
    agreement: Agreement = field(default_factory=Agreement)  # what the nodes' data mean
    # Refused nodes whose partition or data differ from the others'.
    deviating: set[int] = field(default_factory=set)
    ambiguous: str = ""  # why a person must decide before the first round; "" if all is clear


def admit(
    claims: Iterable[Claim],
    held: Mapping[str, str],
    size: int = 0,
    data: Data | None = None,
    why_no_stock_clients: str = "",
    code: Mapping[str, str] | None = None,
    agreement: Agreement | None = None,
) -> Admission:
    """Decide which nodes take part.

    `held`, `size` and `agreement` are those of the last `Admission`: with size 0, and for what is not in the
    agreement, most nodes decide. `data` is what own data must be like (None: anything), and
    `why_no_stock_clients` is what a ClientApp that is not Bouquet's cannot do in this run ("": it can take
    part). `code` has, by package, the hash of what the run's user brings.
    """
    done, known = Admission(held=dict(held), size=size), agreement or Agreement()
    by_client: dict[str, list[Claim]] = {}
    shared: list[Claim] = []
    ordered = sorted(claims, key=lambda c: c.node.id)
    for claim in ordered:
        theirs, node = claim.registration.data, claim.node
        if code and (differs := _other_code(claim.registration, code)):
            done.deviating.add(node.id)
            done.refused[node.id] = differs
        elif data and theirs and theirs != data:
            done.deviating.add(node.id)
            why = f"has data of {in_words(theirs)}; the others have {in_words(data)}"
            done.refused[node.id] = known.refuses(claim.own, claim.registration.meaning) or why
        elif not claim.own:
            shared.append(claim)
        elif node.name not in ("", claim.own):
            done.refused[node.id] = f"says that it is client {claim.own!r}, but is enrolled as {node.name!r}"
        else:
            by_client.setdefault(claim.own, []).append(claim)
    for client in sorted(by_client):
        _admit_own(client, by_client[client], done)
    if shared:
        enrolled = any(c.node.name for group in by_client.values() for c in group)
        _admit_shared(shared, done, enrolled)
    _admit_alike(ordered, done, known)
    done.ambiguous = done.ambiguous or _declared_by_none(ordered, done)
    if why_no_stock_clients:
        _refuse_foreign(ordered, done, why_no_stock_clients)
    return done


def _other_code(registered: Registration, code: Mapping[str, str]) -> str:
    """Return which package of a node is not the run's own copy, "" if all are."""
    for package, digest in code.items():
        theirs = registered.code.get(package, "")
        if theirs == digest or (registered.stock and package != KERNELS):
            continue
        if package == ROWS:
            if not theirs:  # its data are its own
                continue
            return (
                "has a data set that differs from the server's in its rows or in their order. Give "
                "both the same files, or code that returns the same rows each time: seed its random numbers"
            )
        if package == OWN_FROZEN:
            if not theirs:  # it has no file, and is sent what it lacks
                continue
            return (
                f"has a file with another frozen part of the model than the run's: expected SHA-256 "
                f"{digest[:12]}, got {theirs[:12]}; give the node the run's file, or none (its node config, "
                "initial-model)"
            )
        if package == KEY_FILE:
            return (
                f"encrypts with a different key than the run's, {digest[:12]}...: got "
                f"{theirs[:12] + '...' if theirs else 'none'}; copy {KEY_FILE} to its kit again"
            )
        if package == KERNELS:
            return (
                f"computes different bits: expected kernels {_short(digest)}, those of the run's server, got "
                f"{_short(theirs) if theirs else 'none'}; install the same torch and NumPy on both, or unset "
                '"portable": results then depend on these machines'
            )
        if package == PUBLIC:
            return (
                f"has other public examples: expected those of SHA-256 {digest[:12]}..., the run's, "
                f"got {theirs[:12] + '...' if theirs else 'none'}; give all parties the same data set, "
                '"public.data" and seed'
            )
        return (
            f'has different code as "{package}": expected SHA-256 {digest[:12]}..., got '
            f"{theirs[:12] + '...' if theirs else 'none'}; copy the same files to the node"
        )
    return ""


def _short(kernels: str) -> str:
    name, _, digest = kernels.partition(" ")
    return f"{name} {digest[:12]}..."


def _admit_own(client: str, claims: Sequence[Claim], done: Admission) -> None:
    """Choose among the nodes that bring one client's data."""
    enrolled = [c for c in claims if c.node.name]
    for claim in claims:
        if enrolled and not claim.node.name:
            why = f"says that it is client {client!r}, the enrolled name of {enrolled[0].node}"
            done.refused[claim.node.id] = why
    pools: dict[str, list[Claim]] = {}
    for claim in enrolled or claims:
        pools.setdefault(claim.registration.pool, []).append(claim)
    pool = done.held.get(client, "")
    if pool not in pools:
        first = min(enrolled or claims, key=lambda c: (c.node.registered, c.registration.pool))
        pool = first.registration.pool
        if len(pools) > 1:
            nodes = " and ".join(str(group[-1].node) for _, group in sorted(pools.items()))
            done.ambiguous = (
                f"{nodes} bring their own data as client {client!r}; give each its own client-name"
            )
    done.held[client] = pool
    last = max(pools[pool], key=lambda c: c.sequence)
    done.admitted.add(last.node.id)
    for other, group in pools.items():
        for claim in group:
            if other != pool:
                done.refused[claim.node.id] = f"says that it is client {client!r}, which {last.node} is"
            elif claim is not last:
                done.replaced[claim.node.id] = last.node.id, client


def _admit_shared(claims: Sequence[Claim], done: Admission, enrolled: bool) -> None:
    """Choose among the nodes that host clients of a partition."""
    hosted = [(c.node, c.registration.clients) for c in claims]
    counts = {node: len(names) for node, names in hosted if isinstance(names, ClientNames)}
    sizes = Counter(counts.values())
    if not done.size and sizes:
        done.size = max(sizes, key=lambda n: (sizes[n], -n))
        if 2 * sizes[done.size] <= sizes.total():
            sides = "; ".join(
                f"{some(n for n in counts if counts[n] == size)}: {size}" for size in sorted(sizes)
            )
            done.ambiguous = done.ambiguous or (
                f"clients of the partition: expected the same number on most nodes; got {sides}. "
                "Their data sets or settings differ"
            )
    for node, names in hosted:
        taken = next((c for c in done.held if c in names), "")
        if enrolled and len(names):
            why = "hosts a partition, but the nodes that are enrolled here bring their own data"
        elif taken:
            why = (
                f"hosts client {taken!r} of a partition, but another node brings its own data under that name"
            )
        elif counts.get(node, done.size) != done.size:
            why = f"has {len(names)} clients in the partition; others have {done.size}"
            done.deviating.add(node.id)
        else:
            done.admitted.add(node.id)
            continue
        done.refused[node.id] = why


def _declared_by_none(claims: Sequence[Claim], done: Admission) -> str:
    """Return why no run can begin if it declares columns that no node has; "" if it does not."""
    lack = [
        c.registration.lacks for c in claims if c.node.id in done.admitted and len(c.registration.clients)
    ]
    absent = set(lack[0]).intersection(*lack[1:]) if lack else set[str]()
    if not absent:
        return ""
    return (
        f'run-config key "column-types": expected columns that a node has; got {some(sorted(absent))}, which '
        "none has. Correct the names, or leave them out; each node's log lists its columns"
    )


def _admit_alike(claims: Sequence[Claim], done: Admission, known: Agreement) -> None:
    """Refuse the nodes whose data mean something else."""
    voters = {
        c.node.id: Voter(str(c.node), c.own, c.registration.meaning)
        for c in claims
        if c.node.id in done.admitted and len(c.registration.clients) and not c.registration.stock
    }
    done.agreement, refused, unclear = agree(voters, known)
    done.admitted -= refused.keys()
    done.deviating |= refused.keys()
    done.refused |= refused
    done.ambiguous = done.ambiguous or unclear


def _refuse_foreign(claims: Sequence[Claim], done: Admission, why: str) -> None:
    """Refuse the nodes whose ClientApp is not Bouquet's."""
    stock = [c.node for c in claims if c.registration.stock and c.node.id in done.admitted]
    for node in stock:
        done.admitted.discard(node.id)
        done.refused[node.id] = f"runs a ClientApp that is not Bouquet's, which {why}"
    if stock and not done.admitted:
        names = ", ".join(map(str, stock))
        done.ambiguous = f"{names}: expected Bouquet's ClientApp; got another, which {why}"
