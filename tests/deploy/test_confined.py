"""A run on a link names files of the link's kit and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from server_app.app import main
from server_app.deploy.kits.kit import read_link_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link.follow import submit
from server_app.deploy.link.jobs import Jobs
from server_app.run.confined import KIT, PATHS, confined
from task.config.read import as_run_config
from task.errors import ConfigError
from task.resolve.read import read_config


def test_paths_lie_in_the_kit(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    assert confined({"seed": 3, "data-path": ""}, kit) == {"seed": 3, "data-path": ""}
    assert confined({"data-path": "test.csv"}, kit)["data-path"] == str(kit / "test.csv")
    assert confined({"runs-dir": str(kit / "runs")}, kit)["runs-dir"] == str(kit / "runs")
    assert confined({"data-path": "~/x"}, kit)["data-path"] == str(kit / "~/x")


@pytest.mark.parametrize("key", PATHS)
@pytest.mark.parametrize("path", ["/etc/shadow", "../other", "a/../../other", "{kit}-2/x", "{kit}/../x"])
def test_paths_outside_are_refused(key: str, path: str, tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    with pytest.raises(ConfigError, match=f'run-config key "{key}": expected a path below {kit}'):
        confined({key: path.format(kit=kit)}, kit)


def test_a_link_of_the_owners_leads_out(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    kit.mkdir()
    (kit / "data").symlink_to(tmp_path / "elsewhere")
    assert confined({"data-path": "data/test.csv"}, kit)["data-path"] == str(kit / "data/test.csv")


def test_the_server_app_of_a_link_refuses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shadow").write_text("root:$6$hush\n")
    keys = {"dataset": "csv", "data-path": str(tmp_path / "shadow"), "runs-dir": str(tmp_path / "runs")}
    context = Context(7, 3, {}, RecordDict(), as_run_config(read_config(keys)))
    monkeypatch.setenv(KIT, str(tmp_path / "kit"))
    with pytest.raises(RuntimeError, match=r'config: run-config key "runs-dir": expected a path below'):
        main(None, context)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


def test_they_are_refused_when_a_run_is_submitted(tmp_path: Path) -> None:
    provision(tmp_path / "kits", "host.example:9092", ["ward-1"])
    kit = read_link_kit(tmp_path / "kits" / "link")
    with pytest.raises(ConfigError, match=f'"cache-dir": expected a path below {kit.path}'):
        submit(kit, {"cache-dir": "/srv/theirs"})
    assert Jobs(kit.jobs, kit.runs).all() == []
