"""What an answer makes only when somebody reads it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import fanrank as fr
from fanrank.engine.records.hits import Explain, Hits, Resolver


class Letters:
    """Document n has the n-th letter."""

    def __call__(self, documents: np.ndarray) -> np.ndarray:
        return np.array([None if n < 0 else chr(97 + n) for n in documents.ravel().tolist()], object).reshape(
            documents.shape
        )

    def slice(self, start: int, stop: int) -> Resolver:
        return self


class Origin:
    namespace = "space"

    def __init__(self) -> None:
        self.made: list[str] = []

    def queries(self) -> tuple[fr.Query, ...]:
        self.made.append("queries")
        return fr.Query("tea", namespace="space", id="one"), fr.Query("jam", namespace="space")

    def explainer(self) -> Explain:
        self.made.append("explainer")
        return lambda position, record_id: (position, record_id)  # type: ignore[return-value]

    def annotate(self, position: int, query: fr.Query) -> str | None:
        self.made.append("note")
        return f"nothing for {query.text} at {position}"


def answer(origin: Origin, **rest: Any) -> Hits:
    return Hits.of(
        np.array([[2.0, 1.0], [3.0, -np.inf]]),
        np.array([[1, 0], [2, -1]]),
        np.array([2, 1], dtype=np.int32),
        origin,
        "native",
        Letters(),
        **rest,
    )


def test_an_answer_with_late_fields_is_replaced_sliced_and_copied_as_any_other() -> None:
    hits = answer(Origin(), source=np.array([0, 0]))
    assert [name for name in (field.name for field in fields(hits)) if not hasattr(hits, name)] == []
    whole = Hits(**{field.name: getattr(hits, field.name) for field in fields(hits)})
    for other in (whole, replace(hits), replace(whole), copy.copy(hits), copy.copy(answer(Origin()))):
        assert (list(other), other.queries, other.namespace) == (list(hits), hits.queries, "space")
        assert repr(other) == repr(replace(hits, source=other.source))
    part = hits.slice(1, 2, 1, hits.queries[1:])
    assert list(part) == [[("c", 3.0)]]
    assert (part.scores.shape, part.namespace, part.distinct) == ((1, 1), "space", 1)
    with pytest.raises(AttributeError):
        hits.scores = whole.scores  # type: ignore[misc]


@pytest.mark.parametrize(("spaces", "expected"), [("", None), ("a", "a"), ("aaa", "a"), ("aba", None)])
def test_the_namespace_is_that_of_all_queries(spaces: str, expected: str | None) -> None:
    shape = (len(spaces), 1)
    hits = Hits(
        np.zeros(shape),
        np.zeros(shape, dtype=np.int64),
        np.zeros(len(spaces), dtype=np.int32),
        tuple(fr.Query(namespace=space) for space in spaces),
        "numpy",
        Letters(),
        lambda position, record_id: None,  # type: ignore[arg-type, return-value]
    )
    assert hits.namespace == expected


@pytest.mark.parametrize("read", [lambda hits: hits.queries, lambda hits: hits.ids, lambda hits: hits.explainer])
def test_threads_get_the_same_object(read: Callable[[Hits], object]) -> None:
    for _ in range(20):
        hits, start = answer(Origin()), threading.Barrier(4)
        found: list[object] = []

        def look(hits: Hits = hits, start: threading.Barrier = start, found: list[object] = found) -> None:
            start.wait()
            found.append(read(hits))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(one) for one in found}) == 1
