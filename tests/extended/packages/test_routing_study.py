"""The numbers of the sources of deciding per query."""

from __future__ import annotations

import pytest
from support.benches import load

(routing,) = load("harness.routing")


def test_the_numbers_of_the_source() -> None:
    """Folds and seed (SPEC A089), shares of noise (A100) and numbers of labels (A101)."""
    assert (routing.FOLDS, routing.SEED) == (5, 42)
    assert routing.NOISE == (0.0, 0.05, 0.10, 0.20)
    assert routing.SIZES == (25, 50, 100, 200, 300, 400)


@pytest.mark.parametrize(
    ("value", "static", "oracle", "printed"),
    [
        (0.258, 0.254, 0.266, 33),
        (0.262, 0.254, 0.266, 67),
        (0.266, 0.254, 0.266, 100),
        (0.308, 0.254, 0.266, 450),
        (0.296, 0.288, 0.300, 67),
        (0.298, 0.288, 0.300, 83),
        (0.292, 0.288, 0.300, 33),
    ],
)
def test_captured_shares_of_the_source(value: float, static: float, oracle: float, printed: int) -> None:
    """SPEC A098; the paper cut 166.7 to 166."""
    found = routing.captured_share(value, static, oracle)
    assert found is not None
    assert round(found) == printed
    soft = routing.captured_share(0.274, 0.254, 0.266)
    assert soft is not None
    assert int(soft) == 166
    assert routing.captured_share(0.5, 0.4, 0.4) is None
