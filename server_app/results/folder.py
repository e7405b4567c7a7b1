"""The result folder of a run: the one place that writes it and the one place that reads it.

::

    runs/<run-name>/
      config.json          every run-config key, versions, git commit, seed    before round 1
      rounds.jsonl         one object a round                                  grows
      clients.jsonl        one object per client and evaluation                grows
      nodes.json           the nodes of the last round, what each has, and who is left out and why
      .lock                held by the process that writes here (server_app/run/run_lock.py)
      checkpoint/          (server_app/run/checkpoint.py)
      arrivals.jsonl       of an asynchronous run that goes by real arrivals (server_app/run/logs/arrivals.py)
      transcript/          of a run that anyone can check (server_app/run/logs/transcript.py)
      model.safetensors    the final model, or that at a stop (task/resolve/model_card.py); or
      model.encrypted.safetensors, which nodes can open (`bouquet decrypt`)
      result.json          what `summarise` makes of it all, and "stopped" of a run that was; it is the end
      cross-evaluation.csv of a run that tests its clients' own models at all clients
      table.csv, .tex      of a regression (server_app/results/coefficients.py)
      samples.png          of a generative model (server_app/results/samples.py); samples.json, how good new
                           images are, if `bouquet samples` was asked (server_app/takeout/samples.py)
      report.html, plots/  (server_app/results/report.py)

Names and keys are public. Whole files are replaced atomically; the two growing files only ever get whole
lines at their end, and a resumed run cuts them back to its checkpoint. All JSON is strict: NaN and
infinity become null.
"""

import csv
import datetime
import difflib
import importlib.metadata
import io
import json
import math
import os
import platform
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server_app.results.lines import Row, parse, split
from task.config.renamed import present
from task.encryption.ckks import sealed
from task.errors import ConfigError, StateError
from task.population import some
from task.portable import KERNELS, machine_class
from task.storage.files import naming, private, write_bytes, write_safetensors, write_text

CONFIG = "config.json"
ROUNDS = "rounds.jsonl"
CLIENTS = "clients.jsonl"
RESULT = "result.json"
MODEL = "model.safetensors"
ENCRYPTED = "model.encrypted.safetensors"  # the same with `he`, if the key was not at hand
NODES = "nodes.json"
CROSS = "cross-evaluation.csv"
SAMPLES = "samples.png"
SAMPLE_SCORES = "samples.json"
CHECKPOINT = "checkpoint"

_CODE = Path(__file__).resolve().parents[2]


def place_of(run: Path) -> Path:
    """Return where a run is that a command names by its path, or by its name below runs/."""
    below = Path("runs") / run
    return run if run.exists() or (len(run.parts) > 1 and not below.exists()) else below


def neighbours(path: Path) -> str:
    """Return in words which runs lie where none is called `path`, and the one that was probably meant."""
    try:
        names = sorted(p.name for p in path.parent.iterdir() if (p / CONFIG).exists())
    except OSError:
        names = []
    near = difflib.get_close_matches(path.name, names, 1)
    meant = f' Did you mean "{near[0]}"?' if near else ""
    return f"{path.parent} has {some(names) or 'no runs'}.{meant}"


def _elsewhere(name: str) -> str:
    """Return in words which other folders of runs lie near, such as a kit's, and whether one has this run."""
    places = [place for form in ("*/runs", "*/*/runs") for place in sorted(Path().glob(form))]
    found = [place for place in places if any((run / CONFIG).exists() for run in place.iterdir())]
    same = next((place / name for place in found if (place / name / CONFIG).exists()), None)
    meant = f' Did you mean "{same}"?' if same else ""
    return f" Runs are in {some([str(place) for place in found])}, too.{meant}" if found else ""


def no_run(expected: str, run: Path) -> ConfigError:
    """Return the error about a run that a command names and that is not there."""
    more = _elsewhere(run.name) if len(run.parts) == 1 else ""
    return ConfigError(f"{expected}; got {run}. {neighbours(place_of(run))}{more}")


def is_one_folder(name: str) -> bool:
    """Return whether a name stays within the folder of the runs."""
    return Path(name).name == name and name not in ("", "..")


def one_folder(where: str, name: str) -> str:
    """Return the name of a result folder.

    Raises:
        ConfigError: It would leave the folder of the runs; `where` says what named it.
    """
    if not is_one_folder(name):
        raise ConfigError(f"{where}: expected the name of one folder; got {name!r}")
    return name


class RunFolder:
    """One result folder; what is not there reads as no rounds, no result."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], *, resume: bool) -> "RunFolder":
        """Make the folder of a run that starts, or take the one of a run to `resume`; then `truncate` it.

        `server_app.run.naming` chooses it: one without a run that has begun, or that of the run to resume,
        which may be finished. `config` is what config.json is to hold: under "run" every run-config key with
        its value; "seed", "started", "id" and "environment" are added where they are missing.

        Raises:
            ConfigError: The folder cannot be made.
        """
        folder = cls(path)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        known = {"seed": config["run"].get("seed"), "started": now, "id": uuid.uuid4().hex}
        record = {**known, "environment": environment(config["run"]), **config}
        if resume and (folder.path / CONFIG).exists():
            before = folder.config()
            record["resumed"] = [*before.get("resumed", []), record["started"]]
            record |= {k: before[k] for k in ("started", "id") if k in before}
        try:
            folder._write(CONFIG, record)
        except OSError as err:
            raise ConfigError(
                f'run-config keys "runs-dir" and "run-name": cannot write the result folder {path}: {err}'
            ) from None
        return folder

    def begun(self) -> bool:
        """Return whether the folder holds a run with something to lose: a round, a checkpoint or a result."""
        checkpoint = self.path / CHECKPOINT
        kept = checkpoint.is_dir() and any(checkpoint.iterdir())
        return self.finished() or kept or _size(self.path / ROUNDS) > 0

    def finished(self) -> bool:
        """Return whether the folder holds the result of a run, be it one that was stopped."""
        return (self.path / RESULT).exists()

    def append_round(self, row: Mapping[str, Any]) -> None:
        """Add one line to rounds.jsonl."""
        # A resumed run that was finished is unfinished again once it has a further round.
        (self.path / RESULT).unlink(missing_ok=True)
        self._append(ROUNDS, [row])

    def append_clients(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add one line per row to clients.jsonl."""
        self._append(CLIENTS, rows)

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        lines = b"".join(to_json(row) for row in rows)
        if lines:
            with naming(self.path / name), open(self.path / name, "ab", opener=private) as file:
                file.write(lines)

    def write_nodes(
        self, nodes: Sequence[Mapping[str, Any]], left_out: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Write nodes.json: the nodes that take part, and those that are online and do not."""
        self._write(NODES, {"nodes": list(nodes), "left_out": list(left_out)})

    def write_cross_evaluation(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write cross-evaluation.csv: a line for each model and client, with accuracy, loss and examples."""
        names = ("model", "client", "examples", "accuracy", "loss")
        with io.StringIO() as text:
            table = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
            table.writeheader()
            table.writerows({**row, "examples": row.get("num-examples")} for row in rows)
            write_text(self.path / CROSS, text.getvalue())

    def cross_evaluation(self) -> Row:
        """Return the same by figure as a matrix: a row for each model, a column for each client, or None.

        Empty if there is no such file.
        """
        if not (self.path / CROSS).exists():
            return {}
        with open(self.path / CROSS, encoding="utf-8", newline="") as file:
            cells = {(line["model"], line["client"]): line for line in csv.DictReader(file)}
        models, clients = (sorted({pair[i] for pair in cells}) for i in (0, 1))

        def matrix(figure: str) -> list[list[float | None]]:
            found = [[cells.get((model, client), {}).get(figure) for client in clients] for model in models]
            return [[float(value) if value else None for value in row] for row in found]

        return {"models": models, "clients": clients, **{f: matrix(f) for f in ("accuracy", "loss")}}

    def offsets(self) -> dict[str, int]:
        """Return the length in bytes of the two growing files, for the checkpoint.

        They are on the disk when this returns: a checkpoint must not outlive the rounds it counts on.
        """
        for name in (ROUNDS, CLIENTS):
            if (self.path / name).exists():
                with naming(self.path / name), (self.path / name).open("ab") as file:
                    os.fsync(file.fileno())
        return {"rounds": _size(self.path / ROUNDS), "clients": _size(self.path / CLIENTS)}

    def truncate(self, offsets: Mapping[str, int]) -> None:
        """Cut the growing files back to a checkpoint's `offsets`, half-written lines included.

        Raises:
            StateError: A file is shorter than at the checkpoint, or was changed since.
        """
        (self.path / CROSS).unlink(missing_ok=True)  # of an earlier end
        for name, key in ((ROUNDS, "rounds"), (CLIENTS, "clients")):
            path, length = self.path / name, offsets[key]
            if _size(path) < length:
                raise _changed(path, length)
            if not path.exists():
                continue
            with path.open("r+b") as file:
                file.seek(max(length - 1, 0))
                if length > 0 and file.read(1) != b"\n":
                    raise _changed(path, length)
                file.truncate(length)
                os.fsync(file.fileno())

    def finish(
        self,
        result: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Write the final model, then result.json (see `summarise`), the sign that the run is finished.

        Equal arrays and metadata (`task.resolve.model_card`) give equal bytes.
        """
        encrypted = sealed(arrays)
        write_safetensors(self.path / (ENCRYPTED if encrypted else MODEL), arrays, metadata)
        about = {**result, **machine_of(self.config())}
        self._write(RESULT, {**about, "encrypted": True} if encrypted else about)

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        write_bytes(self.path / name, to_json(value, indent=2))

    def config(self) -> Row:
        """Return config.json, or {} if there is none; keys that were renamed since have their new names."""
        config = _read_object(self.path / CONFIG) or {}
        return {**config, "run": present(run)} if isinstance(run := config.get("run"), dict) else config

    def result(self) -> Row | None:
        """Return result.json, or None while the run is not finished."""
        return _read_object(self.path / RESULT)

    def nodes(self) -> list[Row]:
        """Return the nodes of the last round, [] if there was none."""
        return list((_read_object(self.path / NODES) or {}).get("nodes", []))

    def left_out(self) -> list[Row]:
        """Return the nodes that were online in the last round and took no part, with "name" and "reason"."""
        return list((_read_object(self.path / NODES) or {}).get("left_out", []))

    def rounds(self, *, unfinished: bool = False) -> list[Row]:
        """Return the rows of rounds.jsonl.

        `unfinished` leaves out a last line without its newline: that of a killed or still writing process.

        Raises:
            StateError: A line is not a JSON object; names the file and the line.
        """
        return _read_lines(self.path / ROUNDS, unfinished)

    def clients(self, *, unfinished: bool = False) -> list[Row]:
        """Return the rows of clients.jsonl; see `rounds`."""
        return _read_lines(self.path / CLIENTS, unfinished)


def to_json(value: Any, *, indent: int | None = None) -> bytes:
    """Return strict JSON that ends in a newline: NaN and infinity are null, NumPy values plain."""
    text = json.dumps(_strict(value), indent=indent, ensure_ascii=False, allow_nan=False)
    # A lone surrogate (a badly encoded client name) becomes a JSON escape instead of ending the run.
    return (text + "\n").encode("utf-8", "backslashreplace")


def _strict(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def _read_object(path: Path) -> Row | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return _parse(data, str(path))


def _read_lines(path: Path, unfinished: bool) -> list[Row]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    lines, rest = split(data)
    if rest and not unfinished:
        lines.append(rest)
    return [_parse(line, f"{path}, line {i}") for i, line in enumerate(lines, start=1)]


def _parse(data: bytes, where: str) -> Row:
    try:
        return parse(data, strict=True)
    except ValueError as err:
        why = f" ({err.__cause__})" if err.__cause__ else ""
        raise StateError(f"{where}: damaged: expected a JSON object; got {data[:80]!r}{why}") from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _changed(path: Path, length: int) -> StateError:
    return StateError(
        f"{path}: expected at least the {length} bytes, whole lines, that the checkpoint counts on; got "
        f"{_size(path)} bytes or an unfinished line: the file was changed after the checkpoint. "
        f"Put it back, or start again under another --run-name"
    )


def machine_of(config: Row) -> Row:
    """Return the processor's class and, of a portable run, what its kernels compute, as config.json has them.

    "portable" is False where the bits are those of processors like this one.
    """
    kernels = config.get("code", {}).get(KERNELS)
    processor = config.get("environment", {}).get("processor")
    return {"processor": processor, "portable": kernels is not None, KERNELS: kernels}


def machine_words(config: Row) -> str:
    """Return in words what computed a run, by its config.json; "" where that does not say."""
    found = machine_of(config)
    if found[KERNELS]:
        return f"portable kernels {found[KERNELS][:22]}..."
    return f"kernels of a processor {found['processor']}" if found["processor"] else ""


def environment(run: Mapping[str, Any] = MappingProxyType({})) -> Row:
    """Return what the numbers of a run with these keys may depend on: versions, machine, commit of the code.

    Versions are read from package metadata, so nothing is imported. "git_commit" and "git_dirty" are
    None unless this very file is tracked by a git checkout (in an installed app bundle it is not).
    """
    commit = dirty = None
    # A checkout around the code need not be ours: a home folder may be one.
    if _git("ls-files", "--error-unmatch", "server_app/results/folder.py") is not None:
        commit = _git("rev-parse", "HEAD")
        parts = ("task", "strategies", "client_app", "server_app", "pyproject.toml", ":(exclude)*.jsonl")
        changes = _git("status", "--porcelain", "--", *parts)
        dirty = None if changes is None else changes != ""
    gpu = _gpu(run)
    return {
        **versions(),
        "platform": platform.platform(),
        "processor": gpu or machine_class(),
        "cpus": os.cpu_count(),
        "machine": ", ".join(part for part in (machine(), gpu) if part),
        "git_commit": commit,
        "git_dirty": dirty,
    }


def machine() -> str:
    """Return the processor and the vector instructions that torch uses, on which a run's bits depend."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
        name = next(x.partition(":")[2].strip() for x in text.splitlines() if x.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor()
    torch = sys.modules.get("torch")  # not imported for this: a process that trains has it
    used = torch.backends.cpu.get_cpu_capability() if torch else ""
    return ", ".join(part for part in (name, platform.machine(), used) if part)


def _gpu(run: Mapping[str, Any]) -> str:
    """Return the model of the GPU on which a run with these keys computes, or ""."""
    if run.get("device") == "cpu" or run.get("portable") or "torch" not in sys.modules:
        return ""
    from task.numerics.devices import gpu_model

    return gpu_model()


def versions() -> dict[str, str | None]:
    """Return the versions of what computes a run."""
    packages = {name: _version(name) for name in ("flwr", "torch", "numpy")}
    return {"bouquet": _own_version(), "python": platform.python_version(), **packages}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _own_version() -> str | None:
    """Return the version of the code that runs: an app bundle is not an installed package."""
    try:
        project = tomllib.loads((_CODE / "pyproject.toml").read_text("utf-8"))["project"]
    except (OSError, KeyError, ValueError):
        return _version("bouquet")
    return str(project["version"]) if project.get("name") == "bouquet" else _version("bouquet")


def _git(*arguments: str) -> str | None:
    # Inside a git hook GIT_DIR and its like name another checkout.
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(_CODE), *arguments],
            env=env, capture_output=True, text=True, timeout=5, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
