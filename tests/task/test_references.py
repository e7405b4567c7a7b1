"""Things of the user's own by reference: what is found, and what each error says."""

from pathlib import Path

import pytest

from task.errors import ConfigError
from task.references import is_reference, load_reference, package_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, and forget afterwards what was imported from it."""
    import sys

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_name_of_ours_is_no_reference() -> None:
    assert not is_reference("mlp")
    assert is_reference("net:Small")
    assert package_of("my.models:make") == "my"


def test_a_module_in_the_working_directory_and_an_installed_one(folder: Path) -> None:
    (folder / "ref_net.py").write_text("class Outer:\n    inner = 7\n")
    assert load_reference("model", "ref_net:Outer.inner") == 7
    assert load_reference("loss", "math:sqrt")(9) == 3


def test_a_file_here_does_not_take_the_place_of_an_installed_package(folder: Path) -> None:
    (folder / "safetensors.py").write_text("here = 1\n")
    with pytest.raises(ConfigError, match=r"a name in .*expected one of .*; got 'here'"):
        load_reference("model", "safetensors:here")


@pytest.mark.parametrize(
    ("text", "reference", "words"),
    [
        (
            "",
            "net:",
            'expected one of our names or "package.module:name"; got "net:"',
        ),
        ("", "ref_none:make", 'expected module "ref_none" among the installed packages or in .*; found none'),
        (
            "import ref_other_none\n",
            "ref_a:make",
            r"cannot be imported: ModuleNotFoundError",
        ),
        ("x = 1\n1 / 0\n", "ref_a:make", r"ZeroDivisionError: division by zero \(ref_a.py, line 2\)"),
        ("def f(:\n", "ref_a:make", r"SyntaxError: .* \(ref_a.py, line 1\)"),
        ("def make(): ...\n", "ref_a:mkae", 'Did you mean "make"?'),
    ],
)
def test_errors(folder: Path, text: str, reference: str, words: str) -> None:
    if text:
        (folder / "ref_a.py").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_reference("model", reference)
