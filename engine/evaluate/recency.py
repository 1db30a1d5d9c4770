"""How recent the gold records of a dataset are: what a bonus for recency can hope for.

Sources: A067.
"""

from __future__ import annotations

import statistics
from typing import Any

from ..errors import ParameterError
from .dataset import Dataset

DAY = 86_400.0


def gold_recency(dataset: Dataset) -> dict[str, dict[str, Any]]:
    """``{category: {"n", "median_rank", "median_age_days"}}`` of the gold records, and the same over ``all``.

    The recency rank of a record is 0 for the newest of its namespace and 1 for the oldest; records of one time share
    the mean of their places. The age is the time from the record to the question's `now`, or to the namespace's newest
    record where the question has none, and 0 for a record from the future. A question counts with the means over its
    gold records that have a time; one without such a record is left out. Medians are over questions.

    Raises `ParameterError` if no gold record has a time.
    """
    times: dict[str, dict[str, float]] = {}
    for record in dataset.records:
        if record.time is not None:
            times.setdefault(record.namespace, {})[record.id] = record.time
    ranks = {space: _recency_ranks(of) for space, of in times.items()}
    rows: dict[str, list[tuple[float, float]]] = {}
    for query in dataset.queries:
        name, of = str(query.id), times.get(query.namespace, {})
        gold = [record_id for record_id, grade in dataset.relevant[name].items() if grade > 0 and record_id in of]
        if not gold:
            continue
        now = max(of.values()) if query.now is None else query.now
        age = statistics.fmean(max(now - of[record_id], 0.0) / DAY for record_id in gold)
        rank = statistics.fmean(ranks[query.namespace][record_id] for record_id in gold)
        for category in dict.fromkeys(("all", dataset.categories.get(name, "all"))):
            rows.setdefault(category, []).append((rank, age))
    if not rows:
        raise ParameterError(f"no gold record of {dataset.name} has a time")
    return {
        category: {
            "n": len(of),
            "median_rank": statistics.median(rank for rank, _ in of),
            "median_age_days": statistics.median(age for _, age in of),
        }
        for category, of in sorted(rows.items())
    }


def _recency_ranks(times: dict[str, float]) -> dict[str, float]:
    newest_first = sorted(times.values(), reverse=True)
    places: dict[float, list[int]] = {}
    for place, time in enumerate(newest_first):
        places.setdefault(time, []).append(place)
    last = max(len(times) - 1, 1)
    return {record_id: statistics.fmean(places[time]) / last for record_id, time in times.items()}
