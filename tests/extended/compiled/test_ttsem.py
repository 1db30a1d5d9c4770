"""Triton's kernels as TTIR that ttsem executes: no program touches what another writes without an atomic operation,
none reads or writes outside its tensors, and the answers are right.

ttsem needs Python 3.12. It replaces Triton's compiler and driver in its process, so the tests start one:
`python test_ttsem.py sound|planted CASE ...` prints a line of JSON for each case of `support.launches`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
if importlib.util.find_spec("ttsem") is None:
    version = ".".join(map(str, sys.version_info[:2]))
    reason = f"NO RACE CHECK OF TRITON'S PROGRAMS: ttsem is not here; it needs Python 3.12, and this is {version}"
    pytest.skip(reason, allow_module_level=True)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from support import kernel_cases as kc  # noqa: E402
from support.ptx import triton_jit  # noqa: E402
from support.ptx.triton_jit import rows_of  # noqa: E402
from ttsem import harness, memory, sanitize  # noqa: E402

from fanrank.kernels.triton import TritonVerbs, order  # noqa: E402
from fanrank.kernels.triton import verbs as verbs_module  # noqa: E402
from fanrank.kernels.triton.verbs import TUNING  # noqa: E402

CHECKED = ("plain", "ties everywhere", "signed, wide", "large weights", "long quanta, signed", "fields, bm25l")
CHECKED += ("decay", "decay of long quanta", "learned weights", "ranges at borders")
"""Of all cases ttsem names two more, where a program reads a threshold that others raise: it may be late, by design."""


class Known(memory.Memory):
    """Memory that has, beside a launch's arguments, the tensors that its rows of segments name by their addresses."""

    tensors: tuple[Any, ...] = ()

    def _resolve(self, addrs: Any, itemsize: int) -> Any:
        try:
            return super()._resolve(addrs, itemsize)
        except memory.MemoryFault as fault:
            named = [each for each in self.tensors if 0 <= fault.addr - each.data_ptr() < each.nbytes]
            if not named or named[0].data_ptr() in self._bases:
                raise
        self.register(named[0].data_ptr(), named[0].numpy().reshape(-1))
        return self._resolve(addrs, itemsize)


def tensors_of(case: kc.Case) -> tuple[Any, ...]:
    held = list(case.kept)
    for segment in case.segments:
        own = segment.postings
        held += [own.words, own.offsets, own.lengths, segment.idf, segment.device_quanta]
    for tables in case.tables:
        held += [tables.cuts, tables.maxima]
    return tuple(each for each in held if each.numel())


def failures(names: list[str]) -> Iterator[dict[str, Any]]:
    """What went wrong in each case, "" where nothing did, and launches that could not be checked for races so far."""
    harness.Memory = Known
    verbs = TritonVerbs("cpu", TUNING["cpu"])
    with sanitize.session() as state:
        for name in names:
            number = list(kc.CASES).index(name)
            case = kc.build(number, name=name, **kc.CASES[name])
            Known.tensors = tensors_of(case)
            failure = ""
            try:
                kc.check_derive(verbs, case)
                kc.check_family(verbs, case)
                kc.check_plan(verbs, case, number)
            except (AssertionError, sanitize.KernelFault, sanitize.Unjudged) as error:
                failure = str(error).strip() or "an assertion"
            yield {"case": name, "failure": failure, "unchecked": state.races_unchecked}


def test_no_program_races_or_leaves_its_tensors() -> None:
    rows = rows_of(__file__, "sound", *CHECKED)
    assert [row["case"] for row in rows] == list(CHECKED)
    assert [row for row in rows if row["failure"] or row["unchecked"]] == []


RACE = (
    'tl.atomic_max(progress, count.to(tl.int64), sem="relaxed")',
    "tl.store(progress, tl.maximum(tl.load(progress), count.to(tl.int64)))",
)
"""The most entries of any query, by no atomic maximum. It does not show where programs run one after another."""


def test_a_race_between_programs_is_caught() -> None:
    (row,) = rows_of(__file__, "planted", "plain")
    assert "Program instances run in any order" in row["failure"]


def main(planted: str, *names: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if planted == "planted":
            verbs_module.order = triton_jit.planted(order, *RACE, Path(folder))
        for row in failures(list(names)):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
