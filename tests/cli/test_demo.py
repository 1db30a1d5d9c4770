"""`fanrank demo` and `fanrank doctor`, and their parts."""

import itertools
import platform
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from support.commands import run, run_json, write

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.check.check import check
from fanrank.engine.cli import demo, doctor


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small standard library."""
    root = tmp_path / "lib"
    for name, text in {
        "alpha.py": '"""Alpha module."""\nclass A:\n    """Class A."""\n    def f(self):\n        """Do f."""\n'
        '        def inner():\n            """Inner."""\n    def bare(self): pass\n'
        'async def g():\n    """Do g."""\n',
        "beta/__init__.py": '"""Beta package."""\n',
        "beta/core.py": 'def h():\n    """First line.\n\n    More."""\nx = 5\n',
        "broken.py": '"""Broken."""\ndef (:\n',
        "latin.py": "# \xff\n",
        "test/test_alpha.py": '"""Not wanted."""\n',
        "site-packages/other.py": '"""Not wanted."""\n',
        "empty.py": "",
        "note.txt": "no Python",
    }.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("latin-1"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(root))
    return root


@pytest.mark.usefixtures("library")
def test_docstrings_become_records() -> None:
    records = demo.docstring_records()
    assert {record.id: (record.type, record.text) for record in records} == {
        "alpha": ("module", "Alpha module."),
        "alpha.A": ("class", "Class A."),
        "alpha.A.f": ("function", "Do f."),
        "alpha.A.f.inner": ("function", "Inner."),
        "alpha.g": ("function", "Do g."),
        "beta": ("module", "Beta package."),
        "beta.core.h": ("function", "First line.\n\nMore."),
    }
    assert {record.session for record in records} == {"alpha", "beta", "beta.core"}
    times = [record.time for record in records if record.time is not None]
    assert len(times) == len(records)
    assert times == sorted(set(times))
    assert demo.START <= times[0] < times[-1] < demo.START + demo.SPAN


def test_own_records_are_asked_in_every_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, object]] = [{"id": f"o{n}", "text": f"other {n}", "namespace": "few"} for n in range(3)]
    text = "record number {} of many with words beyond eight"
    rows += [{"id": f"r{n}", "text": text.format(n), "namespace": "most", "session": "s"} for n in range(50)]
    records = write(tmp_path / "r.jsonl", rows)
    result = run_json("demo", records)
    assert (result["records"], result["sessions"], result["backend"]) == (53, 2, backend.choose().name)
    assert result["check"] == {"queries": 20, "differences": 0}
    assert [answer["question"] for answer in result["answers"][:2]] == ["other 0", "other 2"]
    assert [answer["hits"][0]["id"] for answer in result["answers"][:2]] == ["o0", "o2"]
    for answer in result["answers"][2:]:
        number = answer["question"].split()[2]
        assert answer["question"] == f"record number {number} of many with words beyond"
        assert (answer["hits"][0]["id"], answer["hits"][0]["text"]) == (f"r{number}", text.format(number))
        assert len(answer["hits"]) == demo.SHOWN
    assert result["batch_ms"] > 0
    assert result["one_by_one_ms"] > 0
    shown = run("demo", records, "--backend", "numpy").stdout
    assert "served by numpy" in shown
    assert "oracle: all 20 answers equal, ids, scores and order" in shown
    plain = demo.engine_answers
    monkeypatch.setattr(demo, "engine_answers", lambda hits: [plain(hits)[0][::-1], *plain(hits)[1:]])
    assert run_json("demo", write(tmp_path / "r.jsonl", rows[3:]), code=1)["check"]["differences"] == 1


def test_rendering(tmp_path: Path) -> None:
    long = "tea " * 100
    result = demo.run(write(tmp_path / "r.jsonl", [{"id": "a", "text": long}, {"id": "b", "text": "!!!"}]))
    text = demo.render(result)
    assert text.startswith("2 records in 1 sessions from ")
    assert "? tea tea tea tea tea tea tea tea" in text
    assert "  (no record holds any of these words)" in text
    assert "…" in text
    assert max(len(line) for line in text.splitlines()[2:6]) < 100
    assert f"served by {backend.choose().name}" in text
    for status in result["backends"]:
        assert f"  {status['name']}: {'usable' if status['usable'] else 'not usable'}: {status['reason']}" in text
    assert "oracle: all 2 answers equal" in text
    result["check"]["differences"] = 1
    assert "oracle: 1 of 2 answers DIFFER" in demo.render(result)


def test_records_that_cannot_be_asked_have_expired_or_hold_a_lone_surrogate(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with pytest.raises(fr.errors.ParameterError, match=r"r\.jsonl: holds no records"):
        demo.run(write(path, []))
    with pytest.raises(fr.errors.StorageError):
        demo.run(tmp_path / "none.jsonl")
    ends = ["2020-01-01", "2099-01-01", None]
    found = demo.run(write(path, [{"id": f"m{n}", "text": f"tea {n}", "expires": ends[n % 3]} for n in range(9)]))
    assert (found["records"], found["check"]["differences"]) == (6, 0)
    records = list(fr.read_records(path))
    assert check(records, [fr.Query("tea key")], corpus="here", backend="numpy")["differences"] == 0
    write(path, [{"id": "a", "text": "tea \ud800 time"}])
    for options in ((), ("--json",)):
        assert "tea" in run("demo", path, *options).stdout


def test_doctor() -> None:
    result = run_json("doctor")
    assert result["backend"] == backend.choose().name
    assert [status["name"] for status in result["backends"]] == list(backend.BACKENDS)
    assert all(status["reason"] and isinstance(status["usable"], bool) for status in result["backends"])
    assert set(result["extras"]) == set(doctor.EXTRAS)
    text = run("doctor").stdout
    for status in result["backends"]:
        word = "usable" if status["usable"] else "not usable"
        assert any(line.split(":")[0].split() == [status["name"], *word.split()] for line in text.splitlines())
        assert status["reason"] in text
    assert f"would serve: {result['backend']}" in text
    assert len(text.splitlines()) <= 12
    assert f"text to term ids: {result['text']['name']} ({result['text']['reason']})" in text
    assert list(result["approximate"]) == ["index", "version", "reason"]
    assert result["approximate"]["index"] in ("hnsw", "flat", "cagra", None)
    assert f"approximate search: {result['approximate']['index'] or 'none'} ({result['approximate']['reason']})" in text


@pytest.mark.parametrize(
    ("brought", "installed", "shown"),
    [
        (
            lambda package: True,
            lambda package: package in ("torch", "triton"),
            [
                "extra eval: pytrec-eval-terrier is missing; run: pip install 'fanrank[eval]'",
                "extra gpu-cuda12: nvtx, cupy-cuda12x, faiss-gpu are missing; run: pip install 'fanrank[gpu-cuda12]'",
            ],
        ),
        (
            lambda package: True,
            lambda package: True,
            ["extra gpu-cuda13: torch, triton, nvtx, cupy-cuda13x, faiss-gpu-cuvs"],
        ),
        # No two packages of FAISS overwrite each other's files.
        (
            lambda package: True,
            lambda package: package == "faiss-gpu",
            ["approximate: faiss-gpu in place of faiss-cpu"],
        ),
        (
            lambda package: True,
            lambda package: not package.startswith("faiss-gpu"),
            [
                "extra approximate: faiss-cpu",
                "cuvs is missing; run: pip uninstall faiss-cpu; pip install 'fanrank[gpu-cuda13]'",
            ],
        ),
        # None is given up for a package that has no wheels here.
        (
            lambda package: package != "faiss-gpu-cuvs",
            lambda package: not package.startswith("faiss-gpu"),
            ["gpu-cuda13: torch, triton, nvtx, cupy-cuda13x; not for this machine: faiss-gpu-cuvs"],
        ),
    ],
)
def test_doctor_names_extras_that_are_missing_or_there(
    monkeypatch: pytest.MonkeyPatch, brought: Any, installed: Any, shown: list[str]
) -> None:
    monkeypatch.setattr(doctor, "is_brought", brought)
    monkeypatch.setattr(doctor, "is_installed", installed)
    lines = run("doctor", "--extras").stdout.splitlines()
    for end in shown:
        assert any(line.endswith(end) for line in lines), end
    result = run_json("doctor")
    assert result["extras"]["eval"] == installed("pytrec-eval-terrier")
    assert result["extras"]["approximate"] == (installed("faiss-cpu") or installed("faiss-gpu"))
    assert all(each["use"] and each["installed"] == installed(each["package"]) for each in result["packages"])
    packages = [each["package"] for each in result["packages"] if "gpu-cuda13" in each["extras"]]
    assert packages == ["torch", "triton", "nvtx", "cupy-cuda13x", "faiss-gpu-cuvs"]


def test_doctor_asks_for_no_package_that_has_no_wheels_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The markers of pyproject.toml."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    section = project.split("[project.optional-dependencies]")[1].split("\n[")[0]
    required = {each.name: each for each in map(Requirement, re.findall(r'"([^"\n]+)"', section))}
    for system, machine, version in itertools.product(("Linux", "Darwin"), ("x86_64", "aarch64"), ((3, 10), (3, 12))):
        monkeypatch.setattr(platform, "system", lambda system=system: system)
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(sys, "version_info", version)
        where = {"platform_system": system, "platform_machine": machine, "python_version": "3.{1}".format(*version)}
        for package in doctor.USES:
            marker = required[package].marker
            assert doctor.is_brought(package) == (marker is None or marker.evaluate(where)), (package, where)


def test_doctor_knows_the_extras_of_the_package() -> None:
    """As the project's metadata has them, those for developers left out."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    section = project.split("[project.optional-dependencies]")[1].split("\n[")[0]
    section = re.sub(r'"fanrank\[\w+\]",', "", section)
    names = {
        extra: [re.split(r"[>=<;\[ ]", package)[0] for package in re.findall(r'"([^"\n]+)"', packages)]
        for extra, packages in re.findall(r"^([a-z0-9-]+) = \[(.*?)\]$", section, re.MULTILINE | re.DOTALL)
    }
    for extra, part in (("gpu-cuda12", "gpu"), ("gpu-cuda13", "gpu"), ("mcp", "server")):
        names[extra] = [*names[part], *names[extra]]
    assert {
        extra: packages for extra, packages in names.items() if extra not in ("dev", "test", "bench")
    } == doctor.EXTRAS
    assert set(doctor.USES) == {package for packages in doctor.EXTRAS.values() for package in packages}
