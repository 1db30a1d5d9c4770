"""`check` over real and made corpora, that it sees a path that is broken, and quanta against float64."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanrank as fr
from fanrank.cpu_fallback import neighbours, prune
from fanrank.cpu_fallback import search as numpy_search
from fanrank.cpu_fallback.dense import NumpyDense
from fanrank.engine.backends import choose as backend
from fanrank.engine.check.check import STRATEGIES, WordEvidence, check, engine_answers, oracle_answers
from fanrank.engine.check.oracle import Oracle, VectorOracle, WeightOracle, reciprocal_ranks
from fanrank.engine.evaluate import load_beir, load_locomo, rank
from fanrank.engine.evaluate.dataset import Dataset
from fanrank.engine.fuse import RRF
from fanrank.engine.index import learned
from fanrank.engine.plan.device_options import FAMILY, DeviceOptions
from fanrank.engine.plan.options import EXECUTIONS

PATHS = [
    "batch, auto",
    "batch, exhaustive",
    "batch, pruned",
    "batch, 2 threads",
    "one by one",
    "terms reversed",
    "grown in 7 pieces",
    "saved and loaded",
]
WAYS = ["batch", "one by one", "grown in 7 pieces", "saved and loaded"]
BORROWED_WAYS = [f"batch, {execution}" for execution in EXECUTIONS] + WAYS[1:]
PATHS += [f"neighbours, {way}" for way in BORROWED_WAYS]
PATHS += [f"{strategy}, {way}" for strategy in STRATEGIES for way in WAYS]

Search = Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]


def corpus(count: int = 70) -> list[fr.Record]:
    return [fr.Record(f"r{n}", f"tea w{n % 7} w{n % 5}", namespace="n" if n % 10 == 9 else "") for n in range(count)]


QUERIES = [fr.Query("tea w3"), fr.Query("w1 w2 w2"), fr.Query("nothing"), fr.Query("tea", namespace="n", k=3)]


def break_search(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[np.ndarray, np.ndarray], None], when: Callable[..., bool]
) -> None:
    plain: Search = numpy_search.search_numpy

    def spoiled(plans: Any, batch: int, k: int, *, threads: int, execution: str, **rest: Any) -> Any:
        scores, documents, counts = plain(plans, batch, k, threads=threads, execution=execution, **rest)
        if when(batch=batch, threads=threads, execution=execution):
            spoil(scores, documents)
        return scores, documents, counts

    monkeypatch.setattr(numpy_search, "search_numpy", spoiled)


def one_quantum(scores: np.ndarray, documents: np.ndarray) -> None:
    scores[0, 0] += 1


def swap(scores: np.ndarray, documents: np.ndarray) -> None:
    documents[0, :2] = documents[0, 1::-1].copy()


def test_it_finds_no_difference_and_has_its_shape() -> None:
    found = check(corpus(), QUERIES, corpus="made", k=20, backend="numpy", analyzer="minimal")
    assert json.loads(json.dumps(found)) == found
    assert list(found) == ["corpus", "queries", "analysis", "roads", "differences"]
    assert (found["corpus"], found["queries"], found["differences"]) == ("made", 4, 0)
    assert found["roads"] == [{"name": f"numpy: {path}", "queries": 4, "differences": 0} for path in PATHS]


@pytest.mark.parametrize(
    ("path", "when"),
    [
        ("batch, pruned", lambda execution, **_: execution == "pruned"),
        ("batch, exhaustive", lambda execution, **_: execution == "exhaustive"),
        ("batch, 2 threads", lambda threads, **_: threads == 2),
    ],
)
@pytest.mark.parametrize("spoil", [one_quantum, swap])
def test_it_names_the_road_that_differs(
    monkeypatch: pytest.MonkeyPatch, path: str, when: Callable[..., bool], spoil: Callable[..., None]
) -> None:
    break_search(monkeypatch, spoil, when)
    asked = [QUERIES[0], QUERIES[2]]  # the second has no hit to spoil
    found = check(corpus(), asked, corpus="made", k=20, backend="numpy")
    assert found["differences"] == 1
    assert {row["name"]: row["differences"] for row in found["roads"] if row["differences"]} == {f"numpy: {path}": 1}


@pytest.mark.parametrize(
    # The two hits that change places tie, and a strategy orders what its channels list by itself.
    ("spoil", "paths"),
    [(one_quantum, {"one by one", "sparse, one by one"}), (swap, {"one by one"})],
)
def test_what_differs_one_by_one_differs_in_strategies_over_postings(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., None], paths: set[str]
) -> None:
    break_search(monkeypatch, spoil, lambda batch, **_: batch == 1)
    assert differing(check(corpus(), [QUERIES[0], QUERIES[2]], corpus="made", k=20, backend="numpy")) == paths


def differing(found: dict[str, Any]) -> set[str]:
    return {row["name"].removeprefix("numpy: ") for row in found["roads"] if row["differences"]}


def ways(*strategies: str) -> set[str]:
    return {f"{strategy}, {way}" for strategy in strategies for way in WAYS}


def test_it_sees_a_document_that_dense_search_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = NumpyDense.best

    def loses(self: NumpyDense, queries: Any, *arguments: Any, **options: Any) -> Any:
        scores, documents, counts = plain(self, queries, *arguments, **options)
        if len(queries) == 1:
            documents[0, 0] = -1
        return scores, documents, counts

    monkeypatch.setattr(NumpyDense, "best", loses)
    found = check(corpus(), QUERIES[:3], corpus="made", k=20, backend="numpy")
    assert differing(found) == {f"{strategy}, one by one" for strategy in ("dense", "dense-int8", "rrf")}


def test_it_sees_the_last_bit_of_a_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = NumpyDense.best

    def off(self: NumpyDense, *arguments: Any, **options: Any) -> Any:
        scores, documents, counts = plain(self, *arguments, **options)
        return np.nextafter(scores, 2.0) if arguments[-1] == "exact" else scores, documents, counts

    monkeypatch.setattr(NumpyDense, "best", off)
    # All cosines move together, so that the ranks, and what is fused of them, stay.
    assert differing(check(corpus(), QUERIES, corpus="made", k=20, backend="numpy")) == ways("dense")


def test_it_sees_the_last_bit_of_a_fused_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RRF, "_worth", lambda *_: 1.0 + 2.0**-52)
    assert differing(check(corpus(), QUERIES, corpus="made", k=20, backend="numpy")) == ways("rrf")


def test_it_sees_how_weights_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "quantize", lambda weight, step: math.floor(weight / step))
    assert differing(check(corpus(), QUERIES, corpus="made", k=20, backend="numpy")) == ways("sparse")


def test_it_sees_what_a_neighbour_does_not_lend(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = neighbours.borrowed_sums

    def nearest_alone(own: Any, around: Any, lent: Sequence[int]) -> Any:
        return plain(own, around[:, :2], lent[:1])

    monkeypatch.setattr(neighbours, "borrowed_sums", nearest_alone)
    wanted = {f"neighbours, {way}" for way in BORROWED_WAYS}
    assert differing(check(corpus(), QUERIES, corpus="made", k=20, backend="numpy")) == wanted
    talked = [replace(record, session="one") for record in corpus()]
    assert differing(check(talked, QUERIES, corpus="made", k=20, backend="numpy")) == wanted


def test_it_sees_vectors_that_change_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fr.Engine.load

    def changed(*arguments: Any, **options: Any) -> fr.Engine:
        loaded = plain(*arguments, **options)
        for snapshot in loaded.index.memory.snapshots.values():
            for segment in snapshot.segments:
                assert segment.vectors is not None
                object.__setattr__(segment.vectors, "matrix", -np.array(segment.vectors.matrix))
        return loaded

    monkeypatch.setattr(fr.Engine, "load", changed)
    found = check(corpus(), QUERIES, corpus="made", k=20, backend="numpy")
    assert differing(found) == {f"{strategy}, saved and loaded" for strategy in ("dense", "dense-int8", "rrf")}


def test_the_evidence_of_words() -> None:
    texts = ["a b c d", "b", " \n", "\ud800 e", "a b c d", "a b c d", "one two"]
    made = WordEvidence().records([fr.Record(f"r{n}", text, passages=("own",)) for n, text in enumerate(texts)])
    rows: list[Any] = [record.embedding for record in made]
    assert [0 if own is None else len(own) for own in rows] == [2, 1, 0, 2, 1, 1, 2]
    assert [len(record.weights or {}) for record in made] == [4, 1, 0, 2, 4, 4, 2]
    assert rows[4].tolist() == rows[5].tolist()
    again = WordEvidence()
    asked = again.query(fr.Query("a b c d", model="another"))
    assert (asked.vector.tolist(), asked.weights, asked.model) == (rows[4].tolist(), made[4].weights, None)
    assert again.query(fr.Query(terms=("a", "b", "c", "d"))).vector.tolist() == rows[4].tolist()
    assert again.query(fr.Query(" ")).vector is None


def test_the_plain_answers_of_strategies_by_hand() -> None:
    rows = [[[0.5, 0.5]], [], [[0.0, 1.0], [0.75, -0.25]], [[0.5, 0.5]]]
    assert VectorOracle(rows).search([0.5, 0.25], 9) == [(0, 0.375), (3, 0.375), (2, 0.3125)]
    assert VectorOracle(rows).search([-0.5, 0.0], 1) == [(2, 0.0)]
    assert VectorOracle(rows).search(None, 9) == []
    # Codes: 127 and 64 (63.5, to even) of .5 / 127; 127 and -42 (42.33) of .75 / 127.
    codes = VectorOracle(rows, int8=True)
    assert codes.score([0.5, 0.25], 2) == (127 * 127 - 64 * 42) * (0.5 / 127) * (0.75 / 127)
    assert (codes.score([0.5, 0.25], 1), codes.search([0.5, 0.25], 1)[0][0]) == (None, 0)
    weights = WeightOracle([{"tea": 1.0, "pot": 2.0**-12}, {"pot": 1.5 * 2.0**-10}, {}])
    assert weights.search({"tea": 0.5, "pot": 2.0}, 9) == [(0, 0.5), (1, 2 * 2.0**-9)]
    assert weights.search({"tea": 2.0**-11}, 9) == []
    assert reciprocal_ranks([[7, 3], [3, 5]], 2) == [(3, 1 / 62 + 1 / 61), (7, 1 / 61)]


def test_it_takes_records_with_evidence_of_their_own_and_without_any_text() -> None:
    own = [fr.Record("r0", "tea", embedding=[[1.0, 0.0], [0.0, 1.0]], weights={"tea": 1.0}), fr.Record("r1", " ")]
    asked = [fr.Query("tea", vector=[1.0, 0.0]), fr.Query(" "), fr.Query(terms=("tea",)), fr.Query("tea", k=0)]
    assert check(own, asked, corpus="made", backend="numpy")["differences"] == 0
    assert check(own[1:], asked, corpus="made", backend="numpy")["differences"] == 0
    assert check([], asked, corpus="made", backend="numpy")["differences"] == 0


def test_the_pruned_road_prunes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    plain: Any = prune._score_tiles

    def watched(*arguments: Any) -> Any:
        calls.append(len(arguments[2]))
        return plain(*arguments)

    monkeypatch.setattr(prune, "_score_tiles", watched)
    assert check(corpus(), QUERIES[:2], corpus="made", backend="numpy")["differences"] == 0
    assert calls


def test_what_takes_long_is_cut_and_counts_what_it_asked() -> None:
    found = check(corpus(), [fr.Query(f"w{n % 5}") for n in range(60)], corpus="made", backend="numpy")
    assert {row["name"].removeprefix("numpy: "): row["queries"] for row in found["roads"]} == {
        path: 60 if path in PATHS[:8] and path != "one by one" else 50 for path in PATHS
    }


def test_every_usable_backend_is_checked() -> None:
    found = check(corpus(10), QUERIES, corpus="made")
    names = {row["name"].split(":")[0] for row in found["roads"]}
    assert names == {status.name for status in backend.statuses() if status.usable and not status.by_name}
    assert found["differences"] == 0


@pytest.mark.parametrize("options", [{"method": "robertson"}, {"fields": {"text": 2.0}}, {"query_tf": "unique"}])
def test_it_follows_the_engines_options(options: dict[str, Any]) -> None:
    assert check(corpus(), QUERIES, corpus="made", backend="numpy", **options)["differences"] == 0


def test_options_of_a_device_are_checked_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(fr.errors.ParameterError, match="tile_bits is an option of one backend; name the backend"):
        check(corpus(10), QUERIES, corpus="made", device=DeviceOptions(tile_bits=6))
    with pytest.raises(fr.errors.ParameterError, match="backend 'numpy' has no option select"):
        check(corpus(10), QUERIES, corpus="made", backend="numpy", device=DeviceOptions(select="warp"))
    status = next(status for status in backend.statuses() if status.name == "cuda-host")
    if not status.usable:
        pytest.skip(status.reason)
    chosen, made = [], backend.choose

    def choose(*asked: Any, **options: Any) -> backend.Backend:
        chosen.append(options.get("options", FAMILY))
        return made(*asked, **options)

    monkeypatch.setattr(backend, "choose", choose)
    own = DeviceOptions(posting_bytes=4, tile_bits=6)
    found = check(corpus(10), QUERIES, corpus="made", k=5, backend="cuda-host", device=own)
    assert found["differences"] == 0
    # Of the engine that holds all, the one that grows and the one that is loaded.
    assert chosen.count(own) == 3


def test_expected_answers() -> None:
    analyzer, bm25 = fr.text.get_analyzer("minimal"), fr.BM25()
    records = corpus(20)
    answers = oracle_answers(records, [*QUERIES, fr.Query("tea", namespace="nowhere")], 5, analyzer, bm25)
    assert [len(answer) for answer in answers] == [5, 5, 0, 2, 0]
    assert [name for name, _ in answers[3]] == ["r9", "r19"]
    assert answers[0] == engine_answers(fr.Engine.from_records(records, analyzer="minimal").search(QUERIES, 5))[0]
    with pytest.raises(fr.errors.QueryError, match="filters"):
        oracle_answers(records, [fr.Query("tea", filter={"role": "user"})], 5, analyzer, bm25)


def folder(data: Path, name: str) -> Path:
    if not (data / name).exists():
        pytest.skip(f"no {name} in {data}; set FANRANK_DATA to the folder that holds it")
    return data / name


def test_cranfield(data: Path) -> None:
    dataset = load_beir(folder(data, "cranfield"))
    found = check(dataset.records, dataset.queries[:40], corpus="cranfield")
    assert len(found["roads"]) >= len(PATHS)
    assert found["differences"] == 0


@pytest.mark.sweep
def test_scifact(data: Path) -> None:
    dataset = load_beir(folder(data, "scifact"))
    found = check(dataset.records, dataset.queries[:25], corpus="scifact", analyzer="lucene")
    assert found["differences"] == 0


def test_locomo(data: Path) -> None:
    dataset = load_locomo(folder(data, "locomo/locomo10.json"))
    found = check(dataset.records, dataset.queries, corpus="locomo")
    assert found["queries"] == len(dataset.queries) > 1900
    assert found["differences"] == 0


class FloatHits(list[list[tuple[str, float]]]):
    """Of `Hits`, what an evaluation looks at."""

    backend = "float64"
    timing = None
    decisions = None


class FloatSearcher:
    """BM25 (lucene) in float64 sums over whole arrays: what the integers are compared with."""

    def __init__(self, dataset: Dataset, analyzer: str) -> None:
        self.analyze = fr.text.get_analyzer(analyzer)
        self.names = [record.id for record in dataset.records]
        self.documents = [self.analyze(record.text) for record in dataset.records]
        self.lengths = np.array([len(document) for document in self.documents], dtype=np.float64)
        postings: dict[str, list[tuple[int, int]]] = {}
        for number, document in enumerate(self.documents):
            for term, tf in Counter(document).items():
                postings.setdefault(term, []).append((number, tf))
        self.postings = {term: np.array(pairs) for term, pairs in postings.items()}

    def one(self, terms: Sequence[str], k: int) -> list[tuple[int, float]]:
        scores = np.zeros(len(self.documents))
        norms = (1.0 - 0.75) + 0.75 * (self.lengths / (self.lengths.sum() / len(self.lengths)))
        for term, times in Counter(terms).items():
            if term in self.postings:
                at, tf = self.postings[term].T
                idf = math.log(1.0 + (len(scores) - len(at) + 0.5) / (len(at) + 0.5))
                scores[at] += times * (idf * (tf * 2.2 / (tf + 1.2 * norms[at])))
        best = np.lexsort((np.arange(len(scores)), -scores))[:k]
        return [(int(document), float(scores[document])) for document in best if scores[document] > 0.0]

    def search(self, queries: Sequence[fr.Query], k: int = 10, **_: Any) -> Any:
        return FloatHits(
            [(self.names[document], score) for document, score in self.one(self.analyze(query.text), k)]
            for query in queries
        )


@pytest.mark.parametrize(("name", "analyzer"), [("scifact", "nltk"), ("scifact", "lucene"), ("cranfield", "nltk")])
def test_quanta_change_no_ndcg_in_the_fourth_decimal(data: Path, name: str, analyzer: str) -> None:
    pytest.importorskip("pytrec_eval", reason="the extra 'eval' is not installed")
    dataset = load_beir(folder(data, name))
    floats = FloatSearcher(dataset, analyzer)
    if name == "cranfield":
        plain = Oracle([[document] for document in floats.documents])
        for query in dataset.queries[:3]:
            terms = floats.analyze(query.text)
            expected = plain.search_float(terms, 50)
            assert [d for d, _ in floats.one(terms, 50)] == [d for d, _ in expected]
            assert [s for _, s in floats.one(terms, 50)] == pytest.approx([s for _, s in expected], rel=1e-12)
    engine = fr.Engine.from_records(dataset.records, analyzer=analyzer)
    integers = rank(engine, dataset, k=100, complete=False)
    exact = rank(floats, dataset, k=100, complete=False)  # type: ignore[arg-type]
    assert exact.backend == "float64"
    for metric in ("ndcg@10", "recall@100"):
        assert f"{integers.metrics()[metric]:.4f}" == f"{exact.metrics()[metric]:.4f}"
    if name == "scifact":
        assert integers.metrics()["ndcg@10"] > 0.67
