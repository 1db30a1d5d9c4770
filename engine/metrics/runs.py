"""TREC run files: what one system found for each query, in lines ``qid Q0 docid rank score tag``."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ..errors import DatasetError, QueryError


def run_lines(query: str, hits: Iterable[tuple[str, float]], tag: str) -> Iterator[str]:
    """The lines of one query, ranks from 1, scores printed exactly. Raises `QueryError` for an id with white space."""
    for rank, (record, score) in enumerate(hits, 1):
        for value in (query, record):
            if not value or value.split() != [value]:
                raise QueryError(f"id {value!r} is empty or holds white space; a TREC run cannot carry it")
        yield f"{query} Q0 {record} {rank} {score!r} {tag}"


def read_run(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """``{query id: record ids}`` of a run file, best first.

    As in trec_eval the score decides, as float32, of equal scores the id that sorts last, and never the rank. Raises
    `DatasetError`, naming the line.
    """
    source = Path(path)
    try:
        lines = source.read_bytes().decode("utf-8-sig").splitlines()
    except OSError as error:
        raise DatasetError(f"{source}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{source}: not UTF-8 at byte {error.start}") from None
    found: dict[str, dict[str, float]] = {}
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if not parts:
            continue
        try:
            query, _, record, _, score, _ = parts
            value = float(np.float32(float(score)))
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise DatasetError(f"{source}:{number}: a line of a TREC run is `qid Q0 docid rank score tag`")
        if record in found.setdefault(query, {}):
            raise DatasetError(f"{source}:{number}: query {query!r} has {record!r} twice")
        found[query][record] = value
    return {
        query: [record for record, _ in sorted(scores.items(), key=lambda hit: (hit[1], hit[0]), reverse=True)]
        for query, scores in found.items()
    }
