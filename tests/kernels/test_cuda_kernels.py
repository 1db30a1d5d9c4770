"""The CUDA kernels, compiled for the CPU by the shim: exact in every order of threads."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support import kernel_cases as kc  # noqa: E402
from support.host_kernels import SMALL, Edits, Launchers, family, need_compiler  # noqa: E402

from fanrank.engine.errors import ParameterError  # noqa: E402
from fanrank.engine.index.bm25 import BM25, METHODS, SCALE, Statistics  # noqa: E402
from fanrank.kernels.cuda.verbs import CudaVerbs  # noqa: E402
from fanrank.kernels.cuda_host.launcher import KernelFault, Order  # noqa: E402
from fanrank.kernels.work import DOCUMENT_BITS, DevicePostings, Formula  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    need_compiler()


PATHS: list[tuple[Order, int, str, Edits]] = [
    ("ascending", 0, "auto", ()),
    ("descending", 0, "bitonic", SMALL),
    ("shuffle", 2, "auto", SMALL),
]


@pytest.mark.parametrize(
    ("order", "seed", "select", "edits", "step"),
    [*(pytest.param(*path, 1, marks=pytest.mark.extended) for path in PATHS), (*PATHS[-1], 6)],
)
def test_every_case(order: Order, seed: int, select: str, edits: Edits, step: int) -> None:
    """Every feature; and more tiles, entries, slots, segments and hits than a warp, block or table takes at a time."""
    own = family(order, seed, select_method=select, edits=edits)
    every = enumerate(itertools.chain(kc.cases(), kc.cases(kc.BORDERS)))
    for number, case in itertools.islice(every, 0, None, step):
        # Entries are sorted in parts where few are sorted at a time.
        also = () if edits else (kc.check_best_first,)
        if number < len(kc.CASES):
            kc.check_derive(own, case)
        kc.check_family(own, case, also=also)
        kc.check_plan(own, case, number, also=also)
        if order != "descending" and not case.work.signed and not case.work.long_quanta:
            kc.check_family(own, kc.of_classes(case))
            kc.check_plan(own, kc.of_classes(case), number)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    method=st.sampled_from(METHODS),
    fields=st.integers(1, 2),
    identical=st.booleans(),
    max_weight=st.sampled_from([1, 3, 1 << 20]),
    wide=st.sampled_from(["none", "some", "all"]),
    long_quanta=st.booleans(),
    ks=st.sampled_from([(1, 2, 33), (0, 5), (1000,), (3, 32, 64)]),
    borders=st.booleans(),
    decays=st.sampled_from(["none", "some", "all"]),
    times=st.sampled_from(["mixed", "ordered"]),
    path=st.sampled_from(PATHS),
)
def test_random_launches(seed: int, path: tuple[Order, int, str, Edits], **options: Any) -> None:
    order, own_seed, select, edits = path
    case, own = kc.build(seed, **options), family(order, own_seed, select_method=select, edits=edits)
    kc.check_derive(own, case)
    kc.check_family(own, case)
    kc.check_plan(own, case, seed)


def test_an_index_outside_its_array_is_a_fault() -> None:
    edit = ("score.cu", "if (position < MAX_REACHED) {", "if (position <= MAX_REACHED) {")
    case = kc.build(5, identical=True, sizes=(100,), tile_bits=5, wide="none", restricted=0.0, ks=(1,))
    with pytest.raises(KernelFault, match="an index outside its array"):
        kc.check_family(family(edits=(*SMALL, edit)), case)


MARKED = (
    "score.cu",
    "locals[i] = words[first + index];",
    "locals[i] = words[first + index]; const_cast<u32*>(words)[first + index] |= 1u << 31;",
)
"""Sets the top bit of every posting's word that scoring reads."""


@pytest.mark.parametrize("options", kc.FAR, ids=str)
def test_places_beyond_31_bits(options: dict[str, Any]) -> None:
    kc.check_far(family(), kc.build(3, **options))


def touched(case: kc.Case, *, order: Order = "ascending") -> set[int]:
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
    aged: dict[str, Any] = {"decays": "all", "times": "ordered", "half_lives": (86400.0,)}
    for order in ("ascending", "descending"):
        assert touched(kc.one_list(3, ks=(1,), **aged), order=order) == {4}
    assert touched(kc.one_list(3, ks=(33,), **aged)) == {0, 1, 2, 3, 4}
    assert touched(kc.one_list(3, ks=(1,))) == {0, 1, 2, 3, 4}


def test_a_fan_out_is_four_launches() -> None:
    """Whatever the segments, the rows of padding and the queries; the tables were made before."""
    for name in ("a table of sixteen", "forty queries"):
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
        kc.check_family(family("shuffle", 3), kc.of_classes(case))


@pytest.mark.parametrize(
    ("bits", "options"),
    [
        (12, {"method": "robertson"}),
        pytest.param(14, {"wide": "none"}, marks=pytest.mark.extended),
        pytest.param(14, {"wide": "none", "decays": "some"}, marks=pytest.mark.extended),
        pytest.param(13, {"wide": "all", "identical": True}, marks=pytest.mark.extended),
        pytest.param(13, {"wide": "all", "decays": "some", "identical": True}, marks=pytest.mark.extended),
    ],
)
def test_tiles_of_full_size(bits: int, options: dict[str, Any]) -> None:
    """More documents reach the threshold than are listed, many of equal scores; k beyond the list as well."""
    own = {"terms": 4, "queries": 4, "ks": (7, 900, 2500), "restricted": 0.0, "empty": 0.0}
    case = kc.build(bits, sizes=((1 << bits) + 3000,), tile_bits=bits, **own, **options)
    kc.check_family(family("descending"), case)


def test_derive_takes_every_block_and_alignment() -> None:
    """Several blocks of postings, thousands of terms (some empty), and words and contributions at any alignment."""
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
    own = family("shuffle", 1, watched=True)
    for shift, (dtype, quanta_shift) in itertools.product(
        (0, 1, 2), ((torch.int32, 0), (torch.int32, 2), (torch.int64, 0), (torch.int64, 1))
    ):
        shifted, quanta = aligned(count + shift, torch.int32), aligned(count + quanta_shift, dtype)
        shifted[shift:] = torch.from_numpy(words)
        postings = DevicePostings(shifted[shift:], None, torch.from_numpy(offsets), torch.from_numpy(lengths))
        own.derive(postings, formula, torch.from_numpy(idf), quanta[quanta_shift:])
        np.testing.assert_array_equal(quanta[quanta_shift:].numpy(), expected)


def aligned(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor that begins at a multiple of 16 bytes."""
    whole = torch.full((count + 16,), -1, dtype=dtype)
    return whole[-whole.data_ptr() % 16 // dtype.itemsize :][:count]


@pytest.mark.parametrize("fields", [{"text": 1.0}, {"text": 2.5}, {"text": 1.0, "title": 0.37, "tags": 2.0}])
@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.0, 1.0), (1000.0, 0.0)])
def test_derive_over_a_grid(fields: dict[str, float], k1: float, b: float) -> None:
    for method in METHODS:
        kc.check_derive_grid(family(), BM25(method=method, fields=fields, k1=k1, b=b))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("select", ["bitonic", "auto"])
@pytest.mark.parametrize("largest", [1, 31, 32, 33, 100, 1023])
def test_select_at_every_k(wide: bool, select: str, largest: int) -> None:
    counts = [0, 1, 31, 32, 33, 100, 255, 256, 257, 1023, 1024, 1025, 2500, 9000]
    ks = [max(0, largest - place % 3) for place in range(len(counts))]
    kc.check_select(family("shuffle", largest, select_method=select), largest, counts, ks, wide=wide)


@pytest.mark.parametrize("wide", ["none", "all"])
def test_select_takes_1024(wide: str) -> None:
    """Also where the answer has more columns than that."""
    kc.check_family(family(), kc.build(9, sizes=(2300,), tile_bits=10, ks=(1024,), queries=3, wide=wide))


def test_rows_do_not_depend_on_what_the_buffers_held() -> None:
    """SPEC A050: a launch with larger scores leaves nothing behind."""
    for seed, select in itertools.product(range(4), ("bitonic", "auto")):
        case = kc.build(seed, ks=(3, 40, 300), max_weight=2, method=("lucene", "robertson")[seed % 2])
        own = family(select_method=select)
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
