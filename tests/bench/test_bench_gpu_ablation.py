"""The ablation without a GPU: every part and every variant on tiny corpora, each answer held against numpy's."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
# Only while importing: the root holds folders named like other people's packages.
sys.path.append(str(ROOT))
try:
    from bench.gpu import ablation as gpu_ablation
    from bench.gpu import corpora as gpu_corpora
    from bench.gpu import rows as gpu_rows
    from bench.gpu import systems as gpu_systems
finally:
    sys.path.remove(str(ROOT))

from fanrank.engine.backends import choose as backend  # noqa: E402

TINY = gpu_corpora.Shape("tiny", documents=70, vocabulary=60, tokens=8, queries=6, terms=3, segment_documents=40)
SIZES = dataclasses.replace(
    gpu_ablation.SMOKE, postings=(300,), grown=300, batches=(2,), ks=(3,), lengths=(2, 6), stream_batches=(2,)
)


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_corpora, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(gpu_corpora, "SMOKE", {"fiqa-shaped": dataclasses.replace(TINY, name="fiqa-shaped")})
    monkeypatch.setattr(gpu_ablation, "SMOKE", SIZES)


def needs(*names: str) -> None:
    for status in backend.statuses():
        if status.name in names and not status.usable:
            pytest.skip(status.reason)


def run(out: Path, parts: str, *more: str) -> list[gpu_rows.GpuRow]:
    common = ["--smoke", "--reps", "1", "--budget", "0.001", "--threads", "1", "--out", str(out)]
    assert gpu_ablation.main([*common, "--parts", parts, *more]) == 0
    return gpu_rows.read(out / "gpu_ablation.jsonl")


def test_every_idea_is_measured_and_right(tmp_path: Path) -> None:
    needs("cuda-host")
    found = run(tmp_path, "ideas", "--families", "cuda-host")
    kernels = [row for row in found if row.phase == "kernel"]
    assert [row.options for row in kernels] == list(gpu_ablation.CUDA_IDEAS)
    assert len({row.system for row in kernels}) == len(kernels)
    assert all(row.identical == 1.0 and row.repeatable and row.part == "ideas" for row in found)
    bytes_of = {row.options.get("posting_bytes", 8): row for row in kernels if row.options.keys() <= {"posting_bytes"}}
    assert bytes_of[8].counted["l2_bytes"] == 2 * bytes_of[4].counted["l2_bytes"]
    # Both hold the impact classes' numbers and the terms' idfs; a posting differs by the 16 bits of its impact class.
    assert (bytes_of[6].index_bytes or 0) - (bytes_of[4].index_bytes or 0) == 2 * bytes_of[4].postings
    assert all(row.counted.get("l2_int32") for row in kernels if row.options.get("sums") == "global")


@pytest.mark.sweep
def test_tritons_ideas_are_right(tmp_path: Path) -> None:
    needs("triton", "cuda-host")
    found = run(tmp_path, "ideas", "--families", "triton")
    assert [row.options for row in found if row.phase == "kernel"] == list(gpu_ablation.TRITON_IDEAS)
    assert all(row.identical == 1.0 and row.repeatable for row in found)


def test_what_grows_grows(tmp_path: Path) -> None:
    needs("cuda-host")
    found = run(tmp_path, "batch,corpus,k,length", "--families", "cuda-host")
    assert {row.part for row in found} == {"batch", "corpus", "k", "length"}
    assert all(row.identical == 1.0 for row in found)
    lengths = [row.terms_per_query for row in found if row.part == "length" and not row.options]
    assert lengths == sorted(lengths)
    assert len(lengths) == 2
    assert {row.batch for row in found if row.part == "batch"} == {2}
    assert all(200 <= row.postings <= 400 for row in found)


def test_streams_stand_beside_the_kernels(tmp_path: Path) -> None:
    needs("cuda-host", "native")
    found = run(tmp_path, "pipeline", "--families", "cuda-host")
    assert {(row.system, row.phase) for row in found} >= {
        ("fanrank-cuda-host", "kernel"),
        ("fanrank-cuda-host", "loop"),
        ("fanrank-cuda-host", "stream"),
        ("fanrank-native", "stream"),
    }
    assert all(row.identical == 1.0 and row.queries_per_s for row in found)


def test_a_wrong_stream_is_seen() -> None:
    problem = gpu_corpora.load_shaped(TINY)
    expected = gpu_systems.reference(problem, 5, 1)
    engine = gpu_ablation.engine_of(problem)
    found = [engine.search(batch, 5) for batch in gpu_ablation.text_batches(problem, 3)]
    assert gpu_ablation.agreement(found, expected, 3, 5) == 1.0
    worse = tuple(part.copy() for part in expected)
    worse[0][4, 0] += 1
    assert gpu_ablation.agreement(found, worse, 3, 5) == pytest.approx(5 / 6)  # type: ignore[arg-type]


def test_what_cannot_be_measured_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("cuda-host")
    monkeypatch.setattr(gpu_ablation, "CUDA_IDEAS", ({}, {"sums": "elsewhere"}))
    common = ["--smoke", "--reps", "1", "--budget", "0.001", "--out", str(tmp_path), "--parts", "ideas"]
    assert gpu_ablation.main([*common, "--families", "cuda-host"]) == 1
    rows = gpu_rows.read(tmp_path / "gpu_ablation.jsonl")
    assert [row.error for row in rows if row.error] == [
        "ParameterError: sums must be one of shared, global, not 'elsewhere'"
    ]
    for refused in (["--parts", "nothing"], *([[]] if not torch.cuda.is_available() else [])):
        with pytest.raises(SystemExit):
            gpu_ablation.main(refused)


def test_scaled_corpora_and_queries_are_what_is_asked_for() -> None:
    problem = gpu_corpora.load_shaped(gpu_corpora.zipf(4_000))
    assert 2_000 <= problem.postings <= 6_000
    asked = gpu_corpora.with_queries(problem, 7, 20)
    assert asked.queries == 7
    assert set(np.diff(asked.offsets)) <= {19, 20, 21}
    assert (asked.document_frequencies[asked.terms] > 0).all()
    with pytest.raises(ValueError, match="fewer than a query"):
        gpu_corpora.with_queries(problem, 1, 10_000)
