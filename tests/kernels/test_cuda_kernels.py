"""The CUDA kernels, compiled for the CPU by the shim: exact in every resume order, and free of races."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
import sys
from collections.abc import Sequence
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
from fanrank.kernels.cuda.launcher import SOURCES  # noqa: E402
from fanrank.kernels.cuda.verbs import Baseline, CudaVerbs  # noqa: E402
from fanrank.kernels.cuda_host.build import build as build_library  # noqa: E402
from fanrank.kernels.cuda_host.build import compiler, run_sanitized, sanitizer_library  # noqa: E402
from fanrank.kernels.cuda_host.launcher import HostLauncher, KernelFault  # noqa: E402
from fanrank.kernels.work import DOCUMENT_BITS, Buffers, DevicePostings, Formula, KernelAnswer, Work  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import support.kernel_cases as kc  # noqa: E402

# The package has a function of the module's name.
build_module = importlib.import_module("fanrank.kernels.cuda_host.build")

ORDERS = (("ascending", 0), ("descending", 0), ("shuffle", 1), ("shuffle", 2))

# Small constants, so that small cases overflow the list, describe slots in several chunks and cross every run.
SMALL = (
    ("score_tile.cuh", "constexpr i32 MAX_REACHED = 2048;", "constexpr i32 MAX_REACHED = 6;"),
    ("score_tile.cuh", "constexpr i32 SLOTS = 128;", "constexpr i32 SLOTS = 32;"),
    ("score_tile.cuh", "constexpr i32 RUN = WARP * UNROLL;", "constexpr i32 RUN = WARP;"),
    ("score_tile.cuh", "constexpr i32 UNROLL = 4;", "constexpr i32 UNROLL = 1;"),
)
# Under ThreadSanitizer each of a block's threads is one of the host's, so fewer of them: in the sources and in verbs.
FEW_THREADS = (
    ("score_tile.cuh", "constexpr i32 THREADS = 512;", "constexpr i32 THREADS = 64;"),
    ("derive.cu", "constexpr i32 THREADS = 256;", "constexpr i32 THREADS = 64;"),
    ("cut.cu", "constexpr i32 THREADS = 256;", "constexpr i32 THREADS = 64;"),
    ("select.cu", "constexpr i32 BITONIC_THREADS = 256;", "constexpr i32 BITONIC_THREADS = 64;"),
)
FEW = {"SCORE_THREADS": 64, "DERIVE_THREADS": 64, "DERIVE_POSTINGS": 1024, "CUT_THREADS": 64, "BITONIC_THREADS": 64}
# Blocks of a launch with sums in global memory, so that the next launch takes the same memory.
FEW["GLOBAL_BLOCKS"] = 3


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    try:
        compiler()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


Edits = tuple[tuple[str, str, str], ...]


@functools.cache
def library(source: Path, edits: Edits = (), sanitize: bool = False) -> Path:
    """One source compiled, with those of the edits that are its own or its headers'."""
    own = [edit for edit in edits if edit[0].partition(".")[0].partition("_")[0] == source.stem]
    return build_library([source], mode="threads" if sanitize else "fibers", sanitize=sanitize, edits=own)


class Launchers:
    """A launcher over one library a source, so that an edit compiles its own file alone."""

    def __init__(
        self, edits: Edits = (), order: str = "ascending", seed: int = 0, sanitized: Sequence[str] = ()
    ) -> None:
        self._edits, self._order, self._seed, self._sanitized = edits, order, seed, sanitized
        self._launchers: dict[str, HostLauncher] = {}
        self.launched: set[str] = set()

    def launch(self, name: str, grid: Any, block: Any, shared_bytes: int, args: Any) -> None:
        self.launched.add(name)
        operation = name.partition("_")[0]
        if operation not in self._launchers:
            source = next(source for source in SOURCES if source.stem == operation)
            made = library(source, self._edits, operation in self._sanitized)
            self._launchers[operation] = HostLauncher(made, order=self._order, seed=self._seed)
        self._launchers[operation].launch(name, grid, block, shared_bytes, args)


def family(order: str = "ascending", seed: int = 0, *, select: str = "auto", edits: Edits = ()) -> CudaVerbs:
    return CudaVerbs(Launchers(edits, order, seed), select, name="cuda-host")


def launch(verbs: CudaVerbs, work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
    verbs.cut(work, buffers)
    for verb in (verbs.score, functools.partial(verbs.select, answer=answer)):
        for wide, any_such in ((False, work.any_narrow), (True, work.any_wide)):
            if any_such:
                verb(work, buffers, wide=wide)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize("select", ["bitonic", "warp"])
@pytest.mark.parametrize("edits", [(), SMALL], ids=["as is", "small"])
def test_every_case(order: str, seed: int, select: str, edits: Any) -> None:
    own = family(order, seed, select=select, edits=edits)
    for case in kc.cases():
        kc.check_derive(own, case)
        kc.check_family(own, case)


@pytest.mark.parametrize("posting_bytes", [4, 6])
@pytest.mark.parametrize("edits", [(), SMALL], ids=["as is", "small"])
def test_every_case_of_kinds(posting_bytes: int, edits: Edits) -> None:
    own = family("shuffle", 1, edits=edits)
    for case in kc.cases():
        if not case.work.signed and not case.work.long_quanta:
            kc.check_family(own, kc.of_classes(case, posting_bytes))


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
    buffers, answer, guarded = kc.fresh(case.work, "cpu")
    launch(own, case.work, buffers, answer)
    kc.check_candidates(case, buffers)
    kc.check_answer(case, answer)
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
    """Blocks start with the youngest documents, whose scores the older tiles cannot reach."""
    aged = {"decays": "all", "times": "ordered", "half_lives": (86400.0,)}
    assert touched(kc.one_list(3, ks=(1,), **aged)) == {4}
    assert touched(kc.one_list(3, ks=(33,), **aged)) == {0, 1, 2, 3, 4}
    # In this order the oldest block comes first.
    assert touched(kc.one_list(3, ks=(1,), **aged), order="descending") == {0, 1, 2, 3, 4}
    assert touched(kc.one_list(3, ks=(1,))) == {0, 1, 2, 3, 4}


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
        buffers, answer, guarded = kc.fresh(case.work, "cpu")
        for work in (replace(case.work, slot_weight=case.work.slot_weight * 8), case.work):
            kc.reset(work, buffers)
            launch(own, work, buffers, answer)
        kc.check_candidates(case, buffers)
        kc.check_answer(case, answer)
        guarded.check()


def test_a_launch_of_too_many_blocks_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, MAX_GRID=3)
    for case in itertools.islice(kc.cases(), 6):
        kc.check_family(family(), case)


def test_what_the_family_declines() -> None:
    with pytest.raises(ParameterError, match="select_method"):
        CudaVerbs(Launchers(), "radix")
    with pytest.raises(ParameterError, match="tile_bits"):
        CudaVerbs(Launchers(), tile_bits=16)
    case = kc.build(0, wide="none")
    buffers, _, _ = kc.fresh(case.work, "cpu")
    with pytest.raises(ParameterError, match="shared memory"):
        family().score(replace(case.work, tile_bits=16), buffers, wide=False)
    assert [family().tile_bits(wide) for wide in (False, True)] == [14, 12]
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
    BARRIER: (
        "score.cu",
        "    __syncthreads();\n\n    // All that follows",
        "\n    // All that follows",
    ),
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
    "a posting at a border falls into the tile before": (
        "cut.cu",
        "(words[middle] & DOCUMENT_MASK) < document",
        "(words[middle] & DOCUMENT_MASK) <= document",
    ),
    "a tile without its last document": (
        "score.cu",
        "smaller(a.unit_high[unit] - tile_first, tile_documents)",
        "smaller(a.unit_high[unit] - tile_first, tile_size - 1)",
    ),
    "ties kept from the wrong end": ("score_candidates.cuh", "local <= last_tied", "local < last_tied"),
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
        "score.cu",
        "(a.latest_of[segment])[tile];",
        "(a.latest_of[segment])[larger(tile - 1, 0)];",
    ),
    "the bound of a tile not decayed": ("score.cu", "            bound = decay.bits(bound, latest);\n", ""),
    "the bound of a tile from its first document": (
        "score.cu",
        "at_address<double>(a.latest_of[segment])[tile];",
        "at_address<double>(a.times_of[segment])[tile_first];",
    ),
    "sums compared with a threshold of bits": (
        "score.cu",
        "            least_sum = decay.least_sum(threshold, latest);\n",
        "",
    ),
    "documents listed that decayed below the threshold": (
        "score_candidates.cuh",
        "if (!DECAYS || sums[local] >= static_cast<Sum>(shared.state.threshold))",
        "if (true)",
    ),
    "sums left in a tile that is scanned": (
        "score_tile.cuh",
        "sum >= least_sum ? decay.bits(sum, times[local]) : 0;",
        "sum;",
    ),
    "the times of another tile": ("score.cu", "(a.times_of[segment]) + tile_first", "(a.times_of[segment])"),
    "all decay": ("score.cu", "        if (tile_decay->decay.rate != 0.0) {", "        if (true) {"),
}


@pytest.mark.parametrize("name", [name for name in (*MUTATIONS, *DECAY_MUTATIONS) if name != BARRIER])
def test_mutations_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = (MUTATIONS | DECAY_MUTATIONS)[name]
    # Compiling takes most of the time of a mutation: 10 s of a core with -O2, 3 s without optimisation.
    monkeypatch.setattr(build_module, "FLAGS", tuple("-O0" if flag == "-O2" else flag for flag in build_module.FLAGS))

    def failure(order: str, seed: int, edits: Edits, case: kc.Case) -> str:
        try:
            kc.check_family(family(order, seed, select="bitonic", edits=(mutation, *edits)), case)
        except (AssertionError, KernelFault) as error:
            return str(error).strip().splitlines()[0]
        return ""

    paths = ((order, edits) for edits in ((), SMALL) for order in ORDERS)
    found = (failure(*order, edits, case) for order, edits in paths for case in kc.cases())
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
    buffers, answer, _ = kc.fresh(case.work, "cpu")
    launch(verbs, case.work, buffers, answer)
    kc.check_answer(case, answer)
    assert answer.counts.any()


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
    for place, long in enumerate((False, True)):
        check_launch(CudaVerbs(launchers), kc.build(7 + place, decays="all", long_quanta=long, **few))
    check_launch(CudaVerbs(launchers, sums="global"), kc.build(7, wide="none", restricted=0.3, **few))
    paths: list[dict[str, Any]] = [{"wide": "none", "restricted": 0.3}, {"wide": "all"}, {"decays": "all"}]
    for posting_bytes, path in itertools.product((6, 4), paths):
        # Of more terms than SMALL describes at a time, so that what impact classes are made with is written anew.
        case = kc.build(7, terms=60, **few, **path)
        assert int(case.work.unit_slots.diff().max()) > 32
        check_launch(CudaVerbs(launchers), kc.of_classes(case, posting_bytes))
    for is_wide, select in itertools.product((False, True), ("bitonic", "warp")):
        for k in (3, 100, 500, 1000) if select == "warp" else (40,):
            kc.check_select(CudaVerbs(launchers, select), 1, [300], [k], wide=is_wide)
    corpus = Corpus(0, documents=150, batch=1)
    for k, merge in itertools.product((3, 40), ("naive", "warp")):
        corpus.search(launchers, k, merge)
    sources = "".join(source.read_text() for source in SOURCES)
    assert launchers.launched == set(re.findall(r"__launch_bounds__\([^)]*\) (\w+)\(", sources))
    print("launched every kernel")


def launch_without_barrier() -> None:
    vars(verbs_module).update(FEW)
    launchers = Launchers((*FEW_THREADS, *SMALL, MUTATIONS[BARRIER]), sanitized=["score"])
    case = kc.build(7, sizes=(33,), tile_bits=5, queries=3, ks=(3,), wide="none", restricted=0.0)
    buffers, answer, _ = kc.fresh(case.work, "cpu")
    launch(CudaVerbs(launchers), case.work, buffers, answer)


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
