"""The Triton kernels in Triton's interpreter on CPU tensors. `test_triton_compile.py` compiles them for real."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

# Read once, when triton is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="triton is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support import borders, kernel_cases, launches  # noqa: E402

from fanrank.engine.index.bm25 import BM25, METHODS, SCALE, Statistics  # noqa: E402
from fanrank.kernels import triton as family  # noqa: E402
from fanrank.kernels.triton import TritonVerbs, score  # noqa: E402
from fanrank.kernels.triton.verbs import INTERPRETED_PROCESSORS, TUNING  # noqa: E402
from fanrank.kernels.work import DOCUMENT_BITS, Buffers, DevicePostings, Formula, Work  # noqa: E402

INTERPRETED = not isinstance(score._score, triton.runtime.JITFunction)
interpreted = pytest.mark.skipif(not INTERPRETED, reason="triton was imported without TRITON_INTERPRET=1")
HEALTH = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.fixture(scope="module")
def verbs() -> TritonVerbs:
    return TritonVerbs("cpu")


@pytest.fixture(autouse=True)
def memory_holds_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the family takes for itself is poisoned: nothing may rely on zeros."""

    def poisoned(made: Any) -> Any:
        def take(*arguments: Any, **options: Any) -> Any:
            tensor = made(*arguments, **options)
            tensor.view(torch.uint8).fill_(launches.POISON)
            return tensor

        return take

    for module in ("order", "score", "select"):
        empty = type("Torch", (), {"empty": poisoned(torch.empty), "empty_like": poisoned(torch.empty_like)})
        for name in ("int32", "int64", "uint8"):
            setattr(empty, name, getattr(torch, name))
        monkeypatch.setattr(importlib.import_module(f"{family.__name__}.{module}"), "torch", empty)


@pytest.mark.parametrize("path", sorted(Path(family.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_no_compiler_can_round_a_constant(path: Path) -> None:
    """Triton 3.6 takes a constant that is a float to float32 and back."""
    module = importlib.import_module(family.__name__ + ("" if path.stem == "__init__" else f".{path.stem}"))
    constants = [value.value for value in vars(module).values() if isinstance(value, triton.language.constexpr)]
    assert all(float(np.float32(value)) == value for value in constants if isinstance(value, float))


def best_first(case: launches.Case, work: Work, buffers: Buffers) -> None:
    """There are more than half as many classes as the settings say."""
    kernel_cases.check_best_first(case, work, buffers, TUNING["cpu"].order.classes // 2)


EVERY_TIME = ("plain", "one document", "a tile and one", "ties everywhere", "filters everywhere", "more than there are")
EVERY_TIME += ("signed, wide", "large weights, signed", "fields, bm25l", "decay", "learned weights")
CASES = [
    pytest.param(number, id=name, marks=() if name in EVERY_TIME else pytest.mark.sweep)
    for number, name in enumerate(launches.CASES)
]


@interpreted
@pytest.mark.parametrize("number", CASES)
def test_family(verbs: TritonVerbs, number: int) -> None:
    name, options = list(launches.CASES.items())[number]
    case = launches.build(number, name=name, **options)
    kernel_cases.check_derive(verbs, case)
    kernel_cases.check_family(verbs, case, also=[best_first])


@interpreted
@pytest.mark.parametrize("number", CASES)
def test_plan(verbs: TritonVerbs, number: int) -> None:
    name, options = list(launches.CASES.items())[number]
    kernel_cases.check_plan(verbs, launches.build(number, name=name, **options), number, also=[best_first])


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


QUICK = ("33 tiles", "short lists alone", "more than 1,024 ties", "a table of four, half of it padding")
QUICK += ("queries without terms", "terms in no segment", "no documents match", "many tiles, signed")


@interpreted
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=name, marks=() if name in QUICK else pytest.mark.sweep)
        for number, name in enumerate(launches.BORDERS)
    ],
)
def test_borders(verbs: TritonVerbs, number: int) -> None:
    name, options = list(launches.BORDERS.items())[number]
    case = launches.build(number, name=name, **options)
    kernel_cases.check_family(verbs, case, also=[best_first])
    kernel_cases.check_plan(verbs, case, number, also=[best_first])


@interpreted
@settings(max_examples=8, suppress_health_check=HEALTH)
@given(
    seed=st.integers(0, 1 << 32),
    method=st.sampled_from(METHODS),
    identical=st.booleans(),
    max_weight=st.sampled_from([1, 3, 1 << 20]),
    queries=st.integers(1, 4),
    fields=st.integers(1, 2),
)
def test_family_on_random_launches(verbs: TritonVerbs, seed: int, **options: Any) -> None:
    sizes = [int(size) for size in np.random.default_rng(seed).integers(1, 80, size=1 + seed % 3)]
    case = launches.build(seed, sizes=sizes, **options)
    kernel_cases.check_derive(verbs, case)
    kernel_cases.check_family(verbs, case)
    kernel_cases.check_plan(verbs, case, seed)


@interpreted
@settings(max_examples=8, suppress_health_check=HEALTH)
@given(
    seed=st.integers(0, 1 << 32),
    identical=st.booleans(),
    max_weight=st.sampled_from([1, 3, 1 << 20]),
    queries=st.integers(1, 4),
    borders=st.booleans(),
    decays=st.sampled_from(["some", "all"]),
    times=st.sampled_from(["mixed", "ordered"]),
)
def test_family_on_random_launches_that_decay(verbs: TritonVerbs, seed: int, **options: Any) -> None:
    sizes = [int(size) for size in np.random.default_rng(seed).integers(1, 80, size=1 + seed % 3)]
    kernel_cases.check_family(verbs, launches.build(seed, sizes=sizes, **options))


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
@pytest.mark.parametrize("decays", ["none", "all"])
def test_tiles_outside_a_range_are_not_scored(verbs: TritonVerbs, decays: str) -> None:
    case = launches.one_list(3, ks=(1000,), wide="none", decays=decays)
    for low, high in launches.RANGES:
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


# What each breaks: a constant of the kernels, and what stands in its place.
CONSTANTS: dict[str, tuple[str, Any]] = {
    "great ages not clamped": ("_MAX_TICKS", 2.0e9),
    "the whole half-lives dropped": ("decay._PART_BITS", 31),
    "the factor of another half-life": ("_EXPONENT", 994),
}


@interpreted
@pytest.mark.parametrize("name", list(CONSTANTS))
def test_constants_of_decay_are_caught(verbs: TritonVerbs, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    border, value = CONSTANTS[name]
    borders.shrink(monkeypatch, {border: triton.language.constexpr(value)})
    case = launches.build(0, **launches.CASES["decay in seconds"])
    with pytest.raises(AssertionError, match=r"entries|emitted"):
        kernel_cases.check_family(verbs, case)


WHOLE: dict[str, Any] = {"empty": 0.0, "unknown": 0.0, "absent": 0.0, "wide": "none"}
SMALL: dict[str, dict[str, Any]] = {
    "plain": launches.CASES["plain"],
    "signed": launches.CASES["signed"],
    "decay": launches.CASES["decay"],
    "large weights": launches.CASES["large weights"],
    "turns": {
        "sizes": (200, 90),
        "tile_bits": 5,
        "queries": 4,
        "restricted": 0.0,
        "ks": (3, 40),
        "densities": (0.9, 1.0),
        **WHOLE,
    },
    "ties": {
        "sizes": (100, 40),
        "tile_bits": 5,
        "identical": True,
        "restricted": 0.0,
        "ks": (5, 33),
        "densities": (1.0,),
        **WHOLE,
    },
    "ranges": {
        "sizes": (100, 64),
        "tile_bits": 5,
        "queries": 12,
        "restricted": 0.9,
        "ks": (40,),
        "densities": (0.9,),
        "terms": 3,
        **WHOLE,
    },
}


class Fault(NamedTuple):
    file: str
    code: str
    planted: str
    case: str
    """Of `SMALL`."""
    caught: str
    """What the message of the check says."""


FAULTS: dict[str, Fault] = {
    "a border belongs to the tile before": Fault(
        "tabulate", "(document >> TILE_BITS) < border", "(document >> TILE_BITS) <= border", "plain", "cuts of"
    ),
    "a maximum of signed contributions": Fault(
        "tabulate", "tl.abs(value.to(tl.int64))", "value.to(tl.int64)", "signed", "maxima of"
    ),
    "a short list's tiles begin anywhere": Fault("plan", "(before != tile)", "(before == tile)", "plain", "descriptor"),
    "a short list's maximum of one posting": Fault(
        "plan",
        'tl.atomic_max(target + 3 * tile + 1, value, mask=live, sem="relaxed")',
        "tl.store(target + 3 * tile + 1, value, mask=is_last)",
        "plain",
        "descriptor",
    ),
    "a term is the one before": Fault("plan", "other=0) <= value)", "other=0) < value)", "plain", "descriptor"),
    "slots of a unit without those before": Fault(
        "plan", "begin * segment_count + segment * length", "begin * segment_count", "plain", "unit_slots"
    ),
    "weights do not make a query wide": Fault(
        "plan", "if WEIGHTED:\n        length", "if False:\n        length", "large weights", "query_wide"
    ),
    "a bound must beat the threshold": Fault(
        "order", "(bound >= threshold)", "(bound > threshold)", "ties", "its entries"
    ),
    "documents outside the range pass": Fault(
        "order", "(bits.to(tl.int64) & within) != 0", "bits.to(tl.int64) != 0", "ranges", "its entries"
    ),
    "the last slot is left out of the bound": Fault(
        "order", "(slot < slots)", "(slot < slots - 1)", "plain", "its entries"
    ),
    "worst tiles first": Fault("order", "(most - bound) >> shift", "(bound - least) >> shift", "turns", "best first"),
    "entries of a class on one place": Fault(
        "order", "tl.cumsum(own, axis=1) - 1", "tl.minimum(tl.cumsum(own, axis=1), 1) - 1", "ties", "entr"
    ),
    "the bound of a decaying query does not decay": Fault(
        "order", "if rate != 0.0:", "if rate > 1e300:", "decay", "its entries"
    ),
    "the slab is taken as it comes": Fault(
        "score",
        "tl.zeros((TILE,), sums.dtype.element_ty))",
        "tl.load(sums + tl.arange(0, TILE)))",
        "plain",
        "emitted",
    ),
    "the slab is not cleared": Fault(
        "emit", "tl.zeros((TILE,), sums.dtype.element_ty))", "tl.load(sums + local))", "turns", "emitted"
    ),
    "a posting too many": Fault("score", "column < length[:, None]", "column <= length[:, None]", "plain", "emitted"),
    "the highest threshold of all turns": Fault(
        "score", "tl.where(number == found, threshold", "tl.where(live, threshold", "turns", "emitted"
    ),
    "the next turn must beat its threshold": Fault(
        "score", "(bound >= threshold), number", "(bound > threshold), number", "ties", "emitted"
    ),
    "the document after the range": Fault("emit", "(document < high)", "(document <= high)", "ranges", "emitted"),
    "one tie too few": Fault("emit", "(tied_rank <= kept)", "(tied_rank < kept)", "ties", "emitted|candidates"),
    "the threshold is one above the k-th score": Fault(
        "emit", "worst.to(tl.int64), sem", "worst.to(tl.int64) + 1, sem", "ties", "emitted|above a selected"
    ),
    "half of a key in its score": Fault("select", "key >> 32, mask=live)", "key >> 31, mask=live)", "plain", "query"),
    "the last candidate is lost": Fault("select", "target = copied +", "target = copied - 1 +", "plain", "query"),
}


@interpreted
@pytest.mark.sweep
@pytest.mark.parametrize("name", list(FAULTS))
def test_faults_are_caught(verbs: TritonVerbs, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fault = FAULTS[name]
    case = launches.build(0, **SMALL[fault.case])
    plant(fault, monkeypatch, tmp_path)
    with pytest.raises(AssertionError, match=fault.caught):
        check_both(verbs, case)


@interpreted
@pytest.mark.sweep
@pytest.mark.parametrize("name", list(SMALL))
def test_without_a_fault(verbs: TritonVerbs, name: str) -> None:
    check_both(verbs, launches.build(0, **SMALL[name]))


def check_both(verbs: TritonVerbs, case: launches.Case) -> None:
    kernel_cases.check_family(verbs, case, also=[best_first])
    kernel_cases.check_plan(verbs, case, 0)


def plant(fault: Fault, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put the functions of a changed file in the place of its own, wherever the family uses them."""
    package = family.__name__
    original = importlib.import_module(f"{package}.{fault.file}")
    assert original.__file__ is not None
    text = Path(original.__file__).read_text(encoding="utf-8")
    assert text.count(fault.code) >= 1
    path = folder / f"{fault.file}.py"
    path.write_text(text.replace(fault.code, fault.planted), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"{package}.planted_{fault.file}", path)
    assert spec is not None
    assert spec.loader is not None
    planted = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, planted)
    spec.loader.exec_module(planted)
    if hasattr(original, "torch"):
        monkeypatch.setattr(planted, "torch", original.torch)
    own = {id(value): name for name, value in vars(original).items() if not name.startswith("__")}
    for module in [
        each for name, each in list(sys.modules.items()) if name.startswith(package) and each not in (original, planted)
    ]:
        for name, value in list(vars(module).items()):
            if value is original:
                monkeypatch.setattr(module, name, planted)
            elif own.get(id(value)) == name and hasattr(planted, name):
                monkeypatch.setattr(module, name, getattr(planted, name))


@interpreted
@pytest.mark.parametrize("wide", [False, True])
def test_select(verbs: TritonVerbs, wide: bool) -> None:
    kernel_cases.check_select(verbs, 1, [0, 1, 5, 700, 3000, 40], [5, 1, 5, 1024, 100, 0], wide=wide)


@interpreted
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("k", [1, 100, 1024])
def test_one_query_is_selected_by_several_programs(verbs: TritonVerbs, wide: bool, k: int) -> None:
    kernel_cases.check_select(verbs, 0, [2500], [k], wide=wide)


def grid(model: BM25) -> tuple[DevicePostings, Formula, torch.Tensor, np.ndarray]:
    """One term of each idf with a posting of each (frequency, length); what they must contribute."""
    fields = len(model.fields)
    documents = 463_284
    frequencies = [1, 2, 3, 7, 100, 4095, 4096, 65_535, (1 << 31) - 1]
    lengths = [1, 2, 3, 11, 12, 999, 1 << 20, (1 << 31) - 1]
    pairs = np.array(list(product(frequencies, lengths)))
    tf = np.stack([np.roll(pairs[:, 0], 5 * position) * (position != 1) for position in range(fields)])
    length = np.stack([np.roll(pairs[:, 1], 3 * position) for position in range(fields)]).astype(np.int32)
    if fields > 1:
        # The second field is empty and lacks every term: norm 0 where b is 1.
        length[1] = 0
    totals = tuple(0 if position == 1 else 12_345_677 + position for position in range(fields))
    statistics = Statistics(documents, totals, np.array([1, 2, 50_000, documents // 2, documents]))
    idf = model.idf(np.array([1, 2, 3, 1000, documents // 2, documents - 1, documents]), statistics)
    terms, postings = len(idf), len(pairs)
    document = np.tile(np.arange(postings), terms)
    repeated = np.tile(tf, terms)
    norms = model.norms(length, statistics)
    expected = model.quanta(model.saturated(repeated.astype(np.uint32), norms[:, document]), np.repeat(idf, postings))
    assert model.delta is not None
    formula = Formula(
        {"bm25l": 1, "bm25+": 2}.get(model.method, 0),
        model.fielded,
        model.signed,
        model.k1,
        model.b,
        model.delta,
        SCALE,
        list(model.fields.values()),
        [statistics.average_length(position) if totals[position] else 1.0 for position in range(fields)],
    )
    # Empty lists before, between and after the others.
    offsets = np.repeat(np.arange(terms + 1) * postings, 2)
    words = document.astype(np.int32)
    given_postings = DevicePostings(
        torch.from_numpy(words),
        torch.from_numpy(repeated.astype(np.int32)),
        torch.from_numpy(offsets),
        torch.from_numpy(length),
    )
    padded = np.zeros(2 * terms + 1)
    padded[1::2] = idf
    return given_postings, formula, torch.from_numpy(padded), expected


@interpreted
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k1": 0.0, "b": 0.0},
        {"k1": 1000.0, "b": 1.0, "delta": 1000.0},
        {"k1": 0.9, "b": 0.4, "fields": {"text": 0.1, "title": 1000.0, "tool": 3.3}},
        {"b": 1.0, "fields": {"text": 2.5, "title": 1.0}},
    ],
)
def test_derive_is_exact(verbs: TritonVerbs, method: str, options: dict[str, Any]) -> None:
    postings, formula, idf, expected = grid(BM25(method=method, **options))
    dtype = torch.int32 if np.abs(expected).max() < 1 << 31 else torch.int64
    quanta = torch.full((len(expected),), 0x7F7F7F7F, dtype=dtype)
    verbs.derive(postings, formula, idf, quanta)
    np.testing.assert_array_equal(quanta.numpy(), expected)


@interpreted
def test_derive_takes_frequencies_from_the_words(verbs: TritonVerbs) -> None:
    """Up to 4,095, whose top bit is the word's sign."""
    model = BM25()
    tf = np.array([1, 2047, 2048, 4095], dtype=np.uint32)
    document = np.array([0, 1, 7, (1 << DOCUMENT_BITS) - 1], dtype=np.uint32)
    lengths = np.full((1, 1 << DOCUMENT_BITS), 5000, dtype=np.int32)
    statistics = Statistics(1 << DOCUMENT_BITS, (5000 << DOCUMENT_BITS,))
    words = torch.from_numpy((document | tf << np.uint32(DOCUMENT_BITS)).view(np.int32))
    idf = model.idf(np.array([4]), statistics)
    formula = Formula(0, False, False, model.k1, model.b, 0.0, SCALE, [1.0], [statistics.average_length(0)])
    quanta = torch.zeros(4, dtype=torch.int32)
    postings = DevicePostings(words, None, torch.tensor([0, 4]), torch.from_numpy(lengths))
    verbs.derive(postings, formula, torch.from_numpy(idf), quanta)
    expected = model.quanta(model.saturated(tf[None], model.norms(lengths, statistics)[:, document]), np.repeat(idf, 4))
    assert quanta.tolist() == expected.tolist()
