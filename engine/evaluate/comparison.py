"""Compares the evaluations of several systems over one dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..arrays import Floats
from ..errors import ParameterError, choices
from ..metrics.bootstrap import Comparison, holm, paired_bootstrap
from .protocol import Evaluation


def study_strategies(
    evaluations: Mapping[str, Evaluation],
    *,
    metric: str = "ndcg@10",
    against: Sequence[str] = ("bm25", "dense"),
    resamples: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """The study of evaluations of one dataset, by strategy, as one object of plain JSON values.

    Each strategy is compared with those named in `against`, each pair once, by a paired bootstrap over questions
    (`resamples`, `seed`); p is two-sided, ``p_holm`` corrected for their number. ``stages_ms`` are milliseconds for the
    whole batch. Raises `ParameterError` if the evaluations ran over different queries or if one lacks `metric`.
    """
    if not evaluations:
        raise ParameterError("there is no evaluation to study")
    dataset = next(iter(evaluations.values())).dataset
    for name, evaluation in evaluations.items():
        if list(evaluation.dataset.relevant) != list(dataset.relevant):
            raise ParameterError(f"the evaluation {name!r} ran over other queries")
        if metric not in evaluation.values:
            raise ParameterError(f"{metric!r} was not measured for {name!r}{choices(name, evaluation.values)}")
    columns = {name: evaluation.values[metric] for name, evaluation in evaluations.items()}
    pairs = [
        (first, second)
        for first in evaluations
        for second in against
        if first not in against[: against.index(second) + 1]
    ]
    return {
        "study": "strategies",
        "dataset": dataset.name,
        "n": len(dataset.queries),
        "metric": metric,
        "systems": {name: evaluation.metrics() for name, evaluation in evaluations.items()},
        "stages_ms": {name: evaluation.stages for name, evaluation in evaluations.items()},
        "differences": differences_of(
            columns, pairs, lambda a, b: paired_bootstrap(a, b, resamples=resamples, seed=seed)
        ),
    }


def differences_of(
    values: Mapping[str, Floats],
    pairs: Iterable[tuple[str, str]],
    compare: Callable[[Floats, Floats], Comparison],
) -> list[dict[str, Any]]:
    """Each pair of systems that were measured, compared."""
    rows = [
        {"first": first, "second": second, **asdict(compare(values[first], values[second]))}
        for first, second in pairs
        if first in values and second in values
    ]
    corrected = holm([row["p"] for row in rows])
    return [{**row, "p_holm": p} for row, p in zip(rows, corrected, strict=True)]
