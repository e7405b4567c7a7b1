"""Flower's services, by name: paths and protobufs."""

from __future__ import annotations

from flwr.proto.control_pb2 import ListRunsRequest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.runtime_pb2 import GetNodesRequest

from task.flower.services import CONTROL, FLEET, runtime_message


def test_a_call_has_its_path_and_its_protobufs() -> None:
    assert FLEET.grpc_path("PullMessages") == "/flwr.proto.Fleet/PullMessages"
    assert FLEET.http_path("PullMessages") == "/v1/fleet/pull-messages"
    assert CONTROL.http_path("ListRuns") == "/v1/control/list-runs"
    assert (FLEET.request_type("PullMessages"), FLEET.answer_type("PullMessages")) == (
        PullMessagesRequest, PullMessagesResponse,
    )  # fmt: skip
    assert CONTROL.request_type("ListRuns") is ListRunsRequest
    assert runtime_message("GetNodesRequest") is GetNodesRequest


def test_a_request_takes_the_fields_of_a_protobuf_in_it() -> None:
    request = FLEET.request("PullMessages", node={"node_id": 2**64 - 1})
    assert request.node.node_id == 2**64 - 1
    assert FLEET.request_type("PullMessages").FromString(request.SerializeToString()) == request
