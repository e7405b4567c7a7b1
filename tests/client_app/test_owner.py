"""What the owner of a node decides holds whatever a run asks for: paths, errors, least examples and steps."""

from __future__ import annotations

import ast
import json
import logging
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from client_app.answer import answer
from client_app.app import make_app
from client_app.data.node import open_node
from client_app.data.own_data import check_own_data, note_own_data
from client_app.data.owner import Owner, basis, keys_of_node, owner_of
from client_app.memory.memory import store_of
from client_app.works import WORK
from server_app.app import run
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import adaptation_of, evaluation_of
from task.config.paths import state_root
from task.config.read import as_run_config
from task.errors import BouquetError, ConfigError, DataError, RefusedError, local, public, reason
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.storage.client_state import receipts_of
from task.wire import messages as wire
from task.wire import registration
from tests.support.grid import LocalGrid
from tests.support.nodes import start

SECRET = "root:$6$hush:19000:0"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1


def call(
    app: Any, run_config: Mapping[str, Any], node_config: Mapping[str, Any], notice: RecordDict | None = None
) -> RecordDict:
    """Return the registration of a node, or its answer to a notice that it is left out."""
    context = Context(7, 3, dict(node_config), RecordDict(), as_run_config(read_config(run_config)))  # type: ignore[arg-type]
    kind = registration.REGISTER if notice is None else registration.LEFT_OUT
    message = Message(notice or RecordDict(), dst_node_id=3, message_type=f"query.{kind}")
    message.metadata.__dict__["_message_id"] = "1"
    return app(message, context).content  # type: ignore[no-any-return]


def refused(content: RecordDict) -> str:
    """Return why a node refuses."""
    with pytest.raises(ConfigError) as info:
        registration.read_registration(content)
    return str(info.value)


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the config of a node with a table of its own."""
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "own"))
    (tmp_path / "ward.csv").write_text("x,label\n" + "".join(f"{i},{i % 2}\n" for i in range(30)))
    return {"client-name": "ward", "data-path": str(tmp_path / "ward.csv")}


CSV = {"dataset": "csv", "model": "logistic", "num-classes": 2}


def test_the_owner_of_a_node_reads_why_a_run_leaves_it_out(
    ward: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    notice = registration.notice_content("has data that differ")
    answer = call(make_app(), CSV | {"run-name": "first"}, ward, notice)
    assert not list(answer)  # the names stay here
    why, names = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert why == "run first leaves this node out: it has data that differ"
    assert names == "in this node's data: columns 1: x (number) -> label; classes 0, 1"
    caplog.clear()
    call(make_app(simulation=True), CSV, ward, notice)
    assert not caplog.records  # the server's terminal says it


# ------------------------------------------------------------------------------------------ paths


@pytest.mark.parametrize("key", ["cache-dir", "state-dir", "data-dir"])
def test_a_run_names_no_folder_of_a_node(key: str, ward: dict[str, Any], tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    why = refused(call(make_app(), CSV | {key: str(theirs)}, ward))
    assert f'run-config key "{key}": expected none' in why
    assert not theirs.exists()
    assert registration.read_registration(call(make_app(), CSV, ward)).clients == ("ward",)
    assert (tmp_path / "own" / "datasets").is_dir()
    permitted = ward | {"run-paths": True}
    assert registration.read_registration(call(make_app(), CSV | {key: str(theirs)}, permitted)).clients == (
        "ward",
    )
    assert theirs.exists() == (key != "data-dir")


def test_data_alone_make_a_node_whose_client_has_flowers_id_as_its_name(ward: dict[str, Any]) -> None:
    """Flower's Hub tells people to start a SuperNode with ``data-path="..."`` and nothing else."""
    del ward["client-name"]
    assert registration.read_registration(call(make_app(), CSV, ward)).clients == ("node-3",)


def test_a_run_names_no_data_of_a_node(tmp_path: Path, ward: dict[str, Any]) -> None:
    (tmp_path / "shadow").write_text(f"{SECRET}\n")
    why = refused(call(make_app(), CSV | {"data-path": str(tmp_path / "shadow")}, {}))
    assert 'run-config key "data-path": expected none' in why
    assert "hush" not in why
    why = refused(call(make_app(), CSV | {"data-path": str(tmp_path / "shadow")}, {"run-paths": True}))
    assert "line 1: expected a header" in why
    assert "hush" not in why
    # The server's test file is no business of a node that brings data.
    assert registration.read_registration(
        call(make_app(), CSV | {"data-path": "/test.csv"}, ward)
    ).clients == ("ward",)


def test_a_node_says_where_its_own_files_lie(tmp_path: Path) -> None:
    own = {"data-dir": str(tmp_path / "raw"), "cache-dir": str(tmp_path / "cache")}
    keys = keys_of_node({"state-dir": "", "seed": 3}, own)
    assert keys == {"state-dir": "", "seed": 3} | own
    with pytest.raises(ConfigError, match='"cache-dir": expected none'):
        keys_of_node({"cache-dir": "/theirs"}, own)
    with pytest.raises(ConfigError, match="\"run-paths\": expected true or false; got 'yes'"):
        keys_of_node({}, {"run-paths": "yes"})


def test_in_a_simulation_the_run_names_them(
    ward: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = CSV | {"data-path": ward["data-path"], "cache-dir": str(tmp_path / "a")}
    assert registration.read_registration(call(make_app(simulation=True), run, {})).clients
    assert registration.read_registration(call(make_app(run), run, {})).clients
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    assert registration.read_registration(call(make_app(), run, {})).clients
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    assert "expected none" in refused(call(make_app(), run, {}))


def test_what_a_node_writes_is_its_owners_whatever_the_umask(ward: dict[str, Any], tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        call(make_app(), CSV, ward)
        node = open_node(read_config(CSV), ward)
        store_of(node).save("ward", "ditto", 1, {"personal": {"w": np.zeros(2)}})
        with store_of(node).lock("ward"):
            pass
    finally:
        os.umask(before)
    made = [tmp_path / "own", *(tmp_path / "own").rglob("*")]
    assert len([p for p in made if p.is_file()]) >= 6
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


# ----------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hush,label\n1,0\nhush2,1\n", "line 3, column 1"),
        ("hush,label\n1,hush2\n", "line 2"),
        ("hush,label\n1,71\n", "line 2"),
        ("hush,label,split\n1,0,hush2\n", "line 2, column 3"),
        ("hush,hush\n", "line 1"),
        (f"{SECRET}\n", "line 1"),
        ("hush,label\n1,0,2\n", "line 2"),
    ],
)
def test_the_server_hears_of_line_and_column_and_the_nodes_log_of_all(
    text: str, says: str, ward: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path(ward["data-path"]).write_text(text)
    with caplog.at_level(logging.ERROR, "flwr"):
        why = refused(call(make_app(), CSV, ward))
    assert says in why
    for word in ("hush", "71", "ward.csv", str(tmp_path)):
        assert word not in why
    assert "ward.csv" in caplog.text


def test_names_of_classes_and_pictures_stay(ward: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "photos" / "hush").mkdir(parents=True)
    (tmp_path / "photos" / "hush" / "smith.png").write_bytes(b"no picture")
    keys = {"dataset": "imagefolder", "model": "logistic", "num-classes": 1}
    for classes in (1, 2):
        run, node = keys | {"num-classes": classes}, ward | {"data-path": str(tmp_path / "photos")}
        why = refused(call(make_app(), run, node))
        assert not [word for word in ("hush", "smith", "photos") if word in why], why
        assert "num-classes = 2" in why or "not a picture" in why


def test_a_missing_file_and_a_full_disk_are_told_without_a_path() -> None:
    err = DataError(f"{local('/srv/smith.csv')}: {reason(OSError(28, 'No space left on device', '/srv/x'))}.")
    assert str(err) == "/srv/smith.csv: [Errno 28] No space left on device: '/srv/x'."
    assert err.public == "one of its files: [Errno 28] No space left on device."
    for mark in range(0xE000, 0xE003):
        assert DataError(f"{local('a' + chr(mark) + 'b')}!").public.startswith("one of its files!")
        assert str(DataError(f"{local(local('a' + chr(mark) + 'b'), '')}!")) == "ab!"


def test_what_stays_at_a_node_leaves_a_sentence_that_can_be_read() -> None:
    name = local(' "sex"', "")
    err = DataError(
        f'{local("/srv/smith.csv")}, line 3, column 2{name}: expected a number; got "{local("m")}".'
    )
    assert str(err) == '/srv/smith.csv, line 3, column 2 "sex": expected a number; got "m".'
    assert err.public == (
        'one of its files, line 3, column 2: expected a number; got "[withheld]". '
        "([withheld]: only the node's own log has it)"
    )


def fail(text: str) -> None:
    raise ValueError(text)


def test_of_an_error_that_nobody_foresaw_kind_and_place_are_told() -> None:
    with pytest.raises(ValueError, match="smith") as info:
        fail("smith, 71")
    assert public(info.value).startswith(f"ValueError at {__name__}, line ")
    assert "smith" not in public(info.value)
    assert "[Errno" not in public(OSError(13, "Permission denied", "/srv/smith"))
    assert "Permission denied" in public(OSError(13, "Permission denied", "/srv/smith"))


def test_a_clients_failure_and_a_messages_are_told_alike(
    ward: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = open_node(read_config(CSV), ward, Owner(simulation=False))

    def work(node: Any, entry: Any, order: wire.TrainOrder) -> Any:
        yield "ward", ValueError("patient smith")

    monkeypatch.setitem(WORK, "train", work)
    reply = wire.read_reply(answer(node, ordered(node)), ["ward"], 1)
    assert reply.failed[0].got.startswith("code: ValueError at client_app.answer, line ")
    assert "patient smith" in caplog.text

    context = Context(7, 3, ward, RecordDict(), as_run_config(read_config(CSV)))
    message = Message(RecordDict(), dst_node_id=3, message_type="train")
    monkeypatch.setattr("client_app.app.answer", lambda *args, **more: fail("patient jones"))
    with pytest.raises(Exception, match=f"ValueError at .*{__name__}|ValueError at client_app") as info:
        make_app()(message, context)
    assert "jones" not in str(info.value)
    assert info.value.__cause__ is None
    assert "patient jones" in caplog.text


def test_every_value_in_an_error_of_data_or_state_is_vetted() -> None:
    """A path or a value that is put into such an error goes through `local`, or is known to be harmless."""
    suspects = {"path", "folder", "where", "place", "cell", "label", "value", "own", "err"}
    suspects |= {"source", "target", "root"}
    found = []
    for file in [*ROOT.glob("task/**/*.py"), *ROOT.glob("client_app/**/*.py")]:
        for call_ in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(call_, ast.Call) and isinstance(call_.func, ast.Name)):
                continue
            if call_.func.id not in ("DataError", "StateError"):
                continue
            for part in ast.walk(call_):
                if isinstance(part, ast.FormattedValue) and not isinstance(part.value, ast.Call):
                    names = {n.id for n in ast.walk(part.value) if isinstance(n, ast.Name)}
                    text = ast.unparse(part.value)
                    if names & suspects and not text.endswith(".args[0]") and text != "place":
                        found.append(f"{file.relative_to(ROOT)}:{part.lineno}: {text}")
    assert not found, found


# ----------------------------------------------------------------------------------------- bounds


def of(
    algorithm: str, rows: int, epochs: int = 1, local_steps: int = 0, **keys: Any
) -> dict[str, tuple[int, int | None]]:
    """Return examples and steps of each record of an upload; `local_steps` as a message may set them."""
    named = {k.replace("__", ".").replace("_", "-"): v for k, v in keys.items()}
    config, entry = read_config({"algorithm": algorithm, **named}), ALGORITHMS[algorithm]
    train = replace(config.train, local_steps=local_steps)
    return {f.name: basis(config, train, entry, f, rows, epochs)[:2] for f in entry.up}


def test_what_a_record_is_computed_from() -> None:
    assert of("fedavg", 53, batch_size=1, local_steps=1) == {"arrays": (1, 1)}
    assert of("fedavg", 53, batch_size=10) == {"arrays": (53, 6)}
    assert of("fedavg", 53, batch_size=10, local_steps=2) == {"arrays": (20, 2)}
    assert of("fedavg", 53, batch_size=10, local_steps=6) == {"arrays": (53, 6)}
    assert of("fedavg", 53, batch_size=10, local_steps=60) == {"arrays": (53, 60)}
    assert of("fedavg", 53, epochs=3, batch_size=10) == {"arrays": (53, 18)}
    assert of("fedavg", 53, batch_size=0) == {"arrays": (53, None)}
    assert of("fedavg", 5, batch_size=10) == {"arrays": (5, None)}
    assert of("fedsgd", 53, batch_size=0) == {"gradient": (53, None)}
    assert of("adaptive-tau", 53, batch_size=4, local_steps=50) == {"arrays": (53, 50), "gradient": (4, 1)}
    assert of("adaptive-tau", 53, batch_size=0) == {"arrays": (53, None), "gradient": (53, None)}
    assert of("per-fedavg", 53, batch_size=10, local_steps=1) == {"arrays": (5, 1)}
    assert of("per-fedavg", 53, batch_size=10) == {"arrays": (27, 6)}
    assert of("per-fedavg", 1, batch_size=10) == {"arrays": (1, None)}
    assert of("fedfomo", 20, batch_size=4) == {"arrays": (16, 4), "affinity": (4, None)}
    assert of("scaffold", 53, batch_size=1, local_steps=2)["control-delta"] == (2, 2)
    assert {f.of for f in ALGORITHMS["fsvrg-sparse"].phases["gradient"].up} == {"all"}


def ordered(node: Any, **config: Any) -> RecordDict:
    asked = wire.TrainOrder(1, {}, {"lr": 0.1}, ("ward",), (0,))
    return wire.train_content(asked, {"arrays": wire.pack_arrays(start(node))}, config)


@pytest.mark.parametrize(
    ("bounds", "keys", "sent", "says"),
    [
        ((10, 0), {}, {}, ""),
        ((10, 0), {"batch-size": 1, "local-steps": 9}, {}, '"batch-size" = 1, local-steps = 9'),
        ((10, 0), {"batch-size": 1, "local-steps": 10}, {}, ""),
        ((10, 0), {"batch-size": 1}, {"local-steps": 1}, "from 1 examples"),  # the message sets it
        ((28, 0), {}, {}, "min-examples = 28; client ward has 27"),
        ((27, 2), {"batch-size": 0}, {}, ""),
        ((0, 2), {"batch-size": 20, "local-steps": 1}, {}, "min-steps = 2; 'arrays' of fedavg"),
        ((0, 2), {"batch-size": 20}, {}, ""),
    ],
)
def test_an_update_from_less_than_the_owner_allows_is_refused(
    bounds: tuple[int, int], keys: dict[str, Any], sent: dict[str, Any], says: str, ward: dict[str, Any]
) -> None:
    node = open_node(read_config(CSV | keys), ward, Owner(False, *bounds))
    if not says:
        assert wire.read_reply(answer(node, ordered(node, **sent)), ["ward"], 1).upload
        return
    with pytest.raises(RefusedError, match=says) as info:
        answer(node, ordered(node, **sent))
    assert str(info.value).startswith("policy: min-")


def test_of_a_data_set_that_everybody_can_have_nothing_is_refused() -> None:
    config = read_config({"dataset": "digits", "model": "logistic", "batch-size": 1, "local-steps": 1})
    node = open_node(config, {}, Owner(False, 10**6, 10**6))
    asked = wire.TrainOrder(1, {}, {"lr": 0.1}, (node.clients.names[0],), (0,))
    content = wire.train_content(asked, {"arrays": wire.pack_arrays(start(node))}, {})
    assert answer(node, content)


def measures_of(node: Any, kind: str, **keys: Any) -> list[str]:
    """Return the names of the numbers that a node of a table sends of its clients' test data."""
    config = read_config(CSV | {"local-test-fraction": 0.2, "fraction-evaluate": 1.0, **keys})
    node = open_node(config, node, Owner(False, 7))
    entry = contract_of(config)
    asked = {"train": entry, "evaluate": evaluation_of(entry), "adapt": adaptation_of(entry)}[kind]
    order = wire.TrainOrder(1, {}, {"lr": 0.1}, ("ward",), (0,))
    down = {"arrays": wire.pack_arrays(start(node))} if asked.down else {}
    reply = wire.read_reply(answer(node, wire.train_content(order, down, {}), asked), ["ward"], 1)
    assert reply.upload is not None
    return sorted(reply.upload.scalars)


@pytest.mark.parametrize("kind", ["evaluate", "adapt"])
def test_measures_of_fewer_test_examples_than_the_owner_allows_are_refused(
    kind: str, ward: dict[str, Any]
) -> None:
    """30 rows, of which a fifth, 6, or three tenths, 9, are for tests."""
    with pytest.raises(RefusedError, match="min-examples = 7; loss and metrics of client ward would be of 6"):
        measures_of(ward, kind, algorithm="ditto")
    assert measures_of(ward, kind, algorithm="ditto", **{"local-test-fraction": 0.3}) == [
        "accuracy", "loss", "num-examples",
    ]  # fmt: skip


def test_training_sends_what_it_may_and_no_such_measures(ward: dict[str, Any]) -> None:
    """Only the own model's measures after training are left out: the update is of 24 examples."""
    assert measures_of(ward, "train", algorithm="ditto") == ["num-examples", "train-loss"]
    assert "test-accuracy" in measures_of(ward, "train", algorithm="ditto", **{"local-test-fraction": 0.3})


def test_a_client_whose_tests_are_too_few_is_named_and_trains_on(
    tmp_path: Path, ward: dict[str, Any]
) -> None:
    rows = "".join(f"{i},{i % 2}\n" for i in range(60))
    (tmp_path / "large.csv").write_text("x,label\n" + rows)
    large = {"client-name": "large", "data-path": str(tmp_path / "large.csv")}
    keys = CSV | {"local-test-fraction": 0.2, "fraction-evaluate": 1.0, "num-server-rounds": 2}
    config = read_config(keys | {"runs-dir": str(tmp_path / "runs"), "progress": "none"})
    configs = [node | {"min-examples": 7} for node in (ward, large)]
    folder = run(LocalGrid(make_app(), configs, as_run_config(read_config(keys))), config)
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    clients = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    assert {row["name"] for row in clients if row["phase"] == "evaluate"} == {"large"}
    assert {row["name"] for row in clients if row["phase"] == "train"} == {"large", "ward"}
    lines = {(line["client"], line["got"]) for row in rounds for line in row["quarantined"]}
    ((client, why),) = lines
    assert client == "ward"
    assert "policy: min-examples = 7; loss and metrics of client ward would be of 6 test examples" in why


def test_where_no_record_goes_up_the_loss_counts(ward: dict[str, Any]) -> None:
    keys = CSV | {"algorithm": "local-only", "batch-size": 1, "local-steps": 1, "fraction-evaluate": 1.0}
    node = open_node(read_config(keys), ward, Owner(False, 2))
    order = wire.TrainOrder(1, {}, {"lr": 0.1}, ("ward",), (0,))
    with pytest.raises(RefusedError, match="'train-loss' of local-only would be computed from 1 examples"):
        answer(node, wire.train_content(order, {}, {}))


def test_the_bounds_stand_in_the_node_config() -> None:
    assert owner_of({"min-examples": 7, "min-steps": 2}) == Owner(False, 7, 2)
    assert owner_of({}) == Owner(False, 0, 0)
    for bad in (-1, True, "7", 1.5):
        with pytest.raises(ConfigError, match='"min-examples": expected a whole number'):
            owner_of({"min-examples": bad})


def test_a_refusal_stays_one_on_its_way_out(ward: dict[str, Any]) -> None:
    """The process of a task writes refusals down; it knows them by their class."""
    run = as_run_config(read_config(CSV | {"batch-size": 1, "local-steps": 1}))
    context = Context(7, 3, ward | {"min-examples": 10}, RecordDict(), run)
    node = open_node(read_config(CSV), ward)
    message = Message(ordered(node), dst_node_id=3, message_type="train")
    with pytest.raises(RefusedError, match="policy: min-examples = 10"):
        make_app()(message, context)


@pytest.mark.parametrize("kind", ["evaluate.train", "train.evaluate", "evaluate.gradient", "train.lost"])
def test_a_phase_is_answered_under_its_own_verb_alone(kind: str, ward: dict[str, Any]) -> None:
    """An owner's limit of rounds counts trainings by the verb: none may run under another."""
    run = as_run_config(read_config(CSV | {"algorithm": "fsvrg"}))
    context = Context(7, 3, ward, RecordDict(), run)
    message = Message(ordered(open_node(read_config(CSV), ward)), dst_node_id=3, message_type=kind)
    verb, _, name = kind.partition(".")
    with pytest.raises(BouquetError, match=f"fsvrg has no {verb} phase '{name}' with this run config"):
        make_app()(message, context)


@pytest.mark.parametrize(
    "key", ["model", "dataset", "partition", "loss", "metrics", "optimizer", "algorithm"]
)
def test_code_of_a_run_is_refused_by_name_unless_the_owner_allows_its_package(key: str) -> None:
    # Importing it is running it: a run could read any file of the node.
    with pytest.raises(ConfigError, match=r'policy: packages: .*\(other\); got "net" of "net.parts:own"'):
        keys_of_node({key: "net.parts:own"}, {"packages": "other"})
    with pytest.raises(ConfigError, match=r'\(none\); got "net"'):
        keys_of_node({key: "net.parts:own"}, {})
    assert keys_of_node({key: "net.parts:own"}, {"packages": "other,net"})[key] == "net.parts:own"


def test_a_set_of_the_hub_is_refused_unless_the_owner_allows_it_by_its_whole_name() -> None:
    # The node would download it.
    with pytest.raises(ConfigError, match=r'policy: packages: .*got "hf:a/b".*permits this machine to'):
        keys_of_node({"dataset": "hf:a/b"}, {"packages": "hf,hf:a/c"})
    assert keys_of_node({"dataset": "hf:a/b"}, {"packages": "net,hf:a/b"})["dataset"] == "hf:a/b"


def test_code_that_is_not_allowed_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ward: dict[str, Any]
) -> None:
    (tmp_path / "evil_net.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setenv("BOUQUET_CODE", str(tmp_path))
    content = call(make_app(), {"dataset": "csv", "num-classes": 2, "model": "evil_net:Net"}, ward)
    assert "policy: packages" in refused(content)
    assert not (tmp_path / "ran").exists()


def test_the_name_that_a_server_gives_a_run_is_no_path(ward: dict[str, Any], tmp_path: Path) -> None:
    """Whatever a node writes under it lies in the folder for it."""
    keys = CSV | {"stream.own-data": True}
    context = Context(7, 3, ward, RecordDict(), as_run_config(read_config(keys)))  # type: ignore[arg-type]
    node = open_node(read_config(keys_of_node(keys, ward)), ward, owner_of(ward))
    note_own_data(node, context)
    name = "../../../../evil"
    check_own_data(node, context, RecordDict({"config": ConfigRecord({"run": name, "server-round": 1})}))
    root = state_root(node.config)
    (written,) = root.rglob("*.jsonl")
    assert written.parent == root / ".own-data"
    assert receipts_of(root, name).parent == root / ".receipts"
    assert store_of(node).path("anna", name).is_relative_to(root)
    assert not list(tmp_path.rglob("evil*"))
