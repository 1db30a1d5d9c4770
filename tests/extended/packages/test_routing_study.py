"""The numbers of the sources of deciding per query, and LoCoMo's published skip shares."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.benches import load
from support.evaluations import Letters

from fanrank.engine.evaluate import load_locomo
from fanrank.engine.evaluate.presets import find_preset
from fanrank.engine.evaluate.protocol import TAUS_A087, engine_of, prepare_dataset
from fanrank.engine.route.cascade import Cascade

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


@pytest.mark.parametrize("passages", [False, True])
def test_skip_shares_of_the_source(data: Path, passages: bool) -> None:
    """SPEC A087, R40: exactly, whatever the vectors are of, and whatever the encoder."""
    file = data / "locomo" / "locomo10.json"
    if not file.exists():
        pytest.skip(f"no locomo/locomo10.json in {data}; set FANRANK_DATA to the folder that holds it")
    preset = find_preset("agentir", "locomo")
    dataset = prepare_dataset(load_locomo(file, passages=passages, **preset.reading), Cascade(), "none")
    engine = engine_of(dataset, preset, encoder=Letters())
    found = []
    for tau in TAUS_A087:
        decisions = engine.search(dataset.queries, 1, strategy=Cascade(tau)).decisions
        assert decisions is not None
        found.append(round(100 * sum(not own.escalated for own in decisions) / 1982, 1))
    assert found == [100.0, 82.0, 67.9, 56.5, 47.2, 30.0, 8.2, 0.0]
