"""Small runs by hand, and every number of the table and the plot derived from them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from server_app.cli.main import app
from server_app.results.compare import choose, figure, markdown, plot, table, terminal_tables
from server_app.results.folder import RunFolder
from server_app.results.groups import groups
from task.errors import ConfigError

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what writes a run: its central accuracies and its clients' by round, from round 0."""

    def write(
        name: str,
        server: list[float | None],
        clients: list[float | None] | None = None,
        lines: list[dict[str, Any]] | None = None,
        **keys: Any,
    ) -> Path:
        run = {"algorithm": "fedavg", "seed": int(name.rpartition("-")[2]) if "-" in name else 1} | keys
        folder = RunFolder.create(tmp_path / name, {"run": run}, resume=False)
        for t, (central, local) in enumerate(zip(server, clients or [None] * len(server), strict=True)):
            row = {"round": t, "accuracy": central, "loss": None if central is None else 1 - central}
            row |= {"client_accuracy": local, "client_loss": None if local is None else 2 - local}
            row |= {"bytes_down": 1000 * t, "bytes_up": 1000 * t, "seconds": {"total": 3.0}}
            row |= {"simulated_seconds": 20.0 * t}
            folder.append_round(row)
        folder.append_clients(lines or [])
        return folder.path

    return write


def evaluated(*accuracies: float, at: int = 2) -> list[dict[str, Any]]:
    """Return rows of clients.jsonl: one client per accuracy, with 10 test examples each."""
    base = {"round": at, "phase": "evaluate", "examples": 10}
    return [base | {"name": f"c{i}", "metrics": {"accuracy": a}} for i, a in enumerate(accuracies)]


def trained(accuracy: float) -> dict[str, Any]:
    metrics = {"test-accuracy": accuracy, "test-examples": 10.0}
    return {"name": "c0", "round": 2, "phase": "train", "examples": 90, "metrics": metrics}


def cells(paths: list[Path], target: float = 0.75, on: str | None = None) -> dict[str, dict[str, str]]:
    """Return the table as group -> header -> cell."""
    curves = groups(paths)
    header, lines, _ = table(curves, choose(curves, on)[0], target)
    return {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in lines}


def test_mean_and_sample_deviation_over_seeds(make: Make) -> None:
    paths = [
        make("avg-1", [0.0, 0.9, 0.7]),
        make("avg-2", [0.0, 0.9, 0.8]),
        make("avg-3", [0.0, 1.0, 0.9]),
        make("prox", [0.5, 0.5, 0.5]),
    ]
    found = cells(paths)
    # Final 0.7, 0.8, 0.9: deviation 0.1 with n - 1. Best 0.9, 0.9, 1.0: 0.1^2 (1/9 + 1/9 + 4/9) / 2 under the
    # root, 0.0577. 0.75 is reached at 0.75 / 0.9, twice, and 0.75 of round 1: 0.8333, 0.8333, 0.75. Round 1
    # moves 2 kB: 1.67, 1.67, 1.5. 3 s are spent at round 0 and 6 s at round 1: 5.5, 5.5, 5.25.
    assert found["avg"] == {
        "seeds": "3",
        "rounds": "2",
        "final accuracy (%)": "80.00 ± 10.00",
        "best accuracy (%)": "93.33 ± 5.77",
        "final loss (nats)": "0.200 ± 0.100",
        "rounds to 75 %": "0.8 ± 0.0",
        "kB to 75 %": "1.6 ± 0.1",
        "kB down to 75 %": "0.8 ± 0.0",
        "kB up to 75 %": "0.8 ± 0.0",
        "seconds to 75 %": "5.4 ± 0.1",
    }
    # One seed: the mean alone; nothing of clients, so no such column.
    assert found["prox"]["final accuracy (%)"] == "50.00"
    assert found["prox"]["rounds to 75 %"] == "-"


def test_simulated_seconds_are_compared_where_selection_policies_differ(make: Make) -> None:
    uniform = make("all", [0.0, 0.5, 0.9], selection="uniform")
    assert "simulated seconds" not in cells([uniform])["all"]
    found = cells([uniform, make("quick", [0.0, 0.5, 0.9], selection="fedcs")])
    assert [found[name]["simulated seconds"] for name in ("uniform", "fedcs")] == ["60", "60"]  # 0 + 20 + 40
    found = cells([uniform, make("early", [0.0, 0.8, 0.9], algorithm="fedbuff")])
    assert found["fedbuff"]["simulated seconds to 75 %"] == "19"  # between 0 and 20


def test_clients_of_a_personalised_run(make: Make) -> None:
    none = [None, None, None]
    paths = [
        make("per-1", none, [None, 0.5, 0.75], [*evaluated(0.5, 1.0), trained(0.875)]),
        make("per-2", none, [None, 0.5, 0.25], [*evaluated(0.25, 0.25), trained(0.625)]),
    ]
    found = cells(paths, target=0.25)["per"]
    assert found == {
        "seeds": "2",
        "rounds": "2",
        "final accuracy (%)": "50.00 ± 35.36",  # 75 and 25: 25 * sqrt 2
        "best accuracy (%)": "62.50 ± 17.68",  # 75 and 50
        "final loss (nats)": "1.500 ± 0.354",  # 1.25 and 1.75
        "unweighted mean over clients (%)": "50.00 ± 35.36",  # 75 and 25
        "mean of the worst 10 % of clients (%)": "37.50 ± 17.68",  # 50 and 25
        "Jain index": "0.950 ± 0.071",  # 2.25 / (2 * 1.25) = 0.9, and 1
        "after local training, weighted (%)": "75.00 ± 17.68",  # 87.5 and 62.5
        "rounds to 25 %": "1.0 ± 0.0",
        "kB to 25 %": "2.0 ± 0.0",
        "kB down to 25 %": "1.0 ± 0.0",
        "kB up to 25 %": "1.0 ± 0.0",
        "seconds to 25 %": "6.0 ± 0.0",
    }


def test_a_number_that_some_seeds_lack_is_no_mean(make: Make) -> None:
    paths = [make("a-1", [0.0, 0.8]), make("a-2", [0.0, 0.5, 0.6]), make("b-1", [0.9, 0.9])]
    found = cells(paths)
    assert found["a"]["rounds"] == "1 to 2"
    assert found["a"]["rounds to 75 %"] == found["a"]["seconds to 75 %"] == "1 of 2 seeds"
    curves = groups(paths)
    header, _, remarks = table(curves, "server", 0.95)
    assert header == [
        "run",
        "seeds",
        "rounds",
        "final accuracy (%)",
        "best accuracy (%)",
        "final loss (nats)",
    ]
    assert "No run reached 95 %; --target sets another accuracy." in remarks


def test_what_is_compared(make: Make) -> None:
    both = make("both", [0.5, 0.5], [None, 0.75])
    central = make("central", [0.5, 0.25])
    own = make("own", [None, None], [None, 1.0])
    nothing = make("nothing", [None, None])
    assert choose(groups([both, central])) == ("server", [])
    assert choose(groups([own])) == ("clients", [])
    on, remarks = choose(groups([both, own]))
    assert on == "clients"
    assert "the clients' are compared" in remarks[0]
    assert cells([both, own])["both"]["final accuracy (%)"] == "75.00"
    assert choose(groups([both]), "clients") == ("clients", [])
    assert cells([both], on="clients")["both"]["final loss (nats)"] == "1.250"
    assert cells([both], on="server")["both"]["final accuracy (%)"] == "50.00"
    with pytest.raises(ConfigError, match=r"own has only the clients' and .*central only the server's"):
        choose(groups([both, central, own]))
    with pytest.raises(ConfigError, match=r"--on clients: .*central: expected rounds with client_accuracy"):
        choose(groups([both, central]), "clients")
    with pytest.raises(ConfigError, match=r"--on server: .*own: expected rounds with accuracy"):
        choose(groups([both, own]), "server")
    with pytest.raises(ConfigError, match=r"nothing: expected rounds with an accuracy"):
        choose(groups([both, nothing]))


def test_groups_are_configurations_whatever_the_runs_are_called(make: Make) -> None:
    prox = {"algorithm": "fedprox"}
    paths = [
        make("mu-1", [0.5], **prox, **{"fedprox.mu": 0.5}),
        make("mu-10", [0.5], **prox, **{"fedprox.mu": 10.0}),
        make("first", [0.5], seed=3),
        make("second", [0.5], seed=4, stack=2),  # how it is computed, not what
        make("ditto", [0.5], algorithm="ditto", **{"fraction-evaluate": 1.0}),  # follows from the algorithm
    ]
    found = {label: [run.path.name for run in runs] for label, runs in groups(paths).items()}
    assert found == {
        "fedprox, fedprox.mu=0.5": ["mu-1"],
        "fedprox, fedprox.mu=10": ["mu-10"],
        "fedavg": ["first", "second"],
        "ditto": ["ditto"],
    }
    by_name = groups(paths, names=True)
    assert [len(runs) for runs in by_name.values()] == [2, 1, 1, 1]


def test_runs_of_one_configuration_and_one_seed_are_no_seeds_of_one_group(make: Make) -> None:
    same = [make("demo", [0.5], seed=1), make("federation", [0.5], seed=1)]
    assert list(groups(same)) == ["demo", "federation"]
    other = make("prox", [0.5], algorithm="fedprox")
    assert list(groups([*same, other])) == ["fedavg (demo)", "fedavg (federation)", "fedprox"]
    twice = [make("b-1", [0.5]), make("b-2", [0.5], seed=1)]
    _, _, remarks = table(groups(twice), "server", 0.9)
    assert "Beware: two runs of b have the same seed." in remarks


def test_unequal_lengths_are_told_and_can_be_cut(make: Make) -> None:
    paths = [make("a", [0.0, 0.5, 0.75], seed=1), make("b", [0.0, 0.25], algorithm="fedprox")]
    _, _, remarks = table(groups(paths), "server", 0.2)
    assert any("1 to 2 rounds" in remark and "--last-round 1" in remark for remark in remarks)
    curves = groups(paths, last_round=1)
    _, lines, remarks = table(curves, "server", 0.2)
    assert [line[:4] for line in lines] == [["fedavg", "1", "1", "50.00"], ["fedprox", "1", "1", "25.00"]]
    assert not any("rounds, and final" in remark for remark in remarks)


def test_a_path_that_holds_no_rounds_is_refused(tmp_path: Path, make: Make) -> None:
    with pytest.raises(ConfigError, match=r"expected a result folder with rounds; got .*absent"):
        groups([tmp_path / "absent"])
    with pytest.raises(ConfigError, match=r"expected a result folder with rounds; got .*empty"):
        groups([make("empty", [])])


def test_a_run_that_is_still_going_can_be_compared(make: Make) -> None:
    path = make("a", [0.5, 0.75])
    for name in ("rounds.jsonl", "clients.jsonl"):
        with (path / name).open("a") as file:
            file.write('{"round": 2, "acc')
    assert cells([path])["a"]["final accuracy (%)"] == "75.00"


def test_the_markdown_table(make: Make) -> None:
    header, lines, remarks = table(groups([make("a|b", [0.25, 0.5])]), "server", 0.9)
    text = markdown(header, lines, remarks)
    assert text.splitlines() == [
        "| run | seeds | rounds | final accuracy (%) | best accuracy (%) | final loss (nats) |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| a\\|b | 1 | 1 | 50.00 | 50.00 | 0.500 |",
        "",
        "Accuracy and loss: on the server's test set. No run reached 90 %; --target sets another accuracy.",
    ]


@pytest.mark.parametrize(("width", "parts"), [(39, 1), (38, 2), (20, 3)])
def test_a_narrow_terminal_gets_the_table_in_parts(width: int, parts: int) -> None:
    header = ["run", "final accuracy (%)", "rounds to 90 %", "x"]
    line = ["fedavg", "98.12 ± 0.31", "2 of 3 seeds", "7"]
    tables = terminal_tables(header, [line], width)
    # Two between columns: 8 for the run, 14 for each number, 3 for the last; a part has one at least.
    assert len(tables) == parts
    stream = io.StringIO()
    Console(file=stream, width=max(width, 22)).print(*tables)
    text = stream.getvalue()
    assert [text.count(cell) for cell in line] == [parts, 1, 1, 1]  # none is broken or cut


def test_the_plot_has_the_numbers(make: Make) -> None:
    lines = [*evaluated(0.0, 0.0, 0.0, 0.0, at=1), *evaluated(1.0, 0.5)]
    paths = [
        make("per-1", [None] * 4, [None, 0.5, 0.25, 0.75], lines),
        make("per-2", [None] * 3, [None, 0.75, 0.75], evaluated(0.75, 0.25)),
        make("avg", [0.25] * 3, [None, 0.25, 0.5]),  # its headline is the server's; no client lines
    ]
    drawn = figure(groups(paths), "clients")
    by_round, loss, single = drawn.axes
    assert [line.get_xydata().tolist() for line in by_round.lines] == [
        [[1, 62.5], [2, 50.0]],  # rounds that both seeds have: means of 50 and 75, 25 and 75
        [[2, 25.0], [3, 75.0]],  # and how the longer one goes on
        [[1, 25.0], [2, 50.0]],
    ]
    heights = by_round.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (25.0, 75.0)
    assert [line.get_xydata().tolist() for line in loss.lines] == [
        [[1, 1.375], [2, 1.5]],
        [[2, 1.75], [3, 1.25]],
        [[1, 1.75], [2, 1.5]],
    ]
    # The last evaluations of both seeds together, sorted: four clients.
    (curve,) = single.lines
    assert curve.get_xydata().tolist() == [[12.5, 25.0], [37.5, 50.0], [62.5, 75.0], [87.5, 100.0]]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["per (2 seeds)", "avg"]
    assert by_round.get_ylabel() == "accuracy (%), clients' own test data"


def test_the_plot_without_clients_has_two_panels(make: Make, tmp_path: Path) -> None:
    curves = groups([make("a", [0.5]), make("b-1", [0.5, None]), make("b-2", [None, 0.5])])
    accuracy, _ = figure(curves, "server").axes
    assert [len(line.get_xdata()) for line in accuracy.lines] == [1, 0]  # b's seeds share no round
    plot(curves, "server", tmp_path / "new" / "a.png")
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"expected a name such as both\.png"):
        plot(curves, "server", tmp_path / "a.foo")


def test_the_x_axis_may_be_what_was_spent(make: Make) -> None:
    curves = groups([make("a-1", [0.0, 0.5, 0.75]), make("a-2", [0.0, 1.0, 0.25])])
    # Round t moves t kB each way and takes 3 s; round 0, the evaluation of the first model, moves nothing.
    for x, at in (("bytes", [0, 2000, 6000]), ("bytes-up", [0, 1000, 3000]), ("seconds", [3, 6, 9])):
        axes, _ = figure(curves, "server", x).axes
        assert axes.lines[0].get_xydata().tolist() == [[at[0], 0.0], [at[1], 75.0], [at[2], 50.0]]
        assert axes.get_xscale() == "linear"
    formatter = figure(curves, "server", "bytes").axes[0].xaxis.get_major_formatter()
    assert formatter(2000) == "2 kB"


def test_curves_that_end_a_decade_apart_have_a_logarithmic_axis(make: Make) -> None:
    paths = [make("a", [0.0, 0.5], algorithm="fedprox"), make("b", [0.0, 0.25, 0.5, 0.5, 0.5, 0.75])]
    accuracy, loss = figure(groups(paths), "server", "bytes").axes  # 2 kB and 30 kB
    assert accuracy.get_xscale() == loss.get_xscale() == "log"
    assert accuracy.lines[0].get_xydata().tolist() == [[2000.0, 50.0]]  # round 0 has no place there
    assert figure(groups(paths), "server", "seconds").axes[0].get_xscale() == "linear"  # 6 s and 18 s


def test_bytes_are_written_with_two_digits_of_the_least(make: Make) -> None:
    found = cells([make("a", [0.0, 0.5, 0.75]), make("b", [0.0, *[0.5] * 40, 0.75], algorithm="fedprox")])
    # 2 t kB in round t: 6 kB, and 1722 kB of 41 rounds
    assert [found[name]["MB to 75 %"] for name in ("fedavg", "fedprox")] == ["0.0060", "1.7220"]


def test_long_labels_stay_within_the_plot(make: Make) -> None:
    (runs,) = groups([make("one", [0.5, 0.5])]).values()
    long = {
        f"synthetic.alpha=0.5, synthetic.beta=0.5, fedprox.mu={i}, stragglers=0.9": runs for i in range(8)
    }
    for curves in (long, {"short": runs}):
        drawn = figure(curves, "server")
        drawn.canvas.draw()  # type: ignore[no-untyped-call]
        box = drawn.legends[0].get_window_extent()
        assert 0 <= box.x0 < box.x1 <= drawn.bbox.width
        assert drawn.axes[0].bbox.height > drawn.bbox.height / 2


def test_groups_can_be_told_apart_in_the_plot(make: Make) -> None:
    drawn = figure(groups([make(f"g{i}", [0.5, 0.5]) for i in range(9)]), "server")
    looks = [(line.get_color(), line.get_linestyle()) for line in drawn.axes[0].lines]
    assert len(set(looks)) == 9


def test_the_command(make: Make, tmp_path: Path) -> None:
    paths = [str(make("avg", [0.25, 0.5], [None, 0.75])), str(make("per", [None, None], [None, 1.0]))]
    picture = tmp_path / "both.png"
    done = CliRunner().invoke(app, ["compare", *paths, "--markdown", "--plot", str(picture)])
    assert done.exit_code == 0
    assert "| avg | 1 | 1 | 75.00 |" in done.output
    assert "the clients' are compared" in done.output
    assert picture.exists()
    done = CliRunner().invoke(app, ["compare", paths[0], "--on", "server", "--target", "0.5"])
    assert done.exit_code == 0
    assert "50.00" in done.output
    assert "on the server's test set" in done.output
    assert isinstance(CliRunner().invoke(app, ["compare", *paths, "--on", "server"]).exception, ConfigError)
    drawn = tmp_path / "bytes.svg"
    done = CliRunner().invoke(app, ["compare", *paths, "--x", "bytes-up", "--plot", str(drawn)])
    assert done.exit_code == 0
    assert "sent by clients" in drawn.read_text()
    alone = CliRunner().invoke(app, ["compare", *paths, "--x", "bytes"])
    assert "--x bytes: expected --plot FILE" in str(alone.exception)
    assert CliRunner().invoke(app, ["compare", *paths, "--on", "moon"]).exit_code == 2


def test_runs_that_lost_a_client_are_said_to_be_unlike(make: Make) -> None:
    whole = make("whole", [None] * 3, [0.1, 0.5, 0.6], evaluated(0.5, 0.6, 0.7), algorithm="fedprox")
    less = make("less", [None] * 3, [0.1, 0.5, 0.9], evaluated(0.9, 0.9))
    RunFolder(less).write_nodes([], [{"node": "7", "name": "west", "reason": "is refused: it lacks age"}])
    *_, remarks = table(groups([whole, less]), "clients", 0.9)
    assert "Beware: less left out west." in remarks
    assert (
        "Beware: the last evaluations were on different numbers of clients: 2 in less, 3 in whole." in remarks
    )
    *_, alike = table(groups([whole]), "clients", 0.9)
    assert not any("Beware" in remark for remark in alike)


def test_keys_of_a_split_mean_nothing_where_the_data_are_the_nodes(make: Make, tmp_path: Path) -> None:
    """A link run with its nodes' own data was "num-clients=10, iid" beside "num-clients=0, natural"."""
    make("simulated", [0.1, 0.5], **{"num-clients": 0, "partition": "natural"})
    for name, more in (("link", {}), ("longer", {"local-epochs": 5})):
        folder = make(name, [0.1, 0.5], **more) / "config.json"
        folder.write_text(json.dumps(json.loads(folder.read_text()) | {"data": {"at": "nodes"}}))
    both = groups([tmp_path / "simulated", tmp_path / "link"])
    assert list(both) == ["num-clients=0, natural", "the nodes' own data"]
    assert list(groups([tmp_path / "link", tmp_path / "longer"])) == ["local-epochs=1", "local-epochs=5"]
