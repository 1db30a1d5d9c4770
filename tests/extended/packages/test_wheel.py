"""What `make wheel` builds: it serves by compiled loops where no compiler is, and a package index takes it."""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(*command: str | Path, **options: str) -> str:
    """What a command prints; the environment is this one but for ``options``."""
    environment = {**os.environ, **options}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that is built from it."""
    path = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", path, ".", FANRANK_NATIVE="required")
    return path


def test_an_index_takes_them(built: Path) -> None:
    files = sorted(built.iterdir())
    assert [path.suffix for path in files] == [".whl", ".gz"]
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    with zipfile.ZipFile(files[0]) as wheel, tarfile.open(files[1]) as sdist:
        packed, sources = wheel.namelist(), sdist.getnames()
    assert not [name for name in packed if name.startswith(("tests/", "bench/")) or name.endswith((".cpp", ".hpp"))]
    assert len([name for name in sources if name.endswith(".cpp")]) == len(list(ROOT.glob("native/*.cpp")))


def test_it_serves_compiled_loops_where_no_compiler_is(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "environment", with_pip=True)
    programs = tmp_path / "environment" / "bin"
    # No compiler is on this path, and the one that Python's configuration names is not there.
    bare = {"PATH": str(programs), "CC": str(tmp_path / "cc"), "CXX": str(tmp_path / "cxx")}
    run(programs / "pip", "install", "-q", wheel, **bare)
    assert json.loads(run(programs / "fanrank", "doctor", "--json", **bare))["backend"] == "native"
    code = "import fanrank as fr; print(fr.Engine.from_records([fr.Record('1', 'tea')]).search('tea').ids[0, 0])"
    assert run(programs / "python", "-c", code, **bare) == "1\n"
