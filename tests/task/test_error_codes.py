"""The codes of errors are the installed Flower's."""

from __future__ import annotations

import pytest
from flwr.common import constant

from task.wire.error_codes import ErrorCode


@pytest.mark.parametrize("code", ErrorCode)
def test_a_code_means_what_it_means_to_flower(code: ErrorCode) -> None:
    assert getattr(constant.ErrorCode, code.name) == code
