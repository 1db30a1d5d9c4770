"""The CUDA kernels, compiled for the CPU by the shim: exact in every resume order, and free of races."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
import sys
from collections.abc import Sequence
from ctypes import c_int32, sizeof
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support import borders  # noqa: E402

from fanrank.engine.errors import BackendUnavailableError, ParameterError  # noqa: E402
from fanrank.engine.index.bm25 import BM25, METHODS, SCALE, Statistics  # noqa: E402
from fanrank.kernels.cuda import verbs as verbs_module  # noqa: E402
from fanrank.kernels.cuda.arguments import LAYOUTS  # noqa: E402
from fanrank.kernels.cuda.launcher import FOLDER, SOURCES  # noqa: E402
from fanrank.kernels.cuda.verbs import Baseline, CudaVerbs  # noqa: E402
from fanrank.kernels.cuda_host.build import build as build_library  # noqa: E402
from fanrank.kernels.cuda_host.build import compiler, run_sanitized, sanitizer_library  # noqa: E402
from fanrank.kernels.cuda_host.launcher import LIMITS, HostLauncher, KernelFault  # noqa: E402
from fanrank.kernels.work import (  # noqa: E402
    DESCRIPTOR_BYTES,
    DOCUMENT_BITS,
    ENTRY_BYTES,
    SEGMENT_FIELDS,
    DevicePostings,
    Formula,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import support.kernel_cases as kc  # noqa: E402

# The package has a function of the module's name.
build_module = importlib.import_module("fanrank.kernels.cuda_host.build")

ORDERS = (("ascending", 0), ("descending", 0), ("shuffle", 1), ("shuffle", 2))

# Small constants, so that small cases overflow the list, describe slots in several chunks, cross every run, read beyond
# the first words of a filter and sort entries in several parts.
SMALL = (
    ("plan_slot.cuh", "constexpr i32 UNROLL = 4;", "constexpr i32 UNROLL = 1;"),
    ("order.cu", "constexpr i32 UNROLL = 4;", "constexpr i32 UNROLL = 1;"),
    ("order.cu", "constexpr i32 ENTRIES = 1024;", "constexpr i32 ENTRIES = THREADS + 4;"),
    ("score_tile.cuh", "constexpr i32 MAX_REACHED = 2048;", "constexpr i32 MAX_REACHED = 6;"),
    ("score_tile.cuh", "constexpr i32 SLOTS = 128;", "constexpr i32 SLOTS = 32;"),
    ("score_tile.cuh", "constexpr i32 RUN = WARP * UNROLL;", "constexpr i32 RUN = WARP;"),
    ("score_tile.cuh", "constexpr i32 UNROLL = 4;", "constexpr i32 UNROLL = 1;"),
)
# Under ThreadSanitizer each of a block's threads is one of the host's, so fewer of them: in the sources and in verbs.
FEW_THREADS = (
    ("score_tile.cuh", "constexpr i32 THREADS = 512;", "constexpr i32 THREADS = 64;"),
    ("derive.cu", "constexpr i32 THREADS = 256;", "constexpr i32 THREADS = 64;"),
    ("plan_slot.cuh", "constexpr i32 THREADS = 256;", "constexpr i32 THREADS = 64;"),
    ("order.cu", "constexpr i32 THREADS = 256;", "constexpr i32 THREADS = 64;"),
    ("select.cu", "constexpr i32 BITONIC_THREADS = 256;", "constexpr i32 BITONIC_THREADS = 64;"),
)
FEW = {"SCORE_THREADS": 64, "DERIVE_THREADS": 64, "DERIVE_POSTINGS": 1024, "BITONIC_THREADS": 64}
FEW |= {"PLAN_THREADS": 64, "ORDER_THREADS": 64}


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    try:
        compiler()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


Edits = tuple[tuple[str, str, str], ...]


@functools.cache
def files_of(source: Path) -> frozenset[str]:
    """The names of a source and of the headers that it includes."""
    found, left = set(), [source.name]
    while left:
        name = left.pop()
        found.add(name)
        left += set(re.findall(r'^#include "(.+)"$', (FOLDER / name).read_text(), re.MULTILINE)) - found
    return frozenset(found)


@functools.cache
def library(source: Path, edits: Edits = (), sanitize: bool = False) -> Path:
    """One source compiled, with edits of its own or of its headers."""
    return build_library([source], mode="threads" if sanitize else "fibers", sanitize=sanitize, edits=edits)


class Launchers:
    """A launcher over one library a source, so that an edit compiles its own file alone."""

    def __init__(
        self, edits: Edits = (), order: str = "ascending", seed: int = 0, sanitized: Sequence[str] = ()
    ) -> None:
        self._edits, self._order, self._seed, self._sanitized = edits, order, seed, sanitized
        self._launchers: dict[str, HostLauncher] = {}
        self.limits = LIMITS
        self.launched: list[str] = []

    def launch(self, name: str, grid: Any, block: Any, shared_bytes: int, args: Any) -> None:
        self.launched.append(name)
        operation = name.partition("_")[0]
        if operation not in self._launchers:
            source = next(source for source in SOURCES if source.stem == operation)
            own = tuple(edit for edit in self._edits if edit[0] in files_of(source))
            made = library(source, own, operation in self._sanitized)
            self._launchers[operation] = HostLauncher(made, order=self._order, seed=self._seed)
        self._launchers[operation].launch(name, grid, block, shared_bytes, args)


def family(order: str = "ascending", seed: int = 0, *, select: str = "auto", edits: Edits = ()) -> CudaVerbs:
    return CudaVerbs(Launchers(edits, order, seed), select, name="cuda-host")


BEST_FIRST = (kc.check_best_first,)


# One order of blocks runs every time, the others in turn.
IN_TURN = [pytest.param(*order, marks=[pytest.mark.sweep] * (order != ORDERS[2])) for order in ORDERS]


@pytest.mark.parametrize(("order", "seed"), IN_TURN)
@pytest.mark.parametrize("select", ["bitonic", "warp"])
@pytest.mark.parametrize("edits", [(), SMALL], ids=["as is", "small"])
def test_every_case(order: str, seed: int, select: str, edits: Any) -> None:
    own = family(order, seed, select=select, edits=edits)
    for number, case in enumerate(kc.cases()):
        kc.check_derive(own, case)
        kc.check_family(own, case, also=BEST_FIRST)
        kc.check_plan(own, case, number, also=BEST_FIRST)


@pytest.mark.parametrize(("order", "seed"), IN_TURN[1:3])
@pytest.mark.parametrize("edits", [(), SMALL], ids=["as is", "small"])
def test_every_border(order: str, seed: int, edits: Any) -> None:
    """More tiles, entries, slots, segments and hits than a warp, a block or a table takes at a time."""
    own = family(order, seed, edits=edits)
    for number, case in enumerate(kc.border_cases()):
        # Entries are sorted in parts where few are sorted at a time.
        also = () if edits else BEST_FIRST
        kc.check_family(own, case, also=also)
        kc.check_plan(own, case, number, also=also)


@pytest.mark.parametrize("posting_bytes", [4, 6])
@pytest.mark.parametrize("edits", [(), SMALL], ids=["as is", "small"])
def test_every_case_of_impact_classes(posting_bytes: int, edits: Edits) -> None:
    own = family("shuffle", 1, edits=edits)
    for number, case in enumerate(itertools.chain(kc.cases(), kc.border_cases())):
        if not case.work.signed and not case.work.long_quanta:
            kc.check_family(own, kc.of_classes(case, posting_bytes))
            kc.check_plan(own, kc.of_classes(case, posting_bytes), number)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    method=st.sampled_from(METHODS),
    fields=st.integers(1, 2),
    identical=st.booleans(),
    max_weight=st.sampled_from([1, 3, 1 << 20]),
    wide=st.sampled_from(["none", "some", "all"]),
    long_quanta=st.booleans(),
    ks=st.sampled_from([(1, 2, 33), (0, 5), (1000,), (3, 32, 64)]),
    order=st.sampled_from(ORDERS),
    select=st.sampled_from(["bitonic", "warp"]),
    edits=st.sampled_from([(), SMALL]),
)
def test_random_launches(seed: int, order: tuple[str, int], select: str, edits: Edits, **options: Any) -> None:
    case = kc.build(seed, **options)
    own = family(*order, select=select, edits=edits)
    kc.check_derive(own, case)
    kc.check_family(own, case)
    kc.check_plan(own, case, seed)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    method=st.sampled_from(METHODS),
    fields=st.integers(1, 2),
    identical=st.booleans(),
    max_weight=st.sampled_from([1, 3, 1 << 20]),
    wide=st.sampled_from(["none", "some"]),
    long_quanta=st.booleans(),
    ks=st.sampled_from([(1, 2, 33), (0, 5), (1000,), (3, 32, 64)]),
    borders=st.booleans(),
    decays=st.sampled_from(["some", "all"]),
    times=st.sampled_from(["mixed", "ordered"]),
    order=st.sampled_from(ORDERS),
    select=st.sampled_from(["bitonic", "warp"]),
    edits=st.sampled_from([(), SMALL]),
)
def test_random_launches_that_decay(
    seed: int, order: tuple[str, int], select: str, edits: Edits, **options: Any
) -> None:
    kc.check_family(family(*order, select=select, edits=edits), kc.build(seed, **options))


# Sets the top bit of every posting's word that scoring reads.
MARKED = (
    "score_tile.cuh",
    "locals[i] = words[first + index];",
    "locals[i] = words[first + index]; const_cast<u32*>(words)[first + index] |= 1u << 31;",
)


def touched(case: kc.Case, *, order: str = "ascending") -> set[int]:
    """The tiles of a case's only segment whose postings scoring read; the answer is checked as well."""
    own = family(order, edits=(MARKED,))
    (work,) = case.launches()
    buffers, answer, guarded = kc.fresh(work, "cpu")
    kc.tabulate(own, case)
    kc.launch(own, work, buffers, answer)
    kc.check_candidates(case, work, buffers)
    kc.check_answer(case, work, answer)
    guarded.check()
    words = case.segments[0].postings.words
    tiles = (words[words < 0] & (1 << DOCUMENT_BITS) - 1) >> case.work.tile_bits
    words &= (1 << 31) - 1
    return set(tiles.tolist())


@pytest.mark.parametrize("decays", ["none", "all"])
@pytest.mark.parametrize("wide", ["none", "all"])
def test_tiles_outside_a_range_are_not_touched(wide: str, decays: str) -> None:
    case = kc.one_list(3, ks=(1000,), wide=wide, decays=decays)
    for low, high in kc.RANGES:
        for order in ("ascending", "descending"):
            assert touched(kc.narrowed(case, low, high), order=order) == kc.tiles_within(low, high)


def test_old_tiles_are_not_touched() -> None:
    """The youngest documents have the best bounds, and the older tiles cannot reach their scores."""
    aged = {"decays": "all", "times": "ordered", "half_lives": (86400.0,)}
    for order in ("ascending", "descending"):
        assert touched(kc.one_list(3, ks=(1,), **aged), order=order) == {4}
    assert touched(kc.one_list(3, ks=(33,), **aged)) == {0, 1, 2, 3, 4}
    assert touched(kc.one_list(3, ks=(1,))) == {0, 1, 2, 3, 4}


def test_a_search_of_terms_takes_four_loads_in_a_row(tmp_path: Path) -> None:
    """`leading` finds what a binary search finds, in as many rounds as 32 goes into the number of terms."""
    source = tmp_path / "find.cu"
    source.write_text(FIND)
    launcher = HostLauncher(build_library([source], include=[FOLDER]))
    rng = np.random.default_rng(0)
    for count in (0, 1, 2, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 1056, 100_000):
        terms = np.sort(rng.choice(3 * count + 5, count, replace=False)).astype(np.int32)
        wanted = np.concatenate([[-1, 3 * count + 9], terms[:40], terms[-40:] + 1, rng.integers(0, 3 * count + 9, 60)])
        rows = [torch.from_numpy(np.ascontiguousarray(row, dtype=np.int32)) for row in (terms, wanted)]
        found, rounds = torch.full((len(wanted),), -1, dtype=torch.int32), torch.zeros(len(wanted), dtype=torch.int32)
        args = (rows[0], c_int32(count), rows[1], found, rounds)
        launcher.launch("find", (len(wanted), 1, 1), (32, 1, 1), 0, args)
        np.testing.assert_array_equal(found.numpy(), np.searchsorted(terms, wanted))
        assert int(rounds.max()) == (0 if not count else 1 if count <= 32 else 2 if count <= 1056 else 4)


FIND = """
#include "plan_slot.cuh"

extern "C" __global__ void __launch_bounds__(32) find(
    const i32* terms, i32 count, const i32* wanted, i32* found, i32* rounds) {
    const i32 term = wanted[blockIdx.x];
    const i32 place = leading(count, [&](i32 i) { return terms[i] < term; });
    // Each round the first lane probes, unless the round is of nothing.
    i32 taken = 0;
    leading(count, [&](i32 i) {
        ++taken;
        return terms[i] < term;
    });
    if (threadIdx.x == 0) {
        found[blockIdx.x] = place;
        rounds[blockIdx.x] = taken;
    }
}
"""


def test_a_fan_out_is_four_launches() -> None:
    """Whatever the segments, the rows of padding and the queries; the tables were made before."""
    for name in ("a table of one", "a table of sixteen", "forty segments", "forty queries"):
        case = kc.build(3, **{**kc.BORDERS[name], "wide": "none", "max_weight": 1})
        batch, made = kc.planned(case, 3, k=5)
        (work,) = made.launches()
        launchers = Launchers()
        own = CudaVerbs(launchers)
        kc.tabulate(own, made)
        launchers.launched.clear()
        buffers, answer, _ = kc.fresh(work, "cpu", descriptors=len(batch.terms) * batch.tiles)
        own.plan(batch, work, buffers)
        own.order(work, buffers)
        own.score(work, buffers)
        own.select(work, buffers, answer)
        assert launchers.launched == ["plan_terms", "order_plain", "score_narrow", "select_warp_narrow_32"]
        kc.check_answer(made, work, answer)


def test_rows_on_the_device_are_those_of_the_contract() -> None:
    assert LAYOUTS["SegmentRow"].fields == SEGMENT_FIELDS
    sizes = {"SegmentRow": 8 * len(SEGMENT_FIELDS), "Descriptor": DESCRIPTOR_BYTES, "Entry": ENTRY_BYTES}
    assert {name: sizeof(LAYOUTS[name].structure) for name in sizes} == sizes


def test_a_table_without_a_row_is_declined() -> None:
    batch, made = kc.planned(kc.build(0), 0)
    buffers, _, _ = kc.fresh(made.work, "cpu")
    with pytest.raises(ParameterError, match="at least one segment"):
        family().plan(batch, replace(made.work, segments=made.work.segments[:0]), buffers)


@pytest.mark.parametrize("method", ["lucene", "robertson"])
def test_many_terms(method: str) -> None:
    """More slots than are described in shared memory at a time, and more than the block has threads."""
    case = kc.build(5, terms=700, sizes=(45,), tile_bits=5, queries=2, ks=(4,), method=method)
    kc.check_family(family("shuffle", 3), case)
    kc.check_family(family("shuffle", 3, edits=SMALL), case)
    if not case.work.signed:
        for posting_bytes in (6, 4):
            kc.check_family(family("shuffle", 3), kc.of_classes(case, posting_bytes))


@pytest.mark.parametrize("bits", [12, 14])
@pytest.mark.parametrize(("method", "decays"), [("lucene", "none"), ("lucene", "some"), ("robertson", "none")])
def test_tiles_of_full_size(bits: int, method: str, decays: str) -> None:
    """The list of documents at the threshold overflows, and k passes what a small tile holds."""
    options: dict[str, Any] = {"terms": 5, "queries": 3, "ks": (7, 900, 1024), "method": method, "decays": decays}
    case = kc.build(bits, sizes=((1 << bits) + 4000,), tile_bits=bits, **options)
    for select in ("bitonic", "warp"):
        kc.check_family(family("descending", select=select), case)


def test_derive_takes_every_block_and_alignment() -> None:
    """Several blocks of postings, thousands of terms (some empty) and words that are not aligned to 16 bytes."""
    rng = np.random.default_rng(1)
    sizes = rng.choice([0, 0, 1, 2, 3, 40], size=3000)
    sizes[1000] = 5000
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    count, documents = int(offsets[-1]), 6000
    tf = rng.integers(1, 4096, size=count)
    lengths = rng.integers(1, 5000, size=(1, documents)).astype(np.int32)
    document = np.concatenate([np.sort(rng.choice(documents, size, replace=False)) for size in sizes.tolist()])
    model = BM25()
    statistics = Statistics(documents, (int(lengths.sum()),))
    idf = model.idf(rng.integers(1, documents, size=len(sizes)), statistics)
    saturated = model.saturated(tf[None].astype(np.uint32), model.norms(lengths, statistics)[:, document])
    expected = model.quanta(saturated, np.repeat(idf, sizes))
    words = (document | tf << DOCUMENT_BITS).astype(np.uint32).view(np.int32)
    formula = Formula(0, False, False, 1.2, 0.75, 0.0, SCALE, [1.0], [statistics.average_length(0)])
    for shift, dtype in itertools.product((0, 1), (torch.int32, torch.int64)):
        shifted = torch.zeros(count + shift, dtype=torch.int32)
        shifted[shift:] = torch.from_numpy(words)
        quanta = torch.full((count,), -1, dtype=dtype)
        postings = DevicePostings(shifted[shift:], None, torch.from_numpy(offsets), torch.from_numpy(lengths))
        family("shuffle", 1).derive(postings, formula, torch.from_numpy(idf), quanta)
        np.testing.assert_array_equal(quanta.numpy(), expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fields", [{"text": 1.0}, {"text": 2.5}, {"text": 1.0, "title": 0.37}])
@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.0, 1.0), (1000.0, 0.0), (1.5, 1.0)])
def test_derive_over_a_grid(method: str, fields: dict[str, float], k1: float, b: float) -> None:
    """Every (tf, length) of a grid with its extremes, for every formula: the integers of `BM25.quanta`."""
    model = BM25(method=method, fields=fields, k1=k1, b=b)
    tfs = np.array([1, 2, 3, 7, 100, 4094, 4095], dtype=np.int64)
    dls = np.array([1, 2, 3, 99, 12345, (1 << 20) + 1, (1 << 31) - 1], dtype=np.int64)
    tf, dl = (grid.reshape(-1) for grid in np.meshgrid(tfs, dls))
    frequencies, lengths = [tf], [dl]
    if len(fields) == 2:
        # The second field is empty in every third document: norm 0 where b is 1.
        empty = np.arange(len(tf)) % 3 == 0
        frequencies.append(np.where(empty, 0, tf[::-1]))
        lengths.append(np.where(empty, 0, dl[::-1]))
    tf, dl = np.stack(frequencies), np.stack(lengths).astype(np.int32)
    documents = tf.shape[1]
    statistics = Statistics(documents, tuple(int(row.sum(dtype=np.int64)) for row in dl), np.array([1, 20, documents]))
    idf = model.idf(np.array([1, 20, documents]), statistics)
    expected = np.concatenate(
        [
            model.quanta(model.saturated(tf.astype(np.uint32), model.norms(dl, statistics)), np.full(documents, value))
            for value in idf
        ]
    )
    word = np.tile(np.arange(documents), 3).astype(np.uint32)
    stored = torch.from_numpy(np.tile(tf, (1, 3)).astype(np.int32))
    formula = Formula(
        kc.SHAPES.get(method, 0),
        model.fielded,
        model.signed,
        k1,
        b,
        model.delta or 0.0,
        SCALE,
        list(fields.values()),
        [statistics.average_length(position) for position in range(len(fields))],
    )
    packed = word | np.tile(tf[0], 3).astype(np.uint32) << np.uint32(DOCUMENT_BITS)
    offsets = torch.arange(4) * documents
    for words, kept in ((word, stored), (packed, None)):
        if kept is None and len(fields) == 2:
            continue
        postings = DevicePostings(torch.from_numpy(words.view(np.int32)), kept, offsets, torch.from_numpy(dl))
        dtypes = [torch.int64] + [torch.int32] * bool(np.abs(expected).max() < 1 << 31)
        for dtype in dtypes:
            quanta = torch.full((3 * documents,), -1, dtype=dtype)
            family().derive(postings, formula, torch.from_numpy(idf), quanta)
            np.testing.assert_array_equal(quanta.numpy(), expected)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("select", ["bitonic", "warp"])
@pytest.mark.parametrize("largest", [1, 31, 32, 33, 100, 1023])
def test_select_at_every_k(wide: bool, select: str, largest: int) -> None:
    counts = [0, 1, 31, 32, 33, 100, 255, 256, 257, 1023, 1024, 1025, 2500, 9000]
    ks = [max(0, largest - place % 3) for place in range(len(counts))]
    kc.check_select(family("shuffle", largest, select=select), largest, counts, ks, wide=wide)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("select", ["bitonic", "warp"])
def test_select_takes_1024(wide: bool, select: str) -> None:
    """Also where the answer has more columns than that."""
    case = kc.build(9, sizes=(2300,), tile_bits=10, ks=(1024,), queries=3, wide="all" if wide else "none")
    kc.check_family(family(select=select), case)


def test_rows_do_not_depend_on_what_the_buffers_held() -> None:
    """SPEC A050: a launch with larger scores leaves nothing behind."""
    for seed, select in itertools.product(range(4), ("bitonic", "warp")):
        case = kc.build(seed, ks=(3, 40, 300), max_weight=2, method=("lucene", "robertson")[seed % 2])
        own = family(select=select)
        kc.tabulate(own, case)
        for work in case.launches():
            buffers, answer, guarded = kc.fresh(work, "cpu")
            kc.launch(own, replace(work, slot_weight=work.slot_weight * 8), buffers, answer)
            for tensor in (answer.scores, answer.documents, answer.counts):
                tensor.view(torch.uint8).fill_(kc.POISON)
            kc.launch(own, work, buffers, answer)
            kc.check_candidates(case, work, buffers)
            kc.check_answer(case, work, answer)
            guarded.check()


def test_what_the_family_declines() -> None:
    with pytest.raises(ParameterError, match="select_method"):
        CudaVerbs(Launchers(), "radix")
    with pytest.raises(ParameterError, match="tile_bits"):
        CudaVerbs(Launchers(), tile_bits=16)
    case = kc.build(0, wide="none")
    buffers, _, _ = kc.fresh(case.work, "cpu")
    with pytest.raises(ParameterError, match="shared"):
        family().score(replace(case.work, tile_bits=16, wide=False), buffers)
    assert [family().tile_bits(wide) for wide in (False, True)] == [14, 13]
    assert CudaVerbs(Launchers(), tile_bits=7).tile_bits(True) == 7


class Corpus:
    """A random corpus as the baseline reads it, and its scores in float64."""

    def __init__(self, seed: int, documents: int = 300, terms: int = 20, batch: int = 5) -> None:
        rng = np.random.default_rng(seed)
        tf = rng.integers(1, 9, size=(terms, documents)) * (rng.random((terms, documents)) < 0.25)
        lengths = tf.sum(axis=0) + 1
        term, document = np.nonzero(tf)
        idf = rng.uniform(0.1, 6.0, size=terms)
        self.average = float(lengths.mean())
        self.terms = np.stack([rng.choice(terms, size=4, replace=False) for _ in range(batch)]).astype(np.int32)
        self.terms[0, 2:] = -1
        self.multiplicities = rng.integers(1, 4, size=self.terms.shape).astype(np.int32)
        impact = idf[:, None] * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * lengths / self.average))
        self.scores = np.zeros((batch, documents))
        for query, slot in np.argwhere(self.terms >= 0).tolist():
            self.scores[query] += impact[self.terms[query, slot]] * self.multiplicities[query, slot]
        self.arrays: dict[str, Any] = {
            "offsets": torch.from_numpy(np.searchsorted(term, np.arange(terms + 1))),
            "documents": torch.from_numpy(document.astype(np.int32)),
            "frequencies": torch.from_numpy(tf[term, document].astype(np.int32)),
            "lengths": torch.from_numpy(lengths.astype(np.int32)),
            "idf": torch.from_numpy(idf.astype(np.float32)),
        }

    def search(self, launcher: Launchers, k: int, merge: str) -> tuple[Any, Any]:
        scores, documents = Baseline(launcher).search(
            torch.from_numpy(self.terms),
            torch.from_numpy(self.multiplicities),
            average_length=self.average,
            k=k,
            merge=merge,
            **self.arrays,
        )
        return scores.numpy(), documents.numpy()


@pytest.mark.parametrize("k", [1, 10, 32, 33, 128])
def test_baseline_merges_agree_and_follow_float64(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC A046 to A051: both merges give the same rows, close to float64; chunks of the batch change nothing."""
    corpus = Corpus(k)
    launcher = Launchers()
    scores, documents = corpus.search(launcher, k, "naive")
    borders.shrink(monkeypatch, BASELINE_MATRIX_BYTES=2 * 4 * 300)
    for merged, own in zip((scores, documents), corpus.search(launcher, k, "warp"), strict=True):
        np.testing.assert_array_equal(merged, own)
    for row, (found, numbers) in enumerate(zip(scores, documents, strict=True)):
        exact = corpus.scores[row]
        hits = min(k, int((exact > 0.0).sum()))
        assert (numbers[hits:] == -1).all()
        assert (found[hits:] == 0.0).all()
        assert len(set(numbers[:hits].tolist())) == hits
        np.testing.assert_allclose(found[:hits], exact[numbers[:hits]], rtol=1e-5)
        np.testing.assert_allclose(found[:hits], -np.sort(-exact)[:hits], rtol=1e-5)


def test_baseline_declines_large_k() -> None:
    with pytest.raises(ParameterError, match="1 to 128"):
        Corpus(0).search(Launchers(), 129, "warp")
    with pytest.raises(ParameterError, match="merge"):
        Corpus(0).search(Launchers(), 10, "sort")


# What each mutation of the kernels breaks: a barrier, the sentinels (SPEC A050), a border of the tiles.
BARRIER = "no barrier before the sums are read"  # and so a crash in some orders: under ThreadSanitizer only
MUTATIONS: dict[str, tuple[str, str, str]] = {
    BARRIER: ("score.cu", "    __syncthreads();\n\n    constexpr bool LISTED", "\n    constexpr bool LISTED"),
    "no barrier between the steps of the sort": (
        "select.cu",
        "            }\n            __syncthreads();\n        }\n    }\n}\n\n// `slots` holds",
        "            }\n        }\n    }\n}\n\n// `slots` holds",
    ),
    "slots of the sort not cleared": (
        "select.cu",
        "    for (i32 i = thread; i < best; i += BITONIC_THREADS) {\n        slots[i] = Key::sentinel();\n    }\n",
        "",
    ),
    "a tile without its last document": (
        "score.cu",
        "smaller(a.unit_high[unit] - tile_first, tile_documents)",
        "smaller(a.unit_high[unit] - tile_first, tile.size - 1)",
    ),
    "ties kept from the wrong end": ("score_candidates.cuh", "local <= last_tied", "local < last_tied"),
    "the rows of every width": (
        "select.cu",
        """const i64 query = blockIdx.x;
    if (a.query_wide[query] != a.wide) {
        return;
    }
    const i32 k = smaller(a.query_k[query], a.slots / 2);""",
        "const i64 query = blockIdx.x;\n    const i32 k = smaller(a.query_k[query], a.slots / 2);",
    ),
}

# And what each of these breaks of the tables, the descriptors and the plan of a batch of terms.
PLAN_MUTATIONS: dict[str, tuple[str, str, str]] = {
    "the last border missing at 32 tiles": (
        "plan.cu",
        "if (tile + 1 == a.tiles) {",
        "if (a.tiles % WARP && tile + 1 == a.tiles) {",
    ),
    "a posting at a border falls into the tile before": (
        "plan.cu",
        "& DOCUMENT_MASK) < document",
        "& DOCUMENT_MASK) <= document",
    ),
    "maxima of the epoch before": (
        "plan.cu",
        "a.maxima[index * a.tiles + tile] = maximum;",
        "a.maxima[index * a.tiles + tile] = larger(maximum, a.maxima[index * a.tiles + tile]);",
    ),
    "the maximum of the first 32 postings": (
        "plan.cu",
        "next < end; next += WARP * UNROLL",
        "next < smaller(end, begin + WARP); next += WARP * UNROLL",
    ),
    "a probe that is passed over": ("plan_slot.cuh", "low += held * step;", "low += held * step + (held == WARP - 1);"),
    "tables beyond 32 tiles": (
        "plan_slot.cuh",
        "for (i32 tile = lane_index(); tile < tiles; tile += WARP) {\n            const i32 cut",
        "for (i32 tile = lane_index(); tile < smaller(tiles, WARP); tile += WARP) {\n            const i32 cut",
    ),
    "a table of another list": (
        "plan_slot.cuh",
        "at_global(row.row_maxima) + list.table * row.tiles;",
        "at_global(row.row_maxima);",
    ),
    "cuts of lists one tile short": ("plan_slot.cuh", "list.table * (row.tiles + 1)", "list.table * row.tiles"),
    "lists beyond 32 tiles": (
        "plan_slot.cuh",
        "for (i32 group = 0; group < tiles;",
        "for (i32 group = 0; group < smaller(tiles, WARP);",
    ),
    "empty lists beyond 32 tiles": (
        "plan_slot.cuh",
        "for (i32 tile = lane_index(); tile < tiles; tile += WARP) {\n            descriptors",
        "for (i32 tile = lane_index(); tile < smaller(tiles, WARP); tile += WARP) {\n            descriptors",
    ),
    "postings before the 32 tiles not counted": (
        "plan_slot.cuh",
        "before += __shfl_sync(ALL_LANES, until, WARP - 1);",
        "",
    ),
    "a tally that is not cleared": ("plan_slot.cuh", "        maxima[lane] = 0;\n", ""),
    "counts that are not cleared": ("plan_slot.cuh", "        tally.counts[lane] = 0;\n", ""),
    "negative contributions below none": ("plan_slot.cuh", "return value < 0 ? -value : value;", "return value;"),
    "the first posting of the tile after": (
        "plan_slot.cuh",
        "list.first + before + until - count,",
        "list.first + before + until,",
    ),
    "thresholds of unsigned methods": ("plan.cu", "return is_signed ? -(i64(1) << 62) : 1;", "return 1;"),
    "candidates of the launch before": (
        "plan.cu",
        "            a.counts[query] = 0;\n        }\n        return;",
        "        }\n        return;",
    ),
    "the progress of the launch before": (
        "plan.cu",
        "                a.progress[1] = 0;\n            }\n        }\n    }",
        "            }\n        }\n    }",
    ),
    "the idf of another slot": (
        "plan.cu",
        "a.idf[slot] = position >= 0 ? at_global(row.idf)[position] : 0.0;",
        "a.idf[slot] = position > 0 ? at_global(row.idf)[position - 1] : 0.0;",
    ),
    "the idf of another segment": (
        "plan.cu",
        "start * a.segment_count + segment * count + (index - start)] = idf",
        "start * a.segment_count + (index - start)] = idf",
    ),
    "a term that the segment lacks": ("plan.cu", "if (found != term) {", "if (false) {"),
    "terms of the query before": ("plan.cu", "return a.offsets[i + 1] <= index;", "return a.offsets[i + 1] < index;"),
    "terms of no query": ("plan.cu", "if (index < start || index >= end) {", "if (false) {"),
    "weights of 1": ("plan.cu", "a.weights != nullptr ? a.weights[index] : 1;", "1;"),
    "the weight of 32 terms": (
        "plan.cu",
        "for (i64 i = lane; i < count; i += WARP) {",
        "for (i64 i = lane; i < smaller(count, i64(WARP)); i += WARP) {",
    ),
    "a sum that reaches int32's end": ("plan.cu", "bound >= 0x7fffffff", "bound > 0x1p33"),
    "all documents live": ("plan.cu", "static_cast<i64>(reinterpret_cast<u64>(row.alive));", "0;"),
    "a padding segment of documents": (
        "plan.cu",
        "static_cast<i32>(row.size);",
        "static_cast<i32>(larger(row.size, i64(1)));",
    ),
    "slots of the segments over each other": (
        "plan.cu",
        "a.unit_slots[unit] = start * a.segment_count + segment * count;",
        "a.unit_slots[unit] = start * a.segment_count;",
    ),
    "descriptors of the segments over each other": (
        "plan.cu",
        "a.descriptors + start * a.tiles + count * row.tile_offset + (index - start) * row.tiles;",
        "a.descriptors + start * a.tiles + row.tile_offset + (index - start) * row.tiles;",
    ),
    "no end of the slots": ("plan.cu", "                a.unit_slots[unit] = start * a.segment_count;\n", ""),
}

# And of the order of entries.
ORDER_MUTATIONS: dict[str, tuple[str, str, str]] = {
    "a bound without the last slot": ("order.cu", "slot < looked; ++slot", "slot < looked - 1; ++slot"),
    "a bound without weights": ("order.cu", "descriptor.maximum * descriptor.weight", "descriptor.maximum"),
    "a bound of 32 bits": (
        "order.cu",
        "bound += descriptor.maximum * descriptor.weight;",
        "bound += static_cast<i32>(descriptor.maximum * descriptor.weight);",
    ),
    "tiles without postings": ("order.cu", "kept = postings != 0 && bound >= threshold;", "kept = bound >= threshold;"),
    "a bound at the threshold left out": ("order.cu", "bound >= threshold;", "bound > threshold;"),
    "tiles beyond the first 32": (
        "order.cu",
        "const i32 tile = group * WARP + lane;",
        "const i32 tile = lane + 0 * group;",
    ),
    "units beyond the first eight": (
        "order.cu",
        "for (i64 round = 0; round < turns;",
        "for (i64 round = 0; round < smaller(turns, i64(WARPS));",
    ),
    "the range's end": (
        "order.cu",
        "smaller(high, (tile + 1) << a.tile_bits)",
        "(tile + 1) << a.tile_bits",
    ),
    "the range's beginning": ("order.cu", "larger(low, tile << a.tile_bits)", "tile << a.tile_bits"),
    "words of the first tile's filter": ("order.cu", "const i32 word = (from >> 5) + i;", "const i32 word = i;"),
    "bits before the range": ("order.cu", "bits &= ~0u << (from & 31);", ""),
    "bits behind the range": ("order.cu", "bits &= ~0u >> (31 - ((to - 1) & 31));", ""),
    "the rest of a filter": ("order.cu", "asked && found == 0 && (from >> 5) + UNROLL <= (to - 1) >> 5", "false"),
    "the filter of the first lane": (
        "order.cu",
        "__shfl_sync(ALL_LANES, from, owner)",
        "__shfl_sync(ALL_LANES, from, 0)",
    ),
    "an entry lost in the sort": (
        "order.cu",
        "entries[atomicAdd(&shared.classes[class_of(i)], 1)] = shared.entries[i];",
        "entries[atomicAdd(&shared.classes[class_of(i)], i > 0)] = shared.entries[i];",
    ),
    "classes of the sort over each other": (
        "order.cu",
        "shared.classes[thread] = until - own;",
        "shared.classes[thread] = smaller(until - own, 1);",
    ),
    "worst first": (
        "order.cu",
        "static_cast<float>(best - shared.entries[i].bound)",
        "static_cast<float>(shared.entries[i].bound - least)",
    ),
    "a part of the entries over the part before": ("order.cu", "entries + written", "entries"),
    "the last part of the entries": ("order.cu", "|| round + WARPS >= turns", ""),
    "the entries of every width": ("order.cu", "(own && k > 0)", "(k > 0)"),
    "entries of a query that asks for none": ("order.cu", "(own && k > 0)", "own"),
    "no most entries": ("order.cu", "        atomicMax(a.progress, static_cast<i64>(written));\n", ""),
}


# And what each of these breaks where scores decay.
DECAY_MUTATIONS: dict[str, tuple[str, str, str]] = {
    "great ages not clamped": (
        "score_decay.cuh",
        "(age < MAX_TICKS ? static_cast<i32>(age) : MAX_TICKS)",
        "static_cast<i32>(smaller(age, 1e9))",
    ),
    "what is to come scores more": ("score_decay.cuh", "return age > 0.0 ?", "return age > -1e5 ?"),
    "ages rounded up": ("score_decay.cuh", "? static_cast<i32>(age) :", "? static_cast<i32>(age) + 1 :"),
    "the latest time of the tile before": (
        "order.cu",
        "at_global(row.latest)[tile]",
        "at_global(row.latest)[larger(tile - 1, 0)]",
    ),
    "the bound of a tile not decayed": ("order.cu", "bound = decay.bits(bound, at_global(row.latest)[tile]);", ""),
    "the bound of a tile from its first document": (
        "order.cu",
        "at_global(row.latest)[tile]",
        "at_global(row.times)[tile << a.tile_bits]",
    ),
    "all bounds decay": ("order.cu", "postings != 0 && decay.rate != 0.0", "postings != 0"),
    "sums compared with a threshold of bits": (
        "score.cu",
        "? tile_decay->decay.least_sum(threshold, at_global(row.latest)[turn.tile])",
        "? threshold",
    ),
    "documents listed that decayed below the threshold": (
        "score_candidates.cuh",
        "                if (score >= lowest) {\n                    visit(score, local);",
        "                if (true) {\n                    visit(score, local);",
    ),
    "sums left in a tile that is scanned": (
        "score_candidates.cuh",
        "const Score score = score_of(sum, first + i);",
        "const Score score = static_cast<Score>(sum);",
    ),
    "the times of another tile": (
        "score.cu",
        "tile_decay->times = row.times + tile_first;",
        "tile_decay->times = row.times;",
    ),
    "all decay": (
        "score_candidates.cuh",
        "        if constexpr (DECAYS) {\n            if (tile_decay->decay.rate != 0.0) {\n                return",
        "        if constexpr (DECAYS) {\n            if (true) {\n                return",
    ),
}

ALL_MUTATIONS = MUTATIONS | PLAN_MUTATIONS | ORDER_MUTATIONS | DECAY_MUTATIONS


def every_launch(own: CudaVerbs, case: kc.Case, number: int, also: Sequence[kc.Check]) -> None:
    kc.check_family(own, case, also=also)
    kc.check_plan(own, case, number, also=also)
    if not case.work.signed and not case.work.long_quanta:
        posting_bytes = (6, 4)[number % 2]
        kc.check_family(own, kc.of_classes(case, posting_bytes))
        kc.check_plan(own, kc.of_classes(case, posting_bytes), number)


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name in ALL_MUTATIONS if name != BARRIER])
def test_mutations_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = ALL_MUTATIONS[name]
    for source in SOURCES:
        library(source)
    # Compiling takes most of the time of a mutation: 10 s of a core with -O2, 3 s without optimisation.
    monkeypatch.setattr(build_module, "FLAGS", tuple("-O0" if flag == "-O2" else flag for flag in build_module.FLAGS))

    def failure(order: str, seed: int, edits: Edits, case: kc.Case, number: int) -> str:
        own = family(order, seed, select="bitonic", edits=(mutation, *edits))
        try:
            every_launch(own, case, number, () if edits else BEST_FIRST)
        except (AssertionError, KernelFault) as error:
            return str(error).strip().splitlines()[0]
        return ""

    # The borders before the other edits and orders.
    paths = [(order, edits, kc.cases) for edits in ((), SMALL) for order in ORDERS]
    paths[1:1] = [(ORDERS[0], (), kc.border_cases), (ORDERS[0], SMALL, kc.border_cases)]
    found = (failure(*order, edits, case, number) for order, edits, own in paths for number, case in enumerate(own()))
    caught = next(filter(None, found), "")
    print(f"{name}: {caught}")
    assert caught


def test_stale_slots_of_the_baseline_are_caught() -> None:
    """SPEC A050: without the sentinels, what shared memory held before wins."""
    edit = ("baseline.cu", "        slots[i * THREADS + thread] = sentinel();\n", "")
    corpus = Corpus(1)
    for merge in ("naive", "warp"):
        sound, _ = corpus.search(Launchers(), 10, merge)
        stale, _ = corpus.search(Launchers((edit,)), 10, merge)
        assert not np.array_equal(sound, stale)


RACES = """
import sys
sys.path[:0] = {folders!r}
import test_cuda_kernels
test_cuda_kernels.{call}
"""


def check_launch(verbs: CudaVerbs, case: kc.Case) -> None:
    kc.tabulate(verbs, case)
    for work in case.launches():
        buffers, answer, _ = kc.fresh(work, "cpu")
        kc.launch(verbs, work, buffers, answer)
        kc.check_answer(case, work, answer)


def launch_every_kernel() -> None:
    """Every kernel at least once, in threads under ThreadSanitizer."""
    vars(verbs_module).update(FEW)
    launchers = Launchers((*FEW_THREADS, *SMALL), sanitized=[source.stem for source in SOURCES])
    wide: dict[str, Any] = {"ks": (3,), "wide": "all"}
    options: list[dict[str, Any]] = [{"ks": (40,)}, {"ks": (3,)}, wide, {**wide, "long_quanta": True}]
    for place, own in enumerate(options):
        for method in ("lucene", "robertson"):
            case = kc.build(
                7, sizes=(33,), tile_bits=5, queries=2, identical=place % 2 == 0, restricted=0.3, method=method, **own
            )
            verbs = CudaVerbs(launchers, ("bitonic", "warp")[place % 2])
            kc.check_derive(verbs, case)
            check_launch(verbs, case)
    few: dict[str, Any] = {"sizes": (33,), "tile_bits": 5, "queries": 2, "ks": (3,)}
    for place, (long, width) in enumerate(((False, "none"), (False, "all"), (True, "all"))):
        check_launch(CudaVerbs(launchers), kc.build(7 + place, decays="all", long_quanta=long, wide=width, **few))
    check_launch(CudaVerbs(launchers, sums="global"), kc.build(7, wide="none", restricted=0.3, **few))
    kc.check_plan(CudaVerbs(launchers), kc.build(7, wide="none", **few), 0)
    paths: list[dict[str, Any]] = [{"wide": "none", "restricted": 0.3}, {"wide": "all"}]
    paths += [{"decays": "all", "wide": width} for width in ("none", "all")]
    for posting_bytes, path in itertools.product((6, 4), paths):
        # Of more terms than SMALL describes at a time, so that what impact classes are made with is written anew.
        case = kc.build(13, terms=60, **few, **path)
        assert int(case.work.unit_slots.diff().max()) > 32
        check_launch(CudaVerbs(launchers), kc.of_classes(case, posting_bytes))
    for is_wide, select in itertools.product((False, True), ("bitonic", "warp")):
        for k in (3, 100, 500, 1000) if select == "warp" else (40,):
            kc.check_select(CudaVerbs(launchers, select), 1, [300], [k], wide=is_wide)
    corpus = Corpus(0, documents=150, batch=1)
    for k, merge in itertools.product((3, 40), ("naive", "warp")):
        corpus.search(launchers, k, merge)
    sources = "".join(source.read_text() for source in SOURCES)
    kernels = set(re.findall(r"__launch_bounds__\([^)]*\) (\w+)\(", sources))
    assert kernels == set(launchers.launched), kernels - set(launchers.launched)
    print("launched every kernel")


def launch_without_barrier() -> None:
    vars(verbs_module).update(FEW)
    launchers = Launchers((*FEW_THREADS, *SMALL, MUTATIONS[BARRIER]), sanitized=["score"])
    case = kc.build(7, sizes=(33,), tile_bits=5, queries=3, ks=(3,), wide="none", restricted=0.0)
    (work,) = case.launches()
    buffers, answer, _ = kc.fresh(work, "cpu")
    verbs = CudaVerbs(launchers)
    kc.tabulate(verbs, case)
    kc.launch(verbs, work, buffers, answer)


def run_under_sanitizer(call: str) -> Any:
    try:
        sanitizer_library()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    here = Path(__file__).resolve().parent
    return run_sanitized(["-c", RACES.format(folders=[str(here), str(here.parent)], call=call)])


def test_no_kernel_has_a_race() -> None:
    result = run_under_sanitizer("launch_every_kernel()")
    assert "launched every kernel" in result.output, result.output[-3000:]
    assert not result.races, result.races[0]
    assert result.returncode == 0


def test_a_missing_barrier_is_a_race() -> None:
    result = run_under_sanitizer("launch_without_barrier()")
    assert result.races, result.output[-3000:]
    assert "score" in result.races[0]
