"""How recent gold records are, by hand and against a plain loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fanrank.engine.errors import ParameterError
from fanrank.engine.evaluate import Dataset, gold_recency
from fanrank.engine.evaluate.recency import DAY
from fanrank.engine.records.query import Query
from fanrank.engine.records.record import Record


def test_ranks_and_ages_by_hand() -> None:
    times = {"a": 0.0, "b": 4 * DAY, "c": 4 * DAY, "d": 10 * DAY, "e": None}
    records = [Record(name, "", "x", time=time) for name, time in times.items()]
    queries = [Query("", namespace="x", id="q0", now=12 * DAY), Query("", namespace="x", id="q1")]
    relevant = {"q0": {"d": 1, "e": 1, "a": 0}, "q1": {"a": 1, "b": 1}}
    dataset = Dataset("toy", records, queries, relevant, {"q0": "new", "q1": "old"})
    assert gold_recency(dataset) == {
        "all": {"n": 2, "median_rank": 0.375, "median_age_days": 5.0},
        "new": {"n": 1, "median_rank": 0.0, "median_age_days": 2.0},
        # The oldest of four stands at 1, the two of one time in the middle at .5; without a now the newest counts.
        "old": {"n": 1, "median_rank": 0.75, "median_age_days": 8.0},
    }
    early = replace(dataset, queries=[replace(query, now=0.0) for query in queries])
    assert gold_recency(early)["new"]["median_age_days"] == 0.0
    timeless = replace(dataset, records=[Record(name, "", "x") for name in times])
    with pytest.raises(ParameterError, match="no gold record of toy has a time"):
        gold_recency(timeless)
