"""The text analysis under sanitizers: readers beside the writer while tables grow, shrink and start afresh."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [ROOT / "native" / name for name in ("text.cpp", "text_documents.cpp", "text_names.cpp", "text_porter.cpp")]
COMPILER = shutil.which(os.environ.get("CXX", "g++"))


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_readers_and_the_writer_do_not_race(tmp_path: Path, sanitizer: str) -> None:
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    flags = ["-std=c++20", "-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-pthread"]
    program = tmp_path / "race"
    driver = Path(__file__).with_name("analysis_race.cpp")
    command = [COMPILER, *flags, f"-I{ROOT / 'native'}", str(driver), *map(str, SOURCES), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "cannot find" in built.stderr:
        pytest.skip("the sanitizer's library is not installed")
    assert not built.returncode, built.stderr
    run = subprocess.run([str(program)], capture_output=True, text=True, timeout=900)
    if "unexpected memory mapping" in run.stderr:
        pytest.skip("the thread sanitizer does not run in this address space")
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stdout + run.stderr
