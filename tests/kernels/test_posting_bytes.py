"""Postings of 4 bytes in the CUDA kernels: the answer stays numpy's, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from support import borders  # noqa: E402
from support.answers import assert_same, remembered  # noqa: E402
from support.device_cases import Watched, launches  # noqa: E402

import fanrank as fr  # noqa: E402
from fanrank.engine.backends import choose as backend  # noqa: E402
from fanrank.engine.index import bm25  # noqa: E402
from fanrank.kernels import device, search  # noqa: E402
from fanrank.kernels.cuda.verbs import CudaVerbs  # noqa: E402
from fanrank.kernels.families import device_search  # noqa: E402


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
    for batch in batches(asked):
        engine.backend = backend.choose("numpy")
        wanted = engine.search(batch, 5)
        assert wanted.counts.any()
        made = serve(engine, launcher, 4)
        assert_same(engine.search(batch, 5), wanted)
        resident = made.residency.resident_of(engine.index.memory.snapshot("").segments[0], False)
        assert resident.posting_bytes == 4
        assert not resident.quanta.numel()
        assert resident.words.nbytes == 4 * resident.words.numel()
        # Another epoch: contributions follow the statistics, and nothing but they is derived.
        engine.add([fr.Record(f"new{len(batch)}", "a1 b2 b2")])
        again = engine.search(batch, 5)
        engine.backend = backend.choose("numpy")
        assert_same(again, engine.search(batch, 5))


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
    for given in ({"posting_bytes": 4}, {"residency": shared}):
        with pytest.raises(fr.errors.ParameterError, match="reads postings of"):
            search.DeviceSearch(verbs, torch.device("cpu"), **given)


def test_a_segment_of_more_postings_than_a_device_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a segment in 32 bits rests on it."""
    engine = fr.Engine(analyzer="minimal", backend="cuda-host")
    engine.add([fr.Record("a", "w x y")])
    borders.shrink(monkeypatch, MAX_POSTINGS=2)
    with pytest.raises(fr.errors.ParameterError, match="3 postings, and a device takes 2"):
        engine.search(["w"])
    borders.shrink(monkeypatch, MAX_POSTINGS=3)
    assert engine.search(["w"])[0]
