"""The command line answers what a new user asks, and says what to type instead of what was wrong."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.table import Table
from typer.main import get_command
from typer.testing import CliRunner

from server_app.cli.catalogue import card, example
from server_app.cli.main import app
from server_app.run.terminal import Terminal
from task.catalogue.algorithms import ALGORITHMS
from task.config.options import parse_options
from task.config.read import knobs
from task.errors import ConfigError
from task.resolve.read import read_config
from tests.promise import commands, parameter


def shown(*arguments: str, width: int = 80) -> str:
    done = CliRunner(env={"COLUMNS": str(width)}).invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_version_is_said() -> None:
    """`bouquet --version` was no such option."""
    assert shown("--version").startswith("bouquet ")


def test_every_option_and_argument_has_a_help_text() -> None:
    """Under click 8.5, typer 0.20 showed nothing next to positional arguments."""

    def bare(command: Any, path: str) -> list[str]:
        if hasattr(command, "commands"):
            return [x for name, one in command.commands.items() for x in bare(one, f"{path} {name}")]
        return [f"{path}: {one.name}" for one in command.params if not getattr(one, "help", None)]

    assert not bare(get_command(app), "bouquet")


def test_an_option_means_the_same_in_every_command() -> None:
    """`--link` was a kit's folder for `run` and an address for `provision`; `--list` a flag and a file."""
    kinds: dict[str, set[str]] = {}
    for _, command in commands():
        for option in (p for p in command.params if p.param_type_name == "option"):
            for name in option.opts:
                kinds.setdefault(name, set()).add(re.split("[ ,]", parameter(option)[0])[0])
    several = {"--data": {"path", "text"}, "--out": {"path", "text"}}  # a file or folder in each
    assert {name: found for name, found in kinds.items() if len(found) > 1} == several


def test_a_help_names_options_of_its_own_command() -> None:
    """`audit inversion --overwrite` spoke of --run-name, which the command lacks."""
    for name, command in commands():
        own = {o for p in command.params for o in [*p.opts, *p.secondary_opts]}
        for text in (command.help, *(getattr(p, "help", "") for p in command.params)):
            assert set(re.findall(r"--[a-z][a-z-]+", text or "")) <= own, f"{name}: {text}"


@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        ("provision --link host --out kits", "--link", "--address"),
        ("sweep --list=nothing.toml --dry-run", "--list", "--runs-file"),
        ("predict runs/nothing --batch 7", "--batch", "--batch-size"),
        ("compare runs/nothing --names", "--names", "--by-name"),
    ],
)
def test_an_option_goes_by_its_earlier_name_with_a_warning(
    words: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words.split())
    assert done.stderr.startswith(f"{old} is now {new};")
    assert isinstance(done.exception, ConfigError)  # the option was taken, and what it names is not there
    assert old not in {
        o for _, c in commands() if c.name == words.split()[0] for p in c.params for o in p.opts
    }


def test_a_card_has_paper_knobs_and_an_example() -> None:
    """The list of algorithms named none of an algorithm's knobs."""
    text = shown("algorithms", "fedprox")
    for part in ("1812.06127", "fedprox.mu ", "0.01", "weighted by examples", "gamma", 'algorithm="fedprox"'):
        assert part in text, part


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_says_what_it_does_and_its_example_is_valid(name: str) -> None:
    """An example that is refused, or an entry without its sentence."""
    entry = ALGORITHMS[name]
    assert entry.about.endswith("."), f'{name}: give its entry in task/catalogue about="..."'
    read_config(parse_options([example(entry)]))
    out = io.StringIO()
    Terminal(file=out, width=80).print(card(name))
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_a_wrong_name_of_an_algorithm_is_refused() -> None:
    done = CliRunner().invoke(app, ["algorithms", "fedprx"])
    assert 'Did you mean "fedprox"' in str(done.exception)
    done = CliRunner().invoke(app, ["algorithms", "dp-sgd"])
    assert 'expected dp.unit="example"' in str(done.exception)  # not the decentralised d-psgd


def test_models_are_listed_with_their_parameters() -> None:
    text = shown("models", width=120)
    assert "199,210 on MNIST" in text
    assert "char-lstm" in text


def test_the_keys_fit_80_columns_and_lose_nothing() -> None:
    """A key in a narrow column ended in an ellipsis."""
    text = shown("run", "--help-keys")
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    lines = [line.split(" ")[0] for line in text.splitlines()]
    assert {k.key for k in knobs()} <= set(lines)
    assert "Training: the local work of a client" in text


def test_a_table_breaks_long_words_and_cuts_none() -> None:
    """`bouquet state` showed "ditto-mnist-path…"."""
    out, name = io.StringIO(), "ditto-" + "x" * 60
    table = Table("run", "what")
    table.add_row(name, "y" * 50)
    Terminal(file=out, width=60).print(table)
    text = out.getvalue()
    assert "…" not in text
    assert text.count("x") == 60
    assert text.count("y") == 50


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("algorithm=fedprox", "algorithm=\"fedprox\""),
        ("seed=3 algorithm=fedprox model='2nn'", "seed=3 algorithm=\"fedprox\" model="),
        ("model=2nn", 'model="2nn"'),
        ("pool-test=True", "pool-test=true"),
        ("learning-rate=.1", "learning-rate=0.1"),
    ],
)  # fmt: skip
def test_a_value_that_is_no_toml_comes_back_as_text_to_type(text: str, instead: str) -> None:
    """Flower's parser answered with a sentence that named neither key nor remedy."""
    with pytest.raises(ConfigError, match="Type: -c") as caught:
        parse_options([text])
    assert instead in str(caught.value)


def test_options_are_read_as_flower_reads_them() -> None:
    from flwr.common.config import parse_config_args

    text = "seed=7 fedprox.mu=0.1 pool-test=true model=\"2nn\" algorithm='fedprox'"
    assert parse_options([text, "seed=8"]) == parse_config_args([text, "seed=8"])
    assert parse_options(['seed = 7  model="a b"']) == {"seed": 7, "model": "a b"}
    assert parse_options(None) == {}


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["data", "w.csv"], """bouquet data -c 'dataset="csv" data-path="w.csv"'"""),
        (["run", "sites"], """bouquet run -c 'dataset="csv" data-path="./sites"'"""),
        (["run", "npz:w", "--resume"], """bouquet run -c 'dataset="npz" data-path="w"'"""),
        (["data", "mnist"], "bouquet data -c 'dataset=\"mnist\"'"),
        (["run", "demo"], "bouquet run --recipe demo"),
        (["federation", "seed=1", "rho=2"], "bouquet federation -c 'seed=1 rho=2'"),
        (["run", "algorithm=fedprox"], "-c 'algorithm=\"fedprox\"'"),
        (["run", "it"], "bouquet run -c KEY=VALUE"),
    ],
)
def test_a_word_in_place_of_an_option_leads_to_the_option(
    words: list[str], instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "a.csv").touch()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).endswith(f"Type: {instead}")


@pytest.mark.parametrize("text", ["learning-rate 0.1", "seed=1 fast", 'model="2nn', "seed=1 seed=2"])
def test_a_word_that_is_no_pair_is_refused(text: str) -> None:
    """Flower's parser skips it, and the run trains with the default."""
    with pytest.raises(ConfigError, match="-c: expected"):
        parse_options([text])


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lr", "learning-rate"),
        ("rounds", "num-server-rounds"),
        ("epochs", "local-epochs"),
        ("clients", "num-clients"),
        ("batch", "batch-size"),
        ("batch_size", "batch-size"),
        ("fedprox.lr", "learning-rate"),
        ("mu", "fedprox.mu"),
    ],
)
def test_a_wrong_key_names_the_meant_one_first_and_no_wall_of_keys(key: str, meant: str) -> None:
    """`lr` was answered with all 120 keys and no "learning-rate" near."""
    with pytest.raises(ConfigError) as caught:
        read_config({"algorithm": "fedprox", key: 1})
    text = str(caught.value)
    assert f'Did you mean "{meant}"' in text
    assert len(text) < 200


def test_a_run_of_no_rounds_is_refused_without_a_model() -> None:
    with pytest.raises(ConfigError, match=r'"num-server-rounds": 0 .* expected that key, too, or at least 1'):
        read_config({"num-server-rounds": 0})


def test_a_federation_gives_each_of_its_nodes_a_slow_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[dict[str, list[str]]] = []

    @contextmanager
    def start(nodes: dict[str, list[str]], runs: Path, *rest: Any, **more: Any) -> Iterator[SimpleNamespace]:
        began.append(nodes)
        yield SimpleNamespace(run=lambda keys: None)

    monkeypatch.setattr("server_app.engines.federation.federation", start)
    line = ["federation", "--recipe", "demo", "--nodes", "2", "--runs-dir", str(tmp_path)]
    for more in ([], ["--bandwidth", "256kbit"]):
        done = CliRunner().invoke(app, [*line, *more])
        assert done.exit_code == 0, done.output
        assert began.pop() == {f"node-{i + 1}": ["--partition", f"{i}/2", *more] for i in range(2)}
    done = CliRunner().invoke(app, [*line, "--bandwidth", "fast"])
    assert isinstance(done.exception, ConfigError)
    assert "--bandwidth: expected a rate" in str(done.exception)
    assert began == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("bouquet algo", {"algorithms"}),
        ("bouquet run --reci", {"--recipe"}),
        ("bouquet run --recipe de", {"demo"}),
        ("bouquet algorithms fedpro", {"fedprox", "fedproto"}),
    ],
)
def test_a_shell_completes_commands_options_recipes_and_algorithms(words: str, found: set[str]) -> None:
    """In half a second, or nobody waits for it: PyTorch and Flower take several."""
    code = (
        "import sys\nsys.argv = ['bouquet']\ntry:\n import server_app.cli.main as m; m.main()\n"
        "finally:\n print([name for name in ('torch', 'flwr') if name in sys.modules], file=sys.stderr)"
    )
    asked = {"_BOUQUET_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True
    )
    assert set(done.stdout.split()) == found, done.stderr
    assert done.stderr.strip() == "[]"
