"""Match columns and classes of a user's file with a model whose file has digests instead of names.

Such a model was trained on data that only nodes have, and their owners keep the names private. Its card has
the `task.datasets.description.Meaning` that the nodes agreed on: it says whether a file has the same columns
and classes, and in which order the model reads them. Columns that the model does not read are found by
leaving some out until the digest fits.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, islice

from task.datasets.description import Description
from task.datasets.header import TypedColumn
from task.datasets.reorder import in_order_of
from task.errors import DataError
from task.population import some
from task.resolve.model_card import ModelCard

MOST_TRIED = 500  # sets of columns; each takes some 30 ms
_NAMES = "The model's file has no names, only a digest of the names in the nodes' files"


def columns_by_digest(
    where: str, header: Sequence[TypedColumn], card: ModelCard
) -> tuple[list[TypedColumn], tuple[str, ...]]:
    """Return the features in the order that the model reads them, and the names of what is predicted.

    `where` is the place of the header. There are no names if it is unknown what is predicted.

    Raises:
        DataError: The file lacks columns, or has others than the nodes.
    """
    wanted, digest = len(card.meaning.inputs), card.meaning.parts["columns"]
    usable = [column for column in header if column.feature]
    if _width(usable) < wanted or any(c.type == "category" and not c.values for c in usable):
        raise DataError(
            f"{where}: expected columns that give the model's {wanted} inputs, categories with "
            f"their values; got {_width(usable)} inputs, from the columns {some([c.name for c in usable])}. "
            f"{_NAMES}: give the file their header"
        )
    for features in islice(_choices(usable, wanted), MOST_TRIED):
        said = Description("features", features)
        if said.meaning.parts["columns"] == digest:
            break
    else:
        raise DataError(
            f"{where}: expected the columns that the nodes trained on; got others: "
            f"{some([c.name for c in usable])}. {_NAMES}: give the file their header, and leave out columns "
            "that they do not have"
        )
    if said.meaning.parts.get("categories") != card.meaning.parts.get("categories"):
        names = some([c.name for c in features if c.values])
        raise DataError(
            f"{where}: expected the values that the nodes' headers list for each category; got others "
            f"in one of {names}. Give the file the nodes' header"
        )
    return list(in_order_of(card.meaning, said).columns), _targets(header, features, card)


def _width(columns: Sequence[TypedColumn]) -> int:
    return sum(len(column.inputs) for column in columns)


def _choices(usable: Sequence[TypedColumn], wanted: int) -> Iterator[tuple[TypedColumn, ...]]:
    """Yield the sets of columns with this number of inputs, those that leave out the fewest first."""
    # Columns that are most probably not features are left out first.
    ordered = sorted(
        usable, key=lambda column: (column.name not in ("label", "id"), column is not usable[-1])
    )
    for count in range(len(usable)):
        for gone in combinations(ordered, count):
            left = tuple(column for column in usable if column not in gone)
            if _width(left) == wanted:
                yield left


def _targets(
    header: Sequence[TypedColumn], features: Sequence[TypedColumn], card: ModelCard
) -> tuple[str, ...]:
    """Return what is predicted: typed, called label, or the columns that the nodes predict; () = unknown.

    Several are in the order of the model's numbers.
    """
    rest = [column for column in header if column not in features]
    typed = tuple(column.name for column in rest if column.type == "target")
    digest = card.meaning.parts.get("target")

    def said(names: tuple[str, ...]) -> Description:
        return Description("features", tuple(features), names)

    if len(card.meaning.outputs) > 1 and "classes" not in card.meaning.parts:
        several = typed or tuple(column.name for column in rest if column.feature)
        fits = several and said(several).meaning.parts["target"] == digest
        return in_order_of(card.meaning, said(several)).targets if fits else ()
    found = (*typed, *(column.name for column in rest if column.name == "label"))
    alike = (c.name for c in rest if c.feature and said((c.name,)).meaning.parts["target"] == digest)
    return found[:1] or tuple(islice(alike, 1))


def classes_by_digest(
    where: str, card: ModelCard, columns: Sequence[TypedColumn], listed: Sequence[str], labels: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of the classes in the model's order; () = they are numbers, or unknown.

    Args:
        where: The file, for errors.
        card: What the model is.
        columns: The features.
        listed: The classes that the file lists, if it does.
        labels: The labels of the examples, if they have some.

    Raises:
        DataError: The file has other classes than the nodes, or some only and does not list all.
    """
    digest = card.meaning.parts.get("classes")
    names = tuple(listed) or tuple(sorted(set(labels)))
    numbers = tuple(map(str, range(card.num_classes)))
    kind = card.meaning.parts.get("kind", card.kind)

    def order(classes: tuple[str, ...]) -> tuple[str, ...]:
        said = Description(kind, tuple(columns), (), classes)
        fits = said.meaning.parts["classes"] == digest
        return in_order_of(card.meaning, said).classes if fits else ()

    if digest is None or not names or order(numbers) == numbers:
        return ()
    found = order(names) if len(names) == card.num_classes else ()
    if not found:
        raise DataError(
            f"{where}: expected the {card.num_classes} classes that the nodes agreed on; got "
            f"{some(names)}. {_NAMES}: list all classes in the header, as theirs do (outcome:target(a|b)), "
            "or give a folder for each, or leave the labels out"
        )
    return found
