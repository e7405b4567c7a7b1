"""Things of the user's own by reference: what is found, and what each error says."""

import sys
from pathlib import Path

import pytest

from task import references, trust
from task.errors import ConfigError
from task.references import CODE, code_of, is_reference, load_reference, package_of, references_in


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


def test_a_file_here_does_not_take_the_place_of_an_installed_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)  # one that is imported hides the file anyway
    (folder / "colorsys.py").write_text("here = 1\n")
    with pytest.raises(ConfigError, match=r"a name in .*expected one of .*; got 'here'"):
        load_reference("model", "colorsys:here")


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
        ("def make(): ...\n", "ref_a:maker", 'Did you mean "make"?'),
        ("_x = 1\n", "ref_a:make", "expected one of its public names, of which it has none"),
        ("", "transformers:vit", 'expected "transformers:FOLDER" with a folder that begins with'),
    ],
)
def test_errors(folder: Path, text: str, reference: str, words: str) -> None:
    if text:
        (folder / "ref_a.py").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_reference("model", reference)


def test_the_hash_of_code_covers_what_it_imports_from_its_folder_and_no_more(folder: Path) -> None:
    (folder / "ref_top.py").write_text("import ref_part\nimport numpy\n")
    (folder / "ref_part.py").write_text("x = 1\n")
    (folder / "ref_far.py").write_text("x = 1\n")
    first = code_of(["ref_top:a", "ref_top:b"])
    (folder / "ref_far.py").write_text("x = 2\n")
    assert code_of(["ref_top:a"]) == first
    (folder / "ref_part.py").write_text("x = 2\n")
    assert code_of(["ref_top:a"]) != first
    assert code_of(["ref_none:a"]) == {"ref_none": ""}
    assert "ref_top" not in sys.modules  # nothing of it has run


def test_the_hash_of_code_leaves_out_what_is_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes may have other versions of it: of a package that is installed, only its own files count."""
    (folder / "site").mkdir()
    sys.path.append(str(folder / "site"))
    monkeypatch.setattr(references, "_INSTALLED", {str(folder / "site")})
    (folder / "ref_mine.py").write_text("import ref_lib\n")
    (folder / "site" / "ref_lib.py").write_text("import ref_base\n")
    (folder / "site" / "ref_base.py").write_text("x = 1\n")
    mine, lib = code_of(["ref_mine:a"]), code_of(["ref_lib:a"])
    (folder / "site" / "ref_base.py").write_text("x = 2\n")
    assert code_of(["ref_lib:a"]) == lib
    (folder / "site" / "ref_lib.py").write_text("x = 2\n")
    assert code_of(["ref_lib:a"]) != lib
    assert code_of(["ref_mine:a"]) == mine


def test_the_hash_of_a_package_is_that_of_all_its_files_wherever_it_lies(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("one", "two"):
        (folder / place / "ref_pack" / "deep").mkdir(parents=True)
        (folder / place / "ref_pack" / "__init__.py").write_text("")
        (folder / place / "ref_pack" / "deep" / "net.py").write_text("x = 1\n")
    found = []
    for place in ("one", "two"):
        monkeypatch.setenv(CODE, str(folder / place))
        found.append(code_of(["ref_pack.deep.net:x"]))
        sys.path.remove(str(folder / place))
    assert found[0] == found[1]
    monkeypatch.setenv(CODE, str(folder / "two"))
    (folder / "two" / "ref_pack" / "deep" / "net.py").write_text("x = 2\n")
    assert code_of(["ref_pack:x"]) != found[0]


def test_references_of_a_run_are_found_in_all_keys_that_take_them() -> None:
    keys = {
        "model": "net:Small",
        "metrics": "f1, net:own",
        "loss": "",
        "dataset": "mnist",
        "data-path": "C:/x",
    }
    assert references_in(keys) == ("net:Small", "net:own")


LIBRARY = """
import functools, os, shutil
from os import system
from subprocess import run
class Net:
    class Inner: pass
    def make(self): pass
    @classmethod
    def built(cls): pass
    remove = shutil.rmtree
def own(): pass
@functools.cache
def cached(): pass
part, foreign = functools.partial(own), functools.partial(run, "x")
joined, path = os.sep.join, os.environ
"""


@pytest.mark.parametrize("name", ["Net", "Net.Inner", "Net.make", "Net.built", "own", "cached", "part"])
def test_what_lies_in_an_allowed_package_is_found(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "ref_policy.py").write_text(LIBRARY)
    monkeypatch.setattr(trust, "_named", set())
    trust.allow(["ref_policy"])
    load_reference("model", f"ref_policy:{name}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("os.mkdir", 'through module "os"'),
        ("shutil", 'through module "shutil"'),
        ("system", 'got what module "(posix|nt)" defines'),
        ("run", '"subprocess"'),
        ("foreign", '"subprocess"'),
        ("functools.partial", 'through module "functools"'),
        ("joined", '"builtins"'),
        ("path", '"os"'),
        ("Net.remove", '"shutil"'),
        ("Net.mro", '"builtins"'),
        ("own.__globals__.get", 'without "__"|names without'),
        ("Net.make.__builtins__.get", "names without"),
        ("__builtins__.get", "names without"),
        ("__loader__.load_module", "names without"),
    ],
)
def test_nothing_is_reached_through_an_allowed_package(
    name: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "ref_policy.py").write_text(LIBRARY)
    monkeypatch.setattr(trust, "_named", set())
    trust.allow(["ref_policy"])
    with pytest.raises(ConfigError, match=words):
        load_reference("loss", f"ref_policy:{name}")


@pytest.mark.parametrize("package", ["os", "builtins", "net:Small", "net.parts", "", "../net"])
def test_only_packages_can_be_allowed(package: str) -> None:
    with pytest.raises(ConfigError, match="--code: expected"):
        trust.allow([package])
