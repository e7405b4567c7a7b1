"""A federation of this machine's processes that does not come up says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from server_app.deploy.kits.kit import read_link_kit
from server_app.deploy.kits.provision import provision
from server_app.engines.federation import Federation, _await_link
from task import timing
from task.errors import BouquetError
from task.storage.files import write_json


def test_what_keeps_the_link_from_being_ready_is_said_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "FEDERATION_STARTS_S", 0.0)
    provision(tmp_path / "kits", "127.0.0.1:9092", [])
    kit = read_link_kit(tmp_path / "kits" / "link")
    write_json(kit.status, {"state": "red", "warnings": ["no room on the disk"], "written": 9e9})
    fed = Federation(kit)
    fed._log("link").write_text("\x1b[93mWARNING \x1b[0m: slow\n")
    fed.processes["link"] = Running()  # type: ignore[assignment]
    with pytest.raises(BouquetError, match=r"not ready in 0 s: no room on the disk\n== link.log\nWARNING :"):
        _await_link(fed)


class Running:
    def poll(self) -> None:
        return None
