"""Check a node's own receipts: each of its uploads was counted once, and no other is in its name."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from server_app.deploy.kits.kit import CONFIG, read_node_kit
from server_app.extras.verify.chain import Chain, Row
from server_app.extras.verify.findings import Findings
from server_app.extras.verify.signatures import name_of, phases
from strategies.stages.transcript import seal
from task.errors import DataError
from task.storage.client_state import receipts_of
from task.storage.durable_lines import DurableLines

COUNTED = "uploads with a receipt of the node that were counted once"


@dataclass(frozen=True)
class Own:
    """What a node has of a run."""

    name: str = ""  # by its certificate; "" = it has none
    authority: bytes = b""  # certificate of the federation's authority, PEM
    folder: Path = Path()  # of its receipts
    receipts: Sequence[Row] = field(default_factory=tuple)  # one for each signature


def own_of(place: Path, run: str) -> Own:
    """Read a node's kit, or a folder of receipts, or the state folder that has it.

    Raises:
        DataError: There are no receipts of the run.
    """
    name, authority, root = "", b"", place
    if (place / CONFIG).exists():
        kit = read_node_kit(place)
        name = kit.name if kit.certificate.is_file() else ""
        authority, root = kit.ca_certificate.read_bytes(), kit.cache / "state"
    folder = receipts_of(root, run)
    folder = folder if folder.is_dir() else place
    found = {
        str(row["signature"]): row
        for path in sorted(folder.glob("*.jsonl"))
        for row in DurableLines(path).lines()
        if row.get("run") == run
    }
    if not found:
        raise DataError(f"--kit {place}: expected receipts of the run {run[:12]}; got none in {folder}")
    return Own(name, authority, folder, tuple(found.values()))


def check_receipts(chain: Chain, own: Own, over: bool, findings: Findings) -> None:
    """Check that each upload with a receipt was counted once, and that no other is in the node's name.

    `over` says whether the run has ended, so that no line is still to come.
    """
    known = {(number, phase["attempt"]): phase for number, phase in phases(chain)}
    same: dict[str, list[Row]] = defaultdict(list)  # receipts of one order, which may have come twice
    for receipt in own.receipts:
        same[json.dumps([receipt[k] for k in ("round", "attempt", "clients")])].append(receipt)
    abandoned = waiting = 0
    for receipts in same.values():
        number, attempt = int(receipts[0]["round"]), str(receipts[0]["attempt"])
        phase = known.get((number, attempt))
        if phase is None and chain.redone(number):
            abandoned += 1
        elif phase is None and not over and number > chain.lines[-1]["round"]:
            waiting += 1
        elif phase is None:
            findings.fault(number, "there is a receipt of an upload, but its phase is missing", own.name)
        elif any(r["answered"] for r in receipts):
            _check_one(number, phase, receipts, own.name, findings)
    if abandoned:
        findings.note(f"{abandoned} uploads of the node are of rounds that were repeated after a restart")
    if waiting:
        findings.note(
            f"{waiting} uploads of the node are of rounds without a line yet: the run has not finished"
        )
    _check_others(chain, own, findings)


def _check_one(number: int, phase: Row, receipts: Sequence[Row], node: str, findings: Findings) -> None:
    signatures = [str(r["signature"]) for r in receipts]
    if "sealed" in phase:
        times = sum(phase["sealed"].count(seal(bytes.fromhex(s))) for s in signatures)
        why = "it is not among those that took part"
    else:
        uploads = [u for u in phase["uploads"] if u["signature"] in signatures]
        times = sum(bool(u["counted"]) for u in uploads)
        said = {**phase["missing"], **{c: w for u in uploads for c, w in u["refused"].items()}}
        client = receipts[0]["clients"][0] if receipts[0]["clients"] else ""
        why = str(said.get(client, "the transcript does not say why"))
    if times == 1:
        findings.checked(COUNTED)
    elif times:
        findings.fault(number, f"its upload is counted {times} times", node)
    else:
        findings.fault(number, f"its upload was not counted, though it has a receipt: {why}", node)


def _check_others(chain: Chain, own: Own, findings: Findings) -> None:
    signatures, keys = ({r[k] for r in own.receipts} for k in ("signature", "key"))
    for number, phase in phases(chain):
        for upload in phase.get("uploads", ()):
            mine = upload["key"] in keys or (own.name and upload["node"] == own.name)
            if mine and upload["signature"] not in signatures:
                findings.fault(
                    number, "there is an upload in its name for which it has no receipt", name_of(upload)
                )
