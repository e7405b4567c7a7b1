"""What pooling the data would send, next to what a run sent."""

from __future__ import annotations

import pytest

from server_app.results.headline import headline
from server_app.results.pooling import pooled_bytes


@pytest.mark.parametrize(
    ("card", "size"),
    [
        ({"train_examples": 10, "input_shape": [1, 8, 8], "kind": "image"}, 10 * (64 + 4)),
        ({"train_examples": 861, "input_shape": [7], "kind": "features"}, 861 * 4 * 8),
        ({"train_examples": 0, "input_shape": [7]}, None),
        ({"train_examples": 5, "input_shape": None}, None),
        ({"train_examples": 5}, None),
    ],
)
def test_a_pixel_is_a_byte_and_a_number_four(card: dict[str, object], size: int | None) -> None:
    assert pooled_bytes(card) == size


def test_the_closing_table_compares_it_with_what_was_sent() -> None:
    result = {"algorithm": "fedavg", "pooled_bytes": 1000, "bytes_up": 2000, "bytes_down": 500}
    assert dict(headline(result))["Pooling the data instead"] == (
        "1.0 kB once, uncompressed; the run sent 2.5 times that"
    )
    assert "Pooling the data instead" not in {k for k, v in headline({"bytes_up": 5}) if v}
