"""The command ``statistics``: who has what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server_app.cli.common import NodeNames, Nodes, Overwrite, Resume, RunName, RunsDir, Set
from server_app.cli.run import run
from task.config.options import parse_options

app = typer.Typer()
_ROUNDS = 100  # the tables, and the cuts of a range: 22 of them, and more where some are closed
_WHOLE_RUN = {"algorithm": '"statistics"', "dataset": '"csv"', "num-server-rounds": str(_ROUNDS)}


@app.command(
    epilog="Examples: [bold]bouquet statistics --columns 'age(0..120), sex(F|M)' --data patients.csv[/bold]"
    "  ·  [bold]bouquet statistics --columns 'sex(F|M), ward(a|b)' --cross 'sex*ward' --link kits/link[/bold]"
)
def statistics(
    columns: Annotated[
        str,
        typer.Option(
            help="Columns with a range, age(0..120), or with all levels, sex(Female|Male). The range is "
            "declared, never found in the data, whose largest value is somebody's."
        ),
    ] = "",
    data: Annotated[
        str,
        typer.Option(
            help="Simulation: a csv file with a column client, or a folder with a csv file for each site."
        ),
    ] = "",
    quantiles: Annotated[
        str | None, typer.Option(help="Quantiles of numbers; 0 = least, 1 = largest, '' = none.")
    ] = None,
    bins: Annotated[
        int | None, typer.Option(help="Most bars of a histogram, a power of two; 0 = none.")
    ] = None,
    cross: Annotated[str, typer.Option(help="Tables of two categories each, 'sex*ward, sex*smoker'.")] = "",
    correlation: Annotated[
        bool, typer.Option("--correlation", help="Correlations of the numbers, over rows that lack none.")
    ] = False,
    by_site: Annotated[
        bool | None,
        typer.Option(
            "--by-site/--pooled",
            help="Whether to show each site besides all together (default: yes; not possible with "
            "secagg=true, under which the server sees sums over sites only).",
        ),
    ] = None,
    site_quantiles: Annotated[
        bool,
        typer.Option("--site-quantiles", help="Quantiles and histograms of each site, too: more questions."),
    ] = False,
    config: Set = None,
    nodes: Nodes = 0,
    node_names: NodeNames = "",
    run_name: RunName = "",
    runs_dir: RunsDir = "",
    resume: Resume = False,
    overwrite: Overwrite = False,
    link: Annotated[
        Path | None, typer.Option("--link", help="Kit of a link or a submitter: ask the link's nodes.")
    ] = None,
) -> None:
    """Say who has what: counts, missing values, means, quantiles, histograms, cross-tables, correlations.

    Sites send counts and exact sums over their rows, so the pooled figures are those of one file with all
    rows. Empty cells, NA and NaN count as missing. Where the owner of a site sets min-examples, no count of
    fewer persons leaves it; <m stands in its place.

    It is a run of the algorithm "statistics": -c takes further keys, such as secagg=true, and the result
    folder has table.csv, statistics.html and result.json.
    """
    own = parse_options(config)
    pairs = dict(_WHOLE_RUN)
    if link is None:
        pairs |= {"partition": '"natural"', "num-clients": "0"}
    given = {"columns": columns or None, "quantiles": quantiles, "cross": cross or None}
    pairs |= {f"statistics.{key}": _quoted(text) for key, text in given.items() if text is not None}
    pairs |= {"data-path": _quoted(data)} if data else {}
    pairs |= {} if bins is None else {"statistics.bins": str(bins)}
    pairs |= {"statistics.correlation": "true"} if correlation else {}
    shown = not own.get("secagg") if by_site is None else by_site
    if by_site is not None or not (resume and run_name):
        pairs |= {"statistics.by-site": "true" if shown else "false"}
    pairs |= {"statistics.site-quantiles": "true"} if site_quantiles else {}
    found = [" ".join(f"{key}={text}" for key, text in pairs.items() if key not in own)]
    run(
        config=[*found, *(config or [])],
        nodes=nodes,
        node_names=node_names,
        run_name=run_name,
        runs_dir=runs_dir,
        resume=resume,
        overwrite=overwrite,
        link=link,
    )


def _quoted(text: str) -> str:
    return f'"{text}"'
