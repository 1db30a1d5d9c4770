"""The compiled search: the answer of reading all postings, however few it reads, and bounds that hold."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders
from support.threads import in_threads

import fanrank as fr
from fanrank import native
from fanrank.engine.backends import choose as backend
from fanrank.engine.index.native import BLOCK_POSTINGS, GROUPS, RANKS, WORD_SHARE

pytestmark = pytest.mark.skipif(native.compiled is None, reason=native.reason)

WORDS = [f"w{number}" for number in range(300)]


def corpus(seed: int, size: int) -> list[fr.Record]:
    """Zipf words; every third document is a copy of the one before it, so that scores tie."""
    numbers = np.random.default_rng(seed)
    weights = 1.0 / (np.arange(len(WORDS)) + 2.0)
    records: list[fr.Record] = []
    for number in range(size):
        words = numbers.choice(WORDS, int(numbers.integers(1, 12)), p=weights / weights.sum())
        text = records[-1].text if number % 3 == 2 else " ".join(words)
        records.append(fr.Record(str(number), text, session=f"s{number % 5}"))
    return records


def queries(seed: int, count: int) -> list[fr.Query]:
    numbers = np.random.default_rng([seed, 1])
    asked = []
    for number in range(count):
        words = numbers.choice(WORDS, int(numbers.integers(1, 20)))
        accepted = {"session": f"s{number % 5}"} if number % 7 == 0 else None
        asked.append(fr.Query(" ".join(words), k=int(numbers.integers(1, 40)), filter=accepted))
    return asked


def answers(engine: fr.Engine, asked: list[fr.Query], name: str, **how: object) -> tuple[np.ndarray, np.ndarray]:
    engine.backend = backend.choose(name)
    hits = engine.search(asked, **how)  # type: ignore[arg-type]
    return hits.documents, hits.scores


@pytest.mark.parametrize(
    ("tile", "scan_percent", "shared"), [(64, 0, 1), (64, 25, 1 << 40), (64, 1000, 1 << 40), (1 << 15, 25, 1)]
)
def test_unread_postings_change_nothing(
    monkeypatch: pytest.MonkeyPatch, tile: int, scan_percent: int, shared: int
) -> None:
    sizes = {"native.TILE": tile, "SHARED_POSTINGS": shared}
    borders.shrink(monkeypatch, sizes, PRUNED_DOCUMENTS=1, SCAN_PERCENT=scan_percent)
    engine = fr.Engine.from_records(corpus(1, 2_000), analyzer="minimal")
    for round_ in range(3):
        asked = queries(round_, 120)
        expected = answers(engine, asked, "numpy", execution="exhaustive")
        for how in ({}, {"execution": "pruned"}, {"execution": "exhaustive"}, {"threads": 2}):
            for found, wanted in zip(answers(engine, asked, "native", **how), expected, strict=True):
                np.testing.assert_array_equal(found, wanted)
        # One query on several threads.
        for one in range(0, 120, 10):
            found, scores = answers(engine, asked[one : one + 1], "native", threads=3)
            width = found.shape[1]
            np.testing.assert_array_equal(found, expected[0][one : one + 1, :width])
            np.testing.assert_array_equal(scores, expected[1][one : one + 1, :width])
        # New statistics, deleted documents and further segments, so that what was surveyed is a little off.
        engine.delete([str(number) for number in range(round_, 2_000, 20)])
        engine.add([fr.Record(f"{round_}-{r.id}", r.text + " w1" * round_) for r in corpus(round_ + 7, 700)])


def test_a_filter_surveys_so_many_lists_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, PRUNED_DOCUMENTS=1, SURVEYED=7)
    engine = fr.Engine.from_records(corpus(3, 900), analyzer="minimal")
    accepted = fr.Query("", filter={"session": "s1"}).filter
    filtered = [replace(query, filter=accepted) for query in queries(4, 40)]
    expected = answers(engine, filtered, "numpy", execution="exhaustive")
    for _ in range(3):
        for found, wanted in zip(answers(engine, filtered, "native", execution="pruned"), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    ((_, masks),) = engine.index.memory.state.snapshots[""].derived["masks"].values()
    assert masks.surveyed() == 7


def test_bounds_among_the_documents_that_pass_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"native.TILE": 16}, PRUNED_DOCUMENTS=1, MIN_ROOM=2)
    engine = fr.Engine.from_records(corpus(3, 900), analyzer="minimal")
    accepted = fr.Query("", filter={"session": "s1"}).filter
    few = [" ".join(query.text.split()[:4]) for query in queries(4, 40)]
    asked = [fr.Query(text, k=1, filter=accepted) for text in few]
    expected = answers(engine, asked, "numpy", execution="exhaustive")
    engine.backend = backend.choose("native")
    read = []
    for _ in range(3):
        hits = engine.search(asked, timing=True, execution="pruned")
        read.append(hits.postings)
        for found, wanted in zip((hits.documents, hits.scores), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    # Lists are surveyed once a filter comes again.
    assert read[-1] < read[0], read


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("half_life", [None, 400.0])
def test_scores_one_quantum_apart(monkeypatch: pytest.MonkeyPatch, threads: int, half_life: float | None) -> None:
    # A word of every document has so small an idf that the scores of long documents differ by a quantum or none.
    borders.shrink(monkeypatch, {"native.TILE": 16}, FADED_TILE=16, PRUNED_DOCUMENTS=1, SHARED_POSTINGS=1, MIN_ROOM=2)
    numbers = np.random.default_rng(6)
    records = [
        fr.Record(str(number), "word " + "filler " * int(numbers.integers(400, 460)), time=float(number))
        for number in range(1_200)
    ]
    engine = fr.Engine.from_records(records, analyzer="minimal")
    quanta = np.unique(engine.search(["word"], k=1_200).scores * 2**18)
    assert (np.diff(quanta) == 1).any()
    asked = [fr.Query("word", k=k, now=1_200.0, half_life=half_life) for k in range(1, 60)]
    expected = answers(engine, asked, "numpy", execution="exhaustive")
    for found, wanted in zip(answers(engine, asked, "native", threads=threads), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    for query, documents in zip(asked, expected[0], strict=True):
        found, _ = answers(engine, [query], "native", threads=threads)
        np.testing.assert_array_equal(found[0], documents[: found.shape[1]])


def test_bounds_hold_after_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Surveys outlive writes that change the average length by less than 2 %.
    borders.shrink(monkeypatch, {"native.TILE": 16}, PRUNED_DOCUMENTS=1, MIN_ROOM=2, MAX_SEGMENT_DOCUMENTS=1_200)
    for seed in range(6):
        numbers = np.random.default_rng([7, seed])
        lengths = numbers.integers(1, 400, 1_200)
        engine = fr.Engine(analyzer="minimal")
        engine.add([fr.Record(str(n), "word " * 3 + "filler " * int(length)) for n, length in enumerate(lengths)])
        for write in range(8):
            asked = [fr.Query("word", k=k) for k in (1, 2, 5)]
            expected = answers(engine, asked, "numpy", execution="exhaustive")
            for found, wanted in zip(answers(engine, asked, "native"), expected, strict=True):
                np.testing.assert_array_equal(found, wanted)
            # Longer or shorter records move every contribution up or down.
            text = "other " * 900 if seed % 2 else "other"
            engine.add([fr.Record(f"{write}-{n}", text) for n in range(3 if seed % 2 else 8)])


def test_few_postings_are_read() -> None:
    # One rare word beside one that every document holds: what the rare one finds is looked up, not the other read.
    records = [fr.Record(str(n), f"common{' rare' if n % 100 == 0 else ''} filler{n % 7}") for n in range(8_000)]
    engine = fr.Engine.from_records(records, analyzer="minimal", backend="native")
    hits = engine.search(["rare common"], k=10, timing=True)
    assert hits.ids[0].tolist() == [str(n) for n in range(0, 1000, 100)]
    assert hits.postings <= 80
    everything = engine.search(["rare common"], k=10, timing=True, execution="exhaustive")
    assert everything.postings == 8_080
    assert list(everything) == list(hits)


def test_threads_may_meet_a_list_first_together() -> None:
    asked = queries(5, 60)
    for round_ in range(3):
        engine = fr.Engine.from_records(corpus(round_, 6_000), analyzer="minimal", backend="native")
        expected = answers(engine, asked, "numpy")
        engine.backend = backend.choose("native")
        found: list[fr.Hits] = []
        start = threading.Barrier(4)

        def ask(engine: fr.Engine = engine, found: list[fr.Hits] = found, start: threading.Barrier = start) -> None:
            start.wait()
            found.append(engine.search(asked))

        in_threads(*[ask] * 4)
        assert len(found) == 4
        for hits in found:
            np.testing.assert_array_equal(hits.documents, expected[0])
            np.testing.assert_array_equal(hits.scores, expected[1])


@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer speaks on its own where a process ends")
def test_a_process_ends_while_a_thread_searches() -> None:
    # A daemon thread that asks for the interpreter's lock while the interpreter shuts down must not abort the process.
    program = """
import threading, fanrank as fr
engine = fr.Engine.from_records(fr.Record(str(n), f"tea w{n % 50} w{n % 7}") for n in range(5_000))
began = threading.Event()

def search():
    while True:
        began.set()
        engine.search([f"tea w{n % 50}" for n in range(2_000)], 50, execution="exhaustive")

threading.Thread(target=search, daemon=True).start()
began.wait()
"""
    environment = {**os.environ, "FANRANK_BACKEND": "native"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_ages_are_rounded_as_everywhere() -> None:
    # Ten ticks a second and times in tenths: ages lie on the border between two ticks, or a rounding beside it.
    times = [number / 10 for number in range(2_000)]
    engine = fr.Engine.from_records(
        [fr.Record(str(number), "word", time=time) for number, time in enumerate(times)], analyzer="minimal"
    )
    asked = [fr.Query("word", k=2_000, now=now / 10 + 0.3, half_life=6553.6) for now in range(2_000, 2_040)]
    expected = answers(engine, asked, "numpy", execution="exhaustive")
    for found, wanted in zip(answers(engine, asked, "native"), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


lists = st.lists(st.integers(0, 400), min_size=1, max_size=300, unique=True).map(sorted)


def make_segment(held: list[list[int]], impact_classes: np.ndarray, size: int, share: int = WORD_SHARE) -> Any:
    offsets = np.cumsum([0, *map(len, held)])
    return native.compiled.segment(
        np.arange(len(held), dtype=np.int32),
        offsets,
        np.concatenate(held).astype(np.int32),
        impact_classes,
        None,
        (*RANKS, BLOCK_POSTINGS, GROUPS, 2, share, 64, size, size),
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(lists, min_size=1, max_size=4), st.sampled_from([0, WORD_SHARE]))
def test_skips_find_every_posting_and_no_other(held: list[list[int]], share: int) -> None:
    # With a share of 0 no list is dense.
    segment = make_segment(held, np.zeros(sum(map(len, held)), dtype=np.uint16), 401, share)
    for term, own in enumerate(held):
        places = {document: place for place, document in enumerate(own)}
        for document in range(401):
            assert segment.find(term, document) == places.get(document, -1)
