"""bench/instructions.py: what callgrind counts goes to phases, repeats exactly, and is held to what was recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Only while importing: the root holds folders named like other people's packages.
sys.path.append(str(ROOT))
try:
    from bench import instructions
    from bench.harness import callgrind

    from fanrank.engine.backends import choose as backends
finally:
    sys.path.remove(str(ROOT))

counts = pytest.mark.skipif(bool(callgrind.missing()), reason=str(callgrind.missing()))

PROFILE = """desc: Trigger: Client Request: 5
events: Ir
fn=python
7 100
cfn=fanrank::python::(anonymous namespace)::search(_object*, _object* const*, long)
calls=1 9
7 900
fn=fanrank::python::(anonymous namespace)::search(_object*, _object* const*, long)
9 50
cfn=fanrank::text::Analysis::encode(fanrank::python::Ref const&)
calls=1 3
9 300
+1 10
cfn=void fanrank::search::score<int>(fanrank::text::Terms)
calls=2 4
+2 540
fn=fanrank::text::Analysis::encode(fanrank::python::Ref const&)
3 100
cfn=malloc
calls=1 1
3 200
fn=void fanrank::search::score<int>(fanrank::text::Terms)
4 400
cfn=fanrank::search::keep_best(fanrank::search::Hits&)
calls=1 2
4 140

totals: 1000
"""

# Loops whose length a caller decides, in functions that are named as those of the extension.
PROGRAM = """
#include <dlfcn.h>
#include <cstdlib>
#include <vector>
#define KEPT __attribute__((noinline, noclone))
KEPT static long loop(long n) {
    volatile long sum = 0;
    for (long i = 0; i < n; i++) sum = sum ^ i;
    return sum;
}
namespace fanrank::text {
KEPT long analyse(long n) { return loop(n) + 1; }
}
namespace fanrank::search {
namespace {
KEPT long keep_best(long n) { return loop(n) + 2; }
}
KEPT long score(long n) { return loop(n) + keep_best(n / 2); }
}
namespace fanrank::python {
KEPT long search(long n) {
    std::vector<long> own(n, 1);
    return own[0] + text::analyse(2 * n) + search::score(n);
}
}
int main() {
    void* library = dlopen(getenv("FANRANK_CALLGRIND"), RTLD_NOW);
    auto begin = reinterpret_cast<void (*)()>(dlsym(library, "counting_begin"));
    auto end = reinterpret_cast<void (*)(const char*)>(dlsym(library, "counting_end"));
    long sum = fanrank::python::search(99);
    begin(); sum += fanrank::python::search(1000); end("1");
    sum += fanrank::python::search(77);
    begin(); sum += fanrank::python::search(3000); end("5");
    return sum == 0;
}
"""


def test_instructions_go_to_the_phase_that_called() -> None:
    profile = callgrind.parse(PROFILE)
    assert (profile.name, profile.total) == ("5", 1000)
    assert profile.own["fanrank::text::Analysis::encode(fanrank::python::Ref const&)"] == 100
    found = callgrind.by_phase(profile, instructions.PHASES)
    assert found == {"analysis": 300, "plan": 0, "score": 400, "select": 140, "binding": 60}


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("fanrank::python::(anonymous namespace)::search(_object*, long)", "fanrank::python::search"),
        ("void fanrank::search::score<std::vector<int> >(fanrank::text::Terms)", "fanrank::search::score"),
        ("void std::sort<fanrank::search::Hit*>(fanrank::search::Hit*)", "std::sort"),
        ("malloc", "malloc"),
    ],
)
def test_names_of_functions(function: str, name: str) -> None:
    assert callgrind.qualified(function) == name


@counts
def test_stretches_are_counted_by_function_and_repeat_exactly(tmp_path: Path) -> None:
    (tmp_path / "program.cpp").write_text(PROGRAM)
    program = tmp_path / "program"
    command = [
        str(callgrind.compiler()),
        "-std=c++17",
        "-O2",
        "-o",
        str(program),
        str(tmp_path / "program.cpp"),
        "-ldl",
    ]
    subprocess.run(command, check=True)
    runs = []
    for number in range(2):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        profiles = callgrind.run([str(program)], folder, {"PATH": os.environ["PATH"]})
        assert profiles.keys() - {""} == {"1", "5"}
        runs.append({name: callgrind.by_phase(profiles[name], instructions.PHASES) for name in ("1", "5")})
    assert runs[0] == runs[1]
    small, large = runs[0]["1"], runs[0]["5"]
    assert small["plan"] == 0
    # One loop as long as another takes about as many instructions; what is outside the stretches is not counted.
    assert small["analysis"] == pytest.approx(4 * small["select"], rel=0.3)
    assert small["score"] == pytest.approx(2 * small["select"], rel=0.3)
    for phase in ("analysis", "score", "select"):
        assert large[phase] == pytest.approx(3 * small[phase], rel=0.05)


def test_growth_beyond_the_limit_is_told(tmp_path: Path) -> None:
    path, under = tmp_path / "deep" / "rows.jsonl", {"python": "3"}
    before = {(1, "whole"): 100_000, (1, "plan"): 0, (5, "whole"): 5_000}
    instructions.record(path, "native", under, before)
    instructions.record(path, "native", {"python": "4"}, {(1, "whole"): 7})
    instructions.record(path, "native", under, {**before, (5, "whole"): 6_000})
    kept = instructions.recorded(path, "native", under)
    assert kept == {**before, (5, "whole"): 6_000}
    assert instructions.recorded(path, "native", {"python": "4"}) == {(1, "whole"): 7}
    assert instructions.recorded(path, "native", {"python": "5"}) == {}
    assert instructions.changes(kept, {**kept, (1, "whole"): 102_000}) == ([], False)
    assert instructions.changes(kept, {**kept, (1, "whole"): 102_001}) == (
        ["1 queries, whole: 100,000 -> 102,001 +2.0% GREW"],
        True,
    )
    assert instructions.changes(kept, {**kept, (1, "plan"): instructions.ALLOCATOR + 1})[1]
    assert instructions.changes(kept, {**kept, (1, "plan"): instructions.ALLOCATOR}) == ([], False)
    told, grew = instructions.changes(kept, {**kept, (1, "whole"): 90_000})
    assert told == ["1 queries, whole: 100,000 -> 90,000 -10.0% shrank: record it"]
    assert not grew


def test_the_texts_repeat() -> None:
    assert instructions.corpus() == instructions.corpus()


@counts
def test_the_recorded_instructions_hold() -> None:
    serving = {status.name for status in backends.statuses() if status.usable}
    if "native" not in serving:
        pytest.skip("the extension does not serve here")
    if not instructions.recorded(instructions.ROWS, "native", instructions.versions()):
        pytest.skip("nothing is recorded under these versions")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    # The baseline is that of the shipped profile.
    environment.pop("FANRANK_PROFILE", None)
    done = subprocess.run(
        [sys.executable, "-m", "bench.instructions"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
