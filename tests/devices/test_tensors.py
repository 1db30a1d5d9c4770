"""Batches given as device tensors, and their hits as device tensors."""

import random
from typing import Any

import pytest
import torch
from support.answers import TERMS, build, oracle, remembered
from support.device_cases import FAST, ON_A_GPU, device_of, serve, tensor_answer, tensors_of

import fanrank as fr
from fanrank.engine.backends import choose as backend


@pytest.mark.parametrize(
    # The interpreter takes a quarter of a minute.
    "name",
    [*FAST, pytest.param("triton", id="triton-interpreter", marks=pytest.mark.extended)],
)
def test_tensors_in_tensors_out(name: str) -> None:
    rng = random.Random(8)
    for method in ("lucene", "robertson"):
        documents = [rng.choices(TERMS, k=rng.randrange(6)) for _ in range(100)]
        engine = build(documents, method=method)
        batch = [["a1"], [], ["g7", "a1", "unknown"], TERMS, ["c3"] * 5]
        plain = engine.search(batch, 12)
        serve(engine, name)
        where = device_of(engine).residency.device
        terms, offsets = tensors_of(engine, batch)
        for weights in (None, torch.ones(len(terms), dtype=torch.int32, device=where)):
            hits = engine.search_tensors(terms, offsets, weights, k=12)
            assert (hits.scores.dtype, hits.documents.dtype, hits.counts.dtype) == (
                torch.float64,
                torch.int64,
                torch.int32,
            )
            assert hits.scores.cpu().numpy().tobytes() == plain.scores.tobytes()
            assert hits.documents.cpu().numpy().tobytes() == plain.documents.tobytes()
            assert hits.counts.cpu().tolist() == plain.counts.tolist()
        tripled = engine.search_tensors(terms.to(torch.int32), offsets.to(torch.int32), torch.full_like(terms, 3), k=12)
        assert (tripled.scores == 3 * hits.scores).all()


@pytest.mark.parametrize("name", FAST)
def test_tensors_that_match_nothing(name: str) -> None:
    engine = serve(build([["a1"], ["b2"]] * 40), name)
    where = device_of(engine).residency.device

    def ask(terms: list[int], offsets: list[int], k: int = 3, namespace: str = "") -> Any:
        return engine.search_tensors(
            torch.tensor(terms, dtype=torch.int64, device=where),
            torch.tensor(offsets, dtype=torch.int64, device=where),
            k=k,
            namespace=namespace,
        )

    for hits in (ask([-1, 99], [0, 1, 2]), ask([], [0, 0, 0]), ask([0, 1], [0, 1, 2], namespace="nowhere")):
        assert hits.counts.tolist() == [0, 0]
        assert (hits.documents == -1).all()
        assert (hits.scores == -torch.inf).all()
    assert ask([0], [0, 1], k=0).scores.shape == (1, 0)
    # A segment that lacks the term has others before and after it.
    engine = serve(build([["b2"]] * 70 + [["a1", "c3"]] * 70), name)
    terms, offsets = tensors_of(engine, [["b2"], ["c3"], ["a1"]])
    hits = engine.search_tensors(terms, offsets, k=100)
    assert hits.counts.tolist() == [70, 70, 70]
    assert [sorted(row[:70]) for row in hits.documents.tolist()] == [list(range(70)), *[list(range(70, 140))] * 2]
    assert ask([], [0]).scores.shape == (0, 3)
    with pytest.raises(fr.errors.ParameterError, match=r"k must lie in \[0, 1024\], not 1025"):
        ask([0], [0, 1], k=1025)
    with pytest.raises(fr.errors.QueryError, match=r"offsets must hold one number more"):
        ask([0], [])
    with pytest.raises(fr.errors.QueryError, match=r"terms must be an int32 or int64 vector on"):
        engine.search_tensors(torch.zeros(1, device=where), torch.zeros(2, dtype=torch.int64, device=where))
    one = torch.zeros(1, dtype=torch.int64, device=where)
    with pytest.raises(fr.errors.QueryError, match="there are 1 terms but 2 weights"):
        engine.search_tensors(one, torch.tensor([0, 1], device=where), torch.tensor([1, 1], device=where))
    with pytest.raises(fr.errors.BackendUnavailableError, match=r"needs a backend on a device, and \w+ serves"):
        engine.to("cpu").search_tensors(one, one)


@pytest.mark.parametrize("name", FAST)
def test_encoded_batches_follow_query_tf(name: str) -> None:
    documents = [["a1", "b2"], ["a1"], ["b2", "b2"]] * 30
    batch = [["a1", "a1", "b2"], ["b2", "b2"]]
    for query_tf in ("count", "unique"):
        engine = serve(build(documents, query_tf=query_tf), name)
        terms, offsets = tensors_of(engine, batch)
        found = engine.search_tensors(terms, offsets, k=5)
        plain = engine.search(batch, 5)
        assert found.scores.cpu().numpy().tobytes() == plain.scores.tobytes()
        assert found.documents.cpu().numpy().tobytes() == plain.documents.tobytes()
    with pytest.raises(fr.errors.QueryError, match="encode takes queries"):
        engine.encode(7)


@pytest.mark.parametrize("name", FAST)
def test_weights_beyond_int32_sums_and_beyond_their_limits(name: str) -> None:
    engine = serve(build([["a1"], ["b2"], ["a1", "b2"]] * 30), name)
    terms, offsets = tensors_of(engine, [["a1", "b2"], ["b2"]])
    plain = engine.search_tensors(terms, offsets, k=60)
    for weight, taken in ((5000, 5000), (1 << 20, 1 << 20), (1 << 40, 1 << 20), (0, 1), (-3, 1)):
        hits = engine.search_tensors(terms, offsets, torch.full_like(terms, weight), k=60)
        assert (hits.scores == taken * plain.scores).all()
        assert (hits.documents == plain.documents).all()
    # Repeats alone leave int32 too.
    many = [["a1"] * 30_000, ["b2"]]
    terms, offsets = tensors_of(engine, many)
    found, expected = engine.search_tensors(terms, offsets, k=5), engine.search(many, 5)
    assert expected.scores.max() > 8192
    assert found.scores.cpu().numpy().tobytes() == expected.scores.tobytes()


@pytest.mark.parametrize(
    ("name", "k1", "border"),
    [
        pytest.param("cuda-host", 0.0, 1 << 31, id="31-cuda-host"),
        pytest.param("cuda-host", 0.5, 1 << 32, id="32-cuda-host"),
        pytest.param("triton", 0.0, 1 << 31, id="31-triton-interpreter"),
        pytest.param("triton", 0.5, 1 << 32, id="32-triton-interpreter", marks=pytest.mark.extended),
        *(pytest.param(*one.values, 0.0, 1 << 31, id=one.id, marks=one.marks) for one in ON_A_GPU),
    ],
)
def test_weighted_sums_on_both_sides_of_a_border(name: str, k1: float, border: int) -> None:
    """Of one term and of two that fit int32 each. A k1 of 0 makes a posting's bound its contribution."""
    documents = [["a1", "a1"] if n % 3 else ["a1"] if n % 2 else ["b2"] for n in range(90)]
    for rare in (3, 40, 76, 89):
        documents[rare] = ["z9", *documents[rare]]
    engine = serve(build(documents, k1=k1, b=0.0), name)
    quanta = {term: dict(oracle(documents, k1=k1, b=0.0).search([term], 90)) for term in ("a1", "z9")}
    largest = {term: max(own.values()) for term, own in quanta.items()}
    terms, offsets = tensors_of(engine, [["z9"], ["z9", "a1"], ["a1"]])
    for beside in (-1, 0, 1):
        alone, half = border // largest["z9"] + beside, border // 2 // largest["z9"] + beside
        rest = (border - half * largest["z9"]) // largest["a1"] + beside
        weights = [alone, half, rest, 1]
        expected = []
        for query in ({"z9": alone}, {"z9": half, "a1": rest}, {"a1": 1}):
            sums = {d: sum(query[t] * quanta[t].get(d, 0) for t in query) for t in query for d in quanta[t]}
            expected.append(sorted(sums.items(), key=lambda hit: (-hit[1], hit[0]))[:60])
        assert abs(max(score for _, score in expected[0]) - border) <= 2 * largest["z9"]
        assert abs(max(score for _, score in expected[1]) - border) <= 2 * largest["a1"]
        found = engine.search_tensors(terms, offsets, torch.tensor(weights, device=terms.device), k=60)
        assert tensor_answer(found) == expected


@pytest.mark.parametrize("name", FAST)
def test_one_shape_with_other_numbers_of_hits(name: str) -> None:
    """What is kept for a shape depends on k: as many candidates a tile as hits, and as many columns."""
    rng = random.Random(13)
    documents = [rng.choices(TERMS, k=rng.randrange(1, 6)) for _ in range(170)]
    engine = serve(build(documents), name)
    batch = [["a1", "b2"], ["c3", "d4"]]
    terms, offsets = tensors_of(engine, batch)
    for k in (3, 40, 1, 1024, 3, 33, 40):
        expected = [oracle(documents).search(q, k) for q in batch]
        assert tensor_answer(engine.search_tensors(terms, offsets, k=k)) == expected
        weighted = engine.search_tensors(terms, offsets, torch.ones_like(terms), k=k)
        assert tensor_answer(weighted) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("name", backend.DEVICES)
def test_tensor_batches_in_a_graph(name: str) -> None:
    rng = random.Random(12)
    engine = serve(build([rng.choices(TERMS, k=4) for _ in range(150)]), name)
    batches = [[rng.choices(TERMS, k=3) for _ in range(8)] for _ in range(20)]
    terms, offsets = (torch.tensor(array, device="cuda") for array in engine.encode(batches[0])[:2])
    engine.search_tensors(terms, offsets, k=10)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hits = engine.search_tensors(terms, offsets, k=10)
    for number, batch in enumerate(batches):
        # Other shapes come and go meanwhile; the captured frame must stay.
        other = torch.zeros(number + 1, dtype=torch.int64, device="cuda")
        engine.search_tensors(other, torch.tensor([0, number + 1], device="cuda"), k=3)
        terms.copy_(torch.tensor(engine.encode(batch)[0], device="cuda"))
        graph.replay()
        torch.cuda.synchronize()
        plain = engine.search(batch, 10, execution="exhaustive")
        assert hits.scores.cpu().numpy().tobytes() == plain.scores.tobytes()
        assert hits.documents.cpu().numpy().tobytes() == plain.documents.tobytes()
    fresh = torch.zeros(77, dtype=torch.int64, device="cuda")
    with (
        pytest.raises(fr.errors.QueryError, match="call once before the capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        engine.search_tensors(fresh, torch.tensor([0, 77], device="cuda"), k=3)


@pytest.mark.parametrize("name", FAST)
def test_tensors_and_fan_outs_pass_over_the_dead(name: str) -> None:
    engine, _ = remembered(1, 160)
    terms, offsets, _ = engine.encode([["a1", "b2"], ["c3"]])
    plain = engine.search([["a1", "b2"], ["c3"]], 200)
    hits = serve(engine, name).search([["a1", "b2"], ["c3"]], 200)
    assert hits.documents.tobytes() == plain.documents.tobytes()
    assert hits.scores.tobytes() == plain.scores.tobytes()
    where = engine.backend.device.residency.device  # type: ignore[union-attr]
    found = engine.search_tensors(torch.tensor(terms, device=where), torch.tensor(offsets, device=where), k=200)
    assert found.counts.tolist() == plain.counts.tolist()
    assert found.documents.cpu().numpy()[:, : plain.documents.shape[1]].tobytes() == plain.documents.tobytes()
