"""The Triton kernels in Triton's interpreter on CPU tensors. tests/extended/compiled has them as a GPU gets them."""

from __future__ import annotations

import importlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

# Read once, when triton is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="triton is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support import kernel_cases, launches  # noqa: E402

from fanrank.engine.backends import choose as backend  # noqa: E402
from fanrank.engine.index.bm25 import BM25, METHODS  # noqa: E402
from fanrank.kernels import runtime  # noqa: E402
from fanrank.kernels import triton as family  # noqa: E402
from fanrank.kernels.triton import TritonVerbs, launching, score, select  # noqa: E402
from fanrank.kernels.triton.verbs import DEFAULT, INTERPRETED_PROCESSORS, TUNING  # noqa: E402
from fanrank.kernels.work import Buffers, Extent, Work  # noqa: E402

INTERPRETED = not isinstance(score._score, triton.runtime.JITFunction)
STATUS = next(status for status in backend.statuses() if status.name == "triton")
interpreted = pytest.mark.skipif(not (INTERPRETED and STATUS.usable), reason=STATUS.reason)
HEALTH = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.fixture(scope="module")
def verbs() -> TritonVerbs:
    return TritonVerbs("cpu")


@pytest.mark.parametrize("path", sorted(Path(family.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_no_compiler_can_round_a_constant(path: Path) -> None:
    """Triton 3.6 takes a constant that is a float to float32 and back."""
    module = importlib.import_module(family.__name__ + ("" if path.stem == "__init__" else f".{path.stem}"))
    constants = [value.value for value in vars(module).values() if isinstance(value, triton.language.constexpr)]
    assert all(float(np.float32(value)) == value for value in constants if isinstance(value, float))


def best_first(case: launches.Case, work: Work, buffers: Buffers) -> None:
    """There are more than half as many classes as the settings say."""
    kernel_cases.check_best_first(case, work, buffers, TUNING["cpu"].order.classes // 2)


EVERY_TIME = (
    "signed",
    "fields",
    "ties everywhere",
    "decay, in order",
    "decay in seconds",
    "long quanta",
    "learned weights",
)
"""One of each kind of sum. A case takes a second or more; all of them take two minutes."""


@interpreted
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=name, marks=() if name in EVERY_TIME else pytest.mark.extended)
        for number, name in enumerate(launches.CASES)
    ],
)
def test_every_case(verbs: TritonVerbs, number: int) -> None:
    """Planned on the host, or on the device, by turns: a program takes milliseconds in the interpreter.

    What a device plans does not decay.
    """
    name, options = list(launches.CASES.items())[number]
    case = launches.build(number, name=name, **options)
    kernel_cases.check_derive(verbs, case)
    if number % 2 and "decays" not in options:
        kernel_cases.check_plan(verbs, case, number, also=[best_first])
    else:
        kernel_cases.check_family(verbs, case, also=[best_first])


@interpreted
@pytest.mark.parametrize("options", kernel_cases.FAR, ids=str)
def test_places_beyond_31_bits(verbs: TritonVerbs, options: dict[str, Any]) -> None:
    kernel_cases.check_far(verbs, launches.build(3, **options))


@interpreted
def test_terms_before_the_first_query_are_left_alone(verbs: TritonVerbs) -> None:
    batch, made = launches.planned(launches.build(3, sizes=(65, 7), tile_bits=5), 3, k=5)
    (work, *_) = made.launches()
    kernel_cases.tabulate(verbs, made)
    terms = torch.cat([batch.terms[:1], batch.terms])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), batch.offsets + 1])[1:]
    weights = None if batch.weights is None else torch.cat([batch.weights[:1], batch.weights])
    slots = len(terms) * len(work.segments)
    buffers, _, _ = kernel_cases.fresh(work, "cpu", descriptors=len(terms) * batch.tiles, slots=slots)
    before = buffers.descriptors[: batch.tiles].clone()
    verbs.plan(replace(batch, terms=terms, offsets=offsets, weights=weights), work, buffers)
    assert torch.equal(buffers.descriptors[: batch.tiles], before)


@interpreted
@pytest.mark.parametrize("wide", ["none", "all"])
def test_several_programs_select_for_a_query_of_many_candidates(
    verbs: TritonVerbs, wide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []

    def launch(kernel: Any, grid: Any, *given: Any, **own: Any) -> None:
        launched.append((kernel, *grid))
        launching.launch_by_name(kernel, grid, *given, **own)

    monkeypatch.setattr(select, "launch_by_name", launch)
    case = launches.build(5, queries=1, ks=(40,), sizes=(150, 90), tile_bits=5, empty=0.0, restricted=0.0, wide=wide)
    kernel_cases.check_family(verbs, case)
    assert (select._reduce_stripe, 1, INTERPRETED_PROCESSORS) in launched


def test_one_program_selects_for_a_query_of_few_candidates() -> None:
    """Another would find none, in a fan-out of 32 queries over a small memory for example."""
    extent = Extent(32, 32 * 16, 32 * 16 * 16, 16, 16, DEFAULT.narrow_tile_bits, False, False, decays=False)
    assert select._sizes(extent, DEFAULT.select, 132) == (16, 1)


BORDERS = ("33 tiles", "short lists alone", "a table of four, half of it padding", "many tiles, signed")
BORDERS += ("queries without terms", "terms in no segment", "more than 1,024 ties", "no documents match")


@interpreted
@pytest.mark.extended
@pytest.mark.parametrize("name", BORDERS)
def test_borders(verbs: TritonVerbs, name: str) -> None:
    case = launches.build(list(launches.BORDERS).index(name), name=name, **launches.BORDERS[name])
    kernel_cases.check_family(verbs, case, also=[best_first])
    kernel_cases.check_plan(verbs, case, 1, also=[best_first])


@interpreted
@pytest.mark.extended
@settings(max_examples=9, suppress_health_check=HEALTH)
@given(
    seed=st.integers(0, 1 << 32),
    method=st.sampled_from(METHODS),
    identical=st.booleans(),
    max_weight=st.sampled_from([1, 3, 1 << 20]),
    queries=st.integers(1, 4),
    fields=st.integers(1, 2),
    borders=st.booleans(),
    decays=st.sampled_from(["none", "some", "all"]),
    times=st.sampled_from(["mixed", "ordered"]),
)
def test_random_launches(verbs: TritonVerbs, seed: int, **options: Any) -> None:
    sizes = [int(size) for size in np.random.default_rng(seed).integers(1, 80, size=1 + seed % 3)]
    case = launches.build(seed, sizes=sizes, **options)
    kernel_cases.check_derive(verbs, case)
    kernel_cases.check_family(verbs, case)
    kernel_cases.check_plan(verbs, case, seed)


def scored(verbs: TritonVerbs, case: launches.Case) -> set[int]:
    """The tiles of a case's only segment that were scored; the answer is checked as well."""
    tiles = set()

    def noted(tile: Any, *rest: Any) -> None:
        tiles.add(int(tile.handle.data.item()))
        emitted(tile, *rest)

    emitted = score.emit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score, "emit", noted)
        kernel_cases.check_family(verbs, case)
    return tiles


@interpreted
@pytest.mark.parametrize(
    ("decays", "ranges"),
    [
        ("all", [(31, 33), (40, 40), (95, 160)]),
        *(pytest.param(decays, launches.RANGES, marks=pytest.mark.extended) for decays in ("none", "all")),
    ],
)
def test_tiles_outside_a_range_are_not_scored(verbs: TritonVerbs, decays: str, ranges: list[tuple[int, int]]) -> None:
    case = launches.one_list(3, ks=(1000,), wide="none", decays=decays)
    for low, high in ranges:
        assert scored(verbs, launches.narrowed(case, low, high)) == launches.tiles_within(low, high)


@interpreted
def test_old_tiles_are_not_scored(verbs: TritonVerbs) -> None:
    """The youngest tile comes first, and the older ones cannot reach its score. Three programs take a turn each at
    first."""
    aged: dict[str, Any] = {"decays": "all", "times": "ordered", "half_lives": (86400.0,)}
    assert INTERPRETED_PROCESSORS == 3
    assert scored(verbs, launches.one_list(3, ks=(1,), **aged)) == {4}
    assert scored(verbs, launches.one_list(3, ks=(33,), **aged)) == {0, 1, 2, 3, 4}
    assert scored(verbs, launches.one_list(3, ks=(1,))) == {0, 1, 2, 3, 4}


@interpreted
@pytest.mark.parametrize("wide", [False, True])
def test_select(verbs: TritonVerbs, wide: bool) -> None:
    kernel_cases.check_select(verbs, 1, [0, 1, 5, 700, 3000, 40], [5, 1, 5, 1024, 100, 0], wide=wide)


@interpreted
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("k", [100, *(pytest.param(k, marks=pytest.mark.extended) for k in (1, 1024))])
def test_one_query_is_selected_by_several_programs(verbs: TritonVerbs, wide: bool, k: int) -> None:
    kernel_cases.check_select(verbs, 0, [2500], [k], wide=wide)


@interpreted
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"k1": 0.0, "b": 0.0}, marks=pytest.mark.extended),
        pytest.param({"k1": 1000.0, "b": 1.0, "delta": 1000.0}, marks=pytest.mark.extended),
        {"k1": 0.9, "b": 0.4, "fields": {"text": 0.1, "title": 1000.0, "tool": 3.3}},
        pytest.param({"b": 1.0, "fields": {"text": 2.5, "title": 1.0}}, marks=pytest.mark.extended),
    ],
)
def test_derive_is_exact(verbs: TritonVerbs, method: str, options: dict[str, Any]) -> None:
    kernel_cases.check_derive_grid(verbs, BM25(method=method, **options))


class Compiler:
    """Triton's compiler and driver without a device: what was compiled, and whether a search could go on meanwhile."""

    def __init__(self) -> None:
        self.lock, self.met = threading.Lock(), threading.Barrier(2)
        self.compiled: list[str] = []
        self.launched: list[int] = []
        self.get_current_device = self.get_current_stream = lambda *_: 0
        self.get_current_target = lambda: triton.backends.compiler.GPUTarget("cuda", 90, 32)

    def __call__(self, source: Any, target: Any, options: dict[str, Any]) -> Any:
        assert self.lock.acquire(timeout=120), "a search holds its lock while it compiles"
        self.compiled.append(source.name)
        self.lock.release()
        run = lambda *given: self.launched.append(given[-2])  # noqa: E731
        return SimpleNamespace(launch_metadata=lambda *_: None, function=0, packed_metadata=0, run=run)

    def search(self, kernel: Any, number: int) -> None:
        def launch() -> None:
            with self.lock:
                kernel[(1,)](number, SIZE=4, num_warps=1, enable_fp_fusion=False)

        # Once: where one search compiles, the other may find the kernel there and not come again.
        self.met.wait(300)
        runtime.with_kernels(launch)


def test_searches_compile_a_kernel_once_and_hold_no_lock_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(number, SIZE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: F821
        pass

    compiler = Compiler()
    monkeypatch.setattr(triton.compiler, "compile", compiler)
    # Triton 3.4 imports this at the first launch, and has `active` without `_active`.
    importlib.import_module("triton.experimental.gluon")
    active = "_active" if hasattr(triton.runtime.driver, "_active") else "active"
    monkeypatch.setattr(triton.runtime.driver, active, compiler)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    kernel = launching.compiled_once(doubled)
    with ThreadPoolExecutor(2) as pool:
        searches = [pool.submit(compiler.search, kernel, own) for own in (5, 6)]
        for each in searches:
            each.result(300)
    assert (compiler.compiled, sorted(compiler.launched)) == (["doubled"], [5, 6])
