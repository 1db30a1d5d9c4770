"""The Triton kernels in Triton's interpreter on CPU tensors, and compiled for real without a device.

`python tests/kernels/test_triton_kernels.py 90 120` prints registers and shared memory of every kernel for these
targets.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Read once, when triton is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="triton is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the process that compiles
from support import borders, kernel_cases  # noqa: E402

from fanrank.engine.index.bm25 import BM25, METHODS, SCALE, Statistics  # noqa: E402
from fanrank.kernels.triton import TritonVerbs, cut, derive, score, select  # noqa: E402
from fanrank.kernels.triton.verbs import DEFAULT  # noqa: E402
from fanrank.kernels.work import DOCUMENT_BITS, DevicePostings, Formula  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
INTERPRETED = not isinstance(score._score, triton.runtime.JITFunction)
interpreted = pytest.mark.skipif(not INTERPRETED, reason="triton was imported without TRITON_INTERPRET=1")


@pytest.fixture(scope="module")
def verbs() -> TritonVerbs:
    return TritonVerbs("cpu")


@interpreted
@pytest.mark.parametrize("number", range(len(kernel_cases.CASES)), ids=list(kernel_cases.CASES))
def test_family(verbs: TritonVerbs, number: int) -> None:
    name, options = list(kernel_cases.CASES.items())[number]
    case = kernel_cases.build(number, name=name, **options)
    kernel_cases.check_derive(verbs, case)
    kernel_cases.check_family(verbs, case)


@interpreted
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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
    case = kernel_cases.build(seed, sizes=sizes, **options)
    kernel_cases.check_derive(verbs, case)
    kernel_cases.check_family(verbs, case)


@interpreted
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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
    kernel_cases.check_family(verbs, kernel_cases.build(seed, sizes=sizes, **options))


def touched(verbs: TritonVerbs, case: kernel_cases.Case) -> set[int]:
    """The tiles of a case's only segment whose postings were added; the answer is checked as well."""
    tiles = set()

    def noted(slot_begin: Any, slot_end: Any, tile: Any, *rest: Any) -> None:
        tiles.add(int(tile.handle.data.item()))
        added(slot_begin, slot_end, tile, *rest)

    added = score._accumulate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score, "_accumulate", noted)
        kernel_cases.check_family(verbs, case)
    return tiles


@interpreted
@pytest.mark.parametrize("decays", ["none", "all"])
def test_tiles_outside_a_range_are_not_touched(verbs: TritonVerbs, decays: str) -> None:
    case = kernel_cases.one_list(3, ks=(1000,), wide="none", decays=decays)
    for low, high in kernel_cases.RANGES:
        assert touched(verbs, kernel_cases.narrowed(case, low, high)) == kernel_cases.tiles_within(low, high)


@interpreted
def test_old_tiles_are_not_touched(verbs: TritonVerbs) -> None:
    """Blocks start with the youngest documents, whose scores the older tiles cannot reach."""
    aged: dict[str, Any] = {"decays": "all", "times": "ordered", "half_lives": (86400.0,)}
    assert touched(verbs, kernel_cases.one_list(3, ks=(1,), **aged)) == {4}
    assert touched(verbs, kernel_cases.one_list(3, ks=(33,), **aged)) == {0, 1, 2, 3, 4}
    assert touched(verbs, kernel_cases.one_list(3, ks=(1,))) == {0, 1, 2, 3, 4}


# What each breaks: a constant of the kernels, and what stands in its place.
MUTATIONS: dict[str, tuple[str, Any]] = {
    "great ages not clamped": ("_MAX_TICKS", 2.0e9),
    "the whole half-lives dropped": ("score._PART_BITS", 31),
    "the factor of another half-life": ("_EXPONENT", 994),
}


@interpreted
@pytest.mark.parametrize("name", list(MUTATIONS))
def test_mutations_are_caught(verbs: TritonVerbs, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    border, value = MUTATIONS[name]
    borders.shrink(monkeypatch, {border: triton.language.constexpr(value)})
    case = kernel_cases.build(0, **kernel_cases.CASES["decay in seconds"])
    with pytest.raises(AssertionError, match="emitted"):
        kernel_cases.check_family(verbs, case)


@interpreted
def test_a_bound_that_does_not_decay_is_caught(verbs: TritonVerbs, monkeypatch: pytest.MonkeyPatch) -> None:
    decayed = score._decayed

    def only_of_tiles(sums: Any, *rest: Any) -> Any:
        return decayed(sums, *rest) if sums.shape else sums

    monkeypatch.setattr(score, "_decayed", only_of_tiles)
    with pytest.raises(AssertionError, match="not emitted"):
        kernel_cases.check_family(verbs, kernel_cases.build(0, **kernel_cases.CASES["decay, in order"]))


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


I32, I64, U8, F64 = "*i32", "*i64", "*u8", "*fp64"
TYPES = {
    **dict.fromkeys(["blocks", "segments", "count", "terms", "size", "width"], "i32"),
    **dict.fromkeys(["words", "quanta", "firsts", "block_offset", "list_start", "list_cuts", "unit_slots"], I64),
    **dict.fromkeys(["unit_filter", "candidate_offset", "maxima", "thresholds", "keys", "offsets", "to_offsets"], I64),
    **dict.fromkeys(["to_keys", "best_keys", "scores_out", "documents_out"], I64),
    **dict.fromkeys(["sizes", "unit_offset", "list_segment", "list_length", "unit_query", "unit_low"], I32),
    **dict.fromkeys(["unit_high", "slot_list", "slot_weight", "query_k", "cuts", "counts", "documents"], I32),
    **dict.fromkeys(["to_documents", "to_counts", "best_documents", "counts_out"], I32),
    **dict.fromkeys(["query_wide", "matched"], U8),
    **dict.fromkeys(["times", "latest"], I64),
    **dict.fromkeys(["query_now", "query_rate"], F64),
    "decay_table": I32,
}
"""What the parameters are in Triton's words, where a kernel does not say otherwise."""

Variant = tuple[str, Any, int, dict[str, Any], dict[str, Any], dict[str, Any]]


def variants() -> Iterator[Variant]:
    """(name, kernel, warps, constants, types, options) of what the default settings launch."""
    own = {"words": I32, "frequencies": I32, "lengths": I32, "idf": F64}
    for shape, fields, signed, long in [
        (0, 1, 0, 0),
        (0, 1, 1, 1),
        (0, 3, 0, 1),
        (1, 1, 0, 0),
        (1, 3, 0, 0),
        (2, 1, 0, 0),
        (3, 1, 0, 0),
    ]:
        constants = {
            "FIELDS": fields,
            "ALL_FIELDS": fields,
            "STORED": fields > 1,
            "SHAPE": shape,
            "FIELDED": fields > 1,
            "SIGNED": bool(signed),
            "BLOCK": DEFAULT.derive.block,
        }
        types = {**own, "quanta": I64 if long else I32, "numbers": ("i64",) * (2 * (4 + 2 * fields))}
        name = f"derive shape={shape} fields={fields} signed={signed} long={long}"
        yield name, derive._derive, DEFAULT.derive.warps, constants, types, {"enable_fp_fusion": False}
    plan = DEFAULT.cut
    bits = DEFAULT.narrow_tile_bits
    yield "borders", cut._borders, plan.border_warps, {"TILE_BITS": bits, "BORDERS": plan.borders}, {}, {}
    for long in (False, True):
        constants = {"TILE_BITS": bits, "LONG": long, "TILES": plan.tiles, "POSTINGS": plan.postings}
        yield f"maxima long={long:d}", cut._maxima, plan.maxima_warps, constants, {}, {}
    for wide, signed, long, decays in [
        *[(0, 0, 0, 0), (0, 1, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 1, 0)],
        *[(1, 0, 0, 1), (1, 0, 1, 1)],
    ]:
        constants = {
            "TILE_BITS": DEFAULT.wide_tile_bits if wide else bits,
            "WIDE": bool(wide),
            "SIGNED": bool(signed),
            "LONG": bool(long),
            "DECAYS": bool(decays),
            "BOUNDED": DEFAULT.score.bounded,
            "SLOTS": DEFAULT.score.slots,
            "POSTINGS": DEFAULT.score.postings,
            "CHUNK": DEFAULT.score.emitted,
            "RAISES": DEFAULT.score.raises_thresholds,
            "TILE_MAJOR": DEFAULT.score.tile_major,
        }
        name = f"score wide={wide} signed={signed} long={long}" + " decays" * decays
        types = {"sums": I64 if wide else I32}
        yield name, score._score, DEFAULT.score.warps, constants, types, {"enable_fp_fusion": False}
    chosen = DEFAULT.select
    for wide, width in product((False, True), (16, 128, 1024)):
        constants = {"WIDE": wide, "WIDTH": width, "BLOCK": chosen.block}
        finish = {**constants, "RANKED": min(chosen.ranked, width)}
        yield f"finish wide={wide:d} k={width}", select._finish, chosen.warps, finish, {}, {}
        if width == 1024:
            thin = {**constants, "STRIPE": chosen.stripe}
            yield f"thin wide={wide:d} k={width}", select._reduce_stripe, chosen.warps, thin, {}, {}


def compiled(variant: Variant, capability: int) -> dict[str, Any]:
    """Registers, spilled bytes, shared memory and float64 instructions of a kernel on a target."""
    name, function, warps, constants, types, options = variant
    signature = {n: "constexpr" if n in constants else types.get(n) or TYPES[n] for n in function.arg_names}
    target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
    source = triton.compiler.ASTSource(function, signature, constants)
    kernel = triton.compile(source, target=target, options={"num_warps": warps, **options})
    ptx = kernel.asm["ptx"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        # Of the two assemblers in Triton's wheel this one reads the PTX of every target.
        assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
        found = re.search(r"\.target (\w+)", ptx)
        assert found is not None
        command = [str(assembler), "-v", f"-arch={found[1]}", str(path), "-o", str(path.with_suffix(".o"))]
        log = subprocess.run(command, capture_output=True, text=True, check=True)
    text = log.stdout + log.stderr
    registers = re.search(r"Used (\d+) registers", text)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
    assert registers is not None
    assert spills is not None
    return {
        "name": name,
        "target": capability,
        "registers": int(registers[1]),
        "spilled": int(spills[1]) + int(spills[2]),
        "shared": kernel.metadata.shared,
        "warps": warps,
        "float64": sorted(set(re.findall(r"\b(?:fma|mul|add|sub|div)\.(?:\w+\.)?f64", ptx))),
    }


def check_compiled(*capabilities: int) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "ignore", __file__, *map(str, capabilities)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == len(capabilities) * len(list(variants()))
    for row in rows:
        assert row["spilled"] == 0, row
        if row["name"].startswith("derive"):
            # Each operation rounded to nearest by itself. Learned weights have no norm, whose 1 - b is the subtraction.
            subtracts = "shape=3" not in row["name"]
            assert row["float64"] == ["add.rn.f64", "div.rn.f64", "mul.rn.f64"] + ["sub.rn.f64"] * subtracts, row
        elif row["name"].endswith("decays"):
            assert row["float64"] == ["mul.rn.f64", "sub.rn.f64"], row
        else:
            assert not row["float64"], row


def test_every_kernel_compiles() -> None:
    check_compiled(90)


@pytest.mark.slow
def test_every_kernel_compiles_for_the_other_targets() -> None:
    check_compiled(80, 100, 120)


if __name__ == "__main__":
    for wanted in map(int, sys.argv[1:]):
        for each in variants():
            print(json.dumps(compiled(each, wanted)), flush=True)
