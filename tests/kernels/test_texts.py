"""Batches of texts on a device: the answer of the CPU, and what goes the general way."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders

import fanrank as fr
from fanrank.engine.backends import choose as backend

torch = pytest.importorskip("torch")

from fanrank.kernels import batch  # noqa: E402

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


@settings(max_examples=12, deadline=None)
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


@pytest.mark.parametrize(("places", "descriptors"), [(40, 3), (300, 40), (1 << 26, 3), (40, 1 << 23)])
def test_many_texts_in_launches_of_every_size(places: int, descriptors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"search.MAX_CANDIDATES": places}, MAX_DESCRIPTORS=descriptors)
    engine = make_engine(40)
    draw = random.Random(places + descriptors)
    texts = [" ".join(draw.choices([*WORDS, "unknown"], k=draw.randrange(6))) for _ in range(90)]
    for k in (1, 7, 1100):
        assert_same_as_numpy(engine, [*texts, *texts[:9]], k)


def test_out_of_memory_halves_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(40)
    texts = [f"{a} {b}" for a in WORDS for b in WORDS]
    sizes: list[int] = []
    real = batch.Texts.launch

    def scarce(most: int) -> Any:
        def launch(self: batch.Texts, *given: Any) -> Any:
            sizes.append(len(self.offsets) - 1)
            if sizes[-1] > most:
                raise torch.OutOfMemoryError("planted")
            return real(self, *given)

        return launch

    monkeypatch.setattr(batch.Texts, "launch", scarce(9))
    assert_same_as_numpy(engine, texts, 5)
    assert sizes[0] == len(texts)
    assert sum(size for size in sizes if size <= 9) == len(texts)
    # Where a single text has no room, the general path says so, or has it.
    monkeypatch.setattr(batch.Texts, "launch", scarce(0))
    _, took = served(engine, "cuda-host", texts, 5)
    assert not took


def assert_same_as_numpy(engine: fr.Engine, texts: list[Any], k: int) -> None:
    found, took = served(engine, "cuda-host", texts, k)
    assert took
    engine.backend = backend.choose("numpy")
    wanted = engine.search(texts, k)
    np.testing.assert_array_equal(found.documents, wanted.documents)
    np.testing.assert_array_equal(found.scores, wanted.scores)
    np.testing.assert_array_equal(found.counts, wanted.counts)


def test_a_text_whose_sums_may_leave_int32_goes_the_general_way() -> None:
    engine = make_engine(40)
    # No contribution is above ln(2 N + 2) (k1 + 1), some 9.6.
    assert served(engine, "cuda-host", [" ".join(["w1"] * 300)], 3)[1]
    found, took = served(engine, "cuda-host", [" ".join(["w1"] * 9000), "w2"], 3)
    assert not took
    engine.backend = backend.choose("numpy")
    np.testing.assert_array_equal(found.scores, engine.search([" ".join(["w1"] * 9000), "w2"], 3).scores)


def test_other_batches_go_the_general_way() -> None:
    engine = make_engine(40)
    for asked in (
        [fr.Query("w1", since=3.0)],
        [fr.Query("w1", half_life=5.0, now=50.0)],
        [fr.Query("w1", filter=fr.col("session") == "s")],
        [""],
    ):
        _, took = served(engine, "cuda-host", asked, 3)
        assert not took
