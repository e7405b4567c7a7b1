"""Facts about the data that were read, as the lines that a terminal, a report and a node's own log show.

Each function takes the facts (`task.datasets.facts`) and how many names a line may have, and returns what is
said of one topic, or "" where there is nothing to say. A block of an earlier version says less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from task.datasets.facts import Facts

Line = tuple[str, str]  # the topic, and the fact

SHOWN = 8  # names in a line


def in_words(facts: Mapping[str, Any], most: int = SHOWN) -> list[Line]:
    """Return the facts, or the data block of ``config.json``, for people.

    At most `most` names are in a line.
    """
    given = dict(facts)
    return [
        *_lines(_BEFORE, given, most),
        *(("note", note) for note in given.get("notes", ())),
        *_lines(_AFTER, given, most),
    ]


def as_text(facts: Mapping[str, Any]) -> list[str]:
    """Return `in_words` as lines of a terminal or a log, which have the notes as warnings."""
    return [f"{label:<9} {text}" for label, text in in_words({**facts, "notes": ()})]


def _lines(topics: Iterable[tuple[str, Callable[[Facts, int], str]]], facts: Facts, most: int) -> list[Line]:
    return [(label, text) for label, say in topics if (text := say(facts, most))]


def _data(facts: Facts, most: int) -> str:
    if facts.get("at") == "nodes":
        shape, outputs = facts["input_shape"], facts["outputs"]
        each = f"{shape[0]:,} inputs" if len(shape) == 1 else f"examples of {'x'.join(map(str, shape))}"
        what = (
            ("class" if outputs == 1 else "classes") if "names" in facts else "output" + "s" * (outputs != 1)
        )
        return f"at the nodes, whose own logs say what was read; {each}, {outputs:,} {what}"
    source = f", from {facts['source']}" if facts.get("source") else ""
    return f"{facts['description']}{source}" if facts.get("description") else ""


def _files(facts: Facts, most: int) -> str:
    if not (files := facts.get("files")):
        return ""
    count = f"{files['count']:,}: " if files["count"] > 1 else ""
    return count + _some(files["listed"], files["count"], most)


def _columns(facts: Facts, most: int) -> str:
    if not (columns := facts.get("columns")):
        return ""
    shown = [f"{name} ({_kind(kind)})" for name, kind in columns["listed"].items()]
    other = [f"{name}: {what}" for name, what in columns["other"].items()]
    words = f"{columns['count']:,}: {_some(shown, columns['count'], most)}"
    words += f" -> {columns['target']}" if columns["target"] else ""
    return "; ".join([words, *([_some(other, len(other), most)] if other else [])])


def _kind(kind: str | list[str]) -> str:
    return kind if isinstance(kind, str) else _some(kind, len(kind), SHOWN, " | ")


def _pictures(facts: Facts, most: int) -> str:
    """Return size, channels and Pillow's modes of pictures; "" if they are none, or no example is one."""
    shape: list[int] = facts.get("input_shape") or []
    if facts.get("kind") != "image" or len(shape) != 3:
        return ""
    channels, height, width = shape
    parts = [f"{width}x{height} pixels, {'1 channel' if channels == 1 else f'{channels} channels'}"]
    if within := facts.get("entered"):
        parts.append(f"in the folder {within}")
    if folders := facts.get("parts"):
        parts.append("parts " + ", ".join(f"{part} = {folder}" for part, folder in folders.items()))
    if modes := facts.get("modes"):
        parts.append("read from " + ", ".join(f"{count:,} of mode {mode}" for mode, count in modes.items()))
    return "; ".join(parts)


def _classes(facts: Facts, most: int) -> str:
    """Return the classes of examples, with how many there are of each."""
    if not (classes := facts.get("classes")):
        return ""
    tests = any(test for _, test in classes["listed"].values())
    shown = [
        f"{name} ({train:,}" + (f" + {test:,})" if tests else ")")
        for name, (train, test) in classes["listed"].items()
    ]
    what = "training + test examples" if tests else "examples"
    return f"{classes['count']:,}: {_some(shown, classes['count'], most)}; {what} of each"


def _form(facts: Facts, most: int) -> str:
    return str(facts.get("form") or "")


def _places(facts: Facts, most: int) -> str:
    """Return the classes at each place of an example, such as a pixel."""
    if not (places := facts.get("places")):
        return ""
    shape = "x".join(map(str, places["shape"]))
    words = f"one of {places['classes']:,} classes at each of {shape} places"
    return f"{words}, of which {places['counted']:.1%} count"


def _names(facts: Facts, most: int) -> str:
    """Return the classes of a description, of which nothing is counted."""
    names = facts.get("names")
    return _some(names, facts.get("outputs", len(names)), most) if names else ""


def _targets(facts: Facts, most: int) -> str:
    """Return how many numbers or labels are predicted; of values with names, these."""
    if not (targets := facts.get("targets")):
        return ""
    if names := targets.get("names"):
        return f"{_some(names, len(names), most, ' | ')}, read as the numbers 0 to {len(names) - 1}"
    words = f"{targets['labels']:,} labels 0 and 1" if "labels" in targets else f"{targets['numbers']:,}"
    return words + (f" from {targets['from']:.6g} to {targets['to']:.6g}" if "from" in targets else "")


def _owners(facts: Facts, most: int) -> str:
    owners = facts.get("owners")
    if not owners or owners["count"] <= 1:
        return ""
    shown = [f"{name} ({count:,})" for name, count in owners["listed"].items()]
    return f"{owners['count']:,}: {_some(shown, owners['count'], most)}"


def _missing(facts: Facts, most: int) -> str:
    if not (missing := facts.get("missing")):
        return ""
    shown = [f"{name} ({count:,})" for name, count in missing["listed"].items()]
    words = _some(shown, missing["count"], most)
    return f"{missing['values']:,} values, filled with {missing['filled']}: {words}"


def _scaled(facts: Facts, most: int) -> str:
    return str(facts.get("scaled") or "")


def _public(facts: Facts, most: int) -> str:
    public = facts.get("public_examples")
    return f"{public:,} training examples that no client owns" if public else ""


def _clients(facts: Facts, most: int) -> str:
    if not (sizes := facts.get("client_examples")):
        return ""
    least, median, largest = sizes["min"], sizes["median"], sizes["max"]
    each = f"{least:,} training examples each"
    if least < largest:
        each = f"{least:,} to {largest:,} training examples each, median {median:,.0f}"
    if held := facts.get("held_out"):
        unread = "" if held["read"] else ", which this run leaves out (fraction-evaluate = 0)"
        each += f"; {held['examples']:,} more are held out for clients' own tests{unread}"
    return f"{facts['clients']:,}, {each}"


def _some(names: Iterable[object], count: int, most: int, mark: str = ", ") -> str:
    """Return the first names, and how many more there are."""
    shown = [str(name) for name, _ in zip(names, range(most), strict=False)]
    return mark.join(shown) + (f" ... and {count - len(shown):,} more" if count > len(shown) else "")


_BEFORE = (  # the notes
    ("data", _data),
    ("files", _files),
    ("columns", _columns),
    ("pictures", _pictures),
    ("classes", _classes),
    ("inputs", _form),
    ("targets", _places),
    ("classes", _names),
    ("targets", _targets),
    ("owners", _owners),
    ("missing", _missing),
)
_AFTER = (("scaled", _scaled), ("public", _public), ("clients", _clients))
