"""The score kernels of CUDA: turns in any order, thresholds that lag, halves that carry, tiles that fit the device."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support import kernel_cases as kc  # noqa: E402
from support.host_kernels import SMALL, Edits, family, need_compiler  # noqa: E402

from fanrank.engine.errors import ParameterError  # noqa: E402
from fanrank.kernels.cuda.launcher import DeviceLimits  # noqa: E402
from fanrank.kernels.cuda.verbs import MAX_TURNS, tile_bytes  # noqa: E402
from fanrank.kernels.cuda_host.launcher import LIMITS  # noqa: E402

MANY = replace(LIMITS, multiprocessors=1 << 20)
"""Of a device that holds a block for every turn."""
ONE = DeviceLimits(1, 100 << 10, 99 << 10)
"""Of a device with one multiprocessor, so that a block takes many turns at a time."""

TURNS = "    for (;;) {\n        if (threadIdx.x < WARP) {\n"
ONE_TURN: Edits = (("score.cu", TURNS, TURNS.replace("(;;)", "(i32 only = 0; only < 1; ++only)")),)
"""A block ends after a turn, so that each turn has a block of its own."""
REVERSED: Edits = (
    (
        "score.cu",
        "const u32 number = static_cast<u32>(first) + lane;",
        "const u32 number = total - 1 - (static_cast<u32>(first) + lane);",
    ),
)
"""The worst entries come first."""
READ = "    return *const_cast<const volatile i64*>(&a.thresholds[query]);\n"
LAGGING: Edits = (
    (
        "score_tile.cuh",
        READ,
        f"    static u32 reads = 0;\n    if (++reads % 3 != 0) {{\n        return LOWEST_I64;\n    }}\n{READ}",
    ),
)
"""Two reads of a threshold in three find what it was at first, as if others raised it in between."""


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    need_compiler()


@pytest.mark.parametrize(("limits", "turns"), [(MANY, ONE_TURN), (ONE, ())], ids=["a block a turn", "one block"])
def test_no_order_of_turns_shows(limits: DeviceLimits, turns: Edits) -> None:
    for case in itertools.islice(kc.cases(), 0, None, 3):
        kc.check_family(family("shuffle", 1, edits=(*SMALL, *REVERSED, *LAGGING, *turns), limits=limits), case)


def test_the_size_of_tiles_changes_no_answer() -> None:
    for case in kc.cases():
        kc.check_family(family(tile_bits=5), case)


def taken(limits: DeviceLimits) -> tuple[int, int, kc.Case]:
    """(turns that a launch of 40 queries took, that there were, the case)."""
    case = kc.build(1, sizes=(900, 300), tile_bits=5, queries=40, ks=(3,), wide="none", restricted=0.0)
    own = family(limits=limits)
    kc.tabulate(own, case)
    (work,) = case.launches()
    buffers, answer, _ = kc.fresh(work, "cpu")
    kc.launch(own, work, buffers, answer)
    kc.check_answer(case, work, answer)
    return int(buffers.progress[1]), int(buffers.progress[0]) * 40, case


def test_turns_are_taken_in_chunks() -> None:
    """Up to 32 at a time, an eighth of an even share; in the end each block takes one chunk too many."""
    for multiprocessors, blocks in ((1, 2), (3, 6), (1000, 1 << 20)):
        progress, turns, case = taken(replace(ONE, multiprocessors=multiprocessors))
        grid = min(40 * case.work.most_tiles, multiprocessors * 4, blocks * 2)
        chunk = max(1, min(32, turns // (grid * 8)))
        assert turns <= progress <= turns + (grid + 1) * chunk, (multiprocessors, progress, turns)
        assert multiprocessors > 1 or chunk == 32


@pytest.mark.parametrize("method", ["lucene", "robertson"])
@pytest.mark.parametrize("long_quanta", [False, True])
def test_sums_of_halves_carry(method: str, long_quanta: bool) -> None:
    """Weights that bring every sum beyond 2**32, and below -2**32 where contributions are negative."""
    options: dict[str, Any] = {"sizes": (90, 40), "tile_bits": 5, "wide": "all", "restricted": 0.0, "ks": (3, 200)}
    for seed in range(3):
        case = kc.build(seed, method=method, long_quanta=long_quanta, max_weight=1 << 30, terms=12, **options)
        assert max(abs(score) for own in case.matches for score in own.values()) > 1 << 33
        kc.check_family(family("shuffle", seed, edits=SMALL), case)


SM_120 = DeviceLimits(188, 100 << 10, 99 << 10)
SM_80 = DeviceLimits(108, 164 << 10, 163 << 10)


@pytest.mark.parametrize(("limits", "narrow", "wide"), [(LIMITS, 14, 13), (SM_80, 14, 13), (SM_120, 13, 12)])
def test_tiles_follow_the_device(limits: DeviceLimits, narrow: int, wide: int) -> None:
    own = family(limits=limits)
    assert (own.tile_bits(False), own.tile_bits(True)) == (narrow, wide)
    for bits, is_wide in ((narrow, False), (wide, True)):
        most = tile_bytes(bits, wide=is_wide, signed=True, decays=False)
        assert 2 * (9 * 1024 + most + 1024) <= limits.multiprocessor_bytes
    assert family(limits=limits, tile_bits=6).tile_bits(True) == 6


def test_a_tile_that_does_not_fit_is_declined_before_its_launch() -> None:
    # Twice the sums: wide tiles are what still fits.
    assert (family(tile_bits=15).tile_bits(False), family(tile_bits=15).tile_bits(True)) == (15, 14)
    with pytest.raises(ParameterError, match=r"tile of 2\*\*15 .* has 99; ask for tile_bits of at most 14"):
        family(limits=SM_120, tile_bits=15)
    case = kc.build(0, wide="none", tile_bits=5)
    (work,) = case.launches()
    buffers, _, _ = kc.fresh(work, "cpu")
    for limits, bits, wide in ((SM_120, 15, False), (SM_120, 14, True), (LIMITS, 15, True)):
        with pytest.raises(ParameterError, match="shared memory"):
            family(limits=limits).score(replace(work, tile_bits=bits, wide=wide), buffers)
    with pytest.raises(ParameterError, match="fewer queries at a time"):
        family().score(replace(work, most_tiles=MAX_TURNS), buffers)
    family().score(replace(work, most_tiles=0), buffers)
