"""Triton's kernels as the PTX that Triton makes of them for a GPU: what they compile to, and what they give on CPU
tensors, where each warp loads for itself, barriers are real and blocks run at once.

`python test_triton_ptx.py runs SEED FIRST STEP [planted]` runs every STEP-th case, `python test_triton_ptx.py compiles
CAPABILITY` compiles each kernel with the block sizes of a GPU; both print lines of JSON. Neither must run in Triton's
interpreter, so the tests start them as processes.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="triton is not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from support import kernel_cases as kc  # noqa: E402
from support.host_kernels import need_compiler  # noqa: E402
from support.ptx import triton_jit  # noqa: E402
from support.ptx.triton_jit import Compiled, Device, rows_of  # noqa: E402

from fanrank.engine.vectors.interaction import Interaction  # noqa: E402
from fanrank.kernels.cuda_host.launcher import KernelFault  # noqa: E402
from fanrank.kernels.triton import TritonVerbs, score  # noqa: E402
from fanrank.kernels.triton import verbs as verbs_module  # noqa: E402
from fanrank.kernels.triton.segment_reduce import Settings, segment_reduce  # noqa: E402
from fanrank.kernels.triton.verbs import DEFAULT  # noqa: E402

BLOCKS_AT_ONCE = 8
TARGETS = (80, 90, 120)
SPILLED = 16 if triton.__version__ < "3.9" else 0
"""Bytes at most: the assembler of 3.7.1 spills 8 of `_reduce_stripe` (sm_90), 16 of `_derive` (sm_120); 3.9's none."""

# A warp that loaded a threshold before another block raised it meets a barrier that the others do not.
BARRIER = "                tl.debug_barrier()\n                emit("
PLANTED = (
    "                if tl.load(thresholds + query, cache_modifier='.cg') == threshold:\n"
    "                    tl.debug_barrier()\n                emit("
)


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    need_compiler()


def test_some_cases_with_blocks_at_once() -> None:
    found = rows_of(__file__, "runs", 1, 5, 30)
    assert found
    assert [row for row in found if row["failure"]] == []


def test_a_branch_by_what_each_warp_loaded_is_caught() -> None:
    found = [row["failure"] for case in (13, 16) for row in rows_of(__file__, "runs", 1, case, 100, "planted")]
    assert any("while others wait at that of line" in failure for failure in found), found


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles_without_spills(target: int) -> None:
    rows = rows_of(__file__, "compiles", target)
    names = {"_derive", "_cuts", "_maxima", "_describe", "_plan", "_order", "_score", "_reduce_stripe", "_finish"}
    names.add("_segment_reduce")
    assert {row["name"] for row in rows} == names
    for row in rows:
        assert row["spilled"] <= SPILLED, row
        # An atomic on 64 bits is one instruction, and no loop that compares and swaps.
        assert not [each for each in row["atomics"] if "CAS" in each], row
        if row["name"] == "_score":
            width = r"\.64" if row["constants"]["WIDE"] else ""
            assert any(re.fullmatch(rf"REDG?\.E\.ADD{width}\.STRONG\.GPU", each) for each in row["atomics"]), row
        # What must round as numpy does is not contracted.
        logarithm = row["name"] == "_segment_reduce" and row["constants"]["KIND"] > 1
        if not logarithm:
            assert not [each for each in row["float64"] if each.startswith("fma")], row


def runs(seed: str, first: str, step: str, planted: str = "") -> Iterator[dict[str, str]]:
    """What went wrong in each case, "" where nothing did."""
    with tempfile.TemporaryDirectory() as folder:
        if planted:
            verbs_module.score = triton_jit.planted(score, BARRIER, PLANTED, Path(folder))
        verbs = TritonVerbs("cpu", DEFAULT)
        with Device(order="shuffle", seed=int(seed), residents=BLOCKS_AT_ONCE).current():
            for number, case in islice(enumerate(kc.cases()), int(first), None, int(step)):
                failure = ""
                try:
                    kc.check_family(verbs, case)
                    kc.check_plan(verbs, case, number)
                except (AssertionError, KernelFault) as error:
                    failure = str(error).strip()[:300] or "an assertion"
                yield {"case": case.name, "failure": failure}


COMPILED = ("plain", "signed, wide", "long quanta, signed", "fields, bm25l", "bm25+", "decay of some")
COMPILED += ("decay of long quanta", "learned weights")


def compiles(capability: str) -> Iterator[dict[str, Any]]:
    """What ptxas makes of the kernels of each of these cases."""
    device, verbs = Device(runs=False, capability=int(capability)), TritonVerbs("cpu", DEFAULT)
    # Those of an H100, so that several programs select for a query.
    verbs._processors = 132
    with device.current():
        for number, name in enumerate(COMPILED):
            case = kc.build(number, **{**kc.CASES[name], "tile_bits": DEFAULT.narrow_tile_bits})
            for segment in case.segments:
                verbs.derive(segment.postings, case.formula, segment.idf, segment.device_quanta)
            kc.tabulate(verbs, case)
            batch, _ = kc.planned(case, number)
            for work in case.launches():
                buffers, answer, _ = kc.fresh(work, "cpu")
                buffers = replace(buffers, scratch=torch.empty(1 << 26, dtype=torch.uint8))
                own = replace(work, tile_bits=verbs.tile_bits(work.wide))
                verbs.plan(batch, own, buffers)
                verbs.describe(own, buffers)
                verbs.order(own, buffers)
                verbs.score(own, buffers)
                verbs.select(replace(own, width=16), buffers, answer)
                many = replace(buffers, keys=torch.empty(1 << 16, dtype=torch.int64))
                verbs.select(replace(own, width=1024, most_tiles=1 << 6), many, answer)
        for kind in ("late", "top", "lse", "lme"):
            segment_reduce(
                torch.zeros((2, 5), dtype=torch.float64), torch.tensor([0, 2, 5]), Interaction(kind), Settings()
            )
    for each in sorted(device.compiled):
        yield usage(each)


def usage(compiled: Compiled) -> dict[str, Any]:
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    target = re.search(r"\.target (\w+)", compiled.ptx)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(compiled.ptx)
        # As Triton's backend calls the two assemblers in its wheel.
        assembler = tools / ("ptxas" if target[1] < "sm_90" and len(target[1]) == 5 else "ptxas-blackwell")
        fused = [] if compiled.fused else ["--fmad=false"]
        command = [assembler, "-v", "--regAllocOptLevel=2", f"-arch={target[1]}", *fused, path, "-o", f"{path}.o"]
        log = subprocess.run(command, capture_output=True, text=True, check=True)
        disassemble = [tools / "nvdisasm", "-c", f"{path}.o"]
        sass = subprocess.run(disassemble, capture_output=True, text=True, check=True).stdout
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log.stdout + log.stderr)
    assert spills is not None
    return {
        "name": compiled.name,
        "constants": dict(compiled.constants),
        "spilled": int(spills[1]) + int(spills[2]),
        "float64": sorted(set(re.findall(r"\b(?:fma|mul|add|sub|div)\.(?:\w+\.)?f64", compiled.ptx))),
        "atomics": sorted(set(re.findall(r"\b((?:ATOM|RED)[GS]?\.[\w.]+)", sass))),
    }


def main(what: str, *rest: str) -> None:
    for row in runs(*rest) if what == "runs" else compiles(*rest):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
