"""Commands that use the model of a finished run: ``predict``, ``samples``, ``export``, ``decrypt``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from server_app.cli.common import Code, allow, console, formerly, importing
from task.errors import ConfigError
from task.references import CODE as MODULES
from task.text import plain

if TYPE_CHECKING:
    from server_app.takeout.taken import Taken

app = typer.Typer()

RUN = "A result folder, a run's name below runs/, or a model.safetensors."
Run = Annotated[Path, typer.Argument(help=RUN)]
Client = Annotated[
    str, typer.Option("--client", help="Use the personal model of this client; none = the global model.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="A csv or npz file, pictures (a folder, a zip file, one file), labels optional, or a folder of "
        "save_to_disk; none = the run's test set.",
    ),
]


Kept = Annotated[Path | None, typer.Argument(help=f"{RUN} With --kit the run's name, none = its newest.")]
NodeKit = Annotated[
    Path | None,
    typer.Option(
        "--kit",
        help="This node's start kit: use the model that the node has stored (keep-models = true in "
        "its policy).",
    ),
]


@app.command(
    cls=formerly(batch="--batch-size"),
    epilog="Examples: [bold]bouquet predict runs/demo[/bold]  ·  "
    "[bold]bouquet predict runs/ditto --client client-3 --data patients.csv --out predicted.csv[/bold]  ·  "
    "[bold]bouquet predict --kit kits/ward-1 --data new.csv[/bold]",
)
def predict(
    run: Kept = None,
    kit: NodeKit = None,
    data: Data = None,
    client: Client = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write the csv; none = standard output.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples that the model reads at a time.")] = 250,
    global_test: Annotated[
        bool, typer.Option("--global-test", help="Use the global test set instead of the client's own.")
    ] = False,
    code: Code = None,
) -> None:
    """Predict classes, labels or numbers with a run's model.

    Writes csv: id, predicted class, probability of each class; of a vae, the reconstructed pixels. With
    labels, loss and accuracy are printed. Of an analysis: id, and the mean of a regression with its 95 %
    interval, the cluster, the scores of components, or what trees predict; cells may be empty there.
    """
    allow(code)
    if kit is not None and data is None and not client:
        raise ConfigError("--data: expected a file; a kit has no test set of the global model")
    if global_test and (data is not None or kit is not None):
        raise ConfigError("--global-test: expected neither --data nor --kit; got one of them")
    from server_app.takeout.taken import as_csv

    found = _taken(run, kit, client).predict(data, whole=global_test, batch=batch_size)
    _give(as_csv(found.columns), out, found.what)
    for line in found.lines:
        typer.echo(plain(line), err=True)


@app.command(
    epilog="Examples: [bold]bouquet samples runs/vae[/bold]  ·  "
    "[bold]bouquet samples runs/cvae --seed 7 --out new.npz[/bold]"
)
def samples(
    run: Run,
    client: Client = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the new images.")] = 0,
    classifier_seed: Annotated[
        int, typer.Option(min=0, help="Seed of the classifier whose features are compared.")
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to write the new images, x in an npz file; none = nowhere."),
    ] = None,
    code: Code = None,
) -> None:
    """Draw new images from a run's generative model, and measure how close they are to real ones.

    They are compared with the global test set in the features of a classifier that is trained here: Frechet
    distance (FCD), density and coverage. The same scores of real training images are the reference. The
    scores are also written to samples.json in the run's folder.
    """
    allow(code)
    from server_app.takeout.model_file import find

    find(run)  # before torch is imported
    with importing():
        from server_app.results.folder import CONFIG, SAMPLE_SCORES, to_json
        from server_app.takeout.model import take
        from server_app.takeout.samples import judge, npz, table
        from task.storage.files import write_bytes

    taken, folder = take(run, client), find(run).parent
    for line in taken.notes:
        typer.echo(plain(line), err=True)
    found = judge(taken, seed, classifier_seed)
    console().print(table(found))
    if out is not None:
        write_bytes(out, npz(found))
        typer.echo(f"{len(found.images):,} images: {out.resolve()}", err=True)
    if (folder / CONFIG).exists():
        write_bytes(folder / SAMPLE_SCORES, to_json({"client": client, **found.report()}, indent=1))
        typer.echo(f"Results: {(folder / SAMPLE_SCORES).resolve()}")


def _taken(run: Path | None, kit: Path | None, client: str) -> "Taken":
    """Return what a run has made, or the model that a node has stored.

    Raises:
        ConfigError: There is none, or neither a run nor a kit is named.
    """
    from server_app.takeout.model_file import find

    if run is not None and kit is None:
        find(run)  # before torch is imported
    with importing():
        from server_app.takeout.network import stored_at
        from server_app.takeout.taken import taken_in

    if kit is not None:
        return stored_at(_kept(kit, run), client)
    if run is None:
        raise ConfigError("expected a run or a model file, or --kit KIT of a node; got neither")
    return taken_in(run, client)


def _kept(kit: Path, run: Path | None) -> Path:
    """Return the file of a model that a node has stored, and make its clients' state readable.

    Raises:
        ConfigError: The kit is not a node's, or the model does not exist.
    """
    from server_app.deploy.kits.kit import NodeKit, read_kit
    from task.resolve.kept_model import find_kept_model

    found = read_kit(kit)
    if not isinstance(found, NodeKit):
        raise ConfigError(f"--kit {kit}: expected the kit of a node; got that of a link")
    allow([*found.policy.packages])  # as the owner allowed when the run came to this node
    os.environ.update({name: found.environment()[name] for name in ("BOUQUET_CACHE", MODULES)})
    return find_kept_model(found.models, str(run or ""))


@app.command(
    epilog="Examples: [bold]bouquet export runs/demo --format onnx[/bold]  ·  "
    "[bold]bouquet export runs/ditto --client client-3 --format torchscript --int8[/bold]  ·  "
    "[bold]bouquet export --kit kits/ward-1 --format onnx --data new.csv[/bold]  ·  "
    "[bold]bouquet export runs/glm --format summary[/bold]  ·  "
    "[bold]bouquet export runs/trees --format xgboost[/bold]"
)
def export(
    run: Kept = None,
    *,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            click_type=click.Choice(
                ["torchscript", "onnx", "safetensors", "state-dict", "xgboost", "csv", "latex", "summary"]
            ),
            help="What to write; onnx needs the extra bouquet\\[onnx]. Of trees: xgboost, onnx. Of an "
            "analysis: csv, latex, summary.",
        ),
    ],
    kit: NodeKit = None,
    client: Client = "",
    data: Data = None,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Quantise weights to 8 bits: of linear layers (torchscript, onnx), of matrices and "
            "kernels (safetensors). With labels, loss and accuracy before and after are printed.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Where to write it; none = RUN[-CLIENT] in the current folder, a table to standard output.",
        ),
    ] = None,
    code: Code = None,
) -> None:
    """Export a run's model or trees and check that they give the same outputs, or the table of an analysis.

    ONNX and TorchScript models read examples as they are in files, pixels or columns as float32: the scaling
    used in training is built in. The outputs are compared on --data, on the run's test set or on random
    examples.
    """
    if form in ("csv", "latex", "summary"):
        _export_table(run, form, out, others=bool(kit or client or data or int8))
        return
    allow(code)
    for line in _taken(run, kit, client).export(form, out, data, int8=int8):
        typer.echo(plain(line), err=True)


def _export_table(run: Path | None, form: str, out: Path | None, *, others: bool) -> None:
    """Write the table of an analysis, or print it."""
    from server_app.takeout.tables import table_text

    if run is None or others:
        raise ConfigError(f"--format {form}: expected a run of an analysis, and no option but --out")
    _give(table_text(run, form), out)


def _give(text: str, out: Path | None, what: str = "") -> None:
    """Print a text, or write it to a file and say so."""
    from task.storage.files import write_text

    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)
        typer.echo(f"{what}{out.resolve()}", err=True)


@app.command(epilog="Example: [bold]bouquet decrypt runs/he --kit kits/ward-1[/bold]")
def decrypt(
    run: Annotated[Path, typer.Argument(help="A result folder, or a run's name below runs/.")],
    kit: Annotated[Path, typer.Option("--kit", help="A node's start kit, which has the key.")],
) -> None:
    """Decrypt the model of a run with he = true: write its model.safetensors.

    Don't give that file to anyone who runs the link: together with the link's data it reveals the key.
    """
    from server_app.deploy.kits.kit import read_node_kit
    from server_app.run.encryption import decrypt as open_model

    typer.echo(str(open_model(run, read_node_kit(kit).he_key)))
