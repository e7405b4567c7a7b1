"""The option ``-c``: ``key=value`` pairs in one text, as in `flwr run`."""

import json
import re
import shlex
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path

from task.config.data_paths import keys_of_path, path_in
from task.config.read import defaults, flatten, read_toml
from task.config.sections import Value
from task.errors import ConfigError

_ONE = r"""'[^']*'|"[^"]*"|\[[^]]*\]|[^\s'"]\S*"""
SEVERAL = r"""(?:'[^']*'|"[^"]*"|[^\s'"])+"""


def parse_options(options: Iterable[str] | None) -> dict[str, Value]:
    """Return the run-config keys of ``-c`` options: pairs, or the path of a TOML file; later ones win.

    Raises:
        ConfigError: A word is not a pair, or a value is not TOML; the error says what to type instead.
    """
    keys: dict[str, Value] = {}
    for option in options or ():
        if _is_file(option):
            keys |= flatten(read_toml(Path(option.strip()).expanduser()))
            continue
        pairs = pairs_in(option, "a space between them, such as -c 'algorithm=\"fedprox\" fedprox.mu=0.1'")
        read = {key: toml_value(text) for key, text in pairs.items()}
        wrong = [key for key, value in read.items() if value is None]
        if wrong:
            key, text = wrong[0], pairs[wrong[0]]
            if expected := next((told for key in wrong if (told := _misspelt(key, pairs[key]))), ""):
                raise ConfigError(f"-c: {expected}")
            ours = " ".join(
                _corrected(key, text, pairs) if key in wrong else f"{key}={text}"
                for key, text in pairs.items()
            )
            raise ConfigError(
                f"-c: {key}: expected a number, true, false, or a text in double quotes; got {text}. "
                f"Type: -c {shlex.quote(ours)}"
            )
        keys |= {key: value for key, value in read.items() if value is not None}
    return keys


def typed(options: Iterable[str] | None) -> dict[str, Value]:
    """Return the keys of ``-c`` options that the user typed, without those of TOML files."""
    return parse_options(option for option in options or () if not _is_file(option))


def _is_file(option: str) -> bool:
    return option.strip().endswith(".toml") and "=" not in option


def pairs_in(option: str, form: str, value: str = _ONE) -> dict[str, str]:
    """Return the pairs of an option; their values are texts that match the regular expression `value`.

    Raises:
        ConfigError: Something is not a pair (`form` says how pairs are written), or a key occurs twice.
    """
    pair = re.compile(rf"\s*(?P<key>[^\s=]+)\s*=\s*(?P<value>{value})(?=\s|$)")
    found: dict[str, str] = {}
    at = 0
    while rest := option[at:].strip():
        match = pair.match(option, at)
        if match is None:
            raise ConfigError(f"-c: expected key=value pairs with {form}; got {rest!r}")
        if match["key"] in found:
            raise ConfigError(f"-c: expected each key once; got {match['key']} twice in {option!r}")
        found[match["key"]] = match["value"]
        at = match.end()
    return found


def toml_value(text: str) -> Value | None:
    """Return the value of a TOML text, or None if it is not TOML."""
    try:
        value: Value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None
    return value


def _kind(key: str) -> type:
    """Return the type of a key's value; `str` if the key is unknown."""
    return type(defaults().get(key, ""))


def _misspelt(key: str, text: str) -> str:
    """Return what a key expects if not a text in quotes: a number, true or false; else ""."""
    kind = _kind(key)
    if kind is bool and text.lower() not in ("true", "false"):
        return f"{key}: expected true or false; got {text}"
    if kind in (int, float):
        try:
            kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            return f"{key}: expected {what}, such as {defaults()[key]!r}; got {text}"
    return ""


def _corrected(key: str, text: str, pairs: Collection[str]) -> str:
    """Return the pair that the user probably meant by a value that is not TOML."""
    kind, bare = _kind(key), text.strip("\"'")
    forms, path = path_in(bare) if key == "dataset" else ((), "")
    if len(forms) == 1:
        return f'dataset="{forms[0]}"' if "data-path" in pairs else keys_of_path(forms, path)
    if kind in (int, float):
        return f"{key}={kind(text)!r}"
    return f"{key}={text.lower() if kind is bool else json.dumps(bare, ensure_ascii=False)}"
