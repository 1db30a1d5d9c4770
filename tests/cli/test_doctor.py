"""`fanrank doctor`: what would serve, and which extras are there, missing or not for this machine."""

from __future__ import annotations

import itertools
import platform
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from support.commands import run, run_json

from fanrank.engine.backends import choose as backend
from fanrank.engine.cli import doctor


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
