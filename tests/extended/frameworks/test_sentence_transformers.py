"""`semantic_search_fanrank` finds what `util.semantic_search` finds."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import fanrank as fr

torch = pytest.importorskip("torch")
util = pytest.importorskip("sentence_transformers.util")

adapter = pytest.importorskip("fanrank.integrations.sentence_transformers")
search = adapter.semantic_search_fanrank

Found = list[list[dict[str, float]]]
FUNCTIONS = {"cosine": util.cos_sim, "dot": util.dot_score}


def corpus(seed: int = 0, rows: int = 400, dimension: int = 24, spread: float = 1.0) -> np.ndarray:
    """Vectors of many lengths, in clusters: within a cluster, neighbours are `spread` apart."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(8, dimension))
    made = centres[random.integers(0, 8, size=rows)] + spread * random.normal(size=(rows, dimension))
    return (made * random.uniform(0.05, 4.0, size=(rows, 1))).astype(np.float32)


def expected(queries: np.ndarray, rows: np.ndarray, kind: str, top_k: int) -> list[list[tuple[int, float]]]:
    """All pairs in float64 by another way of summing; of equal scores the lower number comes first."""
    answers = []
    for query in queries.astype(np.float64):
        scores = []
        for row in rows.astype(np.float64):
            score = math.fsum(query * row)
            if kind == "cosine":
                score /= math.sqrt(math.fsum(query * query)) * math.sqrt(math.fsum(row * row))
            scores.append(score)
        order = sorted(range(len(rows)), key=lambda number: (-scores[number], number))[:top_k]
        answers.append([(number, scores[number]) for number in order])
    return answers


def ids(found: Found) -> list[list[float]]:
    return [[hit["corpus_id"] for hit in row] for row in found]


def scores(found: Found) -> list[list[float]]:
    return [[hit["score"] for hit in row] for row in found]


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_ids_and_scores_are_those_of_semantic_search(kind: str) -> None:
    rows, queries = corpus(), corpus(seed=1, rows=7)
    found, seconds = search(queries, rows, top_k=9, score_function=kind)
    theirs = util.semantic_search(torch.tensor(queries), torch.tensor(rows), top_k=9, score_function=FUNCTIONS[kind])
    assert ids(found) == ids(theirs)
    np.testing.assert_allclose(scores(found), scores(theirs), rtol=0, atol=1e-6 if kind == "cosine" else 1e-3)
    assert seconds > 0


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-5])
def test_vectors_that_half_precision_cannot_tell_apart_are_ordered_by_their_float64_scores(
    kind: str, spread: float
) -> None:
    # Of one length, so that the inner products of a cluster lie as close as its cosines.
    rows = corpus(rows=300, spread=spread).astype(np.float64)
    rows /= np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    queries = rows[:5] * 1.5
    found, _ = search(queries, rows, top_k=6, score_function=kind)
    wanted = expected(queries, rows, kind, 6)
    for mine, truth in zip(found, wanted, strict=True):
        np.testing.assert_allclose([hit["score"] for hit in mine], [score for _, score in truth], rtol=0, atol=1e-14)
        for hit, (number, score) in zip(mine, truth, strict=True):
            # Sums in another order may swap what they leave equal to the last bits.
            assert hit["corpus_id"] == number or abs(hit["score"] - score) < 1e-14


def test_the_depth_grows_until_the_answer_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    depths = []
    plain = fr.Engine.search

    def counted(self: fr.Engine, queries: Sequence[Any], k: int = 10, **keywords: Any) -> fr.Hits:
        depths.append((len(queries), k))
        return plain(self, queries, k, **keywords)

    monkeypatch.setattr(fr.Engine, "search", counted)
    search(corpus(seed=1, rows=20), corpus(rows=2000), top_k=5)
    assert depths == [(20, 5 + adapter.EXTRA)]
    depths.clear()
    tight = corpus(rows=2000, spread=1e-6)
    search(tight[:3], tight, top_k=5)
    assert depths == [(3, 5 + adapter.EXTRA), (3, (5 + adapter.EXTRA) * adapter.GROWTH)]


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_of_equal_scores_the_lower_corpus_id_comes_first(kind: str) -> None:
    same = np.repeat(corpus(rows=4, dimension=6), 30, axis=0)
    # Inner products of whole numbers are exact, and those of the rows in half precision differ.
    whole = np.random.default_rng(0).integers(1, 4, size=(200, 3)).astype(np.float64)
    for queries, rows in ((same[:1], same), (np.array([[1.0, 2.0, 3.0]]), whole)):
        found, _ = search(queries, rows, top_k=50, score_function=kind)
        pairs = [(hit["score"], hit["corpus_id"]) for hit in found[0]]
        assert pairs == sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
        assert len({score for score, _ in pairs}) < 50


def test_a_batch_gives_the_bits_of_its_queries_alone_and_of_every_thread_count() -> None:
    rows, queries = corpus(), corpus(seed=2, rows=12)
    whole, _, index = search(queries, rows, output_index=True)
    assert whole == [search(query, corpus_index=index)[0][0] for query in queries]
    assert whole == search(queries, corpus_index=index, threads=2)[0]


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_tensors_arrays_and_lists_give_one_answer(kind: str) -> None:
    rows, queries = corpus(rows=60), corpus(seed=3, rows=3)
    forms = [
        np.asarray,
        torch.tensor,
        lambda array: array.tolist(),
        list,
        lambda array: [torch.tensor(row) for row in array],
        lambda array: torch.tensor(array, requires_grad=True),
    ]
    answers = [search(form(queries), form(rows), top_k=4, score_function=FUNCTIONS[kind])[0] for form in forms]
    assert all(answer == answers[0] for answer in answers)
    halves, _ = search(torch.tensor(queries).bfloat16(), torch.tensor(rows).bfloat16(), top_k=4)
    assert len(halves[0]) == 4


def test_the_index_keeps_what_it_was_given() -> None:
    rows = corpus(rows=30)
    given = rows.copy()
    found, _, index = search(rows[:2], given, output_index=True)
    given[:] = 1.0
    assert search(rows[:2], corpus_index=index)[0] == found
    assert len(index) == 30


def test_fewer_vectors_than_asked_and_none_at_all() -> None:
    rows = corpus(rows=3)
    assert [len(row) for row in search(rows[:2], rows, top_k=10)[0]] == [3, 3]
    assert search(rows[:2], rows, top_k=0)[0] == [[], []]
    assert search(np.zeros((0, 24), dtype=np.float32), rows)[0] == []


def test_a_vector_of_length_0_has_the_inner_product_0() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    found, _ = search([[2.0, 0.0], [0.0, 0.0]], rows, score_function="dot")
    assert found[0] == [{"corpus_id": 1, "score": 2.0}, {"corpus_id": 0, "score": 0.0}, {"corpus_id": 2, "score": -2.0}]
    assert found[1] == [{"corpus_id": number, "score": 0.0} for number in range(3)]
    assert search([[1.0, 0.0]], [[0.0, 0.0]], score_function="dot")[0] == [[{"corpus_id": 0, "score": 0.0}]]


def sparse(seed: int, rows: int = 80, terms: int = 40) -> Any:
    random = np.random.default_rng(seed)
    return torch.tensor(np.where(random.random((rows, terms)) < 0.15, random.random((rows, terms)) * 3, 0.0)).float()


@pytest.mark.parametrize("form", ["coo", "csr", "scipy"])
def test_sparse_weights_are_compared_in_exact_steps(form: str) -> None:
    rows, queries = sparse(0), sparse(1, rows=5)
    forms = {"coo": lambda one: one.to_sparse(), "csr": lambda one: one.to_sparse_csr()}
    if form == "scipy":
        matrices = pytest.importorskip("scipy.sparse")
        forms["scipy"] = lambda one: matrices.csr_matrix(one.numpy())
    found, _, index = search(forms[form](queries), forms[form](rows), top_k=8, output_index=True)
    steps = [np.rint(one.double().numpy() * 1024).astype(np.int64) for one in (queries, rows)]
    exact = steps[0] @ steps[1].T
    for row, products in zip(found, exact, strict=True):
        order = sorted(np.flatnonzero(products).tolist(), key=lambda number: (-products[number], number))[:8]
        assert row == [{"corpus_id": number, "score": products[number] / 2.0**20} for number in order]
    theirs = util.semantic_search(queries, rows, top_k=8, score_function=util.dot_score)
    for mine, plain in zip(scores(found), scores(theirs), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=0, atol=2.0**-11 * 6 * 40)
    assert search(forms[form](queries), corpus_index=index, top_k=8)[0] == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"query_embeddings": [[1.0, 2.0]]}, "corpus_embeddings"),
        ({"query_embeddings": [[1.0, 2.0]], "corpus_embeddings": [[1.0]]}, "2 components"),
        ({"query_embeddings": [[1.0]], "corpus_embeddings": [[1.0], [0.0]]}, "corpus embedding 1 has length 0"),
        ({"query_embeddings": [[0.0]], "corpus_embeddings": [[1.0]]}, "query embedding 0 has length 0"),
        ({"query_embeddings": [[1.0]], "corpus_embeddings": [[math.nan]]}, "not finite"),
        ({"query_embeddings": [[1.0]], "corpus_embeddings": [["tea"]]}, "rows of numbers"),
        ({"query_embeddings": [[1.0]], "corpus_embeddings": [[1.0], [1.0, 2.0]]}, "rows of numbers"),
        ({"query_embeddings": [[1.0]], "corpus_embeddings": [[1e200]]}, "so long"),
        ({"query_embeddings": [[1.0]], "corpus_embeddings": []}, "no embedding"),
        ({"query_embeddings": [[1.0]], "corpus_embeddings": [[1.0]], "top_k": -1}, "top_k"),
        ({"query_embeddings": [[1.0]], "corpus_embeddings": [[1.0]], "top_k": True}, "top_k"),
        ({"query_embeddings": [[1.0]], "corpus_embeddings": [[1.0]], "score_function": "euclidean"}, "score_function"),
        ({"query_embeddings": [[1.0]], "corpus_embeddings": sparse(0).to_sparse()}, "dense"),
        ({"query_embeddings": sparse(0).to_sparse(), "corpus_embeddings": [[1.0]]}, "sparse"),
        ({"query_embeddings": [[1.0]], "corpus_index": "an index"}, "VectorIndex"),
    ],
)
def test_bad_input_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises((fr.errors.ParameterError, fr.errors.QueryError), match=message):
        search(**given)


def test_a_search_takes_an_index_or_a_corpus() -> None:
    rows = corpus(rows=5)
    index = search(rows, rows, output_index=True)[2]
    with pytest.raises(fr.errors.ParameterError, match="already"):
        search(rows, rows, corpus_index=index)
    with pytest.raises(fr.errors.ParameterError, match=r"below|negative|0 or more"):
        search((-sparse(0)).to_sparse(), (-sparse(0)).to_sparse())
