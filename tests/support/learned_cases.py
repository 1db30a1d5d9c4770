"""Documents given as learned weights, in segments, what a query over them must answer, and the paths that answer it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.index.columns import Columns, Ids, Schema
from fanrank.engine.index.learned import IMPACTS, build_learned, query_terms
from fanrank.engine.index.segment import Segment
from fanrank.engine.index.snapshot import Snapshot
from fanrank.engine.plan.plan import Plan, Request
from fanrank.engine.text.vocabulary import Vocabulary

SCHEMA = Schema.of(None)
EXECUTIONS = ("exhaustive", "pruned", "auto")
CPU = ("numpy", "native")
DEVICES = ("cuda-host", pytest.param("triton", id="triton-interpreter"))

Weights = Mapping[str, float]
Serve = Callable[..., Any]
Answer = list[list[tuple[int, int]]]


@dataclass
class Corpus:
    """Documents given as weights, in segments, and what their columns hold."""

    parts: list[list[Weights | None]]
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    values: dict[str, Vocabulary] = field(default_factory=lambda: {name: Vocabulary() for name in SCHEMA.categories})

    def __post_init__(self) -> None:
        self.documents = [own for part in self.parts for own in part]
        # In no order of time.
        self.records = [
            fr.Record(f"r{n}", "", session=f"s{n % 3}", time=float(n * 5 % 7)) for n in range(len(self.documents))
        ]
        segments, start = [], 0
        for part in self.parts:
            segments.append(self.segment(part, self.records[start : start + len(part)]))
            start += len(part)
        self.snapshot = Snapshot(tuple(segments), IMPACTS)

    def segment(self, part: list[Weights | None], records: list[fr.Record]) -> Segment:
        columns = Columns.of(records, SCHEMA, self.values)
        return build_learned(part, self.vocabulary, Ids.of([record.id for record in records]), columns)

    def request(self, weights: Weights, k: int, row: int = 0, **options: Any) -> Request:
        terms, integers = query_terms(weights, self.vocabulary)
        return Request(row, terms, k, weights=integers, **options)

    def matrix(self) -> npt.NDArray[np.int64]:
        """[documents, vocabulary] the stored integers, worked out from the weights one by one."""
        found = np.zeros((len(self.documents), max(len(self.vocabulary), 1)), dtype=np.int64)
        for row, own in enumerate(self.documents):
            for term, weight in (own or {}).items():
                if stored := round(float(weight) * 1024):
                    found[row, self.vocabulary.ids[term]] = stored
        return found

    def expected(self, requests: list[Request]) -> Answer:
        """The rows by the product of the integers and a full sort."""
        matrix, rows = self.matrix(), []
        for request in requests:
            query = np.zeros(matrix.shape[1], dtype=np.int64)
            np.add.at(query, np.array(request.terms, dtype=np.int64), np.array(request.weights, dtype=np.int64))
            sums = matrix @ query
            order = np.lexsort((np.arange(len(sums)), -sums))
            rows.append([(d, int(sums[d])) for d in order.tolist() if sums[d] > 0][: request.k])
        return rows


@cache
def chosen(name: str) -> backend.Backend:
    status = next(status for status in backend.statuses() if status.name == name)
    if not status.usable:
        pytest.skip(status.reason)
    found = backend.choose(name)
    if found.device is not None:
        found.device.verbs.tile_bits = lambda wide: 5  # type: ignore[method-assign]
    return found


def serve(name: str) -> Serve:
    """The search verb of a backend; on a device a fresh residency, in tiles of 32 documents."""
    found = chosen(name)
    if found.device is None:
        return found.search
    from fanrank.kernels.search import DeviceSearch

    return DeviceSearch(found.device.verbs, found.device.residency.device)


def answer(verb: Serve, plan: Plan, batch: int, k: int, execution: str = "auto") -> Answer:
    scores, documents, counts = verb((plan,), batch, k, execution=execution)
    assert scores.dtype == documents.dtype == np.int64
    for row, count in enumerate(counts.tolist()):
        assert (documents[row, count:] == -1).all()
        assert (scores[row, count:] == 0).all()
    return [
        list(zip(documents[row, :count].tolist(), scores[row, :count].tolist(), strict=True))
        for row, count in enumerate(counts.tolist())
    ]
