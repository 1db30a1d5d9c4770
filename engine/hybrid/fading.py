"""The best of BM25 times a decay in time, over all records (SPEC C001).

`Decay` cannot tell what BM25's own best 100 leave out: where 150 old records match better, a fresh one is not among
them. So the list of such a strategy comes from the search with a half-life, which fades scores before it cuts a list
(`engine/index/decay.py`).

That search counts age in ticks of 1/65,536 half-life, rounded down, so its score D is never below the formula's F,
except for the rounding of the last bits, and above it by 1.1e-5 at most. It brings more records than are needed, and F
decides. A record that it did not bring has a D of at most that of the last one brought. The list is exact where the
F of its last record is above that; else the search goes deeper.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..arrays import Floats, Integers
from ..backends.choose import Backend
from ..errors import QueryError
from ..fuse.age import HOUR
from ..fuse.decay import Decay
from ..index.bm25 import SCALE
from ..index.decay import TICKS, decay, rate_of, ticks_of
from ..plan.requests import QuerySettings
from ..search.batch import Batch, PreparedQuery
from ..search.lexical import RetrieverResults, search_lists
from ..search.options import SearchOptions
from ..timing import Phases

# Records that a list holds beyond those that are needed. Most lists need one, whose D is below the last F.
SPARE = 16
# How many times as deep the next search goes.
DEEPER = 4
# How far F may be above D: by the rounding of a few operations and of the table of factors.
MARGIN = 1e-6
# The least half-life in seconds. A shorter one fades faster, so a search with this one gives no score below it.
LEAST_HALF_LIFE = 1e-290


def search_faded(
    batch: Batch, backend: Backend, depths: Mapping[int, int], options: SearchOptions, fusion: Decay
) -> RetrieverResults:
    """As `search_lists` by BM25: the ``depths[row]`` best documents of each row by `fusion`, with the scores before it.

    Rows without `now`, for which the fusion raises, are not faded. Raises `QueryError` for a query with neighbours.
    """
    if any(batch.asked[row].settings.lent for row in batch.rows):
        raise QueryError(
            "this strategy fades what a record scores by itself; for neighbours give the query a half_life, and take "
            "strategy 'bm25'"
        )
    if not fusion.rate:
        return search_lists(batch, backend, depths, options, Phases(timed=False))
    width = max(depths.values(), default=0)
    scores, documents = np.full((len(batch), width), -np.inf), np.full((len(batch), width), -1, dtype=np.int64)
    counts = np.zeros(len(batch), dtype=np.int32)
    sizes = {row: batch.asked[row].snapshot.size for row in batch.rows}
    # A method with negative scores has no half-life. The fusion refuses such scores and ranks the others, so all are
    # listed.
    signed = batch.memory.bm25.signed
    wanted = {row: size if signed else min(depths[row] + SPARE, size) for row, size in sizes.items()}
    served = backend.name
    while wanted:
        part = batch.limit_to(wanted, {} if signed else _faded(batch, wanted, fusion))
        results = search_lists(part, backend, wanted, options, Phases(timed=False))
        served = results.served
        deeper = {}
        for row, depth in wanted.items():
            bounds, numbers = results.ranked(row)
            own, formula = _score(part.asked[row].settings, batch.asked[row], bounds, numbers, fusion)
            best = np.lexsort((numbers, -formula))[: depths[row]]
            most = bounds[-1] * _slack(batch.asked[row], fusion) if len(numbers) else 0.0
            if len(numbers) == depth < sizes[row] and not formula[best[-1]] > most:
                deeper[row] = min(depth * DEEPER, sizes[row])
                continue
            counts[row] = len(best)
            scores[row, : len(best)], documents[row, : len(best)] = own[best], numbers[best]
        wanted = deeper
    return RetrieverResults(served, scores, documents, counts, {})


def _faded(batch: Batch, rows: Mapping[int, int], fusion: Decay) -> dict[int, PreparedQuery]:
    """The queries of these rows with the decay of the fusion in their settings, beside a half-life of their own."""
    # A rate so small that its half-life is infinite fades nothing within the longest half-life either.
    half_life = min(math.log(2.0) * HOUR / fusion.rate, sys.float_info.max)
    rate = rate_of(max(half_life, LEAST_HALF_LIFE))
    # Queries that share their settings go on to share them.
    made: dict[tuple[int, float], QuerySettings] = {}
    faded = {}
    for row in rows:
        asked = batch.asked[row]
        if asked.query.now is not None:
            key = id(asked.settings), float(asked.query.now)
            if key not in made:
                made[key] = replace(asked.settings, now=key[1], rate=asked.settings.rate + rate)
            faded[row] = asked._replace(settings=made[key])
    return faded


def _score(
    faded: QuerySettings, asked: PreparedQuery, bounds: Floats, numbers: Integers, fusion: Decay
) -> tuple[Floats, Floats]:
    """(BM25's scores of these documents as the query asks for them, the formula's) from the scores of the search."""
    times = asked.snapshot.numbers_of("time", numbers)
    one = np.ones(len(numbers), dtype=np.int64)
    # A decayed score is the sum of quanta times a factor, rounded once; the sum is below 2**51.
    sums = np.rint(bounds * SCALE / decay(one, ticks_of(times, faded.now, faded.rate))).astype(np.int64)
    own = decay(sums, ticks_of(times, asked.settings.now, asked.settings.rate)) / SCALE
    now = np.nan if asked.query.now is None else float(asked.query.now)
    return own, own * fusion.factors(np.maximum(now - times, 0.0))


def _slack(asked: PreparedQuery, fusion: Decay) -> float:
    """The formula of a record is at most its score by the search times this."""
    slack = 1.0 + MARGIN
    if asked.settings.rate:
        # The search rounds the sum of two ages once, the formula's score is faded by one that was rounded itself.
        slack *= 2.0 ** (1.0 / TICKS)
    return slack * math.exp(fusion.rate) if fusion.whole_hours else slack
