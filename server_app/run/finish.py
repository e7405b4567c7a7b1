"""Write the final results of a run: the model, result.json and the report."""

from collections.abc import Mapping
from typing import Any

from server_app.results.folder import RunFolder
from server_app.results.pooling import pooled_bytes
from server_app.results.report import write_report
from server_app.results.samples import write_samples
from server_app.results.summary import summarise
from server_app.results.tables import result_table
from server_app.run.encryption import in_clear
from server_app.run.evaluate import by_people, global_model
from server_app.run.frozen import RECORD, record_of, write_adapters
from server_app.run.level_results import level_results
from server_app.run.opening import OpenedRun
from server_app.run.server_model import ServerModel
from task.encryption import ckks
from task.numerics.arrays import Arrays
from task.resolve.contract import contract_of
from task.resolve.model_card import DIGESTS
from task.text import logger
from task.wire import messages as wire


def write_results(folder: RunFolder, opened: OpenedRun, model: Arrays, stopped: str = "") -> dict[str, Any]:
    """Write the final model, what is measured of it, and the report; return what result.json says.

    `stopped` is why the run has ended before its last round, if it can be resumed.
    """
    summary = _summary(folder, opened.keys) | ({"stopped": stopped} if stopped else {})
    arrays = in_clear(opened.config, model)
    last = summary.get("rounds", 0)
    entry, task, data = contract_of(opened.config), opened.model.task, opened.model.dataset
    dataset = data.at(last) if data else None
    if dataset is not None and entry.personal and not ckks.sealed(arrays):
        packed = wire.pack_arrays(arrays)
        summary["global_model"] = global_model(entry, opened.model.module, dataset, task, packed, last)
    if found := folder.cross_evaluation():
        summary["cross_evaluation"] = found
    if left_out := folder.left_out():
        summary["left_out"] = left_out
    if not entry.vertical and (size := pooled_bytes(opened.record["data"])):
        summary["pooled_bytes"] = size
    if not ckks.sealed(arrays) and (
        rates := by_people(opened.config, opened.model.module, dataset, task, arrays)
    ):
        summary["server_groups"] = rates
    if entry.vertical:
        summary["model_holds"] = DIGESTS
    if entry.statistics:
        kind = result_table(entry.work)
        summary |= {"model_holds": kind.holds, "table": kind.write(folder.path, opened.config, arrays)}
    if levels := level_results(folder, opened, dataset, arrays, last):
        summary["levels"] = levels
    if dataset is not None and dataset.drift and opened.config.drift.pattern == "staggered":
        summary["drift_clients"] = dict(dataset.drift.begins)
    if frozen := opened.model.frozen:
        summary[RECORD] = record_of(frozen)
        write_adapters(folder.path, arrays, frozen)
        arrays = {**arrays, **frozen}
    folder.finish(summary, arrays, opened.card)
    _report(folder, opened.model, {} if ckks.sealed(arrays) else arrays)
    return summary


def _summary(folder: RunFolder, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of result.json, or the reason of a failure: the run still ends with its model."""
    try:
        return summarise(folder.rounds(), folder.clients(), keys)
    except OSError:
        raise  # the disk is at fault, and a resumed run can repeat it
    except Exception as err:  # logged with its traceback: the model is there and must not be lost
        logger.exception("%s: the run has finished, but its summary could not be written", folder.path)
        known = {k: keys[k] for k in ("algorithm", "dataset", "model", "selection", "seed")}
        return {**known, "summary_error": f"{type(err).__name__}: {err}"}


def _report(folder: RunFolder, model: ServerModel, arrays: Arrays) -> None:
    """Write the report; a failure does not fail the run."""
    try:
        if model.dataset is not None:
            write_samples(folder.path, model.module, arrays, model.dataset)
        write_report(folder.path)
    except OSError:
        raise
    except Exception:  # logged with its traceback: the model is there and must not be lost
        logger.exception("%s: the run has finished, but its report could not be written", folder.path)
