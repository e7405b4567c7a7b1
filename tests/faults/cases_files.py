"""S19 to S22: hostile files, and what a hostile server or stranger makes of code, ids and bytes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from server_app.cli import exits
from server_app.deploy.host.app_integrity import CONTENT, difference, installed
from server_app.deploy.kits.kit import read_node_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link.jobs import FAILED
from server_app.deploy.node.identity import Identities
from task.errors import NodesError, RefusedError
from tests.faults.case import Rig, case
from tests.support import parties
from tests.support.grid import RUN_ID
from tests.vertical.test_logistic import owners
from tests.vertical.test_proofs import KEYS, NAMES, ROWS, guess, lying

CARD = {
    "format": 1, "kind": "features", "input_shape": [4], "num_classes": 2, "classes": [], "columns": [],
    "normalisation": {"scale": 1.0, "mean": [0.0], "std": [1.0]},
}  # fmt: skip


@case(
    "S19",
    "A file names code: a model's card, config.json, a transcript, a recipe, a sweep's queue",
    "nothing in it is imported unless the user names the package, and never from the standard library",
    "bouquet predict of a model file whose card names a module of the working directory, or os:mkdir; a "
    "torch.py there that would shadow the installed one",
    tests=(
        "tests/server_app/test_origin.py::test_it_is_known_of_every_command_which_files_it_reads_that_name_code",
        "tests/server_app/test_origin.py::test_no_command_runs_code_that_a_file_names",
        "tests/server_app/test_origin.py::test_a_replay_runs_no_code_that_the_run_names",
        "tests/server_app/test_origin.py::test_python_asks_for_the_same_word",
        "tests/server_app/test_origin.py::test_paths_of_a_card_are_ignored",
    ),
)
def files(rig: Rig) -> str:
    said = ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for module in ("evil", "torch", "task"):
            (folder / f"{module}.py").write_text("open('mark', 'w')\n")
        for keys in ({"model": "evil:name"}, {"dataset": "os:mkdir", "data-dir": str(folder / "mark")}):
            card = {**CARD, "run": {"model": "logistic", "dataset": "csv", **keys}}
            save_file({"w": np.zeros(1, np.float32)}, folder / "x.safetensors", {"bouquet": json.dumps(card)})
            clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            bouquet = str(Path(sys.executable).parent / "bouquet")
            done = subprocess.run(
                [bouquet, "predict", "x.safetensors"], cwd=folder, env=clean,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            said = done.stderr.strip()
            assert done.returncode == exits.CONFIG, said
            assert "a file names" in said, said
            assert not (folder / "mark").exists()
    return said[:110]


@case(
    "S20",
    'A run names what an allowed package imports (packages = ["helper"], helper:shutil.rmtree)',
    "refused: a reference never leads through a module, and its target is defined in an allowed package",
    "the package lies in the code folders of the link and of all nodes, whose policies allow it; a run "
    "names shutil.rmtree through it",
    tests=(
        "tests/task/test_references.py::test_nothing_is_reached_through_an_allowed_package",
        "tests/task/test_references.py::test_what_lies_in_an_allowed_package_is_found",
    ),
)
def through(rig: Rig) -> str:
    fed = rig.fed()
    for kit in ("link", *fed.wards):
        (fed.kits / kit / "code").mkdir(exist_ok=True)
        (fed.kits / kit / "code" / "helper.py").write_text("import shutil\n")
    configs = {name: fed.kits / name / "kit.toml" for name in fed.wards}
    before = {name: config.read_text() for name, config in configs.items()}
    try:
        for ward, config in configs.items():
            config.write_text(before[ward].replace("packages = []", 'packages = ["helper"]'))
            fed.restart_node(ward)
        fed.ready()
        name = rig.submit(1, model="helper:shutil.rmtree").name
        reason = fed.until(lambda: fed.job(name).reason, 240, "the refusal")
    finally:
        for ward, config in configs.items():
            config.write_text(before[ward])
            fed.restart_node(ward)
    assert 'through module "shutil"' in reason, reason
    assert (fed.job(name).state, fed.job(name).attempts) == (FAILED, 1)
    return reason[:110]


@case(
    "S21",
    "A lying server tests which ids a party of a vertical run has",
    "refused: a party masks only what the party before it has signed, one set at each hop",
    "a server makes two parties with kits mask points of ids that it guesses",
    tests=(
        "tests/vertical/test_proofs.py::test_a_lying_server_is_refused",
        "tests/vertical/test_proofs.py::test_without_proofs_a_lying_server_finds_out_which_ids_a_party_has",
        "tests/vertical/test_proofs.py::"
        "test_a_party_masks_one_set_at_each_hop_and_aligns_a_bounded_number_of_times",
    ),
)
def guesses(rig: Rig) -> str:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        patch.setenv("BOUQUET_CACHE", str(folder / "cache"))
        provision(folder / "kits", "127.0.0.1:9092", NAMES)
        proofs = {n: Identities(read_node_kit(folder / "kits" / n)).of(RUN_ID) for n in NAMES}
        with pytest.raises(NodesError, match="field 'points': expected those that party") as refused:
            parties.play_own(owners(folder, NAMES, rows=ROWS), KEYS, grid_type=lying(guess), proofs=proofs)
    return str(refused.value)[:110]


@case(
    "S22",
    "An app's bundle of 300 kB that unpacks to 300 MB",
    "link and nodes refuse it before anything is unpacked; memory and disk stay as they are",
    "bundles whose list of files, pyproject.toml or any other file is 300 MB of zeros",
    tests=(
        "tests/deploy/test_warm.py::test_a_bundle_that_unpacks_to_hundreds_of_megabytes_is_not_unpacked",
        "tests/deploy/test_warm.py::test_a_bundle_of_very_many_files_is_refused",
    ),
)
def bomb(rig: Rig) -> str:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(CONTENT, "w") as member:
        for _ in range(300):
            member.write(bytes(2**20))
    here = installed()
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match="Nothing was unpacked") as refused:
            difference(out.getvalue(), here)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    return str(refused.value)[:110]
