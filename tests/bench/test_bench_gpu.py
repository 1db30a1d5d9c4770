"""The GPU benchmarks without a GPU: whole runs on tiny corpora, whose answers are verified."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from support.benches import load

ablation, command, corpora, run, gpu_systems = load(
    *(f"gpu.{name}" for name in ("ablation", "command", "corpora", "run", "systems"))
)
(rows,) = load("harness.rows")
TINY = corpora.Shape("fiqa-shaped", 70, vocabulary=60, tokens=8, queries=4, terms=3, segment_documents=40)
SMALL = ["--smoke", "--reps", "1", "--budget", "0.001", "--threads", "1"]
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the kernels with")


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (corpora, command):
        monkeypatch.setattr(module, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(corpora, "SMOKE", {"fiqa-shaped": TINY})


def test_a_shaped_corpus_has_its_shape_and_its_seed() -> None:
    problem = corpora.load_shaped(TINY)
    assert [segment.size for segment in problem.snapshot.segments] == [40, 30]
    assert (problem.queries, set(np.diff(problem.offsets)) <= {2, 3, 4}) == (4, True)
    assert np.array_equal(problem.terms, corpora.load_shaped(TINY).terms)
    other = corpora.load_shaped(dataclasses.replace(TINY, seed=2))
    assert problem.snapshot.segments[0].documents.tolist() != other.snapshot.segments[0].documents.tolist()


@needs_gxx
def test_a_run_verifies_and_leaves_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SMOKE_VARIANTS", 1)
    given = ["--systems", "fanrank-cuda-host,baseline-warp,fanrank-numpy", "--batches", "2", "--ks", "3"]
    assert run.main([*SMALL, *given, "--out", str(tmp_path)]) == 0
    found = rows.read(tmp_path / "gpu.jsonl")[1:]
    assert {row["system"] for row in found} == {"fanrank-cuda-host", "baseline-warp", "fanrank-numpy"}
    exact = [row for row in found if row["system"].startswith("fanrank")]
    assert {row["phase"] for row in exact} >= {"kernel", "end_to_end", "tensors", "planned"}
    assert all(row["identical"] == 1.0 and row["repeatable"] for row in exact)
    assert all(row["error"] is None and row["ms"] > 0 and row["commit"] for row in found)
    kernel = next(row for row in exact if row["phase"] == "kernel" and row["system"] == "fanrank-cuda-host")
    assert kernel["counted"]["shared_int32"] == round(kernel["postings_per_query"] * kernel["batch"])


def test_a_wrong_answer_is_seen() -> None:
    problem = corpora.load_shaped(TINY)
    expected = gpu_systems.reference(problem, 5, 1)
    cell = run.cell_of(problem, 2, 5, expected)

    def answer(number: int) -> Any:
        scores, documents, counts = (part[2 * number : 2 * number + 2].copy() for part in expected)
        scores[0, 0] += number
        return scores, documents, counts

    ready = gpu_systems.Ready(lambda number: None, answer, False)
    assert run.verify(cell, ready) == {"identical": 0.75, "repeatable": True}


@needs_gxx
def test_an_ablation_verifies_and_a_failure_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "CUDA_IDEAS", ({}, {"posting_bytes": 4}, {"select_method": "elsewhere"}))
    assert ablation.main([*SMALL, "--out", str(tmp_path), "--parts", "ideas", "--families", "cuda-host"]) == 1
    found = rows.read(tmp_path / "gpu_ablation.jsonl")
    assert {row["identical"] for row in found if row["error"] is None} == {1.0}
    assert [row["error"] for row in found if row["error"]] == [
        "ParameterError: select_method must be one of auto, bitonic, not 'elsewhere'"
    ]
