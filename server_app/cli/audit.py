"""The commands ``audit ...``: attacks on what a run gives away."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from server_app.cli.common import RunsDir, console, sigterm_is_ctrl_c
from task.errors import BouquetError, ConfigError
from task.text import plain

AUDIT = "audit.json"
FAILED = 1

app = typer.Typer(
    name="audit",
    no_args_is_help=True,
    help="Attack what a run gives away, to see what its settings protect (docs/privacy.md).",
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
        int, typer.Option(min=1, help="Canary clients; half of them take part, the others drop out.")
    ] = 1000,
    name: Name = "audit-epsilon",
    runs_dir: RunsDir = "runs",
    jobs: Annotated[int, typer.Option(min=0, help="Runs at the same time; 0 = one for each core.")] = 0,
) -> None:
    """Measure the epsilon of runs with dp.noise by canary clients, and set it against what they promise.

    Two runs are made of each configuration, with canary clients among the real ones, whose updates are random
    directions. How well the models tell the canaries that took part from others bounds epsilon from below.
    The same command goes on after an interruption. It ends with exit code 1 if a promise does not hold.
    """
    from server_app.audit.epsilon import audit, check_audited
    from server_app.cli.sweep import work
    from server_app.sweep.points import plan, read_axes
    from server_app.sweep.queue import holding, open_queue
    from task.config.read import read_config

    axes, own = read_axes(recipe, config or [])
    axes |= {"audit.canaries": [canaries], "audit.swap": [False, True]}
    planned = plan(axes, own)
    for point in planned.points:
        check_audited(read_config(point.keys))
    for remark in planned.remarks:
        typer.echo(plain(f"audit: {remark}"), err=True)
    folder = _folder(runs_dir, name)
    with holding(folder):
        queue, remarks = open_queue(folder, planned, shlex.join(["bouquet", *sys.argv[1:]]))
        for remark in remarks:
            typer.echo(plain(f"audit: {remark}"), err=True)
        with sigterm_is_ctrl_c():
            work(queue, jobs)
        if failed := [entry for entry in queue.entries if not queue.run(entry).finished()]:
            raise BouquetError(
                f"audit: {len(failed)} of {len(queue.entries)} runs failed: {failed[0].error}. What they "
                f"printed is in {folder / 'logs'}; the same command tries them again"
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
        raise typer.Exit(FAILED)


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
        "one-run": "epsilon, by guessing who is in",
    }[name]
    more = (
        f"estimate {check['estimate']:.2f}"
        if "estimate" in check
        else f"{check['right']} of {check['guesses']} right"
    )
    return who, f"at least {check['at_least']:.2f} ({more})", f"at most {check['promised']:.2f}"


def _folder(runs_dir: str, name: str) -> Path:
    if Path(name).name != name or name in ("", ".", ".."):
        raise ConfigError(f"audit --name: expected the name of one folder; got {name!r}")
    return Path(runs_dir).expanduser() / name


def _write(folder: Path, report: dict[str, Any]) -> Path:
    """Write a report and return its path."""
    from server_app.results.folder import to_json
    from task.storage.files import make_folder, write_bytes

    make_folder(folder)
    write_bytes(folder / AUDIT, to_json(report, indent=1))
    return (folder / AUDIT).resolve()
