"""The device path, end to end, over every kernel family that can run here: its answers are the oracle's."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.answers import TERMS, answer, build, document, oracle, parameters, queries, remembered
from support.device_cases import FAMILIES, FAST, assert_same_bits, interpreted, paths, serve, serve_numpy

import fanrank as fr


def repeated(rows: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Lists of rows, two thirds of them repeated until they fill more than one segment: drawn lists are short."""
    return st.builds(
        lambda held, size: held * max(1, size // max(1, len(held))),
        st.lists(rows, max_size=150),
        st.sampled_from([0, 100, 170]),
    )


corpus = repeated(document)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_road_equals_the_oracle(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = name == "triton" and not torch.cuda.is_available()

    @settings(max_examples=1 if few else 20, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
    @given(corpus, queries, st.integers(0, 160), parameters())
    @example([["a1", "b2"], ["a1"], []] * 57, [["a1"], ["b2", "a1"]], 40, {"method": "lucene"})
    def check(documents: list[list[str]], batch: list[list[str]], k: int, options: dict[str, object]) -> None:
        expected = [oracle(documents, **options).search(q, k) for q in batch]
        engine = serve(build(documents, **options), name)
        asked = [fr.Query(terms=tuple(q)) for q in batch]
        for path, got in paths(engine, asked, k, monkeypatch):
            assert got == expected, path

    check()


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    documents=repeated(st.tuples(document, st.sampled_from("st"), st.sampled_from("xy"))),
    batch=st.lists(st.tuples(st.lists(st.sampled_from(TERMS), max_size=5), st.sampled_from("xyz")), max_size=8),
    k=st.integers(1, 40),
)
@example([(["a1", "b2"], "s", "x"), (["a1"], "t", "y"), ([], "s", "x")] * 57, [([], "z"), (["a1"], "x")], 40)
def test_filters_and_namespaces_in_one_batch(
    name: str, documents: list[tuple[list[str], str, str]], batch: list[tuple[list[str], str]], k: int
) -> None:
    engine = fr.Engine.from_records(
        [fr.Record(str(n), " ".join(t), session=s, namespace=x) for n, (t, s, x) in enumerate(documents)],
        analyzer="minimal",
    )
    asked = [
        fr.Query(terms=tuple(q), namespace=x, filter={"session": wanted} if wanted else {}, k=None if n % 3 else n)
        for n, (q, x) in enumerate(batch)
        for wanted in ("s", None, "nobody")
    ]
    serve_numpy(engine)
    expected = answer(engine.search(asked, k), dense=False)
    assert answer(serve(engine, name).search(asked, k), dense=False) == expected


def check_sizes(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last segment has this many documents, or the two last ones."""
    rng = random.Random(size)
    documents = [rng.choices(TERMS, weights=[64, 32, 16, 8, 4, 2, 1], k=rng.randrange(5)) for _ in range(75 + size)]
    batch = [["a1"], ["g7", "a1"], TERMS, ["f6", "f6", "b2"], ["c3"] * 300]
    engine = serve(build(documents), name)
    for k in (33,) if interpreted(engine) else (1, 32, 33, 1025):
        expected = [oracle(documents).search(q, k) for q in batch]
        for path, got in paths(engine, [fr.Query(terms=tuple(q)) for q in batch], k, monkeypatch):
            assert got == expected, (k, path)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("size", [1, 32, 33, 65, 151])
def test_sizes_around_every_border(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_sizes(name, size, monkeypatch)


@pytest.mark.parametrize("size", [33, *(pytest.param(size, marks=pytest.mark.extended) for size in (1, 32, 65, 151))])
def test_sizes_around_every_border_by_triton(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_sizes("triton", size, monkeypatch)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", ["lucene", "robertson"])
def test_scores_beyond_int32(name: str, method: str) -> None:
    documents = [["a1", "b2"], ["a1"], ["b2"], [], ["c3", "a1"], ["c3"], ["d4"], ["e5"]] * 12
    batch = [["c3"] * 9000 + ["a1"], ["a1"], ["c3"] * 3000 + ["b2"] * 3000]
    plain = oracle(documents, method=method)
    engine = serve(build(documents, method=method), name)
    for k in (4,) if interpreted(engine) else (4, 2000):
        expected = [plain.search(q, k) for q in batch]
        assert max(score for row in expected for _, score in row) >= 1 << 31
        assert answer(engine.search([fr.Query(terms=tuple(q)) for q in batch], k)) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_a_contribution_of_0_is_a_match(name: str) -> None:
    """By Robertson's idf a term of half the records has a weight of 0, and a more frequent one a negative weight."""
    documents = [["a1", "b2"], ["b2"], ["a1", "c3"], ["d4"], ["b2", "b2"], ["a1"]] * 20
    plain = oracle(documents, method="robertson")
    engine = serve(build(documents, method="robertson"), name)
    batch = [["a1"], ["a1", "a1", "c3"], ["b2", "a1"], ["a1"] * 30_000]
    expected = [plain.search(q, 70) for q in batch]
    assert [score for _, score in expected[0]] == [0] * 60
    assert answer(engine.search([fr.Query(terms=tuple(q)) for q in batch], 70)) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_contributions_beyond_int32_and_large_frequencies(name: str) -> None:
    documents = [["a1"] * 5000, ["a1", "b2"], ["b2"] * 9, [], ["c3"] * 100, *[["d4"]] * 80, ["c3", "b2"], ["a1"] * 4096]
    batch = [["a1"], ["b2", "a1"], ["c3"] * 400]
    for options in ({}, {"k1": 1000.0, "b": 0.0}):
        expected = [oracle(documents, **options).search(q, 4) for q in batch]
        engine = serve(build(documents, **options), name)
        assert answer(engine.search([fr.Query(terms=tuple(q)) for q in batch], 4)) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_fields(name: str) -> None:
    texts = [(["a1", "b2"], ["c3"]), ([], ["a1"]), (["a1"] * 3, []), ([], []), (["b2"], ["b2", "b2"])] * 20
    made = [fr.Record(str(n), " ".join(t), fields={"predicate": " ".join(p)}) for n, (t, p) in enumerate(texts)]
    batch = [["a1"], ["b2", "c3"], ["d4"]]
    for method in ("lucene", "robertson"):
        engine = fr.Engine.from_records(
            made, analyzer="minimal", method=method, fields={"text": 1.0, "predicate": 4.0}, backend="numpy"
        )
        expected = answer(engine.search(batch, 7))
        assert answer(serve(engine, name).search(batch, 7)) == expected


@pytest.mark.parametrize("name", FAST)
def test_timing_is_there_when_asked_for(name: str) -> None:
    engine = serve(build([["a1"], ["b2"]] * 50), name)
    assert engine.search([["a1"]]).timing is None
    found = engine.search([["a1"]], timing=True, execution="exhaustive").timing
    assert found is not None
    own = ["upload", "derive", "plan", "describe", "order", "score", "select", "download"]
    assert [phase for phase in found if phase in own] == ["plan", *(phase for phase in own if phase != "plan")]
    assert all(milliseconds >= 0 for milliseconds in found.values())
    on_the_cpu = engine.to("cpu").search([["a1"]], timing=True).timing
    assert on_the_cpu is not None
    assert {"analyse", "plan", "score and select"} <= set(on_the_cpu) <= {*found, "score and select"}


@pytest.mark.parametrize("name", FAST)
def test_queries_of_thousands_of_terms(name: str) -> None:
    rng = random.Random(9)
    words = [f"w{number}" for number in range(6000)]
    documents = [rng.sample(words, rng.randrange(120)) for _ in range(150)]
    batch = [words[:5000], words, ["w1"]]
    plain = oracle(documents)
    engine = serve(build(documents), name)
    assert answer(engine.search(batch, 20)) == [plain.search(q, 20) for q in batch]


@pytest.mark.parametrize("name", FAST)
def test_a_hundred_thousand_queries(name: str) -> None:
    # The CUDA kernels on the CPU take half a millisecond a query.
    count = 100_000 if torch.cuda.is_available() else 2_000
    words = [f"w{number}" for number in range(400)]
    rng = random.Random(10)
    documents = [rng.choices(words, k=5) for _ in range(100)]
    batch = [[words[n % 400], words[n // 400], words[n % 7]] for n in range(count)]
    engine = build(documents)
    serve_numpy(engine)
    assert len(batch) == len({tuple(q) for q in batch})
    plain = engine.search(batch, 3)
    assert_same_bits(serve(engine, name).search(batch, 3), plain)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.extended)])
def test_time_filters_and_deletes_give_the_same_bits(name: str, seed: int) -> None:
    engine, asked = remembered(seed, 160)
    plain = engine.search(asked, 5)
    assert plain.counts.any()
    some = asked if "triton" not in name or torch.cuda.is_available() else asked[:6]
    for batch in (some, [q for q in some if q.half_life is None], some[:1]):
        serve_numpy(engine)
        plain = engine.search(batch, 5)
        assert_same_bits(serve(engine, name).search(batch, 5), plain)


@pytest.mark.parametrize("name", FAST)
def test_what_records_borrow_is_the_same_on_devices(name: str) -> None:
    rng = random.Random(5)
    engine, asked = remembered(2, 180)
    near = [fr.Neighbours(1, 0.2), fr.Neighbours(3, [0.5, 0.25, 1 / 64]), fr.Neighbours(0), None]
    asked = [replace(query, neighbours=rng.choice(near)) for query in asked]
    expected = serve_numpy(engine).search(asked, 7)
    assert_same_bits(serve(engine, name).search(asked, 7), expected)
