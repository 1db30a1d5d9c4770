"""Approximate search: exact scores of candidates, honest recall, every filter kept (SPEC A068, B006)."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import borders

from fanrank.cpu_fallback.dense import verbs
from fanrank.engine.arrays import offsets_of
from fanrank.engine.errors import MissingExtraError, ParameterError
from fanrank.engine.vectors import approximate
from fanrank.engine.vectors.approximate import DEFAULT, Parameters, best
from fanrank.engine.vectors.interaction import KINDS, Interaction
from fanrank.engine.vectors.vectors import Vectors, normalize
from fanrank.engine.vectors.verbs import Stretch

faiss = pytest.importorskip("faiss", reason="faiss is not installed")

DIMENSION = 24
# Indexes of a few hundred rows, so that a test takes milliseconds.
SMALL = Parameters(least_rows=1)


def clustered(seed: int, rows: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, rows // 30), DIMENSION))
    return normalize(centres[rng.integers(0, len(centres), rows)] + 0.7 * rng.standard_normal((rows, DIMENSION)))


@pytest.fixture(scope="module")
def single() -> Stretch:
    return Stretch(Vectors(clustered(1, 900), np.arange(901)), 5)


@pytest.fixture(scope="module")
def ragged() -> Stretch:
    counts = np.random.default_rng(2).integers(0, 6, size=300)
    return Stretch(Vectors(clustered(2, int(counts.sum())), offsets_of(counts)), 5000)


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return clustered(1, 40)


def recall(found: np.ndarray, exact: np.ndarray) -> float:
    pairs = zip(found.tolist(), exact.tolist(), strict=True)
    return float(np.mean([len(set(own) & set(other)) / len(other) for own, other in pairs]))


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_exact_and_few_hits_are_missed(
    kind: str, single: Stretch, ragged: Stretch, queries: np.ndarray
) -> None:
    interaction = Interaction(kind)  # type: ignore[arg-type]
    stretches = [ragged, single]
    scores, documents, counts = best(verbs, queries, stretches, 10, interaction, parameters=SMALL)
    exact_scores, exact, _ = verbs.best(queries, stretches, 10, interaction, "exact")
    assert counts.tolist() == [10] * len(queries)
    offsets = offsets_of([10] * len(queries))
    again = verbs.scores_of(queries, stretches, offsets, documents.ravel(), interaction, "exact")
    assert scores.ravel().tolist() == again.tolist()
    ordered = [
        sorted(zip((-own).tolist(), ids.tolist(), strict=True)) for own, ids in zip(scores, documents, strict=True)
    ]
    assert [[document for _, document in row] for row in ordered] == documents.tolist()
    assert recall(documents, exact) >= 0.95
    same = (documents == exact).all(axis=1)
    assert scores[same].tolist() == exact_scores[same].tolist()


def test_only_passing_documents_are_found(single: Stretch, queries: np.ndarray) -> None:
    mask = np.random.default_rng(0).random(900) < 0.3
    own = replace(single, passing=mask)
    _, documents, _ = best(verbs, queries, [own], 10, Interaction(), parameters=SMALL)
    assert mask[documents - 5].all()
    assert recall(documents, verbs.best(queries, [own], 10, Interaction(), "exact")[1]) >= 0.95


@pytest.mark.parametrize("passes", [0, 1, 3, 12])
def test_answers_are_never_short(passes: int, single: Stretch, ragged: Stretch, queries: np.ndarray) -> None:
    """A graph search under a filter that few pass, or for more than it visits, is finished exactly."""
    for stretch in (single, ragged):
        mask = np.zeros(len(stretch.vectors), dtype=bool)
        mask[np.flatnonzero(stretch.vectors.held)[::20][:passes]] = True
        own = [replace(stretch, passing=mask)]
        for k in (5, 40):
            found = best(verbs, queries, own, k, Interaction(), parameters=SMALL)
            exact = verbs.best(queries, own, k, Interaction(), "exact")
            assert found[2].tolist() == exact[2].tolist()
            if passes < 5:
                assert found[1].tolist() == exact[1].tolist()
                assert found[0].tolist() == exact[0].tolist()


def test_rows_of_few_documents_make_a_query_ask_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 200 nearest rows are those of one document; the others have one each."""
    near = clustered(6, 1)
    rng = np.random.default_rng(6)
    rows = np.concatenate([normalize(near + 0.01 * rng.standard_normal((200, DIMENSION))), clustered(7, 1800)])
    stretch = Stretch(Vectors(rows, offsets_of([200] + [1] * 1800)), 0)
    asked = []

    def nearest(self: Any, library: Any, queries: np.ndarray, wanted: int, *rest: Any) -> np.ndarray:
        asked.append((len(queries), wanted))
        found: np.ndarray = search(self, library, queries, wanted, *rest)
        return found

    search = approximate.Index.nearest
    monkeypatch.setattr(approximate.Index, "nearest", nearest)
    queries = np.concatenate([near, clustered(7, 1)])
    for instead, expected in ((1, [(2, 20), (1, 80), (1, 320)]), (16, [(2, 20), (1, 80)]), (100, [(2, 20)])):
        borders.shrink(monkeypatch, EXACT_INSTEAD=instead)
        asked.clear()
        found = best(verbs, queries, [stretch], 5, Interaction(), parameters=SMALL)
        exact = verbs.best(queries, [stretch], 5, Interaction(), "exact")
        assert asked == expected
        assert found[2].tolist() == [5, 5]
        assert found[1][0, 0] == exact[1][0, 0] == 0
        assert recall(found[1], exact[1]) >= 0.8


def test_more_than_all_documents(ragged: Stretch, queries: np.ndarray) -> None:
    found = best(verbs, queries[:3], [ragged], 400, Interaction(), parameters=SMALL)
    exact = verbs.best(queries[:3], [ragged], 400, Interaction(), "exact")
    assert [each.tolist() for each in found] == [each.tolist() for each in exact]


def test_small_stretches_are_searched_exactly(
    single: Stretch, ragged: Stretch, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("an index was asked for")

    monkeypatch.setattr(approximate, "index_of", refuse)
    found = verbs.best(queries, [single, ragged], 10, Interaction(), "hnsw")
    exact = verbs.best(queries, [single, ragged], 10, Interaction(), "exact")
    assert [each.tolist() for each in found] == [each.tolist() for each in exact]
    with pytest.raises(AssertionError, match="index"):
        best(verbs, queries, [single], 10, Interaction(), parameters=replace(DEFAULT, least_rows=900))
    # Rows that do not pass do not count.
    own = replace(single, passing=np.arange(900) < 899)
    best(verbs, queries, [own], 10, Interaction(), parameters=replace(DEFAULT, least_rows=900))


def test_nothing_asked_or_held(single: Stretch, queries: np.ndarray) -> None:
    for stretches, batch, k in (([], 3, 4), ([single], 0, 4), ([single], 3, 0)):
        scores, documents, counts = best(verbs, queries[:batch], stretches, k, Interaction(), parameters=SMALL)
        assert scores.shape == documents.shape == (batch, k)
        assert (documents == -1).all()
        assert np.isneginf(scores).all()
        assert counts.tolist() == [0] * batch


def test_every_backend_finds_the_same(single: Stretch, queries: np.ndarray) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from fanrank.kernels.dense import dense_verbs

    ours = best(verbs, queries, [single], 10, Interaction(), parameters=SMALL)
    theirs = best(dense_verbs("cuda-host"), queries, [single], 10, Interaction(), parameters=SMALL)
    assert [each.tolist() for each in ours] == [each.tolist() for each in theirs]
    assert dense_verbs("cuda-host").best(queries, [single], 10, Interaction(), "hnsw")[2].tolist() == [10] * 40


def test_an_index_is_made_once_and_let_go(queries: np.ndarray) -> None:
    vectors = Vectors(clustered(3, 300), np.arange(301))
    before = len(approximate._indexes)
    index = approximate.index_of(vectors, SMALL)
    assert approximate.index_of(vectors, SMALL) is index
    assert approximate.index_of(vectors, replace(SMALL, neighbours=8)) is not index
    assert len(approximate._indexes) == before + 1
    del vectors
    gc.collect()
    assert len(approximate._indexes) == before


def test_an_index_is_the_same_every_time(queries: np.ndarray) -> None:
    rows = clustered(4, 500)
    found = [
        approximate.index_of(Vectors(rows, np.arange(501)), SMALL).nearest(faiss, queries, 20, None, 1).tolist()
        for _ in range(2)
    ]
    assert found[0] == found[1]


def test_the_number_of_threads_is_put_back(single: Stretch, queries: np.ndarray) -> None:
    before = faiss.omp_get_max_threads()
    one = best(verbs, queries, [single], 10, Interaction(), threads=1, parameters=SMALL)
    two = best(verbs, queries, [single], 10, Interaction(), threads=2, parameters=SMALL)
    assert faiss.omp_get_max_threads() == before
    assert [each.tolist() for each in one] == [each.tolist() for each in two]


@pytest.mark.parametrize(
    "options",
    [{"neighbours": 1}, {"construction": 0}, {"search": 0}, {"over_fetch": 0}, {"threads": True}, {"least_rows": 1.5}],
)
def test_parameters_refuse(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(options))):
        Parameters(**options)


def test_the_defaults_are_the_sources() -> None:
    """A068: M 32, efConstruction 200; B006: efSearch 64."""
    assert (DEFAULT.neighbours, DEFAULT.construction, DEFAULT.search, DEFAULT.threads) == (32, 200, 64, 1)
    index = approximate.index_of(Vectors(clustered(5, 50), np.arange(51)))._index
    assert index.hnsw.efConstruction == 200
    assert index.hnsw.nb_neighbors(1) == 32
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT


@pytest.fixture
def no_faiss(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "faiss", None)
    yield
    monkeypatch.undo()
    importlib.import_module("faiss")


@pytest.mark.usefixtures("no_faiss")
def test_without_faiss(single: Stretch, queries: np.ndarray) -> None:
    with pytest.raises(MissingExtraError, match=r"fanrank\[dense\]"):
        verbs.best(queries, [single], 10, Interaction(), "hnsw")


def test_an_index_on_a_gpu(single: Stretch, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the parts of faiss-gpu that are called, in their place an index that is flat too."""
    made = []

    class Flat(faiss.IndexFlatIP):  # type: ignore[misc]
        def __init__(self, resources: object, dimension: int, config: Any) -> None:
            super().__init__(dimension)
            made.append(config.useFloat16)

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "GpuIndexFlatConfig", lambda: SimpleNamespace(useFloat16=False), raising=False)
    monkeypatch.setattr(faiss, "GpuIndexFlatIP", Flat, raising=False)
    own = Stretch(Vectors(single.vectors.matrix, single.vectors.offsets), 5)
    mask = np.random.default_rng(0).random(900) < 0.5
    for stretch in (own, replace(own, passing=mask)):
        found = best(verbs, queries, [stretch], 10, Interaction(), parameters=SMALL)
        exact = verbs.best(queries, [stretch], 10, Interaction(), "exact")
        assert found[0].tolist() == pytest.approx(exact[0], abs=0.2)
        assert found[2].tolist() == exact[2].tolist()
        if stretch.passing is None:
            assert found[1].tolist() == exact[1].tolist()
        else:
            assert mask[found[1] - 5].all()
    assert made == [True]
