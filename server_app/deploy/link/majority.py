"""The numbers of nodes and replies that a run at a link needs: majorities, unless the user has set them."""

from collections.abc import Mapping
from typing import Any

from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import Config
from task.datasets import spec_of
from task.resolve.cohorts import asked_of


def derived(config: Config, nodes: int, before: Mapping[str, Any]) -> dict[str, int]:
    """Return the keys that follow from the number of nodes; the user's own values come first.

    A run begins with a majority of its nodes. A round needs replies of as many clients, or of a majority of
    those it asks, if that is fewer. A resumed run keeps the number of replies that it had `before`.
    """
    server, data = config.server, config.data
    majority = nodes // 2 + 1
    clients = data.num_clients or nodes
    if spec_of(data.dataset).own:
        clients = min(clients, nodes) if data.data_path else nodes
    asked = asked_of(server, clients)
    if algorithm_of(config.algorithm).pooled or server.selection == "fedcs":
        asked = 1  # fedcs may find only one client that is quick enough
    if config.dp.central:
        asked = 1  # the number of clients does not decide whether a round counts
    least = min(majority, min(asked, server.enough_replies or asked) // 2 + 1)
    return {"min-nodes": majority, "min-replies": before.get("min-replies", least)}
