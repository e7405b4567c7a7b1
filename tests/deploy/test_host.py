"""What a process says of where it is, and how soon it tries a call again."""

from __future__ import annotations

import socket
from itertools import islice
from pathlib import Path

import pytest
from flwr.supercore.retry import grpc_retry, http_retry

from server_app.deploy.flower.retries import retry_soon
from server_app.deploy.host import host
from server_app.deploy.host.host import place_of
from task import timing


def test_a_place_is_the_same_however_its_folder_is_spelt_and_no_other_folders(tmp_path: Path) -> None:
    here, there = tmp_path / "kit", tmp_path / "other"
    here.mkdir()
    there.symlink_to(here)
    assert place_of(here) == place_of(tmp_path / "x" / ".." / "kit") == place_of(there)
    assert place_of(here) != place_of(tmp_path)


def test_a_place_is_of_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two containers with one path and one machine id the host name differs."""
    ids = tmp_path / "machine-id"
    monkeypatch.setattr(host, "MACHINE_ID", ids)
    seen = set()
    for number in ("", "1", "2"):
        if number:
            ids.write_text(f"{number}\n")
        for name in ("ward-1", "ward-2"):
            monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
            seen.add(place_of(tmp_path))
    assert len(seen) == 6


def test_calls_are_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what Flower waits after twenty failures in a row, over gRPC and over HTTP."""
    modules = [(grpc_retry, "make_simple_grpc_retry_invoker"), (http_retry, "make_simple_http_retry_invoker")]
    for module, _ in modules:
        monkeypatch.setattr(module, "MAX_RETRY_DELAY", module.MAX_RETRY_DELAY)  # is put back after the test

    def longest() -> list[float]:
        return [max(islice(getattr(module, make)().wait_gen_factory(), 20)) for module, make in modules]

    assert min(longest()) > timing.RETRY_LONGEST_S
    retry_soon()
    assert longest() == 2 * [timing.RETRY_LONGEST_S]
