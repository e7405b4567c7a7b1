"""The Runtime API as the link patches it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse

from server_app.deploy.flower.delivery import Delivery, push_part


class Kept:
    """Has one object."""

    def has(self, object_id: str) -> bool:
        return object_id == "here"


@pytest.mark.parametrize(
    ("stored", "object_id", "answer"), [(True, "new", True), (False, "here", True), (False, "unknown", False)]
)
def test_a_part_that_comes_again_since_its_answer_was_lost_is_stored(
    stored: bool, object_id: str, answer: bool
) -> None:
    def theirs(request: Any, state: Any, task: Any) -> PushObjectResponse:
        return PushObjectResponse(stored=stored)

    push = push_part(cast(Delivery, Kept()), theirs)
    assert push(PushObjectRequest(object_id=object_id), None, None).stored is answer
