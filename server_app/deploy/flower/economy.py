"""Caches for the SuperLink: database queries that need not be repeated at every call.

Flower asks at each call which node has the key, whether the run runs, and whose task has the token, and adds
up traffic and run times: half of all transactions. Here such an answer is cached briefly, unless this
process, the only writer of the database, changes it; sums are kept in memory and written once a second.
"""

from collections.abc import Callable
from typing import Any

from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState

from server_app.deploy.calls.cache import CachedQuery, Tally
from server_app.deploy.host.replacing import replace
from task import timing

RUNNING = "running"  # as the Control API spells it; a different word would only cost queries


def economise(state: SqlLinkState) -> tuple[Tally, Tally]:
    """Reduce a state's database queries; return the sums to be written when the SuperLink ends."""
    node_of = CachedQuery(state.get_node_id_by_public_key, timing.KEY_S)
    task_of = CachedQuery(state.get_task_by_token, timing.RUN_STATE_S)
    statuses = state.get_run_status

    def running(run_id: int) -> Any:
        status = statuses({run_id}).get(run_id)
        return status if status is not None and status.status == RUNNING else None

    status_of = CachedQuery(running, timing.RUN_STATE_S)

    def get_run_status(run_ids: set[int]) -> dict[int, Any]:
        if len(run_ids) == 1 and (status := status_of(next(iter(run_ids)))) is not None:
            return {next(iter(run_ids)): status}
        return statuses(run_ids)

    def changing(method: Callable[..., Any], *answers: CachedQuery[Any, Any]) -> Callable[..., Any]:
        def changed(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            finally:
                for answer in answers:
                    answer.forget()

        return changed

    traffic, runtimes = Tally(state.store_traffic), Tally(state.add_clientapp_runtime)

    def store_traffic(run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        traffic.add(run_id, bytes_sent=bytes_sent, bytes_recv=bytes_recv)

    def add_clientapp_runtime(run_id: int, runtime: float) -> None:
        runtimes.add(run_id, runtime=runtime)

    replace(
        state, get_node_id_by_public_key=node_of, get_task_by_token=task_of, get_run_status=get_run_status,
        delete_node=changing(state.delete_node, node_of),
        finish_task=changing(state.finish_task, task_of, status_of), store_traffic=store_traffic,
        add_clientapp_runtime=add_clientapp_runtime,
    )  # fmt: skip
    return traffic, runtimes
