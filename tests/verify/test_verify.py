"""An honest run is found to be so, under every kind of rule; and each lie is found, by round and node."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message
from safetensors.numpy import load_file
from typer.testing import CliRunner

from server_app.cli.main import app
from server_app.results.folder import to_json
from server_app.run.logs.transcript import digest, keys_digest
from server_app.run.recorder import Recorder
from task.config.run_name import terms
from task.errors import ConfigError, DataError
from task.numerics.arrays import Arrays, sha256
from task.privacy import noise
from task.resolve.read import read_config
from task.storage.files import write_safetensors
from task.wire import commitments
from task.wire.commitments import Statement
from tests.support.federation import SIZES, owners_config, write_owners
from tests.support.grid import LocalGrid
from tests.support.liar import liar, times
from tests.support.transcripts import found, run_here, texts
from tests.test_contract import config

Row = dict[str, Any]
COUNTED = "uploads with a receipt of the node that were counted once"
ADDED = "published sums that equal the sum of the stored uploads"


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path)
    return path


# ------------------------------------------------------------------------------------------ honest runs

HONEST: dict[str, tuple[str, str, Row]] = {
    "mean": ("fedavg", "full", {}),
    "control variates": ("scaffold", "sums", {}),
    "two phases": ("fsvrg", "full", {}),
    "scalars of clients": ("qfedavg", "full", {}),
    "a number that follows from registrations": ("feddc", "sums", {}),
    "server optimizer": ("fedadam", "sums", {}),
    "votes": ("signsgd", "full", {}),
    "median": ("median", "full", {}),
    "server tables, routes": ("fedamp", "full", {"fraction-evaluate": 1.0}),
    "a number for each client": ("apple", "full", {"fraction-evaluate": 1.0}),
    "budget": ("adaptive-tau", "full", {}),
    "a private part": ("fedper", "sums", {"fraction-evaluate": 1.0}),
    "nothing goes up": ("local-only", "sums", {"fraction-evaluate": 1.0}),
    "codes up": ("fedavg", "full", {"codec.up": "top-k", "codec.keep": 0.4}),
    "codes down": ("fedavg", "sums", {"codec.down": "top-k", "codec.keep": 0.4}),
    "a ring": ("fedavg", "sums", {"selection": "cycle"}),
    "masks": ("fedavg", "sums", {"secagg": True}),
    "masks, kept": ("scaffold", "full", {"secagg": True}),
    "means of columns": ("fedavg", "full", {"standardise": True}),
    "noise at clients": ("fedavg", "full", {"dp.noise": 0.4, "dp.delta": 0.01, "dp.unit": "example"}),
}


@pytest.mark.parametrize("case", HONEST)
def test_an_honest_run_is_found_to_be_so(case: str, owners: Path, tmp_path: Path) -> None:
    algorithm, mode, more = HONEST[case]
    keys = config(owners, algorithm, num_server_rounds=2, local_test_fraction=0.3) | more
    folder = run_here(keys | {"transcript": mode}, tmp_path, nodes=3)
    made = found(folder, tmp_path / "state")
    assert texts(made) == []
    assert made.counts[COUNTED] >= 2
    collects = algorithm in ("median", "fedamp")
    assert (ADDED in made.counts) == (mode == "full") or collects
    assert not any("columns" in note for note in made.notes)


@pytest.mark.parametrize("secagg", [False, True])
def test_noise_hides_who_took_part_and_no_sum_without_it_is_published(
    secagg: bool, owners: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "draw_secret", lambda: bytes(range(32)))  # so that some take part
    share = {"fraction-train": 1.0 if secagg else 0.6, "secagg": secagg}
    keys = config(owners, "fedavg", num_server_rounds=1) | share
    folder = run_here(keys | {"dp.noise": 0.4, "dp.delta": 0.01}, tmp_path, nodes=4)
    made = found(folder, tmp_path / "state")
    assert texts(made) == []
    lines = lines_of(folder)
    for line in lines[1:]:
        (phase,) = line["phases"]
        assert len(phase["sealed"]) == 4  # the nodes that are online, whoever took part
        assert not {"uploads", "asked", "missing", "masks"} & phase.keys()
        assert phase["replies"] | {"seconds": 0, "asked": 0, "bytes": 0, "clients": []} == phase["replies"]
        assert len(line["ledger"]) == 1
        arrays = load_file(folder / "transcript" / phase["file"])
        assert sha256(arrays) == sha256({f"arrays/{n}": a for n, a in model_of(folder, line).items()})
    text = (folder / "transcript/rounds.jsonl").read_text().partition("\n")[2]
    assert not any(name in text for name in SIZES)
    assert not (folder / "transcript/uploads").exists()


def model_of(folder: Path, line: Row) -> Arrays:
    """Return what the rule was given in a round: FedAvg's result is that."""
    (phase,) = line["phases"]
    arrays = load_file(folder / "transcript" / phase["file"])
    made = {n.removeprefix("arrays/"): a for n, a in arrays.items()}
    assert sha256(made) == line["model"]
    return made


def test_the_model_is_that_of_a_run_without(owners: Path, tmp_path: Path) -> None:
    models = set()
    for mode in ("none", "sums", "full"):
        keys = owners_config(owners, num_server_rounds=2) | {"transcript": mode, "run-name": mode}
        folder = run_here(keys, tmp_path)
        models.add(sha256(load_file(folder / "model.safetensors")))
        assert (folder / "transcript").exists() == (mode != "none")
    assert len(models) == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rounds_that_are_skipped_or_undone_are_found_to_be_right(owners: Path, tmp_path: Path) -> None:
    keys = owners_config(owners, num_server_rounds=6, model="2nn") | {"min-replies": 2}
    spoil, silent = liar(arrays=times(1e8), rounds=[2]), [5]

    class Spoiled(LocalGrid):
        """One node's numbers of round 2 are huge, and it says so; of round 5 all but one are silent."""

        def _deliver(self, message: Message) -> Message | None:
            number, node = int(message.metadata.group_id or 0), self.index[message.metadata.dst_node_id]
            if number in silent and node and message.metadata.message_type == "train":
                return None
            return super()._deliver(message)

    huge = commit_to(spoil)
    keys |= {"round-timeout": 1.0}
    folder = run_here(keys, tmp_path, nodes=len(SIZES), grid=Spoiled, tamper=huge)
    lines = lines_of(folder)
    assert [line["outcome"] for line in lines[1:]] == [
        "updated", "updated", "rolled-back", "updated", "skipped", "updated",
    ]  # fmt: skip
    assert texts(found(folder)) == []
    for number, change, want in (
        (3, {"back": 2}, "expected the model"),
        (5, {"outcome": "updated"}, "expected a round that is skipped"),
    ):
        lies = [line | change if line["round"] == number else line for line in lines]
        got = texts(found(rewritten(folder, tmp_path / str(number), lies)))
        assert any(text.startswith(f"round {number}: {want}") for text in got), got


def commit_to(tamper: Callable[[int, Message], Message | None]) -> Callable[[int, Message], Message | None]:
    """Return a tamper function whose node signs what it makes of a reply, by a key of its own."""
    key = Ed25519PrivateKey.generate()

    def signed(node: int, reply: Message) -> Message | None:
        if reply.has_error() or commitments.COMMITMENT not in reply.content:
            return reply
        was = commitments.detach(reply.content)
        before = commitments.digest(reply.content)
        made = tamper(node, reply)
        assert made is not None
        if commitments.digest(made.content) == before:
            commitments.attach(made.content, was)
            return made
        statement = STATEMENTS[was.signature]
        again = Statement(**{**vars(statement), "upload": commitments.digest(made.content)})
        commitments.attach(made.content, commitments.sign(key, again, None))
        return made

    return signed


STATEMENTS: dict[bytes, Statement] = {}


@pytest.fixture(autouse=True)
def _statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember what was signed, for nodes that lie with a signature of their own."""
    sign = commitments.sign

    def remembered(key: Any, statement: Statement, endorsement: Any) -> Any:
        made = sign(key, statement, endorsement)
        STATEMENTS[made.signature] = statement
        return made

    monkeypatch.setattr(commitments, "sign", remembered)


# --------------------------------------------------------------------------------------------- lies


@pytest.fixture(scope="module")
def honest(owners: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of three nodes and three rounds, uploads kept, and its state."""
    path = tmp_path_factory.mktemp("honest")
    run_here(owners_config(owners, num_server_rounds=3) | {"transcript": "full", "run-name": "it"}, path, 3)
    return path


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Path:
    shutil.copytree(honest, tmp_path / "copy")
    return tmp_path / "copy"


def lines_of(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / "transcript/rounds.jsonl").read_text().splitlines()]


def rewritten(folder: Path, other: Path, lines: list[Row]) -> Path:
    """Return a copy of a run with these lines as a forger writes them: each names the one before."""
    if other != folder:
        shutil.copytree(folder, other)
    previous, data = keys_digest(lines[0]["about"]["run"]), b""
    for line in lines:
        made = to_json(line | {"previous": previous})
        previous, data = digest(made.rstrip(b"\n")), data + made
    (other / "transcript/rounds.jsonl").write_bytes(data)
    return other


def lie(copy: Path, change: Callable[[list[Row]], object], *, receipts: bool = False) -> list[str]:
    """Change the lines of the run, write them again and return what contradicts."""
    folder = copy / "runs/it"
    lines = lines_of(folder)
    change(lines)
    return texts(found(rewritten(folder, folder, lines), copy / "state" if receipts else None))


def uploads(lines: list[Row], number: int) -> list[Row]:
    made: list[Row] = lines[number]["phases"][0]["uploads"]
    return made


def test_the_run_that_is_lied_about_is_right(copy: Path) -> None:
    assert lie(copy, lambda lines: None, receipts=True) == []


def test_a_changed_sum(copy: Path) -> None:
    path = copy / "runs/it/transcript/2-0-train.safetensors"
    sums = load_file(path)
    name = next(n for n in sums if n.startswith("arrays.high"))
    sums[name] = sums[name] + 1
    write_safetensors(path, sums)
    assert any(t.startswith("round 2: 2-0-train.safetensors: expected the sums") for t in lie(copy, len))

    def change(lines: list[Row]) -> None:
        lines[2]["phases"][0]["sums"] = sha256(sums)

    assert lie(copy, change) == [
        "round 2: phase train: expected the sum of the stored uploads; got a different one"
    ]


def test_a_changed_sum_where_no_uploads_are_kept(owners: Path, tmp_path: Path) -> None:
    folder = run_here(owners_config(owners, num_server_rounds=2) | {"run-name": "it"}, tmp_path)
    path = folder / "transcript/1-0-train.safetensors"
    sums = load_file(path)
    sums = {n: a + 1 if n.startswith("arrays.high") else a for n, a in sums.items()}
    write_safetensors(path, sums)

    def change(lines: list[Row]) -> None:
        lines[1]["phases"][0]["sums"] = sha256(sums)

    (text,) = lie(tmp_path, change)
    assert text.startswith("round 1: expected the model")


def test_a_node_that_is_left_out(copy: Path) -> None:
    def change(lines: list[Row]) -> None:
        gone = uploads(lines, 2).pop()
        said = lines[2]["phases"][0]
        said["missing"] = dict.fromkeys(gone["clients"], "none within 60 s")
        at = [said["replies"]["clients"].index(c) for c in gone["clients"]]
        for key in ("clients", "num_examples", "weights"):
            said["replies"][key] = [v for i, v in enumerate(said["replies"][key]) if i not in at]
        for key, values in said["replies"]["scalars"].items():
            said["replies"]["scalars"][key] = [v for i, v in enumerate(values) if i not in at]

    got = lie(copy, change, receipts=True)
    assert "round 2: its upload was not counted, though it has a receipt: none within 60 s" in got
    assert any("expected the sum of the stored uploads" in text for text in got)


def test_a_node_that_never_answered_by_the_servers_word(owners: Path, tmp_path: Path) -> None:
    """The transcript is right in itself; the node alone knows that it did answer."""
    silent = liar(kind="none")

    def lost(node: int, reply: Message) -> Message | None:
        return None if node == 1 and reply.metadata.group_id == "2" else silent(node, reply)

    keys = owners_config(owners, num_server_rounds=2) | {"round-timeout": 1.0}
    folder = run_here(keys, tmp_path, 3, tamper=lost)
    assert texts(found(folder)) == []
    (text,) = texts(found(folder, tmp_path / "state"))
    assert text.startswith("round 2: its upload was not counted, though it has a receipt: round 2: client")


def test_an_upload_that_is_counted_twice(copy: Path) -> None:
    def change(lines: list[Row]) -> None:
        uploads(lines, 1).append(uploads(lines, 1)[0])

    got = lie(copy, change, receipts=True)
    assert any("round 1, node" in t and "is counted 2 times" in t for t in got)
    assert any("round 1: its upload is counted 2 times" in t for t in got)


def test_rounds_that_change_places(copy: Path) -> None:
    folder = copy / "runs/it"
    path = folder / "transcript/rounds.jsonl"
    a, b, c, d = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(a + c + b + d)
    got = texts(found(folder))
    assert any(t.startswith("round 1: expected the line of round 1; got that of 2") for t in got)
    assert any(t.startswith("round 1: expected a line after") for t in got)


def test_rounds_that_change_places_with_a_chain_of_their_own(copy: Path) -> None:
    def change(lines: list[Row]) -> None:
        lines[1]["phases"], lines[2]["phases"] = lines[2]["phases"], lines[1]["phases"]

    assert any("a signature that is not valid" in text for text in lie(copy, change))


def test_another_model(copy: Path) -> None:
    path = copy / "runs/it/model.safetensors"
    other = {n: a + 1 for n, a in load_file(path).items()}
    write_safetensors(path, other)
    assert lie(copy, len)[0].startswith("the run: model.safetensors: expected the model")

    def change(lines: list[Row]) -> None:
        lines[3]["model"] = sha256(other)

    assert lie(copy, change)[0].startswith("round 3: expected the model")


def test_another_initial_model(copy: Path) -> None:
    path = copy / "runs/it/transcript/initial.safetensors"
    other = {n: a + 1 for n, a in load_file(path).items()}
    write_safetensors(path, other)

    def change(lines: list[Row]) -> None:
        lines[0]["model"] = sha256(other)

    assert lie(copy, change)[0].startswith("round 0: expected the rule's state")


def test_a_forged_signature(copy: Path) -> None:
    def change(lines: list[Row]) -> None:
        uploads(lines, 2)[0]["signature"] = uploads(lines, 1)[0]["signature"]

    (text,) = lie(copy, change)
    assert text.startswith("round 2, node with the key")
    assert "a signature that is not valid" in text


def test_another_algorithm_than_the_nodes_signed(copy: Path) -> None:
    def change(lines: list[Row]) -> None:
        lines[0]["about"]["run"]["learning-rate"] = 0.5

    assert sum("a signature that is not valid" in text for text in lie(copy, change)) == 9


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[2]["phases"][0]["sent"].update(lr=0.0),
        lambda lines: lines[2]["phases"][0]["sent"].update(more=1.0),
        lambda lines: uploads(lines, 2)[0].update(epochs=[1] * len(uploads(lines, 2)[0]["clients"])),
    ],
)
def test_a_node_has_signed_the_numbers_and_epochs_of_its_order(
    change: Callable[[list[Row]], object], copy: Path
) -> None:
    """So a server that published others than it sent to one node is found out."""
    assert any("signature that is not valid" in text for text in lie(copy, change))


def test_other_numbers_than_the_keys_and_the_rule_give_are_named(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nodes signed them: a learning rate, epochs of a client that is no straggler."""
    monkeypatch.setattr(commitments.Commitment, "check", lambda self, statement: None)
    rate = lie(copy, lambda lines: lines[2].update(lr=0.5))
    assert any("round 2: expected the learning rate" in text for text in rate)
    lie(copy, lambda lines: lines[2].update(lr=lines[1]["lr"]))
    one = lie(copy, lambda lines: uploads(lines, 2)[0].update(epochs=[9]))
    assert any("epochs of" in text and "as the keys say" in text for text in one)


def test_an_upload_that_is_replaced(copy: Path) -> None:
    """The file of one upload becomes another's: it is not what its node committed to."""
    folder = copy / "runs/it"
    names = [upload["upload"] for upload in uploads(lines_of(folder), 1)]
    first, second = (folder / f"transcript/uploads/{name}.safetensors" for name in names[:2])
    shutil.copy(second, first)
    assert any("round 1: expected the upload" in text for text in lie(copy, len))


def test_a_receipt_that_is_missing(copy: Path) -> None:
    """Whoever has the node's key, or invents a node of its name, adds uploads of which it has no receipt."""
    path = next((copy / "state").rglob(".receipts/*/*.jsonl"))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    (text,) = lie(copy, len, receipts=True)
    assert text.startswith("round 3, node with the key")
    assert text.endswith("there is an upload in its name for which it has no receipt")


def test_a_transcript_that_ends_before_the_run(copy: Path) -> None:
    got = lie(copy, lambda lines: lines.pop(), receipts=True)
    assert any(t.startswith("round 3: there is a receipt of an upload") for t in got)
    assert any("model.safetensors" in t for t in got)


# ------------------------------------------------------------------------------------- what goes wrong


def test_a_node_that_is_lost_after_its_shares_leaves_a_sum_that_can_be_added_up(
    owners: Path, tmp_path: Path
) -> None:
    """Its masks with the others are taken off by its key, which their shares give."""

    def lost(node: int, reply: Message) -> Message | None:
        late = node == 1 and reply.metadata.group_id == "2" and reply.metadata.message_type == "train"
        return None if late else reply

    keys = owners_config(owners, num_server_rounds=2) | {"secagg": True, "transcript": "full"}
    folder = run_here(keys | {"round-timeout": 1.0}, tmp_path, 4, tamper=lost)
    made = found(folder)
    assert (texts(made), made.counts[ADDED]) == ([], 2)
    lines = lines_of(folder)
    assert [len(uploads(lines, n)) for n in (1, 2)] == [4, 3]
    shares = lines[2]["phases"][0]["masks"]["shares"]
    whose = next(iter(shares))
    shares[whose][whose] += 1
    rewritten(folder, folder, lines)
    (text,) = texts(found(folder))
    assert text.startswith("round 2: phase train: expected the sum of the stored uploads")


@pytest.mark.parametrize("every", [1, 2])
def test_a_killed_run_goes_on_with_its_transcript(
    every: int, owners: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ``kill -9`` in round 4: nothing more was written; the last checkpoint may be of round 2."""
    keys = owners_config(owners, num_server_rounds=5) | {"checkpoint-every": every, "run-name": "it"}

    class Dies(LocalGrid):
        """Is gone once the nodes have answered in round 4."""

        def push_messages(self, messages: Any) -> Any:
            ids = list(super().push_messages(messages))
            if any(m.metadata.group_id == "4" for m in self.sent):
                raise KeyboardInterrupt
            return ids

    monkeypatch.setattr(Recorder, "close", lambda self: None)
    with pytest.raises(KeyboardInterrupt):
        run_here(keys, tmp_path, grid=Dies)
    monkeypatch.undo()
    half = found(tmp_path / "runs/it", tmp_path / "state")
    assert texts(half) == []
    assert "there is no model.safetensors yet: the run is not over" in half.notes
    late = "uploads of the node are of rounds without a line yet: the run has not finished"
    assert f"2 {late}" in half.notes
    (tmp_path / "runs/it/transcript/.4-0-train.safetensors.a").mkdir()
    folder = run_here(keys | {"resume": True}, tmp_path)
    assert not list((folder / "transcript").glob(".*"))
    lines = lines_of(folder)
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 4, 5]
    again = 4 if every == 1 else 3
    assert ["dropped" in line for line in lines] == [n == again for n in range(6)]
    assert len(lines[again]["dropped"]) == 4 - again
    made = found(folder, tmp_path / "state")
    assert texts(made) == []
    assert made.counts[COUNTED] == 10
    assert any(note.startswith(f"{2 * (5 - again)} uploads of the node are of rounds") for note in made.notes)


def test_a_reply_without_its_nodes_signature_is_refused(owners: Path, tmp_path: Path) -> None:
    """One node's numbers are changed on the way, another's commitment is taken away."""
    change = liar(arrays=times(2.0), nodes=[0])

    def tamper(node: int, reply: Message) -> Message | None:
        if node == 1:
            reply.content.pop(commitments.COMMITMENT, None)
        return change(node, reply)

    folder = run_here(owners_config(owners, num_server_rounds=1), tmp_path, len(SIZES), tamper=tamper)
    (row,) = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()][1:]
    assert {q["field"] for q in row["quarantined"]} == {"commitment"}
    assert {q["got"] for q in row["quarantined"]} == {"none", "a signature that is not valid"}
    assert 0 < row["answered"] < len(SIZES)
    assert texts(found(folder)) == []


def test_what_would_publish_more_than_it_may_is_refused() -> None:
    noise = {"dp.noise": 1.0, "dp.delta": 0.001, "num-clients": 100}
    for keys in (
        noise | {"transcript": "full"},
        noise | {"transcript": "full", "secagg": True},
        {"algorithm": "median", "transcript": "sums"},
        {"dropout-width": 0.5, "transcript": "sums"},
    ):
        with pytest.raises(ConfigError, match="transcript"):
            read_config(keys)
    read_config(noise | {"transcript": "sums"})


def test_keys_that_a_node_or_a_resume_may_change_are_not_signed() -> None:
    keys = {"seed": 1, "data-dir": "/a", "resume": False, "num-server-rounds": 3}
    assert terms(keys) == terms(keys | {"data-dir": "/b", "resume": True, "num-server-rounds": 9})
    assert terms(keys) != terms(keys | {"seed": 2})


def test_the_command_says_what_is_proven_and_what_is_not(copy: Path) -> None:
    run, state = str(copy / "runs/it"), str(copy / "state")
    done = CliRunner().invoke(app, ["verify", run, "--kit", state])
    assert done.exit_code == 0, done.output
    assert "not proven:" in done.output
    (copy / "runs/it/model.safetensors").unlink()
    lines = lines_of(copy / "runs/it")
    lines[2]["model"] = lines[1]["model"]
    rewritten(copy / "runs/it", copy / "runs/it", lines)
    done = CliRunner().invoke(app, ["verify", run])
    assert done.exit_code == 1
    assert "contradicts: round 2: expected the model" in done.output
    assert "not proven:" not in done.output
    with pytest.raises(DataError, match="expected the transcript"):
        found(copy)
    with pytest.raises(DataError, match="expected receipts of the run"):
        found(copy / "runs/it", copy / "runs")
