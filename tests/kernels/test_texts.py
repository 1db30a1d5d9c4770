"""Batches of texts on a device, and postings of 4 bytes: the answer of the CPU, and what goes the general way."""

import random
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders

import fanrank as fr
from fanrank.engine.backends import choose as backend

torch = pytest.importorskip("torch")
from support.answers import assert_same, remembered  # noqa: E402
from support.device_cases import Watched, launches  # noqa: E402

from fanrank.engine.index import bm25  # noqa: E402
from fanrank.kernels import (  # noqa: E402
    batch,
    device,
    search,
)
from fanrank.kernels.cuda.verbs import CudaVerbs  # noqa: E402
from fanrank.kernels.families import device_search  # noqa: E402

pytestmark = pytest.mark.skipif(
    not next(one for one in backend.statuses() if one.name == "cuda-host").usable, reason="no host build"
)
WORDS = [f"w{number}" for number in range(12)]


def make_engine(count: int) -> fr.Engine:
    draw = random.Random(count)
    engine = fr.Engine(analyzer="minimal")
    for first in (0, count // 2):
        engine.add(
            fr.Record(f"r{n}", " ".join(draw.choices(WORDS, k=draw.randrange(8))), time=float(n))
            for n in range(first, first + count - count // 2)
        )
        engine.delete([f"r{first}"])
    return engine


def served(engine: fr.Engine, name: str, batch: list[Any], k: int) -> tuple[fr.Hits, bool]:
    """The answer of this backend, and whether it took the texts."""
    chosen = backend.choose(name)
    engine.backend = chosen
    assert chosen.texts is not None
    answers = []

    def watched(*given: Any, **how: Any) -> Any:
        answers.append(chosen.texts(*given, **how))  # type: ignore[misc]
        return answers[-1]

    with patch.object(engine.searcher, "backend", backend.replace(chosen, texts=watched)):
        hits = engine.search(batch, k)
    return hits, bool(answers) and answers[-1] is not None


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=6).map(" ".join), min_size=1, max_size=12),
    st.sampled_from([1, 3, 60]),
    st.sampled_from([4, 40]),
)
def test_texts_give_the_answer_of_numpy(texts: list[str], k: int, count: int) -> None:
    engine = make_engine(count)
    for round_ in range(2):
        found, took = served(engine, "cuda-host", list(texts), k)
        engine.backend = backend.choose("numpy")
        wanted = engine.search(list(texts), k)
        # Texts without a known word go the general way.
        assert took or not wanted.counts.any()
        np.testing.assert_array_equal(found.documents, wanted.documents)
        np.testing.assert_array_equal(found.scores, wanted.scores)
        np.testing.assert_array_equal(found.counts, wanted.counts)
        assert found.distinct == wanted.distinct
        engine.add([fr.Record(f"late{round_}", " ".join(WORDS))])


@pytest.mark.parametrize(("places", "descriptors"), [(40, 3), (300, 40), (1 << 26, 3), (40, 1 << 23)])
def test_many_texts_in_launches_of_every_size(places: int, descriptors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"search.MAX_CANDIDATES": places}, MAX_DESCRIPTORS=descriptors)
    engine = make_engine(40)
    draw = random.Random(places + descriptors)
    texts = [" ".join(draw.choices([*WORDS, "unknown"], k=draw.randrange(6))) for _ in range(90)]
    for k in (1, 7, 1100):
        assert_same_as_numpy(engine, [*texts, *texts[:9]], k)


def test_out_of_memory_halves_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(40)
    texts = [f"{a} {b}" for a in WORDS for b in WORDS]
    sizes: list[int] = []
    real = batch.Texts.launch

    def scarce(most: int) -> Any:
        def launch(self: batch.Texts, *given: Any) -> Any:
            sizes.append(len(self.offsets) - 1)
            if sizes[-1] > most:
                raise torch.OutOfMemoryError("planted")
            return real(self, *given)

        return launch

    monkeypatch.setattr(batch.Texts, "launch", scarce(9))
    assert_same_as_numpy(engine, texts, 5)
    assert sizes[0] == len(texts)
    assert sum(size for size in sizes if size <= 9) == len(texts)
    # Where a single text has no room, the general path says so, or has it.
    monkeypatch.setattr(batch.Texts, "launch", scarce(0))
    _, took = served(engine, "cuda-host", texts, 5)
    assert not took


def assert_same_as_numpy(engine: fr.Engine, texts: list[Any], k: int) -> None:
    found, took = served(engine, "cuda-host", texts, k)
    assert took
    engine.backend = backend.choose("numpy")
    wanted = engine.search(texts, k)
    np.testing.assert_array_equal(found.documents, wanted.documents)
    np.testing.assert_array_equal(found.scores, wanted.scores)
    np.testing.assert_array_equal(found.counts, wanted.counts)


def test_a_text_whose_sums_may_leave_int32_goes_the_general_way() -> None:
    engine = make_engine(40)
    # No contribution is above ln(2 N + 2) (k1 + 1), some 9.6.
    assert served(engine, "cuda-host", [" ".join(["w1"] * 300)], 3)[1]
    found, took = served(engine, "cuda-host", [" ".join(["w1"] * 9000), "w2"], 3)
    assert not took
    engine.backend = backend.choose("numpy")
    np.testing.assert_array_equal(found.scores, engine.search([" ".join(["w1"] * 9000), "w2"], 3).scores)


def test_other_batches_go_the_general_way() -> None:
    engine = make_engine(40)
    for asked in (
        [fr.Query("w1", since=3.0)],
        [fr.Query("w1", half_life=5.0, now=50.0)],
        [fr.Query("w1", filter=fr.col("session") == "s")],
        [""],
    ):
        _, took = served(engine, "cuda-host", asked, 3)
        assert not took


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of 75 documents, three tiles; the launches themselves say whether there were several."""
    borders.shrink(monkeypatch, MAX_SEGMENT_DOCUMENTS=75, INLINE_DOCUMENTS=75, BUILD_CHUNK=75)
    launches.begin()
    yield
    assert not launches.made or launches.most("segments") > 1


@pytest.fixture(scope="module")
def launcher() -> Any:
    status = next(status for status in backend.statuses() if status.name == "cuda-host")
    if not status.usable:
        pytest.skip(status.reason)
    return device_search("cuda-host").verbs._launcher  # type: ignore[attr-defined]


def serve(engine: fr.Engine, launcher: Any, posting_bytes: int) -> search.DeviceSearch:
    verbs: Any = Watched(CudaVerbs(launcher, tile_bits=5, name="cuda-host"))
    made = search.DeviceSearch(verbs, torch.device("cpu"), posting_bytes=posting_bytes)
    engine.backend = backend.Backend("numpy", "a test", made, made)
    return made


def batches(asked: list[fr.Query]) -> Iterator[list[fr.Query]]:
    """Of every impact class; without decay; the fan-out's path."""
    yield asked
    yield [query for query in asked if query.half_life is None]
    yield [fr.Query(query.text, k=4) for query in asked[:3]]


@pytest.mark.parametrize("seed", range(4))
def test_fewer_bytes_a_posting(seed: int, launcher: Any) -> None:
    engine, asked = remembered(seed, 160)
    for part in batches(asked):
        engine.backend = backend.choose("numpy")
        wanted = engine.search(part, 5)
        assert wanted.counts.any()
        made = serve(engine, launcher, 4)
        assert_same(engine.search(part, 5), wanted)
        resident = made.residency.resident_of(engine.index.memory.snapshot("").segments[0], False)
        assert resident.posting_bytes == 4
        assert not resident.quanta.numel()
        assert resident.words.nbytes == 4 * resident.words.numel()
        # Another epoch: contributions follow the statistics, and nothing but they is derived.
        engine.add([fr.Record(f"new{len(part)}", "a1 b2 b2")])
        again = engine.search(part, 5)
        engine.backend = backend.choose("numpy")
        assert_same(again, engine.search(part, 5))


@pytest.mark.parametrize("method", sorted(bm25.METHODS))
def test_every_method_with_fewer_bytes(method: str, launcher: Any) -> None:
    """Signed methods, whose contributions may be negative, take 8 bytes whatever was asked for."""
    engine = fr.Engine(analyzer="minimal", method=method, backend="numpy", fields={"text": 1.0})
    engine.add(fr.Record(f"r{n}", " ".join(["a1"] * (n % 4 + 1) + [f"b{n % 7}"] * (n % 3))) for n in range(100))
    batch = ["a1 b1", "b2 b2 b3", "a1"]
    wanted = engine.search(batch, 7)
    made = serve(engine, launcher, 4)
    assert_same(engine.search(batch, 7), wanted)
    resident = made.residency.resident_of(engine.index.memory.snapshot("").segments[0], False)
    assert resident.posting_bytes == (8 if engine.bm25.signed else 4)


def test_more_kinds_than_the_bytes_hold_are_refused(launcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, asked = remembered(1, 160)
    impact_classes = engine.index.memory.snapshot("").segments[0].class_frequencies.shape[1]
    borders.shrink(monkeypatch, MAX_CLASSES=impact_classes - 1)
    serve(engine, launcher, 4)
    with pytest.raises(fr.errors.ParameterError, match="kinds of postings"):
        engine.search(asked[:2], 3)
    with pytest.raises(fr.errors.ParameterError, match="posting_bytes must be one of"):
        device.Residency(torch.device("cpu"), posting_bytes=5)
    verbs = CudaVerbs(launcher)
    monkeypatch.setattr(verbs, "posting_bytes", (8,))
    shared = device.Residency(torch.device("cpu"), posting_bytes=4)
    for options in ({"posting_bytes": 4}, {"residency": shared}):
        with pytest.raises(fr.errors.ParameterError, match="reads postings of"):
            search.DeviceSearch(verbs, torch.device("cpu"), **options)


def test_a_segment_of_more_postings_than_a_device_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a segment in 32 bits rests on it."""
    engine = fr.Engine(analyzer="minimal", backend="cuda-host")
    engine.add([fr.Record("a", "w x y")])
    borders.shrink(monkeypatch, MAX_POSTINGS=2)
    with pytest.raises(fr.errors.ParameterError, match="3 postings, and a device takes 2"):
        engine.search(["w"])
    borders.shrink(monkeypatch, MAX_POSTINGS=3)
    assert engine.search(["w"])[0]
