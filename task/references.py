"""References to users' own code: ``package.module:name`` instead of a built-in name.

The module is looked for among the installed packages and then in `code_folder`, so a file ``net.py`` in the
folder in which ``bouquet run`` is started is ``net:name``. Nothing is fetched. A run records what the files
are, `code_of`, and nodes whose own copies differ are left out.
"""

import ast
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from task import generators, objects, trust
from task.errors import PACKAGES, ConfigError, choose_from

HUB = "hf:"  # what a data set of Hugging Face's begins with
_HUB_NAME = re.compile(r"hf:([./~].*|\w[\w.-]*(/\w[\w.-]*){0,2})", re.ASCII)
_MODEL_FOLDER = re.compile(r"transformers:[./~].*", re.ASCII)
_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)

_NOT_THEIRS = ("importlib", f"{os.sep}site-packages{os.sep}", str(Path(__file__).parent))  # of a traceback
_INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
# Run-config keys that take references.
KEYS = (
    "model",
    "models.levels",
    "dataset",
    "public.data",
    "partition",
    "loss",
    "metrics",
    "optimizer",
    "augment",
    "algorithm",
)
_left: dict[str, generators.State] = {}  # by module, the global generators after its import
CODE = "BOUQUET_CODE"  # environment variable: the folder of a user's own modules, by default the working one
OURS = ("bouquet", *PACKAGES)


def is_reference(text: str) -> bool:
    """Return whether a value names a thing of the user's own, ``package.module:name``."""
    return ":" in text


def is_hub(text: str) -> bool:
    """Return whether a value names a data set of Hugging Face's, which is no code: ``hf:OWNER/NAME``."""
    return text.startswith(HUB)


def is_model_folder(text: str) -> bool:
    """Return whether a value names a model of `transformers` in a folder: ``transformers:./gpt2``."""
    return _MODEL_FOLDER.fullmatch(text) is not None


def model_folder(key: str, reference: str) -> Path:
    """Return the folder of a model of `transformers`, as it stands or below `code_folder`.

    Raises:
        ConfigError: It is not there, was not allowed, or lies elsewhere and was not typed by the user.
    """
    packages = trust.packages_for(key, reference, package_of(reference))
    folder = (code_folder() / Path(reference.partition(":")[2]).expanduser()).resolve()
    where = f'run-config key "{key}": "{reference}"'
    if packages is not None and not folder.is_relative_to(code_folder().resolve()):
        raise ConfigError(f"{where}: expected a folder below {code_folder()}, as a file or a server names it")
    if not folder.is_dir():
        raise ConfigError(
            f"{where}: expected a folder that save_pretrained of transformers wrote; {folder} is none"
        )
    return folder


def references_in(keys: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the references among a run's keys, each once."""
    values = [value for key in KEYS for value in str(keys.get(key, "")).split(",")]
    return tuple(dict.fromkeys(value.strip() for value in values if is_reference(value)))


def not_repeatable(keys: Mapping[str, Any]) -> str:
    """Return the sentence for a run whose keys name objects of a Python program; "" if they name none."""
    named = [(key, value.strip()) for key in KEYS for value in str(keys.get(key, "")).split(",")]
    return objects.not_repeatable(named)


def check_origin(keys: Mapping[str, Any], place: str | Path = "") -> None:
    """Refuse references that the user has neither typed nor allowed, before anything is imported.

    `place` is the file that the keys come from. See `task.trust`.

    Raises:
        ConfigError: Naming the first one and what allows it.
    """
    for key in KEYS:
        for value in str(keys.get(key, "")).split(","):
            if objects.is_object(value.strip()):
                objects.find(key, value.strip())
            elif is_reference(value) and not is_hub(value.strip()):
                trust.packages_for(key, value.strip(), package_of(value.strip()), str(place))


def folder_name(name: str) -> str:
    """Return a name or a reference as a part of a file's name."""
    return re.sub(r"[^\w.=-]+", "-", name)


def package_of(reference: str) -> str:
    """Return what an owner allows: ``net`` of ``net.parts:Small``; all of ``hf:`` or ``python:`` names."""
    if is_hub(reference) or objects.is_object(reference):
        return reference
    return reference.partition(":")[0].partition(".")[0]


def check_reference(key: str, reference: str) -> None:
    """Refuse what is no reference of a user's own; nothing is imported.

    Raises:
        ConfigError: It is not of the form, or names a package of Bouquet's.
    """
    where = f'run-config key "{key}"'
    if objects.is_object(reference):
        objects.find(key, reference)
        return
    if is_hub(reference):
        if key not in ("dataset", "public.data"):
            raise ConfigError(
                f'{where}: "{HUB}" begins data sets of Hugging Face; got "{reference}". Give a module of '
                "your own that is called hf another name"
            )
        if not _HUB_NAME.fullmatch(reference):
            raise ConfigError(
                f'{where}: expected "hf:NAME", "hf:OWNER/NAME", "hf:OWNER/NAME/CONFIGURATION", or '
                f'"hf:FOLDER" with a folder that begins with "/", "." or "~"; got "{reference}"'
            )
        return
    if is_model_folder(reference) and key in ("model", "models.levels"):
        return
    if package_of(reference) == "transformers":
        raise ConfigError(
            f'{where}: expected "transformers:FOLDER" with a folder that begins with "/", "." or "~", as the '
            f'value of "model"; got "{reference}". For a class of transformers write a function in a file of '
            "your own, which makes the model"
        )
    if not _REFERENCE.fullmatch(reference):
        raise ConfigError(f'{where}: expected one of our names or "package.module:name"; got "{reference}"')
    if package_of(reference) == "__main__":
        raise ConfigError(
            f'{where}: expected a module that every process of the run can import; got "{reference}", which '
            "is another script in each. Put the code into a file of its own, such as net.py, and name that"
        )
    if reference.partition(":")[0].endswith(".py"):
        raise ConfigError(
            f'{where}: expected a module, without .py; got "{reference}". Say '
            f'"{reference.replace(".py:", ":", 1)}"'
        )
    if package_of(reference) in OURS:
        raise ConfigError(
            f'{where}: expected a module of your own; got "{reference}", and "{package_of(reference)}" is a '
            "package of Bouquet's. Give your file another name"
        )


def check_modules(keys: Mapping[str, Any]) -> None:
    """Refuse references to modules that are nowhere; nothing is imported.

    Raises:
        ConfigError: Naming the first one, and where it was looked for.
    """
    named = [(key, value.strip()) for key in KEYS for value in str(keys.get(key, "")).split(",")]
    for key, reference in named:
        if is_reference(reference) and not (
            is_hub(reference) or is_model_folder(reference) or objects.is_object(reference)
        ):
            module = reference.partition(":")[0]
            here = _look_here()
            if missing := _missing(module):
                raise _absent(key, missing, here)


def _missing(module: str) -> str:
    """Return the first package or module of a path such as ``net.parts`` that is nowhere; "" = none."""
    names, places = module.split("."), None
    for number, name in enumerate(names, start=1):
        path = ".".join(names[:number])
        if path in sys.modules:
            places = getattr(sys.modules[path], "__path__", None)
            continue
        spec = PathFinder.find_spec(path, places) if number > 1 else importlib.util.find_spec(name)
        if spec is None:
            return path
        places = spec.submodule_search_locations
        if places is None and number < len(names):
            return f"{path}.{names[number]}"
    return ""


def _absent(key: str, module: str, here: str) -> ConfigError:
    return ConfigError(
        f'run-config key "{key}": expected module "{module}" among the installed packages or in {here}; '
        "found none"
    )


def load_reference(key: str, reference: str) -> Any:
    """Import the module of a reference and return the object that it names.

    Args:
        key: The run-config key that has the reference, for errors.
        reference: Such as ``net:Small`` or ``my_package.models:make``.

    Raises:
        ConfigError: It is not of this form, it was not allowed, the module is not found or fails, or it lacks
        the name.
    """
    check_reference(key, reference)
    if objects.is_object(reference):
        return objects.find(key, reference)
    packages = trust.packages_for(key, reference, package_of(reference))
    where = f'run-config key "{key}"'
    module, _, name = reference.partition(":")
    here = _look_here()
    try:
        found: Any = _imported(module)
    except ModuleNotFoundError as err:
        if err.name is None or not f"{module}.".startswith(f"{err.name}."):
            raise ConfigError(f'{where}: module "{module}" cannot be imported: {place(err)}') from err
        raise _absent(key, err.name, here) from None
    except Exception as err:  # whatever the user's code raises
        raise ConfigError(f'{where}: module "{module}" cannot be imported: {place(err)}') from err
    for part in name.split("."):
        if not hasattr(found, part):
            public = [n for n in vars(found) if not n.startswith("_")]
            origin = getattr(found, "__file__", None) or module
            raise ConfigError(choose_from(f"{where}: a name in {origin}", part, public))
        found = getattr(found, part)
        trust.check_found(key, reference, found, packages)
    return found


def _imported(module: str) -> Any:
    """Import a module; the global generators are as before, whatever it seeds or draws.

    Processes differ in which modules are already imported, but must not differ in what they compute.
    """
    if module in sys.modules:
        return sys.modules[module]
    with generators.kept():
        found = importlib.import_module(module)
        _left[module] = generators.state_of_all()
    return found


@contextmanager
def as_imported(reference: str) -> Iterator[None]:
    """For the block, continue the global generators from their state after a reference's import.

    So its code draws the same numbers in every process, by the seeds that it sets at import.
    """
    module = reference.partition(":")[0]
    with generators.kept(*([_left[module]] if module in _left else [])):
        yield


def code_folder() -> Path:
    """Return the folder of a user's own modules: ``$BOUQUET_CODE``, else the working directory."""
    return Path(os.environ.get(CODE) or os.getcwd())


def _look_here() -> str:
    """Let Python find the modules of `code_folder`, after all others; return that folder."""
    if (here := str(code_folder())) not in sys.path:
        sys.path.append(here)  # at the end: no file here can replace an installed package
        importlib.invalidate_caches()
    return here


def code_of(references: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the code of each package or module that references name, by its name.

    It is over the Python files of the package, or the module's file, and of what these import from the same
    folder, if that is none of installed packages. Nothing is imported. What is not found has "", and a data
    set of Hugging Face's is no code. Of a model in a folder it is over its config.json, and an object of a
    Python program has the digest under its own name.
    """
    listed = tuple(references)
    folders = {r: _config_of(r) for r in listed if is_model_folder(r)}
    packages = {package_of(r) for r in listed if not is_hub(r) and r not in folders}
    given = {name: objects.digest_of(name) for name in packages if objects.is_object(name)}
    if packages := packages - given.keys():  # otherwise no user modules are searched in the present folder
        _look_here()
    return folders | given | {package: _sha256(package) for package in sorted(packages)}


def _config_of(reference: str) -> str:
    """Return the SHA-256 of what says the form of a model in a folder; nodes compare its weights as such."""
    path = code_folder() / Path(reference.partition(":")[2]).expanduser() / "config.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def is_installed(package: str) -> bool:
    """Return whether a module at the top is Python's, Bouquet's or of an installed package."""
    if package in OURS or package in sys.stdlib_module_names:
        return True
    spec = None if package == "__main__" else getattr(sys.modules.get(package), "__spec__", None)
    places = [*(getattr(spec, "submodule_search_locations", None) or ()), getattr(spec, "origin", None) or ""]
    return any(str(Path(place).parent) in _INSTALLED for place in places)


def _sha256(package: str) -> str:
    files: dict[str, Path] = {}
    queue, root = [package], None
    while queue:
        name = queue.pop()
        spec = None if name in OURS else importlib.util.find_spec(name)
        if spec is None or name in (sys.builtin_module_names if root else ()):
            continue
        folders = [Path(place) for place in spec.submodule_search_locations or ()]
        file = Path(spec.origin or "")
        base = (folders[0] if folders else file).parent
        if root is not None and base != root:
            continue  # not the user's; a library may have thousands of files, which are not listed
        root = base
        found = [p for folder in folders for p in sorted(folder.rglob("*.py"))]
        if not folders and file.is_file():
            found = [file]
        fresh = [p for p in found if p.relative_to(base).as_posix() not in files]
        files |= {p.relative_to(base).as_posix(): p for p in fresh}
        if str(base) not in _INSTALLED:
            queue += sorted({name for p in fresh for name in _imports(*_version(p))})
    lines = [f"{name},{_digest(*_version(p))}\n" for name, p in sorted(files.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


# Each registration asks for all files of the user's package: they are read again only if they changed.
# Imports are looked up apart, because parsing a library's thousands of files takes half a minute.


def _version(path: Path) -> tuple[Path, int, int]:
    now = path.stat()
    return path, now.st_mtime_ns, now.st_size


@lru_cache(4096)
def _digest(path: Path, modified_ns: int, size: int) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache(4096)
def _imports(path: Path, modified_ns: int, size: int) -> frozenset[str]:
    """Return the top-level names that a Python file imports."""
    found = set[str]()
    try:
        nodes = ast.walk(ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError):  # its import reports the error
        nodes = iter(())
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return frozenset(found)


def place(err: Exception) -> str:
    """Return the text of an error in the user's code, and where it arose."""
    frames = [f for f in traceback.extract_tb(err.__traceback__) if f.filename != __file__]
    theirs = [f for f in frames if not any(part in f.filename for part in _NOT_THEIRS)]
    where = f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else ""
    if isinstance(err, SyntaxError):
        where = f" ({Path(err.filename or '').name}, line {err.lineno})"
    return f"{type(err).__name__}: {err}{where}"


def blamed(err: Exception, references: Mapping[str, str]) -> str:
    """Return the run-config key whose module an error arose in, the innermost one; else the first key.

    Args:
        err: As it was raised.
        references: By key, references, several with commas between them.
    """
    for frame in reversed(traceback.extract_tb(err.__traceback__)):
        for key, listed in references.items():
            for reference in filter(is_reference, map(str.strip, listed.split(","))):
                home = getattr(sys.modules.get(package_of(reference)), "__file__", None)
                home = home or objects.file_of(reference)
                folder = Path(home).parent if home and Path(home).name == "__init__.py" else None
                if home == frame.filename or (folder and Path(frame.filename).is_relative_to(folder)):
                    return key
    return next(iter(references))
