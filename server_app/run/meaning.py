"""The meaning of a run's data (columns, categories, classes): known before nodes register, and recorded."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from server_app.results.folder import RunFolder
from strategies.membership.agreement import COMMON, Agreement
from strategies.membership.membership import Membership
from task.catalogue.columns import COLUMNS
from task.config.knobs import Config
from task.config.paths import cache_dir
from task.datasets import Dataset, spec_of
from task.datasets.columns import column_names
from task.datasets.description import MOST_NUMBERS, PARTS, Description, Meaning, meaning_of
from task.datasets.header import read_column
from task.datasets.reorder import in_order_of, read_by_name
from task.errors import BouquetError, ConfigError
from task.numerics.moments import ColumnMoments, from_dict
from task.references import is_reference
from task.resolve.contract import contract_of
from task.resolve.model_card import ModelCard, card_in, read_arrays

KEY = "meaning"  # in config.json: that of all clients' data, or by party
_MODEL = 'those of the initial model (run-config key "initial-model-strict" = false loads it anyway)'


def known_meaning(config: Config, dataset: Dataset | None, begun: Mapping[str, Any] | None) -> Agreement:
    """Return what the data must mean, by the server's `dataset`, the initial model or the run resumed.

    `begun` is config.json of a run that is resumed, else None.

    Raises:
        ConfigError: These mean different things.
    """
    apart = contract_of(config).vertical
    mine = meaning_of(dataset) if dataset is not None else Meaning()
    if begun is not None and KEY in begun:
        before = _from_dict(begun[KEY], apart=apart)
        _check_begun(mine, before.of(COMMON))
        return replace(before, whose="those with which the run was started")
    known = Agreement(apart=apart)
    if dataset is not None:
        known = replace(known, by_client={COMMON: mine}, whose="the server's")
    if not config.initial_model or not config.initial_model_strict or begun is not None or apart:
        return known
    model = _of_model(Path(config.initial_model).expanduser())
    if dataset is not None:
        for part, digest in model.parts.items():
            if mine.parts.get(part, "") != digest:
                raise ConfigError(
                    f'run-config key "initial-model": {config.initial_model} differs from the data of this '
                    f"run in {PARTS[part]}. Name a model of the same data, or set initial-model-strict = "
                    "false to load it anyway"
                )
    if not model.parts:
        return known
    inputs, outputs = model.inputs or mine.inputs, model.outputs or mine.outputs
    return replace(
        known, by_client={COMMON: Meaning({**mine.parts, **model.parts}, inputs, outputs)}, whose=_MODEL
    )


def _check_begun(mine: Meaning, before: Meaning) -> None:
    """Refuse to go on with data of the server's that mean something else than those the run was begun with.

    Raises:
        ConfigError: Saying what differs.
    """
    if not mine.parts or not before.parts:
        return
    words = [PARTS[part] for part in before.differing(mine)]
    if not words and (mine.inputs, mine.outputs) != (before.inputs, before.outputs):
        words = ["the order of columns, values of a category or classes"]
    if words:
        raise ConfigError(
            f"--resume: the data differ from those at the start of the run in {' and '.join(words)}. "
            "Restore the former data, or start a new run"
        )


def in_order(dataset: Dataset, config: Config, agreement: Agreement) -> Dataset:
    """Return the server's data, read by name in the order that the run agreed on."""
    return read_by_name(dataset, agreement.of(COMMON), cache_dir(config.data))


def names_let_out(membership: Membership) -> Description | None:
    """Return the names of what the nodes agreed on, in the run's order, if an owner lets them out.

    What one node says is taken only if its digests are those of all.
    """
    agreed = membership.agreement.of(COMMON)
    parts = {part: digest for part, digest in agreed.parts.items() if digest}
    for node in sorted(membership.admission.admitted):
        said = membership.claims[node].registration.names
        if said is not None and parts and said.meaning.parts == parts:
            return in_order_of(agreed, said)
    return None


def meaning_record(config: Config, agreement: Agreement) -> dict[str, Any]:
    """Return what config.json keeps of the meaning of data that are a user's own; {} of any other."""
    own = spec_of(config.data.dataset).own or is_reference(config.data.dataset)
    said = {client: meaning.as_dict() for client, meaning in agreement.by_client.items()}
    if not own or not said:
        return {}
    return {KEY: {"by_party": said} if agreement.apart else said[COMMON]}


def agreed(config: Config, agreement: Agreement) -> Meaning | None:
    """Return what all clients' data mean; None where each party's mean something else."""
    return None if contract_of(config).vertical else agreement.of(COMMON)


def moments_record(moments: ColumnMoments | None, dataset: Dataset | None) -> dict[str, Any]:
    """Return what config.json keeps of the moments of columns; {} without."""
    if moments is None:
        return {}
    return {COLUMNS: moments.as_dict() | {"names": list(column_names(dataset)) if dataset else []}}


def known_moments(begun: RunFolder) -> ColumnMoments | None:
    """Return the moments of columns that a run that is resumed was begun with; None without."""
    kept = begun.config().get(COLUMNS)
    return from_dict(kept) if kept else None


def _from_dict(said: Mapping[str, Any], *, apart: bool) -> Agreement:
    by_client = said.get("by_party", {COMMON: said})
    return Agreement({client: Meaning.from_dict(one) for client, one in by_client.items()}, apart=apart)


def _of_model(file: Path) -> Meaning:
    """Return what the data of a model mean, as far as its file says; errors are left to its loader."""
    try:
        return meaning_of_card(card_in(read_arrays(file)[0], file))
    except BouquetError:
        return Meaning()


def meaning_of_card(card: ModelCard) -> Meaning:
    """Return what the data of a model mean, as far as its card says: no target, and no kind of text."""
    if card.meaning.parts:
        return card.meaning
    classes = card.classes
    if not classes and card.columns and card.task == "classification" and card.num_classes <= MOST_NUMBERS:
        classes = card.names
    if card.kind in ("", "text"):
        return Meaning()
    columns = tuple(read_column(name) for name in card.columns[:-1])
    meaning = Description(card.kind, columns, (), classes).meaning
    # Without the names of its columns those of its classes compare with nothing.
    return meaning if columns or card.kind == "image" else Meaning({"kind": card.kind})
