"""The Triton kernels compiled for real, without a device: what ptxas makes of them, and what their PTX promises.

``python tests/kernels/test_triton_compile.py`` compiles every variant for every target and writes the recorded table
anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the process that writes the table
from support.ptx import branches  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ROOT / "tests" / "support" / "triton_variants.py"
TABLE = ROOT / "tests" / "support" / "triton_usage.json"
RECORDED = ("registers", "shared", "blocks")
TARGETS = (80, 86, 89, 90, 100, 120)


def rows_of(*arguments: str) -> list[dict[str, Any]]:
    """What the process that compiles prints; this one may have triton's interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "ignore", str(VARIANTS), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def check(row: dict[str, Any]) -> None:
    """What holds of a kernel on every target."""
    name = row["name"]
    assert row["spilled"] == 0, row
    assert row["findings"] == [], row
    # An atomic on 64 bits is one instruction, and no loop that compares and swaps.
    assert not [each for each in row["atomics"] if "CAS" in each], row
    if name.startswith("score"):
        width = r"\.64" if "wide=1" in name else ""
        assert any(re.fullmatch(rf"REDG?\.E\.ADD{width}\.STRONG\.GPU", each) for each in row["atomics"]), row
        assert row["blocks"] >= row["programs"], row
    if name.startswith("derive"):
        # Each operation rounded to nearest by itself. Learned weights have no norm, whose 1 - b is the subtraction.
        subtracts = "shape=3" not in name
        assert row["float64"] == ["add.rn.f64", "div.rn.f64", "mul.rn.f64"] + ["sub.rn.f64"] * subtracts, row
    elif name.endswith("decays"):
        assert row["float64"] == ["mul.rn.f64", "sub.rn.f64"], row
    elif name.startswith("plan") and "measured=1" in name:
        assert row["float64"] == ["mul.rn.f64"], row
    elif not name.startswith("segment_reduce"):
        assert not row["float64"], row


def check_target(target: int) -> None:
    recorded = json.loads(TABLE.read_text(encoding="utf-8"))
    rows = rows_of(str(target))
    for row in rows:
        check(row)
    if recorded["triton"] == triton.__version__:
        found = {row["name"]: [row[name] for name in RECORDED] for row in rows}
        assert found == recorded["targets"][str(target)], f"sm_{target}: python {Path(__file__).name} records it anew"


def test_every_kernel_compiles() -> None:
    check_target(90)


@pytest.mark.sweep
@pytest.mark.parametrize("target", [target for target in TARGETS if target != 90])
def test_every_kernel_compiles_for_the_other_targets(target: int) -> None:
    check_target(target)


def test_the_table_has_every_target() -> None:
    recorded = json.loads(TABLE.read_text(encoding="utf-8"))
    assert list(recorded["targets"]) == [str(target) for target in TARGETS]
    names = [set(rows) for rows in recorded["targets"].values()]
    assert all(each == names[0] for each in names)


def test_a_threshold_that_each_warp_reads_is_found() -> None:
    """The first fault is a plain load of a threshold that decides about a turn. The second gives each warp all turns,
    so that it reduces them by itself."""
    planted = {row["name"]: row["findings"] for row in rows_of("planted")}
    assert set(planted) == {"a plain load", "turns of a warp", "none"}
    assert planted["none"] == []
    for name in ("a plain load", "turns of a warp"):
        assert planted[name], name
        assert all("ld.global.cg.b64" in finding for finding in planted[name]), planted[name]


def kernel(body: str, threads: int = 64) -> str:
    """PTX of one entry with two parameters; `body` may use %t, the thread, and %p1."""
    return f"""
.visible .entry kernel(
    .param .u64 .ptr .global .align 1 kernel_param_0,
    .param .u64 .ptr .global .align 1 kernel_param_1
)
.reqntid {threads}
{{
    ld.param.b64 %rd1, [kernel_param_0];
    ld.param.b64 %rd2, [kernel_param_1];
    mov.u32 %r1, %tid.x;
{body}
    ret;
}}
"""


BRANCH = """    setp.gt.s32 %p1, %r9, 0;
    @%p1 bra $L__end;
    bar.sync 0;
$L__end:
"""
LOAD = "    ld.global.b32 %r9, [%rd1];\n"
RAISED = "    red.global.gpu.relaxed.max.s32 [%rd1], 1;\n"
BUTTERFLY = """    shfl.sync.bfly.b32 %r{to}, %r{of}, {bit}, 31, -1;
    max.s32 %r{out}, %r{of}, %r{to};
"""
OWN = "    mad.wide.s32 %rd3, %r1, 4, %rd1;\n    ld.global.b32 %r2, [%rd3];\n"


def butterflies(*bits: int) -> str:
    """From %r2 on; the last result is %r9."""
    steps = []
    for number, bit in enumerate(bits):
        of, out = 2 if number == 0 else 20 + number, 9 if number + 1 == len(bits) else 21 + number
        steps.append(BUTTERFLY.format(of=of, to=10 + number, out=out, bit=bit))
    return "".join(steps)


SHARED = """    mov.b32 %r30, 0;
    @%p2 st.shared.b32 [%r30], %r8;
{barrier}    ld.shared.b32 %r9, [%r30];
"""
ATOMIC = "    setp.eq.b32 %p2, %r1, 0;\n    @%p2 atom.global.gpu.relaxed.max.s32 %r8, [%rd1], 0;\n"
REDUCED = OWN + "    redux.sync.max.s32 %r9, %r2, -1;\n"
PARTED: dict[str, tuple[str, int, bool]] = {
    # Of each: the kernel, its threads, and whether threads may part.
    "the same address, read alone": (LOAD + BRANCH, 64, False),
    "the same address, written by the launch": (LOAD + RAISED + BRANCH, 64, True),
    "another array is written": (LOAD + RAISED.replace("rd1", "rd2") + BRANCH, 64, False),
    "an address of each thread's own": (OWN.replace("%r2", "%r9") + BRANCH, 64, True),
    "no barrier between the sides": (LOAD + RAISED + BRANCH.replace("bar.sync 0", "mov.u32 %r8, 1"), 64, False),
    "an atomic of one thread, through shared memory": (
        ATOMIC + SHARED.format(barrier="    bar.sync 0;\n") + BRANCH,
        64,
        False,
    ),
    "without the barrier": (ATOMIC + SHARED.format(barrier="") + BRANCH, 64, True),
    "an atomic of every thread": (ATOMIC.replace("@%p2 ", "").replace("%r8", "%r9") + BRANCH, 64, True),
    "reduced by one warp that is the block": (REDUCED + BRANCH, 32, False),
    "reduced by each of two warps": (REDUCED + BRANCH, 64, True),
    "each warp loads the same and reduces it": (
        REDUCED.replace("mad.wide.s32 %rd3, %r1", "and.b32 %r3, %r1, 31;\n    mad.wide.s32 %rd3, %r3") + BRANCH,
        64,
        False,
    ),
    "each warp loads the same of what is raised": (
        RAISED
        + REDUCED.replace("mad.wide.s32 %rd3, %r1", "and.b32 %r3, %r1, 31;\n    mad.wide.s32 %rd3, %r3")
        + BRANCH,
        64,
        True,
    ),
    "five butterflies": (OWN + butterflies(16, 8, 4, 2, 1) + BRANCH, 32, False),
    "a butterfly is missing": (OWN + butterflies(16, 8, 2, 1) + BRANCH, 32, True),
    "a loop of another length for each thread": (
        "    mov.b32 %r5, 0;\n$L__loop:\n    bar.sync 0;\n    add.s32 %r5, %r5, 1;\n"
        "    setp.lt.s32 %p1, %r5, %r1;\n    @%p1 bra $L__loop;\n",
        64,
        True,
    ),
    "a register that was the thread's number before": (
        "    mov.u32 %r9, %tid.x;\n    st.global.b32 [%rd2], %r9;\n    mov.b32 %r9, 1;\n" + BRANCH,
        64,
        False,
    ),
    "a value that parted threads left": (
        "    mov.b32 %r9, 0;\n    setp.gt.s32 %p3, %r1, 5;\n    @%p3 bra $L__past;\n    mov.b32 %r9, 1;\n$L__past:\n"
        + BRANCH,
        64,
        True,
    ),
}


@pytest.mark.parametrize("name", list(PARTED))
def test_branches_that_threads_may_take_apart(name: str) -> None:
    body, threads, parts = PARTED[name]
    assert bool(branches.findings(kernel(body, threads))) == parts


def main() -> None:
    """Write the table."""
    targets = {}
    for target in TARGETS:
        rows = rows_of(str(target))
        for row in rows:
            check(row)
        targets[str(target)] = {row["name"]: [row[name] for name in RECORDED] for row in rows}
    write(targets)


def write(targets: dict[str, dict[str, list[int]]]) -> None:
    lines = []
    for target, rows in targets.items():
        inside = ",\n".join(f"      {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        lines.append(f"    {json.dumps(target)}: {{\n{inside}\n    }}")
    text = ",\n".join(lines)
    columns = json.dumps(list(RECORDED))
    version = json.dumps(triton.__version__)
    TABLE.write_text(
        f'{{\n  "triton": {version},\n  "columns": {columns},\n  "targets": {{\n{text}\n  }}\n}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    main()
