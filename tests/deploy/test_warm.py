"""Which code may run, and who may say no."""

from __future__ import annotations

import hashlib
import io
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from flwr.common.config import get_fused_config_from_fab
from flwr.common.serde import run_from_proto
from flwr.proto.fab_pb2 import Fab as FabProto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.run_pb2 import Run
from flwr.supercore.fab import Fab

from server_app.deploy.calls.limits import Limits
from server_app.deploy.flower.client_task import _Received, _Remarks
from server_app.deploy.flower.portable_run import keys_of_run
from server_app.deploy.flower.warm import AcquiredTask
from server_app.deploy.host import policy
from server_app.deploy.host.app_integrity import (
    CONTENT,
    MOST_FILES,
    OF_A_NODE,
    difference,
    installed,
    listing,
    own_app,
    run_config,
)
from server_app.deploy.host.host import APP_HEADER
from server_app.deploy.host.policy import Site
from server_app.deploy.host.tasks import REMARKS_BYTES
from task import timing
from task.errors import PACKAGES, RefusedError
from task.text import logger
from tests.support.fleet import served
from tests.support.runtime import own_bundle


def bundle(files: dict[str, bytes]) -> bytes:
    """Return an archive that lists files."""
    listed = "\n".join(f"{p},{hashlib.sha256(b).hexdigest()},{8 * len(b)}" for p, b in files.items())
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(CONTENT, listed)
    return out.getvalue()


HERE = {p: hashlib.sha256(b).hexdigest() for p, b in {"task/a.py": b"1", "task/b.py": b"2"}.items()}


def test_this_apps_own_bundle_is_the_installed_app() -> None:
    content = own_bundle()
    assert difference(content, installed()) == ""
    assert difference(content, installed(OF_A_NODE)) == ""
    assert set(OF_A_NODE) < set(PACKAGES)


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"task/a.py": b"1", "task/b.py": b"2", "strategies/c.py": b"3", "task/x.toml": b"4"}, ""),
        ({"task/a.py": b"9", "task/b.py": b"2"}, "task/a.py differ"),
        ({"task/a.py": b"1"}, "task/b.py differ"),
        ({"task/a.py": b"1", "task/b.py": b"2", "task/c.py": b"3"}, "task/c.py differ"),
        ({"task/a.py": b"9", "task/b.py": b"9"}, "task/a.py and 1 more files differ"),
        ({"other/a.py": b"1"}, "it is another app"),
    ],
)
def test_a_bundle_differs_by_each_file_that_would_run(files: dict[str, bytes], what: str) -> None:
    assert difference(bundle(files), HERE) == what


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_bundle_that_cannot_be_read_differs(content: bytes) -> None:
    assert "cannot be read" in difference(content, HERE)


@pytest.mark.parametrize("name", [CONTENT, "pyproject.toml", "task/x.toml", "junk.bin"])
def test_a_bundle_that_unpacks_to_hundreds_of_megabytes_is_not_unpacked(name: str) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as member:
        for _ in range(300):
            member.write(bytes(2**20))
    assert len(out.getvalue()) < 400_000
    run = run_from_proto(Run())
    task = _Received({"keys": None}, run, Fab("", out.getvalue(), {}), b"", None)  # type: ignore[arg-type]
    fab = FabProto(content=out.getvalue()).SerializeToString()
    tracemalloc.start()
    for read in (difference, lambda content, here: listing(content), lambda content, here: task.context):
        with pytest.raises(RefusedError, match=r"314\.6 MB .*Nothing was unpacked"):
            read(out.getvalue(), HERE)
    assert keys_of_run(Run(), fab) is None
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_bundle_of_very_many_files_is_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for i in range(MOST_FILES + 1):
            archive.writestr(str(i), "")
    with pytest.raises(RefusedError, match=f"got {MOST_FILES + 1:,} files"):
        difference(out.getvalue(), HERE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # as Flower sets up its database
def test_a_node_with_the_installed_app_fetches_no_more_than_its_list_of_files(tmp_path: Path) -> None:
    whole = own_bundle()
    with served(tmp_path, Limits(300_000, 600), fab=whole) as link:
        node, run = link.peer(), link.state.get_run_info(run_ids=[link.run])[0]
        request = GetFabRequest(node=node.node, hash_str=run.fab_hash, run_id=run.run_id)
        assert node.stub.GetFab(request).fab.content == whole  # of a node that may have to unpack it
        part = node.stub.GetFab(request, metadata=[(APP_HEADER, " ".join(own_app()))]).fab.content
    assert difference(part, installed()) == ""
    assert "files differ" in difference(part, HERE)
    assert run_config(part, {}) == get_fused_config_from_fab(whole, run)
    assert run_config(part, {"seed": 5}) == run_config(part, {}) | {"seed": 5}
    with pytest.raises(ValueError, match=r"run-config keys \['sead'\]: expected keys of the app"):
        run_config(part, {"sead": 5})
    assert len(part) < len(whole) / 10


@pytest.mark.parametrize(("kind", "yes"), [("train", True), ("train.gradient", True), ("evaluate", False)])
def test_what_counts_as_training(kind: str, yes: bool) -> None:
    assert policy.trains(kind) is yes


def test_errors_that_a_task_logs_are_told_to_the_operator_as_lines_of_bounded_length() -> None:
    logger.addHandler(remarks := _Remarks())
    try:
        logger.warning("of no matter")
        logger.error("no\nspace")
        try:
            raise KeyError("x")
        except KeyError as err:
            logger.error("%s", err, exc_info=err)
        assert remarks.packed().decode() == "no space\nKeyError: 'x'"
        logger.error("%s", "x" * 100_000)
        assert len(remarks.packed()) == REMARKS_BYTES
    finally:
        logger.removeHandler(remarks)


def test_the_number_of_rounds_is_limited() -> None:
    site = Site(max_rounds=2)
    policy.may_train(site, 1, installed=True)
    with pytest.raises(RefusedError, match="max-rounds = 2"):
        policy.may_train(site, 2, installed=True)


def test_another_apps_examples_cannot_be_counted() -> None:
    for key in ("min-examples", "min-steps"):
        site = Site(apps="any", **{key.replace("-", "_"): 5})  # type: ignore[arg-type]
        with pytest.raises(RefusedError, match=f"{key} = 5; expected 0, as another app's work"):
            policy.may_train(site, 0, installed=False)
        policy.may_train(site, 0, installed=True)  # the app itself counts


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 0", ""),
        ("echo on battery; exit 1", "said on battery"),
        ("exit 4", "said exit code 4"),
        ("sleep 30", "did not answer within 0.5 s"),
    ],
)
def test_a_hook_says_yes_by_its_exit_code(
    script: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "HOOK_S", 0.5 if "sleep" in script else 30.0)
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\n{script}\n")
    hook.chmod(0o755)
    if not says:
        policy.ask(str(hook))
        return
    with pytest.raises(RefusedError, match=says):
        policy.ask(str(hook))


def test_of_a_hook_the_server_hears_the_standard_output_alone(tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text("#!/bin/sh\necho on battery; echo patient 17 >&2; exit 1\n")
    hook.chmod(0o755)
    with pytest.raises(RefusedError) as info:
        policy.ask(str(hook))
    assert info.value.public == "not training: its program said on battery"
    assert str(info.value) == f"not training: {hook} said on battery (patient 17)"


def test_a_hook_that_cannot_be_run_says_no(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="cannot be run"):
        policy.ask(str(tmp_path / "none"))


def test_a_token_is_not_shown() -> None:
    assert "hush" not in repr(AcquiredTask("127.0.0.1:1", "hush"))
