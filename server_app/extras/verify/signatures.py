"""Who committed to which upload, and that each client is counted once."""

from collections import Counter
from collections.abc import Iterator

from server_app.extras.verify.chain import Chain, Row
from server_app.extras.verify.findings import Findings
from task.errors import BouquetError
from task.wire.commitments import Commitment, Statement, commitment_in

SIGNED = "uploads with a valid signature of their node"
NAMED = "of them by a key with a certificate of the federation"


def check_signatures(chain: Chain, authority: bytes, findings: Findings) -> None:
    """Check all commitments; `authority` is the certificate of the federation's authority, PEM, or b""."""
    for server_round, phase in phases(chain):
        if "uploads" in phase:
            _check_phase(chain, server_round, phase, authority, findings)
        else:
            findings.note("who took part is hidden (dp.noise): signatures can be checked only with --kit")


def phases(chain: Chain) -> Iterator[tuple[int, Row]]:
    """Yield the phases of all rounds, with the rounds."""
    for line in chain.lines:
        yield from ((int(line["round"]), phase) for phase in line["phases"])


def name_of(upload: Row) -> str:
    """Return what to call the node of an upload."""
    return str(upload["node"] or f"with the key {str(upload['key'])[:12]}")


def statement_of(chain: Chain, server_round: int, phase: Row, upload: Row) -> Statement:
    """Return what the node of an upload has signed."""
    about = (chain.run, chain.terms, server_round, phase["kind"], phase["attempt"])
    order = tuple(upload["clients"]), tuple(upload["epochs"]), phase["sent"], phase["model"]
    return Statement(*about, *order, upload["upload"])


def _check_phase(chain: Chain, server_round: int, phase: Row, authority: bytes, findings: Findings) -> None:
    counted = Counter(c for upload in phase["uploads"] for c in upload["counted"])
    for upload in phase["uploads"]:
        node = name_of(upload)
        try:
            commitment = commitment_in(upload)
            commitment.check(statement_of(chain, server_round, phase, upload))
            findings.checked(SIGNED)
            _check_key(commitment, upload, authority, findings)
        except (BouquetError, ValueError) as err:
            findings.fault(server_round, str(err), node)
        if strange := set(upload["counted"]) - set(upload["clients"]):
            findings.fault(
                server_round, f"{min(strange)} is counted, but the node was not asked for it", node
            )
        twice = [c for c in upload["counted"] if counted[c] > 1]
        if twice:
            findings.fault(server_round, f"{twice[0]} is counted {counted[twice[0]]} times", node)
    replies = phase["replies"]
    if replies is not None and sorted(counted) != replies["clients"]:
        odd = min(counted.keys() ^ set(replies["clients"]))
        which = (
            "no upload that is counted" if odd in replies["clients"] else "an upload but is not in the sum"
        )
        findings.fault(server_round, f"client {odd} has {which}")
    if strange := counted.keys() - set(phase["asked"]):
        findings.fault(server_round, f"{min(strange)} is counted, but was not asked")


def _check_key(commitment: Commitment, upload: Row, authority: bytes, findings: Findings) -> None:
    if commitment.endorsement is None:
        findings.note("some keys have no certificate: anyone, including the server, could have made them")
    elif not authority:
        findings.note("certificates were not checked: give the federation's ca.crt with --ca, or --kit")
    else:
        commitment.endorsement.check(authority, upload["node"], commitment.key)
        findings.checked(NAMED)
