"""Queries whose records borrow from their neighbours (`engine/records/neighbours.py`), as backends search them.

The sum of a document's own quanta and of what it borrows is an integer, in *steps*: 2**-6 of a quantum. A document may
be a hit if its sum has a part, its own or a neighbour's. Filters, time ranges and k choose among the sums: a neighbour
lends whether or not it passes itself. A deleted document lends nothing and is nobody's neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..arrays import Integers
from ..errors import QueryError
from ..records.neighbours import STEPS
from .plan import Plan, SegmentPlan, plan_of, segment_plan
from .requests import QuerySettings

# Sums of steps must stay below this, so that they fit 64 bits.
MOST_STEPS = 2.0**62

_EVERYTHING = QuerySettings()


def split(plans: Sequence[Plan]) -> tuple[list[Plan], list[Plan]]:
    """The plans of the queries that borrow nothing, and those of the others.

    Raises `QueryError` where a sum of steps may leave 64 bits.
    """
    plain, borrowing = [], []
    for plan in plans:
        borrows = np.array([bool(each.lent) for each in plan.requests.settings], dtype=np.bool_)
        if not borrows.any():
            plain.append(plan)
            continue
        _check_size(plan)
        if borrows.all():
            borrowing.append(plan)
            continue
        borrowed = borrows[plan.requests.setting]
        plain.append(plan_of(plan.snapshot, plan.requests.select(np.flatnonzero(~borrowed))))
        borrowing.append(plan_of(plan.snapshot, plan.requests.select(np.flatnonzero(borrowed))))
    return plain, borrowing


def borrows(plans: Sequence[Plan]) -> bool:
    """Whether any query of these plans borrows."""
    return any(each.lent for plan in plans for each in plan.requests.settings)


def whole_weight(lent: Sequence[int]) -> int:
    """The steps of a document's sum for each quantum, where it and all of its neighbours have as many."""
    return STEPS + 2 * sum(lent)


def lending_parts(plan: Plan) -> list[SegmentPlan]:
    """The segments that hold a term of the plan, with all live documents: any of them may lend."""
    requests = plan.requests
    every = replace(requests, settings=(_EVERYTHING,), setting=np.zeros(len(requests), dtype=np.int64))
    parts = (segment_plan(plan.snapshot, number, every, plan.terms) for number in range(len(plan.snapshot.segments)))
    return [part for part in parts if part is not None]


def borrowed_sums(sums: Integers, around: Integers, lent: Sequence[int]) -> Integers:
    """Sums in steps, of the documents' `own` quanta [n] and of those of their neighbours [n, 2 window]."""
    weights = np.repeat(np.array(lent, dtype=np.int64), 2)
    return np.asarray(sums * STEPS + around @ weights)


def _check_size(plan: Plan) -> None:
    if not plan.large.any():
        return
    tokens = plan.summed(plan.multiplicities).max(initial=0)
    most = plan.snapshot.highest_bound * float(tokens) * max(whole_weight(each.lent) for each in plan.requests.settings)
    if most >= MOST_STEPS:
        raise QueryError(
            "scores of neighbours would leave 64 bits: contributions are extreme; use a smaller k1, or no neighbours"
        )
