"""Batches of texts on a device: the answer of the CPU, and what goes the general way."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.backends import choose as backend

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not next(one for one in backend.statuses() if one.name == "cuda-host").usable, reason="no host build"
)
WORDS = [f"w{number}" for number in range(12)]


def make_engine(count: int) -> fr.Engine:
    draw = random.Random(count)
    engine = fr.Engine(analyzer="minimal")
    for first in (0, count // 2):
        engine.add(
            fr.Record(f"r{n}", " ".join(draw.choices(WORDS, k=draw.randrange(8))), time=float(n))
            for n in range(first, first + count - count // 2)
        )
        engine.delete([f"r{first}"])
    return engine


def served(engine: fr.Engine, name: str, batch: list[Any], k: int) -> tuple[fr.Hits, bool]:
    """The answer of this backend, and whether it took the texts."""
    chosen = backend.choose(name)
    engine.backend = chosen
    assert chosen.texts is not None
    answers = []

    def watched(*given: Any, **how: Any) -> Any:
        answers.append(chosen.texts(*given, **how))  # type: ignore[misc]
        return answers[-1]

    with patch.object(engine.searcher, "backend", backend.replace(chosen, texts=watched)):
        hits = engine.search(batch, k)
    return hits, bool(answers) and answers[-1] is not None


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=6).map(" ".join), min_size=1, max_size=12),
    st.sampled_from([1, 3, 60]),
    st.sampled_from([4, 40]),
)
def test_texts_give_the_answer_of_numpy(texts: list[str], k: int, count: int) -> None:
    engine = make_engine(count)
    for round_ in range(2):
        found, took = served(engine, "cuda-host", list(texts), k)
        engine.backend = backend.choose("numpy")
        wanted = engine.search(list(texts), k)
        # Texts without a known word go the general way.
        assert took or not wanted.counts.any()
        np.testing.assert_array_equal(found.documents, wanted.documents)
        np.testing.assert_array_equal(found.scores, wanted.scores)
        np.testing.assert_array_equal(found.counts, wanted.counts)
        assert found.distinct == wanted.distinct
        engine.add([fr.Record(f"late{round_}", " ".join(WORDS))])


def test_other_batches_go_the_general_way() -> None:
    engine = make_engine(40)
    for batch in (
        [fr.Query("w1", since=3.0)],
        [fr.Query("w1", half_life=5.0, now=50.0)],
        [fr.Query("w1", filter=fr.col("session") == "s")],
        [""],
        ["w1"] * 300,
    ):
        _, took = served(engine, "cuda-host", batch, 3)
        assert not took
