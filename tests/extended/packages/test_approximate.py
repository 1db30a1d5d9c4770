"""Approximate search: exact scores of candidates, honest recall, every filter kept (SPEC A068, B006)."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from support import borders
from support.gpu_faiss import OnGpu

import fanrank as fr
from fanrank.cpu_fallback.dense import NumpyDense, verbs
from fanrank.engine.arrays import offsets_of
from fanrank.engine.vectors import approximate, faiss_index
from fanrank.engine.vectors.approximate import best
from fanrank.engine.vectors.faiss_index import HnswIndex, index_of
from fanrank.engine.vectors.index_options import DEFAULT, Approximate
from fanrank.engine.vectors.interaction import KINDS, Interaction
from fanrank.engine.vectors.vectors import Vectors, normalize
from fanrank.engine.vectors.verbs import Stretch
from fanrank.kernels.dense import dense_verbs

DIMENSION = 24
# Indexes of a few hundred rows, so that a test takes milliseconds.
SMALL = Approximate(least_rows=1)


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
    scores, documents, counts = best(verbs, queries, stretches, 10, interaction, options=SMALL)
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
    _, documents, _ = best(verbs, queries, [own], 10, Interaction(), options=SMALL)
    assert mask[documents - 5].all()
    assert recall(documents, verbs.best(queries, [own], 10, Interaction(), "exact")[1]) >= 0.95


@pytest.mark.parametrize("passes", [0, 1, 3, 12])
def test_answers_are_never_short(passes: int, single: Stretch, ragged: Stretch, queries: np.ndarray) -> None:
    """A graph search under a filter that few pass, or for more than it visits or there are, is finished exactly."""
    for stretch in (single, ragged):
        mask = np.zeros(len(stretch.vectors), dtype=bool)
        mask[np.flatnonzero(stretch.vectors.held)[::20][:passes]] = True
        own = [replace(stretch, passing=mask)]
        for k in (5, 40, 1000):
            found = best(verbs, queries, own, k, Interaction(), options=SMALL)
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

    def nearest(self: Any, queries: np.ndarray, wanted: int, *rest: Any) -> np.ndarray:
        asked.append((len(queries), wanted))
        found: np.ndarray = search(self, queries, wanted, *rest)
        return found

    search = HnswIndex.nearest
    monkeypatch.setattr(HnswIndex, "nearest", nearest)
    queries = np.concatenate([near, clustered(7, 1)])
    for instead, expected in ((1, [(2, 20), (1, 80), (1, 320)]), (16, [(2, 20), (1, 80)]), (100, [(2, 20)])):
        borders.shrink(monkeypatch, EXACT_INSTEAD=instead)
        asked.clear()
        found = best(verbs, queries, [stretch], 5, Interaction(), options=SMALL)
        exact = verbs.best(queries, [stretch], 5, Interaction(), "exact")
        assert asked == expected
        assert found[2].tolist() == [5, 5]
        assert found[1][0, 0] == exact[1][0, 0] == 0
        assert recall(found[1], exact[1]) >= 0.8


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
        best(verbs, queries, [single], 10, Interaction(), options=replace(DEFAULT, least_rows=900))
    # Rows that do not pass do not count.
    own = replace(single, passing=np.arange(900) < 899)
    best(verbs, queries, [own], 10, Interaction(), options=replace(DEFAULT, least_rows=900))


def test_nothing_asked_or_held(single: Stretch, queries: np.ndarray) -> None:
    for stretches, batch, k in (([], 3, 4), ([single], 0, 4), ([single], 3, 0)):
        scores, documents, counts = best(verbs, queries[:batch], stretches, k, Interaction(), options=SMALL)
        assert scores.shape == documents.shape == (batch, k)
        assert (documents == -1).all()
        assert np.isneginf(scores).all()
        assert counts.tolist() == [0] * batch


def test_every_backend_finds_the_same(single: Stretch, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = best(verbs, queries, [single], 10, Interaction(), options=SMALL)
    theirs = best(dense_verbs("cuda-host"), queries, [single], 10, Interaction(), options=SMALL)
    assert [each.tolist() for each in ours] == [each.tolist() for each in theirs]
    assert dense_verbs("cuda-host").best(queries, [single], 10, Interaction(), "hnsw")[2].tolist() == [10] * 40
    used = []
    real = approximate.index_of
    monkeypatch.setattr(approximate, "index_of", lambda *given: used.append(given[2]) or real(*given))
    dense_verbs("cuda-host").best(queries, [single], 10, Interaction(), "hnsw", approximate=SMALL)
    assert used == [SMALL]


def test_an_index_is_made_once_and_let_go(queries: np.ndarray) -> None:
    rows, others = clustered(3, 300), NumpyDense()
    vectors, same = Vectors(rows, np.arange(301)), Vectors(rows, np.arange(301))
    index = index_of(verbs, vectors, SMALL)
    # Made again of the same rows it is the same.
    again = index_of(verbs, same, SMALL)
    assert index.nearest(queries, 20, None, 1).tolist() == again.nearest(queries, 20, None, 1).tolist()
    del same, again
    gc.collect()
    assert index_of(verbs, vectors, SMALL) is index
    assert index_of(verbs, vectors, replace(SMALL, neighbours=8)) is not index
    kept = faiss_index._indexes
    index_of(others, vectors, SMALL)
    assert vectors in kept[verbs]
    assert list(kept[others]) == [vectors]
    del others
    gc.collect()
    before = len(kept[verbs]), len(kept)
    index_of(NumpyDense(), vectors, SMALL)
    del vectors
    gc.collect()
    assert (len(kept[verbs]), len(kept)) == (before[0] - 1, before[1])


def test_the_defaults_are_the_sources() -> None:
    """A068: M 32, efConstruction 200; B006: efSearch 64. CAGRA's are those of FAISS."""
    assert (DEFAULT.neighbours, DEFAULT.ef_construction, DEFAULT.ef_search, DEFAULT.threads) == (32, 200, 64, 1)
    index = index_of(verbs, Vectors(clustered(5, 50), np.arange(51)), DEFAULT)
    assert isinstance(index, HnswIndex)
    assert index.graph.hnsw.efConstruction == 200
    assert index.graph.hnsw.nb_neighbors(1) == 32
    assert index.graph.metric_type == faiss.METRIC_INNER_PRODUCT
    assert str(DEFAULT) == ""
    assert str(Approximate(ef_search=9, itopk_size=32)) == "ef_search 9, itopk_size 32"


def test_each_option_of_the_graph_reaches_it(queries: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Approximate(neighbours=7, ef_construction=33, ef_search=11, least_rows=1)
    vectors = Vectors(clustered(5, 400), np.arange(401))
    asked = []
    real = faiss.SearchParametersHNSW
    monkeypatch.setattr(faiss, "SearchParametersHNSW", lambda **given: asked.append(given) or real(**given))
    verbs.best(queries, [Stretch(vectors, 0)], 2, Interaction(), "hnsw", approximate=own)
    index = index_of(verbs, vectors, own)
    assert isinstance(index, HnswIndex)
    assert (index.graph.hnsw.nb_neighbors(1), index.graph.hnsw.efConstruction) == (7, 33)
    verbs.best(queries, [Stretch(vectors, 0)], 9, Interaction(), "hnsw", approximate=own)
    verbs.best(queries, [Stretch(vectors, 0)], 9, Interaction(), "hnsw", approximate=replace(own, over_fetch=3))
    verbs.best(queries, [Stretch(vectors, 0)], 9, Interaction(), "hnsw", approximate=replace(own, least_rows=401))
    # As many as are fetched are kept in mind, at least ef_search.
    assert asked == [{"efSearch": 11}, {"efSearch": 18}, {"efSearch": 27}]


def test_a_strategy_brings_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through `Engine.search`, of a strategy and of its JSON; without them 300 rows are searched exactly."""
    rows = clustered(8, 300)
    records = [fr.Record(str(number), "tea") for number in range(300)]
    engine = fr.Engine(encoder=fr.OwnVectors(DIMENSION), backend="numpy")
    engine.add(records, vectors=rows)
    asked = [fr.Query("tea", vector=clustered(8, 1)[0])]
    used = []
    real = approximate.index_of
    monkeypatch.setattr(approximate, "index_of", lambda *given: used.append(given[2]) or real(*given))
    exact = list(engine.search(asked, 3, strategy="dense"))
    assert list(engine.search(asked, 3, strategy="dense-hnsw")) == exact
    assert used == []
    own = Approximate(ef_search=200, least_rows=300)
    strategy = fr.Strategy("mine", (fr.strategies.Dense(mode="hnsw", approximate=own),))
    assert list(engine.search(asked, 3, strategy=strategy)) == exact
    assert list(engine.search(asked, 3, strategy=strategy.to_dict())) == exact
    assert used == [own, own]


def test_the_cpu_serves_where_no_gpu_does(single: Stretch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where the backend serves from the CPU, nor for a GPU that FAISS does not see, nor in a build without GPUs."""
    vectors = single.vectors
    assert isinstance(index_of(OnGpu(), vectors, SMALL), HnswIndex) or hasattr(faiss, "GpuIndexFlatIP")
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "GpuIndexFlatIP", None, raising=False)
    assert isinstance(index_of(NumpyDense(), vectors, SMALL), HnswIndex)
    assert isinstance(index_of(OnGpu(1), vectors, SMALL), HnswIndex)
    assert faiss_index.kind_of(faiss, 0) == ("cagra" if hasattr(faiss, "GpuIndexCagra") else "flat")


# Other strategies are compared so in `tests/hybrid`.
def test_a_query_is_answered_alone_as_in_a_batch_and_after_a_restart(tmp_path: Path) -> None:
    strategy = fr.Strategy("mine", (fr.strategies.Dense(mode="hnsw", approximate=Approximate(least_rows=1)),))
    asked = [fr.Query("tea", vector=row) for row in clustered(9, 6)]
    records = [fr.Record(str(number), "tea", embedding=row) for number, row in enumerate(clustered(8, 300))]
    with fr.Engine.open(tmp_path / "memory", encoder=fr.OwnVectors(DIMENSION)) as engine:
        engine.add(records)
        together = engine.search(asked, 7, strategy=strategy)
        assert [list(engine.search([query], 7, strategy=strategy)[0]) for query in asked] == list(map(list, together))
    with fr.Engine.open(tmp_path / "memory", encoder=fr.OwnVectors(DIMENSION)) as engine:
        assert list(engine.search(asked, 7, strategy=strategy)) == list(together)
