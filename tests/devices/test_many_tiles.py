"""Segments of more than 32 tiles, and more hits than the kernels select: what a small corpus never reaches."""

import random
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support import borders
from support.answers import TERMS, answer, build, delete, oracle
from support.device_cases import (
    FAMILIES,
    FAST,
    ON_A_GPU,
    Launches,
    assert_same_bits,
    interpreted,
    paths,
    serve,
    serve_numpy,
    tensor_answer,
    tensors_of,
)

import fanrank as fr
from fanrank.kernels import launch, sort
from fanrank.kernels.work import MAX_SELECTED

DAY = 86_400.0


def segments_of(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Segments of so many documents."""
    borders.shrink(monkeypatch, MAX_SEGMENT_DOCUMENTS=size, INLINE_DOCUMENTS=size, BUILD_CHUNK=size)


def long_and_short_lists(size: int, seed: int) -> list[list[str]]:
    """Documents in which "all" and "half" have long lists, the others short ones with gaps of whole tiles.

    "edges" is in the first and last document of every fourth tile, "last" in the last document of the corpus alone.
    """
    rng = random.Random(seed)
    documents = []
    for number in range(size):
        terms = ["all"] * rng.choice([1, 1, 1, 2])
        terms += ["half"] * (rng.random() < 0.5)
        terms += ["edges"] * (number % 128 in (0, 31))
        terms += [rng.choice(TERMS)] * (number % 97 == 0)
        terms += ["last"] * (number == size - 1)
        documents.append(terms)
    return documents


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "size", [1025, 2048, *(pytest.param(size, marks=pytest.mark.extended) for size in (1023, 1024, 2047, 2049))]
)
def test_around_32_and_64_tiles(name: str, size: int, monkeypatch: pytest.MonkeyPatch, launched: Launches) -> None:
    if name == "triton" and not torch.cuda.is_available() and size != 1025:
        pytest.skip("the interpreter takes 20 ms a tile")
    segments_of(monkeypatch, size)
    # "all" and "half" have tables, the other lists are streamed; 1,000 hits of "half" lie in nearly every tile.
    borders.shrink(monkeypatch, TABLED_POSTINGS=8)
    documents = long_and_short_lists(size + 40, size)
    plain = oracle(documents)
    engine = serve(build(documents), name)
    batch = [["last"], ["edges", "a1"], ["all", "half"], ["half"], ["half", "last", "c3"], ["g7", "f6", "unknown"]]
    if interpreted(engine):
        batch = [["last", "half", "edges"]]
    for k in (7,) if interpreted(engine) else (10, 1000):
        expected = [plain.search(q, k) for q in batch]
        for path, got in paths(engine, [fr.Query(terms=tuple(q)) for q in batch], k, monkeypatch):
            assert got == expected, (k, path)
        if not interpreted(engine):
            terms, offsets = tensors_of(engine, batch)
            assert tensor_answer(engine.search_tensors(terms, offsets, k=k)) == expected
            assert tensor_answer(engine.search_tensors(terms, offsets, torch.ones_like(terms), k=k)) == expected
    if launched.made:
        assert launched.most("tiles") == -(-size // 32)


def timed(count: int, seed: int) -> fr.Engine:
    """Records in order of their times, with ties of text and of time; every seventh is deleted again."""
    rng = random.Random(seed)
    engine = fr.Engine(analyzer="minimal", backend="numpy")
    for start in range(0, count, 1200):
        engine.add(
            fr.Record(
                f"r{n}",
                " ".join(["a1"] * (1 + n % 2) + rng.choices(TERMS, k=n % 3)),
                time=n // 40 * DAY,
                session=f"s{n % 3}",
            )
            for n in range(start, min(start + 1200, count))
        )
    delete(engine, [("", f"r{n}") for n in range(0, count, 7)])
    return engine


@pytest.mark.parametrize("name", FAST)
def test_filters_times_and_decay_over_many_tiles(
    name: str, monkeypatch: pytest.MonkeyPatch, launched: Launches
) -> None:
    segments_of(monkeypatch, 1500)
    engine = timed(2700, 1)
    now = 67 * DAY
    batch = [
        fr.Query("a1 b2", now=now, half_life=20 * DAY),
        fr.Query("a1", k=1500, now=now, half_life=0.5 * DAY),
        fr.Query("c3 d4", since=20 * DAY, until=50 * DAY),
        fr.Query("a1 c3", filter={"session": "s1"}, k=90),
        fr.Query("a1 e5", filter={"session": "s2"}, since=1 * DAY, now=now, half_life=DAY),
        fr.Query("b2 g7"),
    ]
    expected = engine.search(batch, 40)
    assert expected.counts.all()
    serve(engine, name)
    for _ in range(2):
        assert_same_bits(engine.search(batch, 40), expected)
    if launched.made:
        assert launched.most("tiles") > 32


SUMS = ("narrow", "wide", "decayed")


@pytest.mark.parametrize(
    ("name", "sums"),
    [
        *(pytest.param("cuda-host", sums, id=f"cuda-host-{sums}") for sums in SUMS),
        pytest.param("triton", "narrow", id="triton-interpreter-narrow"),
        *(pytest.param("triton", s, id=f"triton-interpreter-{s}", marks=pytest.mark.extended) for s in SUMS[1:]),
        *(pytest.param(*one.values, s, id=f"{one.id}-{s}", marks=one.marks) for one in ON_A_GPU for s in SUMS),
    ],
)
def test_an_earlier_tile_that_only_equals_the_last_hit(name: str, sums: str) -> None:
    """Its bound is the threshold that a better tile has left, and its document comes before that one's.

    A tile leaves a threshold where it holds as many matches as hits are wanted. That of 32 to 63 does for 1, 3 and 4.
    """
    documents = [["x"]] * 160
    documents[40] = documents[41] = ["a1", "a1"]
    for tied in (5, 42, 43, 80, 115, 116):
        documents[tied] = ["a1"]
    engine = fr.Engine(analyzer="minimal", backend="numpy", b=0.0)
    engine.add(fr.Record(f"r{n}", " ".join(terms), time=DAY) for n, terms in enumerate(documents))
    for k in (1, 3, 4, 7):
        repeats = 30_000 if sums == "wide" else 1
        # All that have x are equal, so that only some of a tile's are hits.
        batch = [fr.Query(terms=(term,) * repeats, k=k) for term in ("a1", "x")]
        if sums == "decayed":
            batch = [replace(query, now=2 * DAY, half_life=DAY) for query in batch]
        expected = serve_numpy(engine).search(batch)
        assert expected.documents[:, :k].tolist() == [[40, 41, 5, 42, 43, 80, 115, 116][:k], [0, 1, 2, 3, 4, 6, 7][:k]]
        assert_same_bits(serve(engine, name).search(batch), expected)


@pytest.mark.parametrize("name", FAST)
def test_tiles_of_more_documents_than_are_listed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4,096 documents, whose bitmaps are of 128 words."""
    segments_of(monkeypatch, 6000)
    engine = fr.Engine(analyzer="minimal", backend="numpy")
    documents = long_and_short_lists(9500, 6)
    engine.add(
        fr.Record(f"r{n}", " ".join(terms), time=n // 500 * DAY, session="s1" if n % 1300 == 1299 else "s2")
        for n, terms in enumerate(documents)
    )
    batch = [
        fr.Query("all half"),
        # The best of a full tile lie in all of it, so what the list lacks is among them.
        fr.Query("all", k=1000),
        fr.Query("all", k=3000),
        fr.Query("half edges", filter={"session": "s1"}, k=9),
        fr.Query("all", filter={"session": "s1"}, since=7 * DAY, until=12 * DAY),
        fr.Query("all edges", now=19 * DAY, half_life=4 * DAY, k=700),
        fr.Query(terms=("half",) * 20_000 + ("all",) * 9_000, k=50),
    ]
    # A launch in which a query decays takes the kernels of decayed scores for all.
    for asked in (batch, [query for query in batch if query.half_life is None]):
        expected = serve_numpy(engine).search(asked, 20)
        assert expected.counts.all()
        assert_same_bits(serve(engine, name, tile_bits=12).search(asked, 20), expected)


@pytest.fixture
def sorted_whole(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts how often more hits were selected than the kernels take."""
    counted = Mock(wraps=launch.select_sorted, __name__="select_sorted")
    monkeypatch.setattr(launch, "select_sorted", counted)
    return counted


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("method", ["lucene", "robertson"])
def test_more_hits_than_the_kernels_select(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch, sorted_whole: Mock, launched: Launches
) -> None:
    """Nearly all scores tie, within a tile, between tiles and between segments."""
    segments_of(monkeypatch, 1100)
    documents = [["a1", "b2"] if n % 3 == 0 else ["a1"] if n % 3 == 1 else ["b2", "c3"] for n in range(2500)]
    plain = oracle(documents, method=method)
    engine = serve(build(documents, method=method), name)
    narrow = [["a1"], ["b2", "a1"], ["c3"], ["unknown"]]
    wide = [["c3"] * 60_000, ["b2"] * 30_000 + ["c3"] * 30_000]
    for batch in (narrow, wide, narrow[:1] + wide):
        for k in (1024, 1025, 1500, 2600):
            expected = [plain.search(q, k) for q in batch]
            assert len(expected[0]) > 800
            before = sorted_whole.call_count
            got = answer(engine.search([fr.Query(terms=tuple(q)) for q in batch], k, execution="exhaustive"))
            assert got == expected, k
            assert (sorted_whole.call_count > before) == (k > MAX_SELECTED)
    # One query in a batch of small ones.
    asked = [fr.Query(terms=("a1",), k=3), fr.Query(terms=("b2", "a1"), k=2000), fr.Query(terms=("c3",), k=0)]
    expected = [plain.search(["a1"], 3), plain.search(["b2", "a1"], 2000), []]
    assert answer(engine.search(asked)) == expected
    assert max(score for _, score in plain.search(wide[0], 1)) >= 1 << 31 or method == "robertson"
    if launched.made:
        assert launched.most("tiles") > 32
        assert launched.most("k") == 2500


@pytest.mark.parametrize("name", FAST)
def test_more_decayed_hits_than_the_kernels_select(
    name: str, monkeypatch: pytest.MonkeyPatch, sorted_whole: Mock
) -> None:
    """Records of one day with one text tie in their decayed scores; the smaller document comes first."""
    segments_of(monkeypatch, 1500)
    engine = timed(2600, 2)
    batch = [
        fr.Query("a1", now=66 * DAY, half_life=30 * DAY),
        fr.Query("a1 b2"),
        fr.Query("b2", half_life=DAY, now=0.0),
    ]
    for k in (1025, 1500, 2600):
        expected = serve_numpy(engine).search(batch, k)
        assert expected.counts[0] == min(k, 2228)
        assert_same_bits(serve(engine, name).search(batch, k), expected)
    assert sorted_whole.call_count >= 3


@pytest.mark.parametrize("name", FAST)
def test_ties_do_not_rest_on_how_torch_sorts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless asked for a stable sort, torch may order ties as it likes; on a CPU it happens to keep their order."""

    class Unkind:
        """Torch, whose sorts reverse ties wherever they may."""

        def __getattr__(self, attribute: str) -> Any:
            return getattr(torch, attribute)

        def sort(self, values: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
            if stable:
                return torch.sort(values, dim=dim, descending=descending, stable=True)
            found = torch.sort(values.flip(dim), dim=dim, descending=descending, stable=True)
            class_of = type(found)
            return class_of((found.values, values.shape[dim] - 1 - found.indices))

    monkeypatch.setattr(sort, "torch", Unkind())
    segments_of(monkeypatch, 1500)
    engine = timed(2600, 3)
    batch = [fr.Query("a1", now=66 * DAY, half_life=30 * DAY), fr.Query("a1 b2")]
    expected = engine.search(batch, 2000)
    assert_same_bits(serve(engine, name).search(batch, 2000), expected)
