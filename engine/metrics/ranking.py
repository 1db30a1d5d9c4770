"""Ranking metrics per query, computed by trec_eval (through pytrec_eval) from the order of a ranked list.

========================= ============================================================================================
name                      meaning, for a query with a ranked list of ids and a set of relevant ids (grade 1 or more)
========================= ============================================================================================
``hit@k``                 1 if a relevant id is among the first k, else 0 (success; LongMemEval's ``recall_any``)
``recall@k``              share of the relevant ids that are among the first k (fractional; not ``hit@k``: SPEC X22)
``recall_all@k``          1 if all relevant ids are among the first k, else 0 (what LongMemEval reports as R@k: X34)
``p@k``                   share of the first k places that hold a relevant id
``mrr``                   1 / rank of the first relevant id of the whole list, 0 if it has none
``mrr@k``                 the same, 0 if that rank is beyond k
``map``, ``map@k``        average precision over the whole list, or its first k
``ndcg@k``                gain = grade (linear, as trec_eval and BEIR), discount log2(rank + 1), ideal over the judged
``ndcg``                  the same over the whole list
``ndcg_exp@k``            ``ndcg@k`` with gain 2^grade - 1; equal to ``ndcg@k`` where grades are 0 and 1 (X13)
``ndcg_longmemeval@k``    binary gain, discount 1, log2(2), log2(3), …: ranks 1 and 2 both count in full (X34)
``rprec``, ``bpref`` …    trec_eval's measures of whole lists: also infap, 11pt_avg, set_p, set_recall, set_f, set_map
========================= ============================================================================================

Capitals do not count, and trec_eval's and ir_measures' names are read too: ``P_5``, ``ndcg_cut_10``, ``recip_rank``,
``Success@5``, ``R@100``, ``AP``. A result keeps the name that was asked for.

trec_eval breaks ties by id and stores scores as float32. Neither may change the order of the list. Therefore
trec_eval gets scores made from the ranks, and always evaluates the list in the order given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import MissingExtraError, ParameterError, choices

Ranked = Mapping[str, Sequence[str]]
Relevant = Mapping[str, Mapping[str, int]]

METRICS = (
    *("hit@1", "hit@5", "hit@10", "mrr", "mrr@10"),
    *("recall@1", "recall@3", "recall@5", "recall@10", "recall@100", "recall_all@5", "recall_all@10"),
    *("ndcg@5", "ndcg@10", "ndcg_exp@10", "ndcg_longmemeval@10", "map"),
)
"""The metrics that an evaluation reports by default."""

# For each metric: the measure of trec_eval that it is read from, with a cutoff and over the whole list.
_SOURCES: dict[str, tuple[str | None, str | None]] = {
    "hit": ("success", None),
    "p": ("P", None),
    "recall": ("recall", None),
    "recall_all": ("recall", None),
    "mrr": ("recip_rank", "recip_rank"),
    "map": ("map_cut", "map"),
    "ndcg": ("ndcg_cut", "ndcg"),
    "ndcg_exp": ("ndcg_cut", None),
    "ndcg_longmemeval": ("", None),
    **{
        name.lower(): (None, name)
        for name in ("Rprec", "bpref", "infAP", "11pt_avg", "set_P", "set_recall", "set_F", "set_map")
    },
}
_ALIASES = {
    **{"success": "hit", "precision": "p", "r": "recall", "rr": "mrr", "recip_rank": "mrr"},
    **{"ap": "map", "map_cut": "map", "ndcg_cut": "ndcg"},
}
_WITH_CUTOFF = re.compile(r"(.+)[@._]([1-9][0-9]*)")

_LONGEST_LIST = 2**24  # above it, float32 cannot hold every integer
HIGHEST_GRADE = 20
"""The highest grade of ``ndcg_exp``. trec_eval allocates a counter for each gain up to the highest: 2^20 take 8 MB."""


SMALLEST_STEP = 2.0**-60
"""The least by which `strictly_descending` lowers a score. Below 2^-126 float32 may count as 0."""


def strictly_descending(scores: npt.ArrayLike) -> list[float]:
    """Scores [n] of a ranked list, best first, such that sorting by them keeps the order of the list.

    Evaluators sort a run by its scores. Of equal scores, trec_eval, MTEB and BEIR take the id that sorts last, and ranx
    takes any. trec_eval compares scores as float32. So a score that is not below the one before it, as float32, is
    lowered to the next float32 below that one. All other scores stay as they are, to the bit.
    """
    largest = float(np.finfo(np.float32).max)
    values = np.clip(np.asarray(scores, dtype=np.float64), -largest, largest)
    if bool((np.diff(values.astype(np.float32)) < 0.0).all()):
        return [float(value) for value in values]
    lowered: list[float] = []
    last = math.inf
    for value in values.tolist():
        if not float(np.float32(value)) < last:
            value = last - max(float(np.spacing(np.float32(abs(last)))), SMALLEST_STEP)
        last = float(np.float32(value))
        lowered.append(value)
    return lowered


def cutoff(metric: str) -> int | None:
    """The k of ``name@k``; None for a metric over the whole list. Raises `ParameterError` for an unknown metric."""
    return _read(metric)[1]


def _read(metric: str) -> tuple[str, int | None]:
    """(the metric's name in `_SOURCES`, its cutoff)."""
    written = metric.lower()
    match = _WITH_CUTOFF.fullmatch(written)
    name, depth = (match[1], int(match[2])) if match else (written.partition("@")[0], None)
    name = _ALIASES.get(name, name)
    if name not in _SOURCES:
        raise ParameterError(
            f"no metric {metric!r}{choices(metric, METRICS)}, and other cutoffs of these; also p@k, map@k, "
            f"{', '.join(name for name, (cut, _) in _SOURCES.items() if cut is None)}"
        )
    cut, whole = _SOURCES[name]
    if (cut if depth else whole) is None or (not match and "@" in written):
        raise ParameterError(
            f"metric {metric!r} must be written {name}{'' if cut is None else '@k with k of 1 or more'}"
        )
    return name, depth


def per_query(
    ranked: Ranked, relevant: Relevant, metrics: Iterable[str] = METRICS
) -> dict[str, npt.NDArray[np.float64]]:
    """Each metric as a float64 array [queries], in the order of the keys of `relevant`.

    A judged query scores 0 in every metric if `ranked` lacks it, if its list is empty, or if it has no relevant
    document. A ranked query without judgements is left out. Raises `MissingExtraError` without pytrec_eval. Raises
    `ParameterError` for an unknown metric, for a list that holds an id twice or more than 2^24 ids, and for a grade
    above 20 (``ndcg_exp`` only).
    """
    measures = {metric: _read(metric) for metric in metrics}
    lists = {query: list(ranked.get(query, ())) for query in relevant}
    linear = _evaluate(lists, relevant, {_measure(*of) for of in measures.values() if not of[0].startswith("ndcg_")})
    gains = {_measure(*of) for of in measures.values() if of[0] == "ndcg_exp"}
    exponential = _evaluate(lists, _exponentiate(relevant), gains) if gains else {}
    values_of = {}
    for metric, (name, depth) in measures.items():
        if name == "ndcg_longmemeval":
            values = [_longmemeval_ndcg(lists[query], relevant[query], depth or 0) for query in relevant]
        else:
            source = exponential if name == "ndcg_exp" else linear
            key = _measure(name, depth).replace(".", "_")
            values = [source.get(query, {}).get(key, 0.0) for query in relevant]
        column = np.array(values, dtype=np.float64)
        if name == "recall_all":
            column = (column == 1.0).astype(np.float64)
        elif name == "mrr" and depth is not None:
            column[column < 1.0 / depth] = 0.0
        values_of[metric] = column
    return values_of


def means(values: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, float]:
    """The mean of each metric over its queries, 0 without queries. Sums are exact, so the order does not matter."""
    return {metric: math.fsum(column.tolist()) / max(len(column), 1) for metric, column in values.items()}


def _measure(name: str, depth: int | None) -> str:
    cut, whole = _SOURCES[name]
    return whole or "" if depth is None else cut or "" if name == "mrr" else f"{cut}.{depth}"


def trec_eval() -> Any:
    """The module pytrec_eval. Raises `MissingExtraError` where it is not installed."""
    try:
        import pytrec_eval
    except ImportError:
        raise MissingExtraError("pytrec-eval-terrier", "eval") from None
    return pytrec_eval


def _evaluate(
    lists: Mapping[str, Sequence[str]], relevant: Relevant, measures: set[str]
) -> Mapping[str, Mapping[str, float]]:
    if not measures:
        return {}
    run = {}
    for query, ids in lists.items():
        if len(ids) > _LONGEST_LIST:
            raise ParameterError(f"query {query!r}: a list of {len(ids)} ids is longer than 2^24")
        run[query] = {name: float(len(ids) - rank) for rank, name in enumerate(ids)}
        if len(run[query]) != len(ids):
            raise ParameterError(f"query {query!r}: the ranked list holds an id twice")
    judged = {query: dict(grades) for query, grades in relevant.items()}
    values: Mapping[str, Mapping[str, float]] = trec_eval().RelevanceEvaluator(judged, measures).evaluate(run)
    return values


def _exponentiate(relevant: Relevant) -> dict[str, dict[str, int]]:
    highest = max((grade for grades in relevant.values() for grade in grades.values()), default=0)
    if highest > HIGHEST_GRADE:
        raise ParameterError(f"ndcg_exp takes grades up to {HIGHEST_GRADE}, not {highest}")
    return {
        query: {name: 2**grade - 1 if grade > 0 else 0 for name, grade in grades.items()}
        for query, grades in relevant.items()
    }


def _longmemeval_ndcg(ids: Sequence[str], grades: Mapping[str, int], depth: int) -> float:
    def gain(rank: int) -> float:
        return 1.0 if rank == 1 else 1.0 / math.log2(rank)

    relevant = sum(grade > 0 for grade in grades.values())
    ideal = sum(gain(rank) for rank in range(1, min(depth, relevant) + 1))
    got = sum(gain(rank) for rank, name in enumerate(ids[:depth], 1) if grades.get(name, 0) > 0)
    return got / ideal if ideal else 0.0
