"""What the device path holds: segments uploaded once, room bounded, launches halved where memory runs out."""

import random
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from support.answers import TERMS, answer, build, oracle, records, remembered
from support.device_cases import FAMILIES, FAST, device_of, serve, tensors_of
from torch.utils._python_dispatch import TorchDispatchMode

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.kernels import device, launch, sort
from fanrank.kernels import search as device_search
from fanrank.kernels.work import Buffers, KernelAnswer, Work


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
    held = device_of(engine).residency._held.values()
    assert sorted(resident.size for widths in held for resident in widths.values()) == [19, 70]
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


@pytest.mark.parametrize("by", ["plans", "texts"])
@pytest.mark.parametrize("name", FAST)
def test_what_torch_sorts_is_bounded_too(name: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(4)
    documents = [rng.choices(TERMS, k=4) for _ in range(1_300)]
    batch = [rng.choices(TERMS, k=3) for _ in range(40)]
    engine = serve(build(documents), name)
    known = device_of(engine)
    expected = answer(engine.search(batch, 1_200))
    # Room for the segments, and for some twelve queries of that k, of which torch takes more than half.
    limit = known.residency.bytes + 12 * 80 * 1_300
    fresh = device_search.DeviceSearch(known.verbs, known.residency.device, limit)
    engine.backend = backend.Backend(name, "a test", fresh, fresh, texts=fresh.search_texts if by == "texts" else None)
    plain, sorted_at_once = launch.select_sorted, []

    def watched(work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
        queries = len(work.query_k)
        takes = sort.PLACE_BYTES * queries * work.most_candidates
        assert fresh.residency.bytes + takes <= limit
        sorted_at_once.append(queries)
        plain(work, buffers, answer)

    monkeypatch.setattr(launch, "select_sorted", watched)
    assert answer(engine.search(batch, 1_200)) == expected
    assert len(sorted_at_once) > 2
    assert max(sorted_at_once) < 12


@pytest.mark.parametrize("name", FAST)
def test_a_failed_launch_holds_nothing_while_its_halves_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(11)
    documents = [rng.choices(TERMS, k=4) for _ in range(170)]
    batch = [[a, b] for a in TERMS for b in TERMS if a < b]
    expected = [oracle(documents).search(q, 5) for q in batch]
    engine = serve(build(documents), name)
    launches: list[weakref.ref[Any]] = []
    real = device_search.run

    def failing(verbs: Any, runtime: Any, work: Any, *rest: Any) -> None:
        assert [ref() for ref in launches] == [None] * len(launches)
        launches.append(weakref.ref(work))
        if len(launches) in (1, 2):
            raise torch.OutOfMemoryError("planted")
        real(verbs, runtime, work, *rest)

    monkeypatch.setattr(device_search, "run", failing)
    assert answer(engine.search(batch, 5, execution="exhaustive")) == expected
    assert len(launches) == 5  # all, a half, its two halves, the other half


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
    residency.account.limit = residency.bytes + 8
    with pytest.raises(fr.errors.DeviceMemoryError):
        engine.search(query)


class Allocations(TorchDispatchMode):
    """The bytes of new tensors."""

    made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if "empty" in func.name() or "new" in func.name() or "zeros" in func.name():
            self.made += found.nbytes
        return found


@pytest.mark.parametrize("name", FAMILIES)
def test_no_verb_of_a_launch_takes_memory_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a launch needs is reserved and counted before it, and a graph has no memory beside its buffers."""
    engine, _ = remembered(2, 70)
    serve(engine, name)
    verbs, ran = device_of(engine).verbs, []

    def watched(verb: str, real: Any, *given: Any) -> None:
        with Allocations() as allocations:
            real(*given)
        assert not allocations.made, f"{verb} took {allocations.made} bytes"
        ran.append(verb)

    for verb in ("describe", "plan", "order", "score", "select"):
        monkeypatch.setattr(verbs, verb, partial(watched, verb, getattr(verbs, verb)), raising=False)
    engine.search(["a1"], 5)
    engine.search([fr.Query("a1", now=6e6, half_life=1e5)], 5)
    terms, offsets = tensors_of(engine, ["a1 b2"])
    engine.search_tensors(terms, offsets, torch.full_like(terms, 1 << 20), k=3)
    assert set(ran) == {"describe", "plan", "order", "score", "select"}
