"""What the translator of PTX declines, which rules of a kernel it holds, and that blocks may run at once."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.ptx.build import build  # noqa: E402
from support.ptx.parse import Module, PtxError, parse  # noqa: E402
from support.ptx.translate import translate  # noqa: E402

from fanrank.engine.errors import BackendUnavailableError  # noqa: E402
from fanrank.kernels.cuda_host.build import compiler  # noqa: E402
from fanrank.kernels.cuda_host.launcher import HostLauncher, KernelFault  # noqa: E402

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
REGISTERS = (
    ".reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<19>; .reg .f32 %f<9>; .reg .f64 %fd<9>; .reg .b64 %rd<19>;"
)


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    try:
        compiler()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


def module_of(*bodies: str) -> Module:
    """A kernel that runs each body on three numbers of its thread."""
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
