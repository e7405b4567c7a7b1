"""The complete check of a run by its transcript, and what it proves."""

from pathlib import Path

from safetensors import SafetensorError

from server_app.extras.verify.chain import Chain, Row, read_chain
from server_app.extras.verify.findings import Findings
from server_app.extras.verify.receipts import check_receipts, own_of
from server_app.extras.verify.replay import initial, replay
from server_app.extras.verify.signatures import check_signatures
from server_app.results.folder import MODEL, RunFolder
from server_app.run.frozen import RECORD
from server_app.run.logs.privacy import ledger_of
from server_app.run.logs.transcript import line_digest
from task.errors import DataError
from task.numerics.arrays import sha256
from task.storage.files import read_safetensors

PUBLISHED = "models in rounds.jsonl and model.safetensors"


def verify(run: Path, kit: Path | None = None, authority: Path | None = None) -> tuple[Chain, Findings]:
    """Check a result folder by its transcript, and against the receipts of a node's `kit`.

    `authority` is the file of the federation's ca.crt; without it the kit's is taken.

    Raises:
        DataError: There is no transcript, a file is damaged, or the kit has no receipts of the run.
    """
    findings = Findings()
    chain = read_chain(run, findings)
    own = own_of(kit, chain.run) if kit else None
    given = authority.read_bytes() if authority else own.authority if own else b""
    try:
        check_signatures(chain, given, findings)
        last = replay(chain, findings)
        if own:
            check_receipts(chain, own, RunFolder(run).finished(), findings)
        _check_published(run, chain, last is not None, findings)
        _check_ledger(run, chain, findings)
    except (KeyError, TypeError, IndexError) as err:
        raise DataError(f"{chain.folder}: expected a transcript of this version; got {err!r}") from None
    return chain, findings


def _check_published(run: Path, chain: Chain, whole: bool, findings: Findings) -> None:
    """Check that the models which the result folder names are those of the transcript."""
    folder, said = RunFolder(run), {int(line["round"]): line["model"] for line in chain.lines}
    rows = folder.rounds(unfinished=True)
    for row in rows:
        mine = str(row.get("trained_sha256") or row["model_sha256"])  # of what travels, if a part is frozen
        if (got := said.get(row["round"])) != mine:
            want = (got or "of no round")[:12]
            text = f"rounds.jsonl: expected the model {want}; got {mine[:12]}"
            findings.fault(row["round"], text)
        findings.checked(PUBLISHED)
    if rows and rows[-1]["round"] < chain.lines[-1]["round"]:
        findings.note("the result folder is behind its transcript: the run is still running, or was killed")
    path = run / MODEL
    if not path.exists():
        findings.note(f"there is no {MODEL} yet: the run is not over")
        return
    try:
        _, arrays = read_safetensors(path)
    except (SafetensorError, ValueError) as err:
        raise DataError(f"{path}: expected a model; got {err}") from None
    if frozen := chain.about.get(RECORD):
        names = initial(chain).keys()
        rest = {name: arrays.pop(name) for name in [*arrays] if name not in names}
        if (got := sha256(rest)) != frozen["sha256"]:
            wanted = f"the frozen part {frozen['sha256'][:12]} of the run"
            findings.fault(None, f"{MODEL}: expected {wanted}; got {got[:12]}")
    got = sha256(arrays)
    want = chain.lines[-1]["model"]
    if got != want and got in said.values() and "stopped" in (folder.result() or {}):
        findings.note(f"{MODEL} is from an earlier round than the last: the run was stopped")
    elif got != want:
        findings.fault(None, f"{MODEL}: expected the model {want[:12]} of the last round; got {got[:12]}")
    findings.checked(PUBLISHED)


def _check_ledger(run: Path, chain: Chain, findings: Findings) -> None:
    """Check that the ledger of releases, if it is here, has the lines that the transcript names."""
    ledger = ledger_of(run)
    if not ledger.path.exists():
        return
    found: list[Row] = ledger.lines()
    here = {line_digest(line) for line in found}
    for line in chain.lines:
        if set(line["ledger"]) - here:
            findings.fault(line["round"], "the privacy ledger lacks a release that the transcript names")
        findings.checked("lines of the privacy ledger", len(line["ledger"]))


def proves(chain: Chain, *, receipts: bool) -> tuple[list[str], list[str]]:
    """Return what a check without contradictions proves, and what it does not."""
    run = chain.about["run"]
    full, secagg, noise = (
        run["transcript"] == "full",
        run["secagg"],
        run["dp.noise"] and run["dp.unit"] == "client",
    )
    shown = ["every published model is the rule's result on the published sums, from the initial model on"]
    if not noise:
        shown += [
            "each client is counted in at most one upload, to which the holder of a key committed",
            "that holder had received the published model of the previous round, and the run's keys",
        ]
    if full:
        shown.append("the published sums are exactly the sums of those uploads")
    if receipts:
        text = "each upload that the node has a receipt for was counted once, except in restarted rounds"
        shown.append(f"{text}; no other is in its name" if not noise else text)
    hidden = [
        "that a node trained honestly, on its own data: a commitment proves what was sent, not how "
        "it was computed",
        "that nodes whose receipts were not checked were not omitted",
        "who holds the keys that have no certificate",
        "that the cohort was drawn as the run's keys say, and that refusals were justified",
        "that others see the same transcript: compare its last SHA-256 with theirs",
    ]
    if not full:
        what = "the masked uploads" if secagg else "the uploads"
        hidden.insert(0, f"that the published sum is that of {what}: for this the server is trusted. "
                         'transcript = "full" keeps them')  # fmt: skip
    if noise:
        hidden.insert(0, "that the noise was drawn correctly, and who took part: dp.noise hides that")
    return shown, hidden
