"""A model as arrays, and the way over the wire's bytes, for tests of the messages."""

from __future__ import annotations

import numpy as np
from flwr.app import RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from task.numerics.arrays import Arrays

MODEL: Arrays = {
    "1.weight": np.array([[1.5, -0.0, np.float32(0.1)]], np.float32),
    "1.bias": np.array([1e-45], np.float32),
    "seen": np.array(2**53 + 1, np.int64),
}


def through(content: RecordDict) -> RecordDict:
    """Send a content over the wire's bytes."""
    return recorddict_from_proto(recorddict_to_proto(content))
