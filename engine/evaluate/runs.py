"""Runs of an evaluation written as TREC files, and files of other systems measured as an evaluation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import DatasetError, ParameterError, StorageError
from ..metrics.ranking import per_query, strictly_descending
from ..metrics.runs import run_lines
from .dataset import Dataset
from .protocol import Evaluation, measurable


def check_folder(folder: str | os.PathLike[str] | None) -> None:
    """Make the folder that runs are written to, None for none. Raises before anything runs."""
    if folder is None:
        return
    if not os.fspath(folder):
        raise ParameterError("the folder for runs has no name; a dot is the one where you are")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{os.fspath(folder)}: cannot be made: {error.strerror}") from error


def write_run(folder: str | os.PathLike[str], name: str, evaluation: Evaluation) -> str:
    """Write ``NAME.run`` and return its path. Scores that are equal as float32 are lowered, so the order stays."""
    path = Path(folder) / (re.sub(r"[^\w.-]", "_", name) + ".run")
    tag = path.stem
    lines = [
        line
        for query, ids in evaluation.ranked.items()
        for line in run_lines(query, zip(ids, strictly_descending(evaluation.scores[query]), strict=True), tag)
    ]
    try:
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
    return str(path)


def judge_run(
    dataset: Dataset, name: str, found: Mapping[str, Sequence[str]], depth: int, metrics: Sequence[str]
) -> Evaluation:
    """The metrics of what another system found. Queries that the run lacks count 0, others in it are left out.

    Raises `DatasetError` if it has none of the dataset's queries.
    """
    if dataset.relevant and not found.keys() & dataset.relevant.keys():
        example = next(iter(dataset.relevant))
        raise DatasetError(f"run {name!r} answers no query of {dataset.name}, whose ids are such as {example!r}")
    ranked = {
        query: [record for record in found.get(query, ()) if record != dataset.own.get(query)]
        for query in dataset.relevant
    }
    values = per_query(ranked, dataset.relevant, measurable(dataset, depth, metrics))
    return Evaluation(dataset, ranked, np.full(len(ranked), np.nan), values, "run", {})
