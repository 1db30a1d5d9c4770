"""The typed memories of the bench: the same at every call, with answers that are there; and the report of them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Behind everything else, so that the folders there (engine, kernels) shadow no module.
sys.path.append(str(ROOT))
try:
    from bench.harness.paths import data_folder
    from bench.harness.typed import LIKES, SETS
    from bench.report import typed as report_typed
    from bench.report.rows import Recorded
finally:
    sys.path.remove(str(ROOT))


@pytest.mark.parametrize("name", ["locomo-turns-rule", "sgd-held-out"])
def test_a_set_is_seeded_and_its_answers_are_there(name: str) -> None:
    folder: Path = data_folder()
    if not (folder / ("locomo" if name.startswith("locomo") else "sgd")).is_dir():
        pytest.skip(f"{folder} is not there")
    made, again = SETS[name](folder), SETS[name](folder)
    assert made.queries == again.queries
    assert [record.id for record in made.records] == [record.id for record in again.records]
    kinds = {(record.namespace, record.id): record for record in made.records}
    assert len(kinds) == len(made.records)
    for query in made.queries:
        assert all((query.namespace, answer) in kinds for answer in made.relevant[str(query.id)])
    assert {"Fact", "Preference", "Event"} <= set(Counter(record.type for record in made.records))
    for record in made.records:
        assert record.type != "Preference" or LIKES.search(record.text)


def test_the_section_holds_what_rows_say() -> None:
    scores = {"hit@1": 0.25, "hit@5": 0.5, "ndcg@10": 0.375, "mrr": 0.4}
    one = {"category": "all", "difference": 0.015, "low": -0.01, "high": 0.04, "p": 0.2}
    row = {
        "bench": "typed",
        "dataset": "small",
        "n": 4,
        "systems": {"fused": scores, "recall": scores},
        "categories": {"hint agrees": {"n": 2, "systems": {"fused": scores, "recall": scores}}},
        "differences": [{**one, "second": "fused", "metric": "hit@5"}],
        "commit": "a",
        "code": "b",
        "date": "2026-01-01T00:00",
    }
    shown = "\n".join(report_typed.typed(Recorded((), {"typed": [row]})))
    assert "0.2500 / 0.5000" in shown
    assert "+1.50 [-1.00, +4.00]" in shown
    assert "hint agrees" in shown
    assert "No row yet" in "\n".join(report_typed.typed(Recorded((), {})))
