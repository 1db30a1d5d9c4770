"""The device path, end to end, over every kernel family that can run here: one answer, residency, memory, tensors."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support import borders  # noqa: E402
from support.answers import TERMS, answer, build, document, oracle, parameters, queries, records, remembered  # noqa: E402

import fanrank as fr  # noqa: E402
from fanrank.engine.backends import choose as backend  # noqa: E402
from fanrank.kernels import (  # noqa: E402
    device,
)
from fanrank.kernels import search as device_search  # noqa: E402

ON_A_GPU = [pytest.param(name, marks=pytest.mark.gpu, id=f"{name}-gpu") for name in backend.DEVICES]
FAST = ["cuda-host", *ON_A_GPU]
FAMILIES = ["cuda-host", pytest.param("triton", id="triton-interpreter"), *ON_A_GPU]


def repeated(rows: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Lists of rows, two thirds of them repeated until they fill more than one segment: drawn lists are short."""
    return st.builds(
        lambda held, size: held * max(1, size // max(1, len(held))),
        st.lists(rows, max_size=150),
        st.sampled_from([0, 100, 170]),
    )


corpus = repeated(document)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of two full tiles and a part, and fan-outs that leave their padded shapes."""
    borders.shrink(monkeypatch, MAX_SEGMENT_DOCUMENTS=75, INLINE_DOCUMENTS=75, BUILD_CHUNK=75)
    borders.shrink(monkeypatch, {"fanout.QUERIES": (2, 4)}, TERMS=(4, 16), WIDTHS=(4, 64))


_chosen: dict[str, backend.Backend] = {}


def serve(engine: fr.Engine, name: str) -> fr.Engine:
    """The engine on a fresh device search of the family, in tiles of 32 documents."""
    for snapshot in engine.index.memory.snapshots.values():
        assert len(snapshot.segments) >= -(-snapshot.size // borders.value("MAX_SEGMENT_DOCUMENTS"))
    if name not in _chosen:
        status = next(status for status in backend.statuses() if status.name == name)
        if not status.usable:
            pytest.skip(status.reason)
        _chosen[name] = backend.choose(name)
        chosen = _chosen[name].device
        assert chosen is not None
        chosen.verbs.tile_bits = lambda wide: 5  # type: ignore[method-assign]
    known = _chosen[name].device
    assert known is not None
    fresh = device_search.DeviceSearch(known.verbs, known.residency.device)
    engine.backend = backend.Backend(name, "a test", fresh, fresh)
    return engine


def paths(
    engine: fr.Engine, batch: list[fr.Query], k: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, list[list[tuple[int, int]]]]]:
    yield "auto", answer(engine.search(batch, k))
    yield "exhaustive", answer(engine.search(batch, k, execution="exhaustive"))
    if interpreted(engine):
        return
    yield "auto again", answer(engine.search(batch, k))
    with monkeypatch.context() as patch:
        borders.shrink(patch, {"search.MAX_CANDIDATES": 40})
        yield "small launches", answer(engine.search(batch, k, execution="exhaustive"))
    yield "other neighbours", answer(engine.search(batch[::-1], k))[::-1]


def interpreted(engine: fr.Engine) -> bool:
    """Whether Triton's interpreter serves: its programs take about 20 ms each, so tests ask it for less."""
    return engine.backend.name == "triton" and device_of(engine).residency.device.type == "cpu"


def device_of(engine: fr.Engine) -> device_search.DeviceSearch:
    assert engine.backend.device is not None
    return engine.backend.device


@pytest.mark.parametrize("name", FAMILIES)
def test_every_road_equals_the_oracle(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = name == "triton" and not torch.cuda.is_available()
    segments: set[int] = set()

    @settings(max_examples=10 if few else 60, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
    @given(corpus, queries, st.integers(0, 160), parameters())
    def check(documents: list[list[str]], batch: list[list[str]], k: int, options: dict[str, object]) -> None:
        expected = [oracle(documents, **options).search(q, k) for q in batch]
        engine = serve(build(documents, **options), name)
        segments.add(len(engine.index.memory.snapshot("").segments))
        asked = [fr.Query(terms=tuple(q)) for q in batch]
        for path, got in paths(engine, asked, k, monkeypatch):
            assert got == expected, path

    check()
    assert few or max(segments) > 1


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    documents=repeated(st.tuples(document, st.sampled_from("st"), st.sampled_from("xy"))),
    batch=st.lists(st.tuples(st.lists(st.sampled_from(TERMS), max_size=5), st.sampled_from("xyz")), max_size=8),
    k=st.integers(1, 40),
)
def test_filters_and_namespaces_in_one_batch(
    name: str,
    documents: list[tuple[list[str], str, str]],
    batch: list[tuple[list[str], str]],
    k: int,
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
    engine.backend = backend.choose("numpy")
    expected = answer(engine.search(asked, k), dense=False)
    assert answer(serve(engine, name).search(asked, k), dense=False) == expected


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 65, 151])
def test_sizes_around_every_border(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(size)
    documents = [rng.choices(TERMS, weights=[64, 32, 16, 8, 4, 2, 1], k=rng.randrange(5)) for _ in range(size)]
    batch = [["a1"], ["g7", "a1"], TERMS, ["f6", "f6", "b2"], ["c3"] * 300]
    engine = serve(build(documents), name)
    for k in (33,) if interpreted(engine) else (1, 10, 31, 32, 33, 1023, 1024, 1025):
        expected = [oracle(documents).search(q, k) for q in batch]
        for path, got in paths(engine, [fr.Query(terms=tuple(q)) for q in batch], k, monkeypatch):
            assert got == expected, (k, path)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", ["lucene", "robertson"])
def test_scores_beyond_int32(name: str, method: str) -> None:
    documents = [["a1", "b2"], ["a1"], ["b2"], [], ["c3", "a1"], ["c3"], ["d4"], ["e5"]] * 5
    batch = [["c3"] * 9000 + ["a1"], ["a1"], ["c3"] * 3000 + ["b2"] * 3000]
    plain = oracle(documents, method=method)
    engine = serve(build(documents, method=method), name)
    for k in (4, 2000):
        expected = [plain.search(q, k) for q in batch]
        assert max(score for row in expected for _, score in row) >= 1 << 31
        assert answer(engine.search([fr.Query(terms=tuple(q)) for q in batch], k)) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_contributions_beyond_int32_and_large_frequencies(name: str) -> None:
    documents = [["a1"] * 5000, ["a1", "b2"], ["b2"] * 9, [], ["c3"] * 100]
    batch = [["a1"], ["b2", "a1"], ["c3"] * 400]
    for options in ({}, {"k1": 1000.0, "b": 0.0}):
        expected = [oracle(documents, **options).search(q, 4) for q in batch]
        engine = serve(build(documents, **options), name)
        assert answer(engine.search([fr.Query(terms=tuple(q)) for q in batch], 4)) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_fields(name: str) -> None:
    texts = [(["a1", "b2"], ["c3"]), ([], ["a1"]), (["a1"] * 3, []), ([], []), (["b2"], ["b2", "b2"])] * 9
    made = [fr.Record(str(n), " ".join(t), fields={"predicate": " ".join(p)}) for n, (t, p) in enumerate(texts)]
    batch = [["a1"], ["b2", "c3"], ["d4"]]
    for method in ("lucene", "bm25l", "robertson"):
        engine = fr.Engine.from_records(
            made, analyzer="minimal", method=method, fields={"text": 1.0, "predicate": 4.0}, backend="numpy"
        )
        expected = answer(engine.search(batch, 7))
        assert answer(serve(engine, name).search(batch, 7)) == expected


@pytest.mark.parametrize("name", FAST)
def test_grown_while_searched(name: str) -> None:
    rng = random.Random(2)
    documents = [rng.choices(TERMS, k=rng.randrange(6)) for _ in range(200)]
    batch = [rng.choices(TERMS, k=3) for _ in range(3)]
    engine = serve(build([]), name)
    for start in range(0, 200, 13):
        engine.add(records(documents[start : start + 13], start))
        expected = [oracle(documents[: start + 13]).search(q, 7) for q in batch]
        for _ in range(3):
            assert answer(engine.search(batch, 7)) == expected


@pytest.mark.parametrize("name", FAST)
def test_an_older_epoch_is_derived_again(name: str) -> None:
    engine = serve(build([["a1"], ["a1", "b2"], ["b2", "c3"]] * 20), name)
    old = dict(engine.index.memory.snapshots)
    before = answer(engine.search([["a1", "c3"]], 9))
    engine.add(records([["a1"]] * 30, 100))
    after = answer(engine.search([["a1", "c3"]], 9))
    assert after != before
    new, engine.index.memory.snapshots = engine.index.memory.snapshots, old
    assert answer(engine.search([["a1", "c3"]], 9)) == before
    engine.index.memory.snapshots = new
    assert answer(engine.search([["a1", "c3"]], 9)) == after


@pytest.mark.parametrize("name", FAST)
def test_segments_are_uploaded_once_and_let_go(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(device.Resident):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self.size)

    monkeypatch.setattr(device, "Resident", Counted)
    engine = serve(build([["a1", "b2"]] * 70), name)
    assert engine.stats()["device_bytes"] == 0
    engine.search([["a1"]])
    engine.search([["a1"], ["b2"]])
    assert made == [70]
    # 8 bytes for each of 140 postings, 4 and 8 for each of 2 terms (and one offset more), 4 for each of 70 documents.
    assert engine.stats()["device_bytes"] == 8 * 140 + 4 * 2 + 8 * 3 + 4 * 70
    engine.add(records([["a1"]] * 10, 70))
    engine.search([["a1"]])
    assert made == [70, 10]
    engine.add(records([["a1"]] * 9, 80))  # merges with the 10
    engine.search([["a1"]])
    assert made == [70, 10, 19]
    assert sorted(segment.size for segment in device_of(engine).residency._held) == [19, 70]
    assert [len(held) for held in device_of(engine).residency._held.values()] == [1, 1]
    engine.to("cpu")
    assert engine.stats()["device_bytes"] == 0


@pytest.mark.parametrize("name", FAST)
def test_bounded_memory(name: str) -> None:
    rng = random.Random(4)
    documents = [rng.choices(TERMS, k=4) for _ in range(170)]
    batch = [rng.choices(TERMS, k=3) for _ in range(40)]
    expected = [oracle(documents).search(q, 50) for q in batch]
    engine = serve(build(documents), name)
    assert answer(engine.search(batch, 50)) == expected
    held = engine.stats()["device_bytes"]

    def limited(extra: int) -> fr.Engine:
        known = device_of(engine)
        fresh = device_search.DeviceSearch(known.verbs, known.residency.device, held + extra)
        engine.backend = backend.Backend(name, "a test", fresh, fresh)
        return engine

    # Room for the segments and the candidates of a few queries: seven tiles of 32 places each, 12 bytes a place.
    assert answer(limited(12 * 7 * 32 * 4).search(batch, 50)) == expected
    with pytest.raises(fr.errors.DeviceMemoryError, match=r"ask in smaller batches"):
        limited(100).search(batch, 50)
    last = device.Resident.bytes_of(engine.index.memory.snapshot("").segments[-1], False)
    with pytest.raises(
        fr.errors.DeviceMemoryError,
        match=rf"{last:,} bytes are needed on .*, where {last - 1:,} are free and {held - last:,} are held",
    ):
        limited(-1).search(batch, 50)
    assert answer(limited(1 << 20).search(batch, 50)) == expected
    # A small batch whose padded shape has no room is answered unpadded.
    assert answer(limited(2000).search(batch[:1], 5)) == [expected[0][:5]]


@pytest.mark.parametrize("name", FAST)
def test_out_of_memory_is_answered_by_smaller_launches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(6)
    documents = [rng.choices(TERMS, k=4) for _ in range(170)]
    batch = [rng.choices(TERMS, k=3) for _ in range(40)]
    expected = [oracle(documents).search(q, 5) for q in batch]
    engine = serve(build(documents), name)
    sizes = []
    real = device_search.make_launch

    def scarce(limit: int) -> Callable[..., Any]:
        def make(shares: Any, *rest: Any) -> Any:
            sizes.append(sum(len(share.queries) for share in shares))
            if sizes[-1] > limit:
                raise torch.OutOfMemoryError("planted")
            return real(shares, *rest)

        return make

    distinct = len({tuple(q) for q in batch})
    monkeypatch.setattr(device_search, "make_launch", scarce(7))
    assert answer(engine.search(batch, 5)) == expected
    assert sizes[0] == distinct
    assert sum(size for size in sizes if size <= 7) == distinct
    monkeypatch.setattr(device_search, "make_launch", scarce(0))
    with pytest.raises(fr.errors.DeviceMemoryError, match=r"no room for a single query beside .* serve from the CPU"):
        engine.search(batch, 5)


@pytest.mark.parametrize("deduplicated", [2, 1024])
@pytest.mark.parametrize("name", FAMILIES)
def test_tensors_in_tensors_out(name: str, deduplicated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, DEDUPLICATED=deduplicated)
    rng = random.Random(8)
    for method in ("lucene", "robertson"):
        documents = [rng.choices(TERMS, k=rng.randrange(6)) for _ in range(100)]
        engine = build(documents, method=method)
        batch = [["a1"], [], ["g7", "a1", "unknown"], TERMS, ["c3"] * 5]
        plain = engine.search(batch, 12)
        serve(engine, name)
        where = device_of(engine).residency.device
        terms, offsets = (torch.tensor(array, device=where) for array in engine.encode(batch))
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
    engine = serve(build([["a1"], ["b2"]]), name)
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
def test_timing_is_there_when_asked_for(name: str) -> None:
    engine = serve(build([["a1"], ["b2"]] * 20), name)
    assert engine.search([["a1"]]).timing is None
    found = engine.search([["a1"]], timing=True, execution="exhaustive").timing
    assert found is not None
    device = ["upload", "derive", "cut", "score", "select", "download"]
    assert [phase for phase in found if phase in ("analyse", "plan", *device)] == ["analyse", "plan", *device]
    assert all(milliseconds >= 0 for milliseconds in found.values())
    on_the_cpu = engine.to("cpu").search([["a1"]], timing=True).timing
    assert on_the_cpu is not None
    assert {"analyse", "plan", "score and select"} <= set(on_the_cpu) <= {*found, "score and select"}


@pytest.mark.parametrize("name", FAST)
def test_repeated_runs_are_identical(name: str) -> None:
    rng = random.Random(3)
    engine = serve(build([rng.choices(TERMS, k=4) for _ in range(150)]), name)
    batch = [rng.choices(TERMS, k=3) for _ in range(30)]
    first = engine.search(batch, 10)
    for _ in range(50 if torch.cuda.is_available() else 5):
        again = engine.search(batch, 10)
        assert first.scores.tobytes() == again.scores.tobytes()
        assert first.documents.tobytes() == again.documents.tobytes()


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
    count = 100_000 if torch.cuda.is_available() else 10_000
    words = [f"w{number}" for number in range(400)]
    rng = random.Random(10)
    documents = [rng.choices(words, k=5) for _ in range(60)]
    batch = [[words[n % 400], words[n // 400], words[n % 7]] for n in range(count)]
    engine = build(documents)
    engine.backend = backend.choose("numpy")
    assert len(batch) == len({tuple(q) for q in batch})
    plain = engine.search(batch, 3)
    hits = serve(engine, name).search(batch, 3)
    assert hits.documents.tobytes() == plain.documents.tobytes()
    assert hits.scores.tobytes() == plain.scores.tobytes()
    assert hits.counts.tobytes() == plain.counts.tobytes()


@pytest.mark.parametrize("name", FAST)
def test_a_failed_launch_holds_nothing_while_its_halves_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(11)
    documents = [rng.choices(TERMS, k=4) for _ in range(170)]
    batch = [[a, b] for a in TERMS for b in TERMS if a < b]
    expected = [oracle(documents).search(q, 5) for q in batch]
    engine = serve(build(documents), name)
    launches: list[weakref.ref[Any]] = []
    real = device_search.run

    def failing(verbs: Any, work: Any, *rest: Any) -> None:
        assert [ref() for ref in launches] == [None] * len(launches)
        launches.append(weakref.ref(work))
        if len(launches) in (1, 2):
            raise torch.OutOfMemoryError("planted")
        real(verbs, work, *rest)

    monkeypatch.setattr(device_search, "run", failing)
    assert answer(engine.search(batch, 5, execution="exhaustive")) == expected
    assert len(launches) == 5  # all, a half, its two halves, the other half


@pytest.mark.parametrize("name", FAST)
def test_epochs_on_both_sides_of_int64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment keeps the contributions of both widths apart, so that no table points at what was let go."""
    borders.shrink(monkeypatch, MAX_SEGMENT_DOCUMENTS=1 << 20, INLINE_DOCUMENTS=1 << 20, BUILD_CHUNK=1 << 20)
    options = {"k1": 1000.0, "b": 0.0}
    engine = serve(build([["a1"], ["b2"], ["c3", "c3"]] * 560, **options), name)
    old = dict(engine.index.memory.snapshots)
    ask = lambda: answer(engine.search([["a1", "c3"], ["b2"]], 5))  # noqa: E731
    narrow = ask()
    engine.add(records([["d4"]] * 200, 1680))  # ln(2 N + 2) 1001 2**18 passes 2**31 at 1,791
    assert engine.index.memory.snapshots[""].long
    assert not old[""].long
    wide = ask()
    new, engine.index.memory.snapshots = engine.index.memory.snapshots, old
    assert [ask(), ask()] == [narrow, narrow]
    engine.index.memory.snapshots = new
    assert [ask(), ask()] == [wide, wide]
    engine.backend = backend.choose("numpy")
    assert ask() == wide


@pytest.mark.parametrize("name", FAST)
def test_encoded_batches_follow_query_tf(name: str) -> None:
    documents = [["a1", "b2"], ["a1"], ["b2", "b2"]] * 9
    batch = [["a1", "a1", "b2"], ["b2", "b2"]]
    for query_tf in ("count", "unique"):
        engine = serve(build(documents, query_tf=query_tf), name)
        where = device_of(engine).residency.device
        terms, offsets = (torch.tensor(array, device=where) for array in engine.encode(batch))
        found = engine.search_tensors(terms, offsets, k=5)
        plain = engine.search(batch, 5)
        assert found.scores.cpu().numpy().tobytes() == plain.scores.tobytes()
        assert found.documents.cpu().numpy().tobytes() == plain.documents.tobytes()
    with pytest.raises(fr.errors.QueryError, match="encode takes a batch"):
        engine.encode("tea")


@pytest.mark.parametrize("name", FAST)
def test_weights_beyond_int32_sums_and_beyond_their_limits(name: str) -> None:
    engine = serve(build([["a1"], ["b2"], ["a1", "b2"]] * 20), name)
    where = device_of(engine).residency.device
    terms, offsets = (torch.tensor(array, device=where) for array in engine.encode([["a1", "b2"], ["b2"]]))
    plain = engine.search_tensors(terms, offsets, k=60)
    for weight, taken in ((5000, 5000), (1 << 20, 1 << 20), (1 << 40, 1 << 20), (0, 1), (-3, 1)):
        hits = engine.search_tensors(terms, offsets, torch.full_like(terms, weight), k=60)
        assert (hits.scores == taken * plain.scores).all()
        assert (hits.documents == plain.documents).all()
    # Repeats alone leave int32 too.
    many = [["a1"] * 30_000, ["b2"]]
    terms, offsets = (torch.tensor(array, device=where) for array in engine.encode(many))
    found, expected = engine.search_tensors(terms, offsets, k=5), engine.search(many, 5)
    assert expected.scores.max() > 8192
    assert found.scores.cpu().numpy().tobytes() == expected.scores.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("name", backend.DEVICES)
def test_tensor_batches_in_a_graph(name: str) -> None:
    rng = random.Random(12)
    engine = serve(build([rng.choices(TERMS, k=4) for _ in range(150)]), name)
    batches = [[rng.choices(TERMS, k=3) for _ in range(8)] for _ in range(20)]
    terms, offsets = (torch.tensor(array, device="cuda") for array in engine.encode(batches[0]))
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


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", range(4))
def test_time_filters_and_deletes_give_the_same_bits(name: str, seed: int) -> None:
    engine, asked = remembered(seed, 160)
    plain = engine.search(asked, 5)
    assert plain.counts.any()
    some = asked if "triton" not in name or torch.cuda.is_available() else asked[:6]
    for batch in (some, [q for q in some if q.half_life is None], some[:1]):
        engine.backend = backend.choose("numpy")
        plain = engine.search(batch, 5)
        hits = serve(engine, name).search(batch, 5)
        assert hits.documents.tobytes() == plain.documents.tobytes()
        assert hits.scores.tobytes() == plain.scores.tobytes()
        assert hits.counts.tobytes() == plain.counts.tobytes()


@pytest.mark.parametrize("name", FAST)
def test_tensors_and_fan_outs_pass_over_the_dead(name: str) -> None:
    engine, _ = remembered(1, 160)
    terms, offsets = engine.encode([["a1", "b2"], ["c3"]])
    plain = engine.search([["a1", "b2"], ["c3"]], 200)
    hits = serve(engine, name).search([["a1", "b2"], ["c3"]], 200)
    assert hits.documents.tobytes() == plain.documents.tobytes()
    assert hits.scores.tobytes() == plain.scores.tobytes()
    where = engine.backend.device.residency.device  # type: ignore[union-attr]
    found = engine.search_tensors(torch.tensor(terms, device=where), torch.tensor(offsets, device=where), k=200)
    assert found.counts.tolist() == plain.counts.tolist()
    assert found.documents.cpu().numpy()[:, : plain.documents.shape[1]].tobytes() == plain.documents.tobytes()


@pytest.mark.parametrize("name", FAST)
def test_times_are_counted_against_the_devices_room(name: str) -> None:
    engine, _ = remembered(1, 160)
    query = [fr.Query("a1", now=6e6, half_life=1e5)]
    serve(engine, name).search(["a1"])
    residency = engine.backend.device.residency  # type: ignore[union-attr]
    before = residency.bytes
    engine.search(query)
    assert residency.bytes > before
    engine = serve(engine, name)
    engine.search(["a1"], execution="exhaustive")
    residency = engine.backend.device.residency  # type: ignore[union-attr]
    residency.limit = residency.bytes + 8
    with pytest.raises(fr.errors.DeviceMemoryError):
        engine.search(query)
