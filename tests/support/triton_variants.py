"""Every Triton kernel as the default settings launch it, compiled for real without a device.

``python tests/support/triton_variants.py 90 120`` prints a line of JSON for each variant and target: registers, spilled
bytes, shared memory, blocks that fit a multiprocessor, float64 operations, atomics, and the branches around a barrier
that threads may take apart. It must not run in Triton's interpreter.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import triton

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.ptx import branches

from fanrank.kernels.triton import derive, order, plan, score, segment_reduce, select, tabulate
from fanrank.kernels.triton.verbs import DEFAULT

TARGETS = (80, 86, 89, 90, 100, 120)
THREADS = {80: 2048, 86: 1536, 89: 1536, 90: 2048, 100: 2048, 120: 1536}
"""Resident threads of a multiprocessor."""
SHARED = {80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 120: 100}
"""KiB of shared memory of a multiprocessor, of which each block takes one besides its own."""
BLOCKS = {80: 32, 86: 16, 89: 24, 90: 32, 100: 32, 120: 24}
REGISTERS = 64 * 1024

I32, I64, U8, F64 = "*i32", "*i64", "*u8", "*fp64"
TYPES = {
    **dict.fromkeys(["queries", "beginning", "segment_count", "k", "tiles", "candidates", "count", "size"], "i32"),
    **dict.fromkeys(["width", "stripes", "rows", "largest"], "i32"),
    **dict.fromkeys(["segments", "row", "unit_slots", "unit_descriptors", "unit_filter", "candidate_offset"], I64),
    **dict.fromkeys(["entry_offset", "descriptors", "entries", "listed", "progress", "thresholds", "keys"], I64),
    **dict.fromkeys(["offsets", "maxima", "to_keys", "best_keys", "scores_out", "documents_out", "quanta"], I64),
    **dict.fromkeys(["cuts", "unit_segment", "unit_low", "unit_high", "query_units", "query_k", "slot_unit"], I32),
    **dict.fromkeys(["slot_position", "slot_weight", "weights", "entry_counts", "counts", "documents"], I32),
    **dict.fromkeys(["to_documents", "best_documents", "counts_out", "decay_table"], I32),
    **dict.fromkeys(["query_wide", "matched"], U8),
    **dict.fromkeys(["query_now", "query_rate", "cosines", "reduced"], F64),
}
"""What the parameters are in Triton's words, where a variant does not say otherwise."""


class Variant(NamedTuple):
    name: str
    kernel: Any
    warps: int
    constants: dict[str, Any]
    types: Mapping[str, Any] = MappingProxyType({})
    fused: bool = True
    """Whether multiplications and additions may be contracted."""
    programs: int = 0
    """Of a persistent kernel, for each multiprocessor."""
    most_registers: int | None = None


def variants() -> Iterator[Variant]:
    yield from _derives()
    bits = DEFAULT.narrow_tile_bits
    chosen = DEFAULT.tabulate
    borders = {"TILE_BITS": bits, "BORDERS": chosen.borders}
    yield Variant("cuts", tabulate._cuts, chosen.border_warps, borders, {"terms": I32})
    for long in (False, True):
        constants = {"LONG": long, "TILES": chosen.tiles, "POSTINGS": chosen.postings}
        yield Variant(f"maxima long={long:d}", tabulate._maxima, chosen.maxima_warps, constants, {"terms": I32})
    yield from _plans()
    ordering = DEFAULT.order
    for wide, decays in product((False, True), repeat=2):
        own = DEFAULT.wide_tile_bits if wide else bits
        constants = {
            "TILE_BITS": own,
            "WIDE": wide,
            "DECAYS": decays,
            "TILES_AT_ONCE": ordering.tiles,
            "SLOTS": ordering.slots,
            "WORDS_AT_ONCE": min(ordering.words, 1 << (own - 5)),
            "CLASSES": ordering.classes,
        }
        name = f"order wide={wide:d}" + " decays" * decays
        yield Variant(name, order._order, ordering.warps, constants, fused=False, most_registers=128)
    yield from _scores()
    selecting = DEFAULT.select
    for (wide, long_keys), width in product([(0, 0), (0, 1), (1, 1)], (16, 128, 1024)):
        if wide and width < 1024:
            # As narrow sums with long keys.
            continue
        constants = {"WIDE": bool(wide), "LONG_KEYS": bool(long_keys), "WIDTH": width, "BLOCK": selecting.block}
        for striped in (False, True):
            finish = {**constants, "STRIPED": striped, "RANKED": min(selecting.ranked, width)}
            name = f"finish wide={wide} long={long_keys} k={width}" + " striped" * striped
            if not striped or width == 1024:
                yield Variant(name, select._finish, selecting.warps, finish)
        if width == 1024:
            thin = {**constants, "STRIPE": selecting.stripe}
            name = f"thin wide={wide} long={long_keys} k={width}"
            yield Variant(name, select._reduce_stripe, selecting.warps, thin)
    reducing = segment_reduce.Settings()
    for name, kind in segment_reduce._KINDS.items():
        constants = {"KIND": kind, "SEGMENTS": reducing.segments, "ROWS": reducing.rows}
        types = {"numbers": ("i64",) * 2, "segments": "i32"}
        yield Variant(f"segment_reduce {name}", segment_reduce._segment_reduce, reducing.warps, constants, types, False)


def _derives() -> Iterator[Variant]:
    own = {"words": I32, "frequencies": I32, "lengths": I32, "idf": F64, "terms": "i32"}
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
        yield Variant(name, derive._derive, DEFAULT.derive.warps, constants, types, False)


def _plans() -> Iterator[Variant]:
    chosen = DEFAULT.plan
    for long, signed in [(False, False), (False, True), (True, False)]:
        constants = {
            "TILE_BITS": DEFAULT.wide_tile_bits if long else DEFAULT.narrow_tile_bits,
            "SIGNED": signed,
            "LONG": long,
            "TILES_AT_ONCE": chosen.tiles,
            "POSTINGS": chosen.postings,
            "BEGUN": chosen.begun,
        }
        name = f"long={long:d} signed={signed:d}"
        yield Variant(f"describe {name}", plan._describe, 1, constants)
        for weighted, measured in [(True, True), (False, False)][: 1 if long or signed else 2]:
            own = {"WEIGHTED": weighted, "MEASURED": measured, "WAYS": chosen.ways, "TERMS_AT_ONCE": chosen.terms}
            types = {"terms": I64, "weights": I32 if weighted else I64, "numbers": ("i64",) * 2}
            full = f"plan {name} weighted={weighted:d} measured={measured:d}"
            yield Variant(full, plan._plan, 1, {**constants, **own}, types, False)


def _scores() -> Iterator[Variant]:
    chosen = DEFAULT.score
    for wide, signed, long, decays in [
        *[(0, 0, 0, 0), (0, 1, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 1, 0)],
        *[(0, 0, 0, 1), (1, 0, 0, 1), (1, 0, 1, 1)],
    ]:
        constants = {
            "TILE_BITS": DEFAULT.wide_tile_bits if wide else DEFAULT.narrow_tile_bits,
            "WIDE": bool(wide),
            "SIGNED": bool(signed),
            "LONG": bool(long),
            "DECAYS": bool(decays),
            "LONG_TURNS": False,
            "TURNS": 32 * chosen.warps,
            "SLOTS": chosen.slots,
            "POSTINGS": chosen.postings,
            "CHUNK": chosen.emitted,
            "RAISES": chosen.raises_thresholds,
        }
        name = f"score wide={wide} signed={signed} long={long}" + " decays" * decays
        types = {"sums": I64 if wide else I32, "scores": I64 if wide or decays else I32}
        yield Variant(name, score._score, chosen.warps, constants, types, False, chosen.programs, 128)


def ptx_of(variant: Variant, capability: int) -> tuple[str, int]:
    """The PTX of a variant on a target, and its bytes of shared memory."""
    names = variant.kernel.arg_names
    signature = {
        name: "constexpr" if name in variant.constants else variant.types.get(name) or TYPES[name] for name in names
    }
    target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
    source = triton.compiler.ASTSource(variant.kernel, signature, variant.constants)
    options = {"num_warps": variant.warps, "enable_fp_fusion": variant.fused, "maxnreg": variant.most_registers}
    kernel = triton.compile(source, target=target, options=options)
    return kernel.asm["ptx"], kernel.metadata.shared


def compiled(variant: Variant, capability: int) -> dict[str, Any]:
    """What ptxas makes of a variant on a target, and what its PTX says."""
    ptx, shared = ptx_of(variant, capability)
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        found = re.search(r"\.target (\w+)", ptx)
        assert found is not None
        # As Triton's backend calls the two assemblers in its wheel.
        assembler = tools / ("ptxas" if capability < 90 else "ptxas-blackwell")
        options = ["-v", "--regAllocOptLevel=2", f"-arch={found[1]}", *([] if variant.fused else ["--fmad=false"])]
        command = [assembler, *options, path, "-o", path.with_suffix(".o")]
        log = subprocess.run(command, capture_output=True, text=True, check=True)
        disassemble = [tools / "nvdisasm", "-c", path.with_suffix(".o")]
        sass = subprocess.run(disassemble, capture_output=True, text=True, check=True).stdout
    text = log.stdout + log.stderr
    registers = re.search(r"Used (\d+) registers", text)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
    assert registers is not None
    assert spills is not None
    return {
        "name": variant.name,
        "target": capability,
        "warps": variant.warps,
        "registers": int(registers[1]),
        "spilled": int(spills[1]) + int(spills[2]),
        "shared": shared,
        "blocks": blocks(capability, variant.warps, int(registers[1]), shared),
        "programs": variant.programs,
        "float64": sorted(set(re.findall(r"\b(?:fma|mul|add|sub|div)\.(?:\w+\.)?f64", ptx))),
        "atomics": sorted(set(re.findall(r"\b((?:ATOM|RED)[GS]?\.[\w.]+)", sass))),
        "findings": [str(finding) for finding in branches.findings(ptx)],
    }


def blocks(capability: int, warps: int, registers: int, shared: int) -> int:
    """Blocks that fit a multiprocessor at once. A warp's registers are handed out 256 at a time."""
    per_warp = -(-registers * 32 // 256) * 256
    by_registers = REGISTERS // per_warp // warps
    by_shared = SHARED[capability] * 1024 // (shared + 1024)
    return min(by_registers, by_shared, THREADS[capability] // (32 * warps), BLOCKS[capability])


PLAIN_LOAD = (
    "while number < TURNS:",
    'while (number < TURNS) & (tl.load(thresholds, cache_modifier=".cg") <= threshold):',
)
"""A loop of `score` with barriers inside, and the same decided by a threshold that every thread loads."""


def planted() -> Iterator[dict[str, Any]]:
    """The findings in `score` for sm_90, with faults that no interpreter can show, and without."""
    sound = next(variant for variant in variants() if variant.name == "score wide=0 signed=0 long=0")
    origin = Path(str(score.__file__))
    text = origin.read_text(encoding="utf-8")
    assert PLAIN_LOAD[0] in text
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "score.py")
        path.write_text(text.replace(*PLAIN_LOAD), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"{score.__package__}.planted_score", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        faulty = {
            "none": sound,
            "a plain load": sound._replace(kernel=module._score),
            "turns of a warp": sound._replace(constants={**sound.constants, "TURNS": 32}),
        }
        for name, variant in faulty.items():
            found = branches.findings(ptx_of(variant, 90)[0])
            yield {"name": name, "findings": [str(finding) for finding in found]}


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["planted"]:
        for row in planted():
            print(json.dumps(row), flush=True)
        return
    for capability in map(int, arguments):
        for variant in variants():
            print(json.dumps(compiled(variant, capability)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
