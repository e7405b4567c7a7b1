"""The option ``-c``: pairs ``key=value`` in one text, as `flwr run` takes them."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterable
from pathlib import Path

from task.config.read import flatten, knobs, read_toml
from task.config.sections import Value
from task.errors import ConfigError

_PAIR = re.compile(r"""\s*(?P<key>[^\s=]+)\s*=\s*(?P<value>'[^']*'|"[^"]*"|\[[^]]*\]|[^\s'"]\S*)(?=\s|$)""")


def parse_options(options: Iterable[str] | None) -> dict[str, Value]:
    """Return the run-config keys of ``-c`` options: pairs, or the path of a TOML file; later ones count.

    Raises:
        ConfigError: A word is no pair, or a value is not TOML; with the text to type instead.
    """
    keys: dict[str, Value] = {}
    for option in options or ():
        if option.strip().endswith(".toml") and "=" not in option:
            keys |= flatten(read_toml(Path(option.strip()).expanduser()))
            continue
        pairs = _pairs(option)
        read = {key: _value(key, text) for key, text in pairs}
        wrong = [(key, text) for key, text in pairs if read[key] is None]
        if wrong:
            ours = " ".join(
                f"{key}={_mended(key, text) if (key, text) in wrong else text}" for key, text in pairs
            )
            key, text = wrong[0]
            raise ConfigError(
                f"-c: {key}: expected a number, true, false, or a text in double quotes; got {text}. "
                f"Type: -c {shlex.quote(ours)}"
            )
        if len(read) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise ConfigError(f"-c: expected each key once; got {twice} twice in {option!r}")
        keys |= {key: value for key, value in read.items() if value is not None}
    return keys


def _pairs(option: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while option[at:].strip():
        match = _PAIR.match(option, at)
        if match is None:
            raise ConfigError(
                f"-c: expected key=value pairs with a space between them, such as "
                f"-c 'algorithm=\"fedprox\" fedprox.mu=0.1'; got {option[at:].strip()!r}"
            )
        found.append((match["key"], match["value"]))
        at = match.end()
    return found


def _value(key: str, text: str) -> Value | None:
    """Return a value that is TOML, else None."""
    try:
        value: Value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None
    return value


def _mended(key: str, text: str) -> str:
    """Return what was probably meant by a value that is not TOML."""
    kind = next((k.type for k in knobs() if k.key == key), str)
    try:
        if kind in (int, float):
            return repr(kind(text))
    except ValueError:
        return json.dumps(text)
    return text.lower() if kind is bool else json.dumps(text.strip("\"'"), ensure_ascii=False)
