"""A file is not its user: what files name is imported only if the user names its package."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import click
import pytest
import typer
from safetensors import safe_open
from safetensors.numpy import save_file

import bouquet
from server_app.cli.main import app
from server_app.engines.simulate import simulate
from task import trust
from task.errors import BouquetError, ConfigError
from task.references import KEYS

ROOT = Path(__file__).resolve().parents[2]
KEYS_OF_A_RUN = {
    "dataset": "digits", "model": "logistic", "num-clients": 2, "num-server-rounds": 1, "progress": "none",
    "transcript": "sums", "threads": 1,
}  # fmt: skip
EVIL = "evil_module"
SOURCE = """
import os
open(os.environ["EVIL_MARK"], "w").close()
def name(*args, **named): raise RuntimeError
"""


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with a transcript."""
    folder = tmp_path_factory.mktemp("made")
    return Path(simulate({**KEYS_OF_A_RUN, "runs-dir": str(folder), "run-name": "trial"}).path)


class Place:
    """A folder with files of a stranger's in it, and what says whether their code has run."""

    def __init__(self, folder: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.mark = folder, folder / "mark"
        (folder / f"{EVIL}.py").write_text(SOURCE)
        copytree(run, folder / "runs" / "trial")
        monkeypatch.setenv("EVIL_MARK", str(self.mark))
        monkeypatch.chdir(folder)
        monkeypatch.setattr(trust, "_named", set())
        monkeypatch.setattr(trust, "_allowed", set())
        monkeypatch.setattr(sys, "path", list(sys.path))

    def poison(self, keys: dict[str, Any]) -> None:
        """Put keys into every file of the run that has any, and into recipes of each kind."""
        trial = self.folder / "runs" / "trial"
        config = json.loads((trial / "config.json").read_text())
        config["run"] |= keys
        (trial / "config.json").write_text(json.dumps(config))
        model = trial / "model.safetensors"
        with safe_open(model, framework="np") as file:
            arrays = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
            card = json.loads(file.metadata()["bouquet"])
        card["run"] |= keys
        kept = {"run": "1", "round": 1, "keys": config["run"], "node": {}, "void": []}
        both = {"bouquet": json.dumps(card), "kept": json.dumps(kept)}
        save_file(arrays, model, both)
        (self.folder / "kit" / "models").mkdir(parents=True, exist_ok=True)
        save_file(arrays, self.folder / "kit" / "models" / "trial.safetensors", both)
        lines = (trial / "transcript" / "rounds.jsonl").read_text().splitlines()
        first = json.loads(lines[0])
        first["about"]["run"] |= keys
        (trial / "transcript" / "rounds.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
        quiet = {k: v for k, v in {**KEYS_OF_A_RUN, **keys}.items() if k != "progress"}  # a sweep sets it
        toml = "".join(f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in quiet.items())
        (self.folder / "own.toml").write_text(toml)
        (self.folder / "scene.toml").write_text(toml + "[runs.one]\nseed = 2\n")
        point = {"name": "one", "keys": {**KEYS_OF_A_RUN, **keys}, "state": "waiting"}
        queue = {"version": 1, "command": "", "started": "", "swept": {}, "points": [point]}
        (self.folder / "runs" / "grid").mkdir(exist_ok=True)
        (self.folder / "runs" / "grid" / "sweep.json").write_text(json.dumps(queue))

    def call(self, *words: str) -> str:
        """Run a command here; return how it failed."""
        try:
            typer.main.get_command(app).main(list(words), standalone_mode=False)
        except (BouquetError, click.ClickException, OSError) as err:
            return str(err)
        except (SystemExit, Exception) as err:  # whatever it is, nothing of the stranger's may have run
            return repr(err)
        return ""

    @property
    def ran(self) -> bool:
        """Whether code of the stranger's was imported or called."""
        return self.mark.exists() or EVIL in sys.modules


@pytest.fixture
def place(tmp_path: Path, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield Place(tmp_path, run_folder, monkeypatch)
    sys.modules.pop(EVIL, None)


# How each command reads files that may name code. The others read none; a new command has to be listed.
RECIPE, RUN, MODEL = ("--recipe", "own.toml"), "runs/trial", "runs/trial/model.safetensors"
READS: dict[str, list[tuple[str, ...]]] = {
    "run": [RECIPE, ("-c", "own.toml"), ("--from", RUN), ("--from", MODEL), ("--recipe", "scene.toml/one")],
    "federation": [RECIPE],
    "sweep": [("own.toml",), ("--name", "grid"), ("--runs-file", "scene.toml", "-c", "seed=1,2")],
    "data": [RECIPE],
    "app": [(".", *RECIPE)],
    "predict": [(RUN,), (MODEL,), (RUN, "--client", "client-1"), (RUN, "--global-test")],
    "samples": [(RUN,), (MODEL,)],
    "export": [(RUN, "-f", "torchscript"), (MODEL, "-f", "safetensors"), (MODEL, "-f", "xgboost")],
    "verify": [(RUN,)],
    "replay": [(RUN,)],
    "report": [(RUN,)],
    "compare": [(RUN,), (RUN, "--plot", "plot.png")],
    "audit epsilon": [(*RECIPE, "-c", "dp.noise=1.0")],
    "audit inversion": [("-c", "own.toml")],
    "audit membership": [(RUN,), (RUN, "--shadows", "2")],
}
READS_NONE = {
    "algorithms": "lists the catalogue", "models": "lists the catalogue", "recipes": "lists the catalogue",
    "state": "reads headers of kept state, which have no run config",
    "decrypt": "reads arrays, and writes the metadata as they are",
    "connect": "writes a connection of Flower's", "provision": "writes kits",
    "status": "reads the link's own status", "monitor": "shows text of files",
    "node": "runs under [policy] of its kit: tests/client_app/test_owner.py",
    "link": "starts what was submitted with its kit, whose keys were checked there",
    "reproduce": "below, with a table of a stranger's", "scene": "starts `run --recipe`, above",
    "statistics": "reads csv files, and keys as `run -c` does, above",
}  # fmt: skip
CALLS = [(command, words) for command, calls in READS.items() for words in calls]


def commands(group: Any = None, before: str = "") -> set[str]:
    """Return every command's name, those of groups with the group's in front."""
    group = group or typer.main.get_command(app)
    found = set[str]()
    for name, command in group.commands.items():
        found |= commands(command, f"{name} ") if hasattr(command, "commands") else {before + name}
    return found


def test_it_is_known_of_every_command_which_files_it_reads_that_name_code() -> None:
    assert commands() == {*READS, *READS_NONE}


@pytest.mark.parametrize(("command", "words"), CALLS, ids=[" ".join([c, *w]) for c, w in CALLS])
@pytest.mark.parametrize("reference", [f"{EVIL}:name", "os:mkdir"])
def test_no_command_runs_code_that_a_file_names(
    command: str, words: tuple[str, ...], reference: str, place: Place
) -> None:
    for key in KEYS if reference.startswith(EVIL) else ["dataset"]:
        before = {p.name for p in place.folder.iterdir()}
        place.poison({key: reference, "data-dir": str(place.folder / "mark")})
        why = place.call(*command.split(), *words)
        assert not place.ran, f"{key}: {why}"
        if key in ("dataset", "model", "algorithm") and command not in ("report", "compare", "replay"):
            assert reference in why
            assert "--code" in why or "standard library" in why, f"{key}: {why}"
        assert {p.name for p in place.folder.iterdir()} - before <= {
            "own.toml", "scene.toml", "kit", "runs", "plot.png", "pyproject.toml", "label-counts.png"
        }  # fmt: skip
        place.poison({key: KEYS_OF_A_RUN.get(key, "")})


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", (*RECIPE, "--run-name", "x")), ("predict", (MODEL,)), ("samples", (RUN,)), ("verify", (RUN,)),
        ("export", (RUN, "-f", "safetensors")), ("data", RECIPE), ("run", ("--from", RUN)),
        ("sweep", ("own.toml",)), ("sweep", ("--name", "grid")), ("audit membership", (RUN,)),
    ],
)  # fmt: skip
def test_code_runs_that_the_user_names(command: str, words: tuple[str, ...], place: Place) -> None:
    key = "algorithm" if command in ("data", "sweep", "verify") else "model"
    place.poison({key: f"{EVIL}:name"})
    assert "--code evil_module" in place.call(*command.split(), *words)
    assert not place.ran
    place.call(*command.split(), *words, "--code", EVIL)
    assert place.ran


def test_a_key_that_the_user_types_needs_no_further_word_and_opens_nothing_else(place: Place) -> None:
    place.poison({"model": f"{EVIL}:name"})
    place.call("run", "--from", RUN, "-c", f'model="{EVIL}:name"')
    assert place.ran
    with pytest.raises(ConfigError, match=f"{EVIL}:other"):
        trust.packages_for("model", f"{EVIL}:other", EVIL)


@pytest.mark.parametrize("package", ["os", "builtins", "subprocess", "shutil", "sys"])
def test_the_standard_library_cannot_be_named(package: str, place: Place) -> None:
    place.poison({"dataset": f"{package}:name"})
    assert "standard library" in place.call("predict", MODEL, "--code", package)


def test_python_asks_for_the_same_word(place: Place) -> None:
    place.poison({"model": f"{EVIL}:name"})
    for read in (
        lambda: bouquet.load(RUN).model,
        lambda: bouquet.load(RUN).predict(),
        lambda: bouquet.load(RUN).samples(),
        lambda: bouquet.run(repeat=RUN),
        lambda: bouquet.run(recipe="own.toml"),
    ):
        with pytest.raises(ConfigError, match=f'code="{EVIL}"'):
            read()
    assert not place.ran
    with pytest.raises(BouquetError):
        bouquet.load(RUN, code=EVIL).model  # noqa: B018
    assert place.ran


def test_a_replay_runs_no_code_that_the_run_names(place: Place) -> None:
    place.poison({"algorithm": "fedasync", "order-of-arrival": "real", "model": f"{EVIL}:name"})
    run_id = json.loads((place.folder / RUN / "config.json").read_text())["id"]
    step = {"event": "step", "round": 1, "updates": [], "refused": []}
    lines = [{"event": "run", "id": run_id}, step]
    (place.folder / RUN / "arrivals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "--code evil_module" in place.call("replay", RUN)
    assert not place.ran


def test_paths_of_a_card_are_ignored(place: Place) -> None:
    from task.resolve.model_card import read_model

    paths = {"data-path": "/etc", "data-dir": "/x", "cache-dir": "/x", "state-dir": "/x", "runs-dir": "/x"}
    place.poison({**paths, "initial-model": "/x.pt", "initial-model-strict": False})
    card, _ = read_model(Path(MODEL))
    assert not {*paths, "initial-model", "initial-model-strict"} & card.run.keys()
    assert card.config.data.data_path == ""


def test_a_kit_takes_the_packages_of_its_policy(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from server_app.deploy.kits import kit as kits

    place.poison({"model": f"{EVIL}:name"})
    for packages, expected in (((), False), ((EVIL,), True)):
        kit = kits.NodeKit.__new__(kits.NodeKit)
        object.__setattr__(kit, "path", place.folder / "kit")
        object.__setattr__(kit, "policy", kits.Policy(packages=packages))
        monkeypatch.setattr(kits, "read_kit", lambda path, kit=kit: kit)
        monkeypatch.setenv("BOUQUET_CODE", "")
        with monkeypatch.context() as context:
            context.setattr(
                kits.NodeKit, "environment", lambda self: {"BOUQUET_CACHE": "c", "BOUQUET_CODE": ""}
            )
            why = place.call("predict", "--kit", "kit", "--data", "x.csv")
        assert place.ran == expected, why


def test_no_program_of_ours_begins_with_the_modules_of_the_working_directory() -> None:
    for package in ("server_app", "task", "client_app", "bouquet"):
        for path in (ROOT / package).rglob("*.py"):
            found = re.findall(r'sys\.executable,\s*"-m"', path.read_text())
            assert not found, f"{path}: start it by server_app.deploy.host.modules.module_command"
