"""Postings in C++ and in numpy are the very same arrays; segments hold their counts, and derive contributions once."""

import itertools
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders
from support.segments import build

import fanrank as fr
from fanrank.engine.index.postings import Part, Postings, join_postings, sort_tokens
from fanrank.engine.index.segment import merge_segments
from fanrank.engine.settings import ENVIRONMENT_VARIABLE
from fanrank.engine.storage.writes import chunks_of
from fanrank.engine.text.vocabulary import TermIndexer
from fanrank.native import compiled

needs_loops = pytest.mark.skipif(compiled is None, reason="the extension was not built")
BACKENDS = ["numpy"] if compiled is None else ["compiled", "numpy"]

Tokens = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]

documents_of_terms = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=12)


TYPES = ["int32", "int64", "int32", "uint16", "int32", "int32", "int32"]


def tokens_of(documents: list[list[int]]) -> Tokens:
    terms = np.array(list(itertools.chain.from_iterable(documents)), dtype=np.int32)
    return terms, np.repeat(np.arange(len(documents), dtype=np.int32), [len(own) for own in documents])


def plain(fields: list[list[list[int]]]) -> dict[str, list[object]]:
    """The arrays by the docstring of engine/index/segment.py, one posting after another."""
    found = []
    for term in sorted({term for documents in fields for own in documents for term in own}):
        for number in range(len(fields[0])):
            frequencies = [documents[number].count(term) for documents in fields]
            if any(frequencies):
                found.append((term, number, (*frequencies, *(len(documents[number]) for documents in fields))))
    impact_classes = sorted({numbers for _, _, numbers in found})
    terms = sorted({term for term, *_ in found})
    count = len(fields)
    return {
        "terms": terms,
        "offsets": [sum(own[0] < term for own in found) for term in terms] + [len(found)],
        "documents": [number for _, number, _ in found],
        "impact_classes": [impact_classes.index(numbers) for *_, numbers in found],
        "class_frequencies": [[numbers[field] for numbers in impact_classes] for field in range(count)],
        "class_lengths": [[numbers[count + field] for numbers in impact_classes] for field in range(count)],
        "lengths": [[len(own) for own in documents] for documents in fields],
    }


def assert_same(one: Postings, other: Postings) -> None:
    for (name, mine), theirs in zip(vars(one).items(), vars(other).values(), strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), name
        np.testing.assert_array_equal(mine, theirs, name)


def take(patch: pytest.MonkeyPatch, backend: str) -> None:
    if backend == "numpy":
        patch.setenv(ENVIRONMENT_VARIABLE, "numpy")
    else:
        patch.delenv(ENVIRONMENT_VARIABLE, raising=False)


@pytest.fixture(params=BACKENDS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    take(monkeypatch, request.param)
    return str(request.param)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(documents_of_terms, min_size=1, max_size=3),
    st.lists(st.integers(0, 12), max_size=4),
    st.sampled_from([1, 3, 1 << 20]),
    st.sampled_from([1, 40, 1 << 24]),
    # Terms as they are, far apart, and on both sides of the border from which a table would be too large.
    st.sampled_from([1, 7, 1 << 24]),
)
def test_every_road_is_the_definition(
    fields: list[list[list[int]]], cuts: list[int], block: int, flags: int, stretch: int
) -> None:
    size = min(map(len, fields))
    fields = [[[term * stretch for term in own] for own in documents[:size]] for documents in fields]
    expected = plain(fields)
    edges = sorted({0, size, *(min(cut, size) for cut in cuts)})
    for backend in BACKENDS:
        with pytest.MonkeyPatch.context() as patch:
            take(patch, backend)
            borders.shrink(patch, {"COMPILED_BLOCK": block, "MERGE_BLOCK": block, "postings.FLAGS": flags})
            whole = sort_tokens([tokens_of(documents) for documents in fields], size)
            assert {name: own.tolist() for name, own in vars(whole).items()} == expected
            assert [own.dtype.name for own in vars(whole).values()] == TYPES
            parts = [
                sort_tokens([tokens_of(documents[a:b]) for documents in fields], b - a)
                for a, b in itertools.pairwise(edges)
            ]
            assert_same(join_postings(parts), whole)
            assert_same(join_postings([Part.of(own) for own in parts]), whole)


def test_more_impact_classes_than_two_bytes_number(path: str) -> None:
    """Each document has 300 terms, the t-th of them t times, and a length of its own."""
    lengths = 300 * 301 // 2 + np.arange(220)
    terms = np.concatenate([np.repeat(np.arange(301), [number, *range(1, 301)]) for number in range(220)])
    assert check_large(terms.astype(np.int32), lengths).impact_classes.dtype == np.uint32


def check_large(terms: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]) -> Postings:
    token_documents = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    found = sort_tokens([(terms, token_documents)], len(lengths))
    keys, counts = np.unique(terms.astype(np.int64) << 32 | token_documents, return_counts=True)
    np.testing.assert_array_equal(found.documents, keys & 0xFFFFFFFF)
    np.testing.assert_array_equal(found.class_frequencies[0][found.impact_classes], counts)
    np.testing.assert_array_equal(found.class_lengths[0][found.impact_classes], lengths[found.documents])
    pairs = found.class_frequencies[0].astype(np.int64) << 32 | found.class_lengths[0]
    np.testing.assert_array_equal(pairs, np.unique(counts << 32 | lengths[found.documents]))
    cut = int(np.searchsorted(token_documents, len(lengths) // 3))
    parts = [
        sort_tokens([(terms[:cut], token_documents[:cut])], len(lengths) // 3),
        sort_tokens(
            [(terms[cut:], token_documents[cut:] - np.int32(len(lengths) // 3))], len(lengths) - len(lengths) // 3
        ),
    ]
    assert_same(join_postings([Part.of(own) for own in parts]), found)
    return found


def test_threads_sort_and_join_side_by_side(path: str) -> None:
    """Enough tokens for the loops in C++ to run without the interpreter's lock."""
    rng = np.random.default_rng(3)
    lengths = np.full(600, 20)
    terms = rng.integers(0, 300, 12_000).astype(np.int32)
    together = threading.Barrier(4)

    def work(_: int) -> Postings:
        together.wait(30)
        return check_large(terms, lengths)

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(work, range(4))
    for other in others:
        assert_same(other, first)


def test_more_documents_than_two_bytes_number(path: str) -> None:
    """A part numbers up to 2**16 documents in 2 bytes, more in 4; offsets of a segment take 8 bytes."""
    size = (1 << 16) + 3
    documents = np.arange(size, dtype=np.int32)
    terms = documents % 5
    whole = sort_tokens([(terms, documents)], size)
    np.testing.assert_array_equal(whole.documents, np.argsort(terms, kind="stable"))
    part = Part.of(whole)
    assert part.documents.dtype == np.uint32
    few = sort_tokens([tokens_of([[0, 4], [7]])], 2)
    joined = join_postings([part, Part.of(few), Part.of(whole)])
    assert_same(joined, join_postings([whole, few, whole]))
    assert joined.terms.tolist() == [0, 1, 2, 3, 4, 7]
    np.testing.assert_array_equal(joined.documents[joined.offsets[5] :], [size + 1])
    assert joined.lengths.tolist() == [[1] * size + [2, 1] + [1] * size]


def test_codes_beyond_any_integer(path: str) -> None:
    """With six fields of long documents, a code of a posting's numbers passes 2**64 and is ranked on the way."""
    rng = np.random.default_rng(6)
    lengths = rng.integers(1500, 1600, (6, 3))
    fields = [
        (np.zeros(own.sum(), dtype=np.int32), np.repeat(np.arange(3, dtype=np.int32), own).astype(np.int32))
        for own in lengths
    ]
    found = sort_tokens(fields, 3)
    order = sorted(range(3), key=lambda number: lengths[:, number].tolist())
    assert found.impact_classes.tolist() == [order.index(number) for number in range(3)]
    np.testing.assert_array_equal(found.class_frequencies, lengths[:, order])
    np.testing.assert_array_equal(found.class_lengths, lengths[:, order])


@needs_loops
def test_what_does_not_fit_is_refused() -> None:
    assert compiled is not None
    few = sort_tokens([tokens_of([[1, 2], [2]])], 2)
    terms, documents = tokens_of([[1, 2], [2]])

    def joined(**changed: object) -> object:
        arrays = {**vars(few), **changed}
        return compiled.join_postings(np.empty, [(*arrays.values(), None)], 1, 1, 1)

    joined()
    for expected, call in [
        ("documents of tokens must ascend", lambda: sort_tokens([(terms, documents[::-1].copy())], 2)),
        ("documents of tokens must ascend", lambda: sort_tokens([(terms, documents)], 1)),
        ("a term is negative", lambda: sort_tokens([(terms - np.int32(2), documents)], 2)),
        ("differ in number", lambda: sort_tokens([(terms, documents[:2])], 2)),
        ("wrong type of numbers", lambda: sort_tokens([(terms.astype(np.int64), documents)], 2)),
        ("at least one field", lambda: sort_tokens([], 2)),
        ("offsets of a part", lambda: joined(offsets=np.array([0, 1, 4]))),
        ("offsets of a part", lambda: joined(offsets=few.offsets[1:])),
        ("terms of a part", lambda: joined(terms=few.terms[::-1].copy())),
        ("impact classes of a part", lambda: joined(impact_classes=few.impact_classes + np.uint16(2))),
        ("impact classes of a part", lambda: joined(impact_classes=few.impact_classes[1:])),
        ("documents of a part", lambda: joined(documents=few.documents + np.int32(1))),
        ("class_lengths", lambda: joined(class_lengths=few.class_lengths[:, :1])),
    ]:
        with pytest.raises(ValueError, match=expected):
            call()


def test_the_fixture() -> None:
    """SPEC A015. The filler sorts after "fish", so that it comes after the fixture's three lists."""
    held = ["cat cat fish", "dog", "cat dog dog", "cat fish", "cat cat cat dog"]
    lengths = [10, 8, 12, 7, 9]
    texts = [text + " zebra" * (n - len(text.split())) for text, n in zip(held, lengths, strict=True)]
    segment, vocabulary = build(texts)
    assert vocabulary.strings == ["cat", "dog", "fish", "zebra"]
    assert segment.terms.tolist() == [0, 1, 2, 3]
    assert segment.offsets[:4].tolist() == [0, 4, 7, 9]
    assert segment.documents[:9].tolist() == [0, 2, 3, 4, 1, 2, 4, 0, 3]
    assert segment.frequencies()[0, :9].tolist() == [2, 1, 1, 3, 1, 2, 1, 1, 1]
    assert segment.frequencies(slice(4, 7)).tolist() == [[1, 2, 1]]
    assert segment.frequencies(np.array([3, 0])).tolist() == [[3, 2]]
    assert segment.lengths.tolist() == [lengths]
    positions = segment.locate(np.array([0, 1], dtype=np.int32))  # "cat dog"
    touched = [segment.offsets[p : p + 2].tolist() for p in positions]
    assert touched == [[0, 4], [4, 7]]
    assert (segment.size, segment.postings) == (5, 9 + 5)


@pytest.mark.parametrize("count", [256, 65_536])
def test_no_count_is_too_large(count: int) -> None:
    segment, _ = build(["cat " * count, "cat dog"])
    assert segment.frequencies().tolist() == [[count, 1, 1]]
    engine = fr.Engine.from_records([fr.Record("a", "cat " * count), fr.Record("b", "cat dog")], analyzer="minimal")
    assert engine.explain("cat", "a").terms[0].frequencies == {"text": count}
    small, _ = build(["dog"], terms=("cat", "dog"))
    merged = merge_segments([segment, small])
    assert merged.frequencies().tolist() == [[count, 1, 1, 1]]


TERMS = [f"t{n}" for n in range(9)]


def test_lists_are_derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fr.Engine(backend="numpy")
    rng = random.Random(1)
    texts = [rng.choices(TERMS, weights=[2.0**-n for n in range(9)], k=rng.randrange(7)) for _ in range(40)]
    engine.add([fr.Record(str(n), " ".join(text)) for n, text in enumerate(texts)])
    counted: list[int] = []
    plain = fr.BM25.quanta

    def counting(self: fr.BM25, saturated: np.ndarray, idf: np.ndarray) -> np.ndarray:
        counted.append(len(saturated))
        return plain(self, saturated, idf)

    monkeypatch.setattr(fr.BM25, "quanta", counting)
    engine.search(["t0 t1", "t1"])
    once = sum(counted)
    assert once > 0
    engine.search(["t1", "t0"])
    assert sum(counted) == once
    engine.search(["t2"])
    assert sum(counted) > once
    counted.clear()
    engine.add([fr.Record("new", "t0")])  # a new epoch: N and every idf changed
    engine.search(["t0 t1"])
    assert sum(counted) >= once


def test_a_large_namespace_without_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counts are an empty array, and a term of another namespace may be asked for."""
    borders.shrink(monkeypatch, COUNTED_DOCUMENTS=1)
    engine = fr.Engine.from_records([fr.Record("1", ""), fr.Record("2", "?!")])
    snapshot = engine.index.memory.snapshot("")
    assert snapshot.counts is not None
    assert snapshot.document_frequencies(np.array([0, 7], dtype=np.int32)).tolist() == [0, 0]


WORDS = [f"{letter}{number}" for number in range(9) for letter in "zyx"]


def records(count: int, start: int = 0, *, rich: bool = False) -> Iterator[fr.Record]:
    rng = np.random.default_rng(start + 7)
    for n in range(start, start + count):
        words = [WORDS[int(place)] for place in rng.random(int(rng.integers(0, 9))) ** 2 * len(WORDS)]
        more: dict[str, Any] = {}
        if rich:
            more = {
                "namespace": "bob" if n % 3 == 0 else "",
                "session": f"s{n // 4}" if n % 5 else None,
                "time": float(n) if n % 4 else None,
                "fields": {"predicate": " ".join(words[:2])},
                "weights": {words[0]: 1.5} if words and n % 6 == 1 else None,
                "entities": {"x": f"e{n % 3}"} if n % 7 == 2 else None,
                "embedding": [1.0, n + 1.0] if n % 4 == 1 else None,
            }
        yield fr.Record(f"r{n}", " ".join(words), **more)


def contents(engine: fr.Engine, folder: Path) -> dict[str, bytes]:
    """The arrays of the saved index; their files have names of their own in each save."""
    engine.save(folder)
    return {file.name.split(".")[0]: file.read_bytes() for file in folder.glob("*.npy")}


def built(count: int, threads: int | None, rich: bool) -> fr.Engine:
    options: dict[str, Any] = {"analyzer": "minimal"}
    if rich:
        options |= {"encoder": fr.OwnVectors(2), "fields": {"text": 1.0, "predicate": 2.0}}
    return fr.Engine.from_records(records(count, rich=rich), threads=threads, **options)


@pytest.mark.parametrize("rich", [False, True])
@pytest.mark.parametrize("chunk", [1, 7])
def test_threads_and_loops_change_nothing(
    monkeypatch: pytest.MonkeyPatch, chunk: int, rich: bool, tmp_path: Path
) -> None:
    borders.shrink(monkeypatch, BUILD_CHUNK=chunk, MAX_SEGMENT_DOCUMENTS=32, WINDOW_DOCUMENTS=8)
    with monkeypatch.context() as patch:
        patch.setenv(ENVIRONMENT_VARIABLE, "numpy")
        plain = built(90, 1, rich)
    assert len(plain.index.memory.snapshot("").segments) > 1
    wanted = contents(plain, tmp_path / "plain")
    assert len(wanted) > 10
    for threads in (1, 2, 3, None):
        assert contents(built(90, threads, rich), tmp_path / str(threads)) == wanted


def test_characters_bound_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, BUILD_CHARACTERS=10, READ=2)
    texts = ["12345", "12345", "1", "1", "1", "12345678901", "1"]
    made = (fr.Record(str(n), text) for n, text in enumerate(texts))
    assert [[own.id for own in chunk] for chunk in chunks_of(made)] == [["0", "1"], ["2", "3", "4", "5"], ["6"]]


@pytest.mark.parametrize("threads", [1, 2])
def test_what_fails_first_is_raised(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """An analysis that fails behind the caller is of an earlier chunk than a record that is refused meanwhile."""
    borders.shrink(monkeypatch, BUILD_CHUNK=2)
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record("first", "tea")])
    refused = threading.Event()
    real = TermIndexer.encode_documents

    def broken(self: TermIndexer, texts: list[str], threads: int = 1) -> Any:
        if "break" in texts:
            refused.wait(0.5 if threads > 1 else 0)
            raise MemoryError("no room")
        return real(self, texts, threads)

    monkeypatch.setattr(TermIndexer, "encode_documents", broken)

    def source() -> Iterator[Any]:
        yield from (fr.Record(f"r{n}", "new words") for n in range(2))
        yield from (fr.Record(f"r{n}", "break") for n in range(2, 4))
        yield fr.Record("r0", "again")
        refused.set()

    with pytest.raises(MemoryError, match="no room"):
        engine.add(source(), threads=threads)
    assert len(engine) == 1
    assert engine.index.memory.indexer.vocabulary.strings == ["tea"]
    monkeypatch.undo()
    assert engine.add(records(5), threads=threads) == 5
