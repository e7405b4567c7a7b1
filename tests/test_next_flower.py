"""A next Flower of our making, on which every patch is left out: the SuperLink starts with what guards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from server_app.deploy.host.app_integrity import LEFT_OUT, own_app
from server_app.deploy.host.host import free_port
from server_app.deploy.kits.kit import read_link_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link.run_link import superlink_command
from tests.compat.next_flower import SEEDS, VERSION

ROOT = Path(__file__).resolve().parents[1]
CODE = """
import importlib, json, pkgutil
from server_app.deploy.flower import names as deployed, superlink
from task.flower import names as anywhere
from task.flower.names import changes, untested
patches = {use for patch in superlink.PATCHES for use in patch.needs} | {*superlink.CALLS, *superlink.OTHERS}
needed = [use for use in (*anywhere.USES, *deployed.USES) if use not in patches]
for module in pkgutil.iter_modules(["server_app/deploy/flower"]):
    if module.name not in ("delivery", "economy", "fleet_delivery", "objects", "replies"):  # a patch has them
        importlib.import_module(f"server_app.deploy.flower.{module.name}")
print(json.dumps([changes(*needed), superlink.left_out(), untested()]))
"""


@pytest.mark.full
@pytest.mark.system
def test_what_does_not_fit_is_left_out_and_the_superlink_starts(tmp_path: Path) -> None:
    # In a process of its own: other tests replace functions of Flower in this one.
    made = f"from pathlib import Path; environment(Path({str(tmp_path / 'next')!r}), {SEEDS[0]})"
    made = f"from tests.compat.next_flower import environment; {made}"
    subprocess.run([sys.executable, "-c", made], cwd=ROOT, check=True)
    python = tmp_path / "next" / "bin" / "python"
    found = subprocess.run([python, "-c", CODE], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    misfits, without, untested = json.loads(found.splitlines()[-1])
    assert misfits == []
    assert len(without) == 8
    assert all(
        re.match(rf"Flower {VERSION} has another flwr\.[\w.]+, or none: .+\.$", one) for one in without
    )
    assert untested.startswith(f"Flower {VERSION} is newer than ")

    provision(tmp_path / "kits", f"127.0.0.1:{free_port()}", ["ward"])
    kit = read_link_kit(tmp_path / "kits" / "link")
    kit.state.mkdir()
    line = [str(python), *superlink_command(kit, own_app())[1:]]
    line[line.index("--port") + 1] = str(free_port())
    environment = os.environ | kit.environment() | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = []
        for text in process.stdout:  # until it serves, or has ended
            said.append(text)
            if "Uvicorn running" in text:
                process.terminate()
        assert process.wait(60) == -signal.SIGTERM, "".join(said)
    shown = "".join(said)
    assert all(one in shown for one in without)
    assert "Starting Fleet API (gRPC-rere)" in shown
    assert json.loads((kit.state / LEFT_OUT).read_text()) == without
