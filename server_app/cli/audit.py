"""The commands ``audit ...``: attack runs, to measure what they reveal about the data."""

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.table import Table

from server_app.cli import exits
from server_app.cli.common import (
    Code,
    RunsDir,
    Set,
    allow,
    console,
    importing,
    read_keys,
    sigterm_is_ctrl_c,
)
from task.errors import BouquetError, ConfigError
from task.population import listed
from task.text import plain

AUDIT = "audit.json"

app = typer.Typer(
    name="audit",
    no_args_is_help=True,
    help="Attack a run to measure what it reveals and what its settings protect (docs/howto/audit.md).",
)
Recipe = Annotated[str, typer.Option("--recipe", "-r", help="Bundled recipe or TOML file.")]
Name = Annotated[str, typer.Option(help="Name of the audit: its folder below --runs-dir.")]


@app.command(
    epilog="Examples: [bold]bouquet audit epsilon --recipe mnist-dp-logistic --canaries 1000[/bold]  ·  "
    "[bold]bouquet audit epsilon -c 'model=\"mlp\" fraction-train=0.3 dp.noise=0.6,1,2' --name digits[/bold]"
)
def epsilon(
    recipe: Recipe = "",
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="Run-config keys as in `bouquet sweep`, e.g. -c 'dp.noise=1,2'."),
    ] = None,
    canaries: Annotated[
        int, typer.Option(min=1, help="Canary clients: half of them take part, the others drop out.")
    ] = 1000,
    name: Name = "audit-epsilon",
    runs_dir: RunsDir = "runs",
    jobs: Annotated[int, typer.Option(min=0, help="Runs at the same time; 0 = one for each core.")] = 0,
    code: Code = None,
) -> None:
    """Measure the epsilon of runs with dp.noise by canary clients, and compare it with the promised one.

    Each configuration runs twice, with additional canary clients, whose updates are random directions. The
    better the models distinguish canaries that took part from the others, the higher the lower bound on
    epsilon. After an interruption the same command continues. Exit code 1: a promise does not hold.
    """
    from server_app.cli.queued import work
    from server_app.extras.audit.epsilon import audit, check_audited
    from server_app.sweep.points import plan, read_axes
    from server_app.sweep.queue import holding, open_queue
    from task.resolve.read import read_config

    allow(code)
    axes, own = read_axes(recipe, config or [])
    ours: dict[str, list[Any]] = {"audit.canaries": [canaries], "audit.swap": [False, True]}
    _refuse_ours(axes, ours)
    axes |= ours
    planned = plan(axes, own)
    for point in planned.points:
        check_audited(read_config(point.keys))
    for remark in planned.remarks:
        typer.echo(plain(f"audit: {remark}"), err=True)
    folder = _folder(runs_dir, name)
    with holding(folder):
        queue, remarks = open_queue(folder, planned, _command())
        for remark in remarks:
            typer.echo(plain(f"audit: {remark}"), err=True)
        with sigterm_is_ctrl_c():
            work(queue, jobs)
        if failed := [entry for entry in queue.entries if not queue.run(entry).finished()]:
            raise BouquetError(
                f"audit: {len(failed)} of {len(queue.entries)} runs failed: {failed[0].error}. "
                f"Their output is in {folder / 'logs'}; the same command retries them"
            )
        found: list[dict[str, Any]] = []
        for first in (entry for entry in queue.entries if not entry.keys["audit.swap"]):
            second = next(e for e in queue.entries if e.keys == {**first.keys, "audit.swap": True})
            label = ", ".join(
                f"{k} = {first.keys[k]}" for k in queue.swept if k != "audit.swap" and k in first.keys
            )
            runs = {"run": first.name, "repeated_by": second.name, "seconds": first.seconds + second.seconds}
            found.append({"label": label, **runs, **audit(folder / first.name, folder / second.name)})
    path = _write(folder, {"audit": "epsilon", "command": queue.command, "audits": found})
    console().print(_epsilon_table(found))
    typer.echo(f"Results: {path}")
    if not all(one["holds"] for one in found):
        raise typer.Exit(exits.NO)


def _epsilon_table(found: Sequence[dict[str, Any]]) -> Table:
    table = Table("check", "measured", "promised", "verdict", title=_words(found[0]), title_justify="left")
    for one in found:
        if len(found) > 1:
            table.add_section()
            table.add_row(one["label"], "", "", "")
        for name, check in one["checks"].items():
            table.add_row(*_epsilon_line(name, check), "holds" if check["holds"] else "BROKEN")
    return table


def _words(one: dict[str, Any]) -> str:
    canaries = one["canaries"]
    return (
        f"{canaries['in']} canaries in, {canaries['out']} that drop out, {one['rounds']} rounds, d = "
        f"{one['numbers']:,}, delta = {one['delta']:g}; bounds hold with {one['confidence']:.0%} confidence"
    )


def _epsilon_line(name: str, check: dict[str, Any]) -> tuple[str, str, str]:
    if name == "weight":
        return "weight of a client, in C / M", f"{check['measured']:.2f} ± {check['error']:.2f}", "at most 1"
    if name == "noise":
        return "noise, in C", f"{check['measured']:.2f}", f"at least {check['promised']:g}"
    if name == "cohorts":
        return "cohorts of the two runs", "equal" if check["same"] else "differ", "differ"
    who = {
        "released": "epsilon, by the last model",
        "repeated": "epsilon, by an attacker who repeats the run",
        "one-run": "epsilon, by guessing members",
    }[name]
    more = (
        f"estimate {check['estimate']:.2f}"
        if "estimate" in check
        else f"{check['right']} of {check['guesses']} right"
    )
    return who, f"at least {check['at_least']:.2f} ({more})", f"at most {check['promised']:.2f}"


def _refuse_ours(given: Iterable[str], ours: Iterable[str]) -> None:
    if both := sorted({*given} & {*ours}):
        raise ConfigError(f'run-config key "{both[0]}": the audit sets it; expected none; got it')


def _folder(runs_dir: str, name: str) -> Path:
    from server_app.results.folder import one_folder

    return Path(runs_dir).expanduser() / one_folder("audit --name", name)


def _write(folder: Path, report: dict[str, Any]) -> Path:
    """Write a report and return its path."""
    from server_app.results.folder import to_json
    from task.storage.files import make_folder, write_bytes

    make_folder(folder)
    write_bytes(folder / AUDIT, to_json(report, indent=1))
    return (folder / AUDIT).resolve()


# Additional keys of each defence, and the number of examples of the attacked client.
DEFENCES: dict[str, tuple[int, dict[str, Any]]] = {
    "none": (1, {}),
    "8 examples": (8, {}),
    "64 examples": (64, {}),
    "64 examples, 5 epochs of 10": (64, {"batch-size": 10, "local-epochs": 5}),
    "int8 code": (1, {"codec.up": "int8"}),
    "top-k code, 1 %": (1, {"codec.up": "top-k", "codec.keep": 0.01}),
    "dp, client": (1, {"dp.noise": 1.0, "dp.clip": 0.1, "dp.delta": 0.1}),
    "dp, example": (1, {"dp.noise": 1.0, "dp.clip": 1.0, "dp.delta": 0.1, "dp.unit": "example"}),
    "secagg, 3 nodes": (1, {"secagg": True}),
    "secagg, 64 examples": (64, {"secagg": True}),
}
ATTACKED = {"dataset": "mnist", "model": "2nn", "local-epochs": 1, "batch-size": 0, "progress": "none"}
CLIENTS = 3
FIXED = {
    **{"num-clients": CLIENTS, "num-server-rounds": 1, "fraction-train": 1.0, "local-test-fraction": 0.0},
    **{"threads": 1, "evaluate-every": 0},
}


@app.command(
    epilog="Examples: [bold]bouquet audit inversion[/bold]  ·  "
    "[bold]bouquet audit inversion -c 'model=\"lenet\"' --only none,dp --name cnn[/bold]"
)
def inversion(
    config: Set = None,
    only: Annotated[
        str, typer.Option(help="Only defences whose names begin with one of these, such as none,dp.")
    ] = "",
    steps: Annotated[
        int,
        typer.Option(
            min=1, help="Steps of the gradient-matching attack, for models whose first layer is not linear."
        ),
    ] = 2000,
    name: Name = "audit-inversion",
    runs_dir: RunsDir = "runs",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="First delete the runs of the audit of this --name.")
    ] = False,
    code: Code = None,
) -> None:
    """Reconstruct a client's training images from its upload in one round, under each defence.

    Three clients train for a round, one on each node. The attacker sees what the server receives and the new
    model. If the first layer is linear, the images are solved for in closed form; otherwise the attack
    matches gradients. A picture shows the results.
    """
    with importing():
        from server_app.extras.audit.defences import attack_run
        from server_app.extras.audit.inversion import picture
    from server_app.run.naming import remove_run
    from task.resolve.read import read_config

    given = read_keys("", config, code=code)
    _refuse_ours(given, {*FIXED, "max-examples", "run-name", "runs-dir"})
    base = ATTACKED | given | FIXED
    begins = tuple(listed(only)) or ("",)
    chosen = {d: given for d, given in DEFENCES.items() if d.startswith(begins)}
    if not chosen:
        raise ConfigError(f"--only: expected the beginning of one of {', '.join(DEFENCES)}; got {only!r}")
    folder = _folder(runs_dir, name)
    keys: dict[str, dict[str, Any]] = {}
    for defence, (examples, more) in chosen.items():
        run = re.sub(r"\W+", "-", defence).strip("-")
        here = {"max-examples": examples * CLIENTS, "run-name": run, "runs-dir": str(folder)}
        keys[defence] = {**base, **more, **here}
        read_config(keys[defence])
        if overwrite:
            remove_run(folder, run)
    found, columns = [], []
    for defence in chosen:
        typer.echo(f"audit: {defence} ...", err=True)
        with sigterm_is_ctrl_c():
            attacked = attack_run(keys[defence], CLIENTS, steps, folder / "log")
        columns.append(
            (
                defence,
                attacked.originals,
                attacked.server.images if attacked.server else None,
                attacked.reader.images,
            )
        )
        found.append({"defence": defence, "examples": chosen[defence][0], **attacked.report()})
    path = _write(folder, {"audit": "inversion", "command": _command(), "audits": found})
    picture(columns, folder / "inversion.png")
    console().print(_inversion_table(found))
    typer.echo(f"Results: {path}, {(folder / 'inversion.png').resolve()}")


def _inversion_table(found: Sequence[dict[str, Any]]) -> Table:
    title = "PSNR in dB: above 30 a copy, about 15 a likeness, below 12 nothing"
    table = Table("defence", "examples", "server", "label", "from the model alone", title=title)
    table.title_justify = "left"

    def said(attacked: dict[str, Any]) -> str:
        best = f", best {attacked['best']:.1f}"
        return f"{attacked['psnr']:.1f}{best if attacked['label'] is None else ''}"

    for one in found:
        server, reader = one["server"], one["reader"]
        found_label = {None: "", True: "found", False: "wrong"}[server["label"] if server else None]
        seen = said(server) if server else "sees only the sum"
        table.add_row(one["defence"], str(one["examples"]), seen, found_label, said(reader))
    return table


@app.command(
    epilog="Examples: [bold]bouquet audit membership runs/demo[/bold]  ·  "
    "[bold]bouquet audit membership none dp dp-sgd[/bold]"
)
def membership(
    runs: Annotated[
        list[Path], typer.Argument(help="Result folders, or names of runs below runs/.", metavar="RUN...")
    ],
    shadows: Annotated[
        int,
        typer.Option(
            help="For LiRA: also train this number of runs with the same keys on other examples.", min=0
        ),
    ] = 0,
    code: Code = None,
) -> None:
    """Membership inference: separate training from test examples by the loss of a finished run's model.

    AUC 0.5 is guessing. --shadows adds LiRA, the stronger attack. The results per client are written to
    audit.json in each run's folder.
    """
    allow(code)
    with importing():
        from server_app.engines.simulate import simulate
        from server_app.extras.audit.membership import attack, shadow_keys
    if shadows == 1:
        raise ConfigError("--shadows: expected at least 2, whose spread is the reference; got 1")
    table = Table("run", "AUC", "found at 1 % false alarms", "at 0.1 %", "worst client", "loss", "test loss")
    for run in runs:
        with TemporaryDirectory() as folder:
            planned = shadow_keys(run, shadows, Path(folder)) if shadows else []
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # each run's own summary
                trained = [simulate(keys).path for keys in planned]
            found = attack(run, trained)
        _write(Path(found["run"]), {"audit": "membership", "command": _command(), **found})
        worst = found["worst_client"]
        table.add_row(
            Path(found["run"]).name,
            f"{found['auc']:.3f}",
            f"{found['tpr_at_0.01']:.2%}",
            f"{found['tpr_at_0.001']:.2%}",
            f"{worst['auc']:.3f} ({worst['name']})" if worst else "too few examples",
            f"{found['member_loss']:.4f}",
            f"{found['other_loss']:.4f}",
        )
        if lira := found.get("lira"):
            rates = (f"{lira[f'tpr_at_{rate}']:.2%}" for rate in ("0.01", "0.001"))
            table.add_row(f"  LiRA, {shadows} shadows", f"{lira['auc']:.3f}", *rates)
    console().print(table)
    typer.echo(f"Results: {AUDIT} in the folder of each run")


def _command() -> str:
    return shlex.join(["bouquet", *sys.argv[1:]])
