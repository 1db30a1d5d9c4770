"""The translator of PTX against a plain model of each instruction, and what it declines."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.ptx.build import build  # noqa: E402
from support.ptx.faults import places, planted  # noqa: E402
from support.ptx.parse import Module, PtxError, parse  # noqa: E402
from support.ptx.translate import translate  # noqa: E402

from fanrank.engine.errors import BackendUnavailableError  # noqa: E402
from fanrank.kernels.cuda_host.build import compiler  # noqa: E402
from fanrank.kernels.cuda_host.launcher import HostLauncher, KernelFault  # noqa: E402

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
REGISTERS = (
    ".reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<19>; .reg .f32 %f<9>; .reg .f64 %fd<9>; .reg .b64 %rd<19>;"
)
M32, M64 = (1 << 32) - 1, (1 << 64) - 1


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    try:
        compiler()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


def s32(value: int) -> int:
    return ((value & M32) ^ 1 << 31) - (1 << 31)


def s64(value: int) -> int:
    return ((value & M64) ^ 1 << 63) - (1 << 63)


def f64(value: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", value & M64))[0])


def f32(value: int) -> np.float32:
    return np.uint32(value & M32).view(np.float32)


def bits64(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def bits32(value: Any) -> int:
    return int(np.float32(value).view(np.uint32))


def flushed(value: np.float32) -> np.float32:
    return np.copysign(np.float32(0), value) if abs(value) < np.float32(2.0**-126) else value


def divided(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def saturated(value: float, bits: int, rounded: Callable[[float], float]) -> int:
    if math.isnan(value):
        return 1 << bits - 1
    limit = 1 << bits - 1
    if math.isinf(value):
        return (limit - 1 if value > 0 else -limit) & (1 << bits) - 1
    return min(max(int(rounded(value)), -limit), limit - 1) & (1 << bits) - 1


def table(a: int, b: int, c: int, code: int) -> int:
    bit = lambda i: code >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1  # noqa: E731
    return sum(bit(i) << i for i in range(32))


def picked(a: int, b: int, selector: int) -> int:
    both = (b & M32) << 32 | a & M32
    result = 0
    for place in range(4):
        choice = selector >> 4 * place & 15
        byte = both >> 8 * (choice & 7) & 255
        result |= ((255 if byte & 128 else 0) if choice & 8 else byte) << 8 * place
    return result


# Instructions that read %r4 to %r6 (or %rd4 to %rd6, %f4 ..., %fd4 ...), and write %r8 or %rd8; what they give for
# three numbers of 64 bits, whose lower halves are those of 32.
Model = Callable[[int, int, int], int]
WORDS: dict[str, Model] = {
    "add.s32 %r8, %r4, %r5;": lambda a, b, c: a + b,
    "sub.s32 %r8, %r4, -7;": lambda a, b, c: a + 7,
    "mul.lo.s32 %r8, %r4, %r5;": lambda a, b, c: a * b,
    "mul.hi.s32 %r8, %r4, %r5;": lambda a, b, c: s32(a) * s32(b) >> 32,
    "mul.hi.u32 %r8, %r4, %r5;": lambda a, b, c: (a & M32) * (b & M32) >> 32,
    "mad.lo.s32 %r8, %r4, %r5, %r6;": lambda a, b, c: a * b + c,
    "div.s32 %r8, %r4, 7;": lambda a, b, c: divided(s32(a), 7),
    "rem.s32 %r8, %r4, 7;": lambda a, b, c: s32(a) - 7 * divided(s32(a), 7),
    "div.u32 %r8, %r4, 7;": lambda a, b, c: (a & M32) // 7,
    "rem.u32 %r8, %r4, 7;": lambda a, b, c: (a & M32) % 7,
    "min.s32 %r8, %r4, %r5;": lambda a, b, c: min(s32(a), s32(b)),
    "max.u32 %r8, %r4, %r5;": lambda a, b, c: max(a & M32, b & M32),
    "abs.s32 %r8, %r4;": lambda a, b, c: abs(s32(a)),
    "neg.s32 %r8, %r4;": lambda a, b, c: -a,
    "and.b32 %r8, %r4, %r5;": lambda a, b, c: a & b,
    "or.b32 %r8, %r4, %r5;": lambda a, b, c: a | b,
    "xor.b32 %r8, %r4, %r5;": lambda a, b, c: a ^ b,
    "not.b32 %r8, %r4;": lambda a, b, c: ~a,
    "and.b32 %r9, %r5, 63; shl.b32 %r8, %r4, %r9;": lambda a, b, c: a << (b & 63),
    "and.b32 %r9, %r5, 63; shr.u32 %r8, %r4, %r9;": lambda a, b, c: (a & M32) >> (b & 63),
    "and.b32 %r9, %r5, 63; shr.s32 %r8, %r4, %r9;": lambda a, b, c: s32(a) >> (b & 63),
    "shf.l.wrap.b32 %r8, %r4, %r5, %r6;": lambda a, b, c: ((b & M32) << 32 | a & M32) << (c & 31) >> 32,
    "shf.r.wrap.b32 %r8, %r4, %r5, %r6;": lambda a, b, c: ((b & M32) << 32 | a & M32) >> (c & 31),
    "bfe.u32 %r8, %r4, 5, 11;": lambda a, b, c: a >> 5 & 2047,
    "bfi.b32 %r8, %r4, %r5, 9, 14;": lambda a, b, c: b & ~(16383 << 9) | (a & 16383) << 9,
    "lop3.b32 %r8, %r4, %r5, %r6, 0xCA;": lambda a, b, c: table(a, b, c, 0xCA),
    "prmt.b32 %r8, %r4, %r5, 0x9F30;": lambda a, b, c: picked(a, b, 0x9F30),
    "popc.b32 %r8, %r4;": lambda a, b, c: (a & M32).bit_count(),
    "clz.b32 %r8, %r4;": lambda a, b, c: 32 - (a & M32).bit_length(),
    "brev.b32 %r8, %r4;": lambda a, b, c: int(f"{a & M32:032b}"[::-1], 2),
    "bfind.u32 %r8, %r4;": lambda a, b, c: (a & M32).bit_length() - 1,
    "bfind.shiftamt.u32 %r8, %r4;": lambda a, b, c: 32 - (a & M32).bit_length() if a & M32 else -1,
    "setp.lt.s32 %p1, %r4, %r5; selp.b32 %r8, 1, 0, %p1;": lambda a, b, c: s32(a) < s32(b),
    "setp.hi.u32 %p1, %r4, %r5; selp.b32 %r8, 1, 0, %p1;": lambda a, b, c: a & M32 > b & M32,
    "setp.ge.s32 %p3, %r5, 0; setp.gt.and.u32 %p1|%p2, %r4, 9, %p3; selp.b32 %r8, 1, 0, %p2;": (
        lambda a, b, c: not (a & M32) > 9 and s32(b) >= 0
    ),
    "setp.ne.s32 %p1, %r4, %r5; not.pred %p2, %p1; selp.b32 %r8, %r5, %r6, %p2;": (
        lambda a, b, c: b if s32(a) == s32(b) else c
    ),
    "mov.u32 %r8, 1; setp.lt.s32 %p1, %r4, 0; @!%p1 mov.u32 %r8, 5;": lambda a, b, c: 1 if s32(a) < 0 else 5,
    "{ .reg .b16 %lo, %hi; mov.b32 {%lo, %hi}, %r4; mov.b32 %r8, {%hi, %lo}; }": (
        lambda a, b, c: (a & 65535) << 16 | a >> 16 & 65535
    ),
    "cvt.u32.u16 %r8, %r4;": lambda a, b, c: a & 65535,
    "cvt.s32.s8 %r8, %r4;": lambda a, b, c: (a & 255 ^ 128) - 128,
    "add.ftz.f32 %f8, %f4, %f5; mov.b32 %r8, %f8;": (
        lambda a, b, c: bits32(flushed(flushed(f32(a)) + flushed(f32(b))))
    ),
    "add.rn.f32 %f8, %f4, %f5; mov.b32 %r8, %f8;": lambda a, b, c: bits32(f32(a) + f32(b)),
    "cvt.rn.f32.s32 %f8, %r4; mov.b32 %r8, %f8;": lambda a, b, c: bits32(s32(a)),
    "cvt.rn.f32.f64 %f8, %fd4; mov.b32 %r8, %f8;": lambda a, b, c: bits32(f64(a)),
    "cvt.rzi.s32.f64 %r8, %fd4;": lambda a, b, c: saturated(f64(a), 32, math.trunc) if f64(a) == f64(a) else 1 << 31,
    "add.cc.u32 %r9, %r4, %r5; addc.u32 %r8, %r6, 0;": lambda a, b, c: c + ((a & M32) + (b & M32) >> 32),
    "sub.cc.u32 %r9, %r4, %r5; subc.u32 %r8, %r6, 0;": lambda a, b, c: c - ((a & M32) < (b & M32)),
}
LONGS: dict[str, Model] = {
    "add.s64 %rd8, %rd4, %rd5;": lambda a, b, c: a + b,
    "mul.lo.s64 %rd8, %rd4, %rd5;": lambda a, b, c: a * b,
    "mul.hi.u64 %rd8, %rd4, %rd5;": lambda a, b, c: a * b >> 64,
    "mul.wide.s32 %rd8, %r4, %r5;": lambda a, b, c: s32(a) * s32(b),
    "mul.wide.u32 %rd8, %r4, %r5;": lambda a, b, c: (a & M32) * (b & M32),
    "mad.wide.s32 %rd8, %r4, -8, %rd5;": lambda a, b, c: s32(a) * -8 + b,
    "div.s64 %rd8, %rd4, -3;": lambda a, b, c: divided(s64(a), -3),
    "min.s64 %rd8, %rd4, %rd5;": lambda a, b, c: min(s64(a), s64(b)),
    "max.u64 %rd8, %rd4, %rd5;": lambda a, b, c: max(a, b),
    "shl.b64 %rd8, %rd4, 63;": lambda a, b, c: a << 63,
    "and.b32 %r9, %r5, 127; shr.s64 %rd8, %rd4, %r9;": lambda a, b, c: s64(a) >> (b & 127),
    "bfi.b64 %rd8, %rd4, %rd5, 32, 32;": lambda a, b, c: b & M32 | a << 32,
    "clz.b64 %r8, %rd4; cvt.u64.u32 %rd8, %r8;": lambda a, b, c: 64 - a.bit_length(),
    "cvt.s64.s32 %rd8, %r4;": lambda a, b, c: s32(a),
    "cvt.u32.u64 %r8, %rd4; cvt.u64.u32 %rd8, %r8;": lambda a, b, c: a & M32,
    "mov.b64 {%r8, %r9}, %rd4; mov.b64 %rd8, {%r9, %r8};": lambda a, b, c: (a & M32) << 32 | a >> 32,
    "mul.rn.f64 %fd8, %fd4, %fd5; mov.b64 %rd8, %fd8;": lambda a, b, c: bits64(product(f64(a), f64(b))),
    "sub.rn.f64 %fd8, %fd4, %fd5; mov.b64 %rd8, %fd8;": lambda a, b, c: bits64(f64(a) - f64(b)),
    "div.rn.f64 %fd8, %fd4, 0d4008000000000000; mov.b64 %rd8, %fd8;": lambda a, b, c: bits64(f64(a) / 3.0),
    "min.f64 %fd8, %fd4, %fd5; mov.b64 %rd8, %fd8;": lambda a, b, c: bits64(least(f64(a), f64(b))),
    "neg.f64 %fd8, %fd4; mov.b64 %rd8, %fd8;": lambda a, b, c: a ^ 1 << 63,
    "setp.leu.f64 %p1, %fd4, %fd5; selp.b64 %rd8, 1, 0, %p1;": lambda a, b, c: not f64(a) > f64(b),
    "setp.gt.f64 %p1, %fd4, %fd5; selp.b64 %rd8, 1, 0, %p1;": lambda a, b, c: f64(a) > f64(b),
    "setp.neu.f64 %p1, %fd4, %fd5; selp.b64 %rd8, 1, 0, %p1;": lambda a, b, c: f64(a) != f64(b),
    "setp.equ.f64 %p1, %fd4, %fd5; selp.b64 %rd8, 1, 0, %p1;": (
        lambda a, b, c: math.isnan(f64(a)) or math.isnan(f64(b)) or f64(a) == f64(b)
    ),
    "cvt.rni.s64.f64 %rd8, %fd4;": lambda a, b, c: saturated(f64(a), 64, round),
    "cvt.rmi.s64.f64 %rd8, %fd4;": lambda a, b, c: saturated(f64(a), 64, math.floor),
    "cvt.rn.f64.s64 %fd8, %rd4; mov.b64 %rd8, %fd8;": lambda a, b, c: bits64(float(s64(a))),
    "cvt.rn.f64.u32 %fd8, %r4; mov.b64 %rd8, %fd8;": lambda a, b, c: bits64(float(a & M32)),
    "cvt.f64.f32 %fd8, %f4; mov.b64 %rd8, %fd8;": lambda a, b, c: bits64(float(f32(a))),
    "add.cc.u64 %rd9, %rd4, %rd5; addc.cc.u64 %rd10, %rd6, %rd4; addc.u64 %rd8, 0, 0;": (
        lambda a, b, c: c + a + (a + b >> 64) >> 64
    ),
}


def product(a: float, b: float) -> float:
    return float(np.float64(a) * np.float64(b))


def least(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return a if a < b or (a == b and math.copysign(1, a) < 0) else b


NUMBERS = [
    0,
    1,
    2,
    7,
    31,
    32,
    63,
    255,
    65535,
    M32,
    M32 >> 1,
    1 << 31,
    1 << 32,
    M64,
    M64 >> 1,
    1 << 63,
    0x0000000100000000,
]
NUMBERS += [
    bits64(x) for x in (0.5, 1.5, 2.5, -0.5, -2.5, 1e300, -1e300, 9.3e18, -9.3e18, 3e9, -3e9, 5e-324, 4e15 + 0.5)
]
NUMBERS += [bits64(x) for x in (math.inf, -math.inf, math.nan, -0.0)]
NUMBERS += [bits32(x) << 32 | bits32(y) for x, y in [(1.5, 1e-39), (1e-45, -1e-39), (3e38, 2.0**-126), (0.1, 3e38)]]


def module_of(*bodies: str) -> Module:
    """A kernel that runs each body on three numbers of its thread, and stores what each leaves in %rd8."""
    lines = [
        "ld.param.u64 %rd1, [each_param_0]; ld.param.u64 %rd2, [each_param_1]; mov.u32 %r1, %tid.x;",
        f"mad.wide.u32 %rd1, %r1, 24, %rd1; mad.wide.u32 %rd2, %r1, {8 * len(bodies)}, %rd2;",
        *(f"ld.global.b64 %rd{4 + n}, [%rd1+{8 * n}]; cvt.u32.u64 %r{4 + n}, %rd{4 + n};" for n in range(3)),
        *(f"mov.b32 %f{4 + n}, %r{4 + n}; mov.b64 %fd{4 + n}, %rd{4 + n};" for n in range(3)),
    ]
    for place, body in enumerate(bodies):
        widened = "" if "%rd8" in body else " cvt.u64.u32 %rd8, %r8;"
        lines.append(f"{body}{widened} st.global.u64 [%rd2+{8 * place}], %rd8;")
    parameters = ".param .u64 each_param_0,\n.param .u64 each_param_1"
    code = "\n".join(lines)
    return parse(f"{HEAD}.visible .entry each(\n{parameters}\n)\n{{\n{REGISTERS}\n{code}\nret;\n}}\n")


def run(module: Module, kernel: str, blocks: int, threads: int, *arguments: Any, **how: Any) -> None:
    library = build(module, kernel)
    HostLauncher(library, **how).launch(library.stem, (blocks, 1, 1), (threads, 1, 1), 0, arguments)


def given() -> np.ndarray:
    rng = np.random.default_rng(1)
    chosen = rng.choice(np.array(NUMBERS, dtype=np.uint64), (400, 3))
    noise = rng.integers(0, 1 << 64, (100, 3), dtype=np.uint64)
    return np.concatenate([chosen, noise])


def results(module: Module, count: int) -> np.ndarray:
    numbers = given()
    out = torch.zeros((len(numbers), count), dtype=torch.int64)
    run(module, "each", 1, len(numbers), torch.from_numpy(numbers.view(np.int64)), out)
    return out.numpy().view(np.uint64)


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.parametrize(("models", "mask"), [(WORDS, M32), (LONGS, M64)], ids=["32 bits", "64 bits"])
def test_instructions_give_what_they_say(models: dict[str, Model], mask: int) -> None:
    found = results(module_of(*models), len(models))
    for place, (body, model) in enumerate(models.items()):
        for row, numbers in zip(found[:, place].tolist(), given().tolist(), strict=True):
            expected = int(model(*numbers)) & mask
            assert row == expected or is_nan(row, expected, body), (body, [hex(n) for n in numbers], hex(row))


def is_nan(found: int, expected: int, body: str) -> bool:
    """Which NaN an operation gives is left open."""
    if "%fd8;" in body:
        return math.isnan(f64(found)) and math.isnan(f64(expected))
    return "%f8;" in body and bool(np.isnan(f32(found)) and np.isnan(f32(expected)))


@pytest.mark.parametrize("name", ["a changed shift", "a dropped predicate", "a dropped carry"])
def test_a_planted_fault_changes_what_is_given(name: str) -> None:
    models = {**WORDS, **{body: model for body, model in LONGS.items() if "carry" not in name or "addc" in body}}
    module = module_of(*models)
    sound = results(module, len(models))
    found = places(module.kernels["each"], name)
    assert found
    for place in found:
        assert not np.array_equal(results(planted(module, "each", name, place), len(models)), sound)


UNKNOWN = [
    "ex2.approx.f32 %f8, %f4;",
    "div.full.f32 %f8, %f4, %f5;",
    "cvt.rz.f32.f64 %f8, %fd4;",
    "cvt.sat.u32.s32 %r8, %r4;",
    "add.rz.f64 %fd8, %fd4, %fd5;",
    "mul.rn.f16 %rs1, %rs2, %rs3;",
    "ld.global.b64 %r8, [%rd4];",
    "add.s64 %rd8, %r4, %rd5;",
    "add.s32 %r8, %r4, 0x1FFFFFFFF;",
    "ld.texture.b32 %r8, [%rd4];",
    "ld.global.b32 %r8, [nowhere];",
    "shfl.sync.rotate.b32 %r8, %r4, 1, 31, -1;",
    "atom.global.inc.u32 %r8, [%rd4], %r5;",
    "vote.sync.uni.pred %p1, %p2, -1;",
    "call (retval), f, (param);",
    "mbarrier.init.shared.b64 [%rd4], 1;",
]


@pytest.mark.parametrize("body", UNKNOWN)
def test_what_is_not_known_is_an_error_that_names_it(body: str) -> None:
    with pytest.raises(PtxError, match="line 18") as raised:
        translate(module := module_of(body), module.kernels["each"])
    assert " ".join(body.rstrip(";").split()) in str(raised.value)


def entry(text: str, parameters: int = 1) -> Module:
    listed = ",\n".join(f".param .u64 each_param_{n}" for n in range(parameters))
    shared = ".shared .align 4 .b8 room[64];\n.extern .shared .align 16 .b8 rest[];\n"
    return parse(f"{HEAD}{shared}.visible .entry each(\n{listed}\n)\n{{\n{REGISTERS}\n{text}\nret;\n}}\n")


ADDRESS = "ld.param.u64 %rd1, [each_param_0]; mov.u32 %r1, %tid.x;\n"
FAULTY = {
    "st.shared.b32 [room+64], %r1;": "outside the block's shared memory",
    "st.shared.b32 [room+2], %r1;": "not aligned",
    "add.s64 %rd2, %rd1, 4; st.global.b64 [%rd2], %rd1;": "not aligned",
    "mov.u64 %rd2, 8; st.global.b64 [%rd2], %rd1;": "no global address",
    "mov.u64 %rd2, 8192; st.global.b64 [%rd2], %rd1;": "touches memory at 0x2000",
    "div.u32 %r2, %r1, 0;": "division by zero",
    "bar.sync 1, 32;": "a barrier of a part of the block",
    "$L: bra $L;": "a loop that does not end",
    "setp.lt.u32 %p1, %r1, 32; @%p1 bra $A; bar.sync 0; bra $B;\n$A: bar.sync 0; $B:": "barrier of line",
    "setp.lt.u32 %p1, %r1, 32; @%p1 bra $A; bar.sync 0; $A: shfl.sync.up.b32 %r3, %r1, 1, 0, 1;": "mask 0x00000001",
}


@pytest.mark.parametrize("body", list(FAULTY))
def test_a_kernel_that_breaks_a_rule_has_a_fault(body: str) -> None:
    with pytest.raises(KernelFault, match=FAULTY[body]):
        run(entry(ADDRESS + body), "each", 1, 64, torch.zeros(8, dtype=torch.int64))


# The warps of a block read a count that each block raises once they have. One that finds it even waits at another
# barrier than one that finds it odd.
RACY = """
    bar.sync 0;
    ld.volatile.global.b64 %rd3, [%rd1];
    bar.sync 0;
    and.b64 %rd4, %rd3, 1; setp.eq.s64 %p1, %rd4, 0;
    setp.eq.u32 %p2, %r1, 0;
    @%p2 atom.global.add.u64 %rd5, [%rd1], 1;
    @%p1 bra $EVEN;
    bar.sync 0; bra $END;
$EVEN: bar.sync 0;
$END:
"""


def test_blocks_that_run_at_once_see_each_other() -> None:
    """Every warp reads for itself, so that another block's step between two reads takes the warps apart."""
    module = entry(ADDRESS + RACY)

    def fault(**how: Any) -> str:
        count = torch.zeros(1, dtype=torch.int64)
        try:
            run(module, "each", 6, 256, count, **how)
        except KernelFault as error:
            return str(error)
        assert count.item() == 6
        return ""

    assert fault(order="ascending") == ""
    found = [fault(order="shuffle", seed=seed, residents=4) for seed in range(1, 9)]
    assert any("while others wait at that of line" in message for message in found)


def test_several_blocks_need_memory_of_their_own() -> None:
    """Shared memory, registers and barriers of blocks that run at once are apart."""
    body = """
    mov.u32 %r2, %ctaid.x; mul.wide.u32 %rd5, %r2, 512; add.s64 %rd6, %rd1, %rd5;
    mad.wide.u32 %rd6, %r1, 8, %rd6;
    shl.b32 %r3, %r1, 0; and.b32 %r3, %r1, 15; shl.b32 %r3, %r3, 2; mov.u32 %r4, room; add.s32 %r4, %r4, %r3;
    setp.lt.u32 %p1, %r1, 16; @%p1 st.shared.b32 [%r4], 0; bar.sync 0;
    mad.lo.s32 %r5, %r2, 100, %r1; atom.shared.add.u32 %r6, [%r4], %r5;
    ld.global.b64 %rd7, [%rd6];
    bar.sync 0; ld.shared.b32 %r7, [%r4]; cvt.u64.u32 %rd8, %r7; st.global.b64 [%rd6], %rd8;
    """
    expected = [[sum(100 * b + other for other in range(t % 16, 64, 16)) for t in range(64)] for b in range(8)]
    for seed in range(4):
        out = torch.zeros((8, 64), dtype=torch.int64)
        run(entry(ADDRESS + body), "each", 8, 64, out, order="shuffle", seed=seed, residents=1 + 7 * (seed > 0))
        assert out.tolist() == expected
