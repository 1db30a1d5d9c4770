"""The GPU benchmarks without a GPU: corpora, ceilings' kernels, counters' parser, and a whole run on tiny corpora."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
# Only while importing: the root holds folders named like other people's packages.
sys.path.append(str(ROOT))
try:
    from bench.gpu import ceilings as gpu_ceilings
    from bench.gpu import corpora as gpu_corpora
    from bench.gpu import counters as gpu_counters
    from bench.gpu import rows as gpu_rows
    from bench.gpu import run as gpu_run
    from bench.gpu import systems as gpu_systems
    from bench.gpu import tune as gpu_tune
    from bench.harness import corpora, reference
finally:
    sys.path.remove(str(ROOT))

from fanrank.engine.backends import choose as backend  # noqa: E402

TINY = gpu_corpora.Shape("tiny", documents=70, vocabulary=60, tokens=8, queries=4, terms=3, segment_documents=40)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_corpora, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(gpu_run, "CACHE", tmp_path / "cache")


def needs(*names: str) -> None:
    for status in backend.statuses():
        if status.name in names and not status.usable:
            pytest.skip(status.reason)


# Corpora


def test_a_shaped_corpus_has_its_shape():
    shape = dataclasses.replace(TINY, documents=3_000, vocabulary=2_000, tokens=42, segment_documents=1_024, queries=50)
    problem = gpu_corpora.load_shaped(shape)
    segments = problem.snapshot.segments
    assert [segment.size for segment in segments] == [1_024, 1_024, 952]
    assert problem.snapshot.firsts == (0, 1_024, 2_048)
    assert problem.queries == 50
    assert set(np.diff(problem.offsets)) <= {2, 3, 4}
    assert all(problem.document_frequencies[problem.terms] > 0)
    assert all(len(set(problem.query(query))) == len(problem.query(query)) for query in range(50))
    for segment in segments:
        assert segment.frequencies().sum() == segment.lengths.sum()
        for start, stop in zip(segment.offsets, segment.offsets[1:], strict=False):
            assert (np.diff(segment.documents[start:stop]) > 0).all()
    # Frequent terms are the low numbers.
    assert problem.document_frequencies[:20].mean() > 10 * problem.document_frequencies[500:].mean()


def test_a_shaped_corpus_is_the_same_again_and_from_the_cache():
    once = gpu_corpora.load_shaped(TINY)
    again = gpu_corpora.load_shaped(TINY)
    other = gpu_corpora.load_shaped(dataclasses.replace(TINY, seed=2))
    assert np.array_equal(once.terms, again.terms)
    assert [s.documents.tolist() for s in once.snapshot.segments] == [
        s.documents.tolist() for s in again.snapshot.segments
    ]
    assert once.snapshot.segments[0].documents.tolist() != other.snapshot.segments[0].documents.tolist()


def test_tokens_become_the_same_postings_as_the_reference_finds():
    tokens = corpora.from_texts("t", ["b a", "", "a a", "c d b", "d e"], ["a", "e b"], frozenset(), 9)
    segment = gpu_corpora._segment(tokens.tokens, np.diff(tokens.offsets))
    expected = reference.postings_of(tokens)
    assert segment.offsets.tolist() == expected.offsets.tolist()
    assert segment.documents.tolist() == expected.documents.tolist()
    assert segment.frequencies()[0].tolist() == expected.frequencies.tolist()


def test_the_flat_index_joins_the_segments():
    problem = gpu_corpora.load_shaped(TINY)
    flat = gpu_corpora.flat(problem)
    assert len(flat.lengths) == 70
    for term in range(TINY.vocabulary):
        documents, frequencies = [], []
        for first, segment in zip(problem.snapshot.firsts, problem.snapshot.segments, strict=True):
            position = segment.locate(np.array([term], dtype=np.int32))[0]
            if position >= 0:
                own = slice(*segment.offsets[position : position + 2])
                documents += (segment.documents[own] + first).tolist()
                frequencies += segment.frequencies(own)[0].tolist()
        held = slice(*flat.offsets[term : term + 2])
        assert flat.documents[held].tolist() == documents
        assert flat.frequencies[held].tolist() == frequencies
    assert problem.touched(0, 4) == problem.document_frequencies[problem.terms].sum()
    assert problem.distinct(0, 4) <= problem.touched(0, 4)


# Rows, ceilings and counters


def test_shares_name_the_binding_ceiling():
    ceiling = {"copy_bytes": 100.0, "shared_int32": 10.0, "shared_bytes": 50.0}
    counted = {"device_bytes": 10, "shared_int32": 4, "shared_bytes": 5, "l2_bytes": 7}
    found, binding = gpu_rows.shares(counted, ceiling, 2.0)
    assert found == {"device_bytes": 0.05, "shared_int32": 0.2, "shared_bytes": 0.05, "shared": 0.25}
    assert binding == "shared"
    assert gpu_rows.shares(counted, {}, 1.0) == ({}, "")


def test_the_kernels_of_the_ceilings_do_what_they_count():
    needs("cuda-host")
    assert gpu_ceilings.ceilings(torch.device("cpu")) == {}


LONG = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","score_narrow","Command line profiler metrics","dram__bytes_read.sum","byte","1,000"
"0","7","score_narrow","Command line profiler metrics","gpu__time_duration.sum","ns","5,500"
"1","7","select_warp_narrow_128","Command line profiler metrics","dram__bytes_read.sum","Kbyte","2.5"
"2","7","score_narrow","Command line profiler metrics","dram__bytes_read.sum","byte","24"
"""
RAW = """"ID","Kernel Name","dram__bytes_read.sum","gpu__time_duration.sum"
"","","Mbyte","us"
"0","score_narrow","0.5","3"
"1","score_narrow","0.25","4"
"""


def test_the_counters_are_read_in_both_forms():
    found = gpu_counters.parse(LONG.splitlines())
    assert found["score_narrow"] == {
        "launches": 2,
        "dram__bytes_read.sum": 1024,
        "gpu__time_duration.sum": 5500,
    }
    assert found["select_warp_narrow_128"] == {"launches": 1, "dram__bytes_read.sum": 2500}
    assert gpu_counters.parse(RAW.splitlines()) == {
        "score_narrow": {"launches": 2, "dram__bytes_read.sum": 750_000, "gpu__time_duration.sum": 7000}
    }
    with pytest.raises(ValueError, match="no table"):
        gpu_counters.parse(["==ERROR== no permission"])


def test_without_ncu_the_counters_are_skipped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(gpu_counters.shutil, "which", lambda name: None)
    assert gpu_counters.main(["--systems", "fanrank-cuda"]) == 1
    assert "ncu is not on PATH" in capsys.readouterr().out


# Runs


def run(monkeypatch: pytest.MonkeyPatch, out: Path, systems: str, *more: str) -> list[gpu_rows.GpuRow]:
    monkeypatch.setattr(gpu_corpora, "SMOKE", {"fiqa-shaped": dataclasses.replace(TINY, name="fiqa-shaped")})
    monkeypatch.setattr(gpu_run, "SMOKE_VARIANTS", 1)
    common = ["--smoke", "--reps", "1", "--budget", "0.001", "--threads", "1", "--out", str(out)]
    assert gpu_run.main([*common, "--systems", systems, *more]) == 0
    return gpu_rows.read(out / "gpu.jsonl")


def test_a_smoke_run_verifies_and_leaves_full_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    needs("cuda-host")
    systems = "fanrank-cuda-host,baseline-warp,baseline-naive,torch-spgemm,torch-spmm,fanrank-numpy"
    found = run(monkeypatch, tmp_path, systems, "--batches", "2,all", "--ks", "3,200")
    derived, *cells = found
    assert (derived.phase, derived.postings_per_s is not None) == ("derive", True)
    assert {row.batch for row in cells} == {2, 4}
    exact = [row for row in cells if row.system.startswith("fanrank")]
    assert {(row.system, row.phase) for row in exact} >= {
        ("fanrank-cuda-host", "kernel"), ("fanrank-cuda-host", "end_to_end"), ("fanrank-cuda-host", "tensors"),
        ("fanrank-cuda-host", "planned"), ("fanrank-numpy", "kernel"),
    }  # fmt: skip
    assert all(row.identical == 1.0 and row.repeatable for row in exact)
    floats = [row for row in cells if not row.system.startswith("fanrank")]
    assert {row.system for row in floats} == set(systems.split(",")[1:-1])
    assert all(row.top1 is not None and row.top1 >= 0.5 and row.identical is None for row in floats)
    # The baseline selects at most 128.
    assert not [row for row in floats if row.system.startswith("baseline") and row.k == 200]
    for row in cells:
        assert row.error is None
        assert (row.documents, row.corpus, row.bench) == (70, "fiqa-shaped", "gpu")
        assert row.ms is not None
        assert row.ms > 0
        assert row.postings_per_query > 0
        assert row.commit
        assert row.machine["torch"] == torch.__version__
        assert row.device == "cpu" or torch.cuda.is_available()
    kernel = next(row for row in exact if row.phase == "kernel" and row.system == "fanrank-cuda-host")
    assert kernel.phases_ms.keys() == {"describe", "order", "score", "select"}
    assert kernel.counted["shared_int32"] == round(kernel.postings_per_query * kernel.batch)
    assert kernel.bytes_per_posting is not None
    assert "identical" in gpu_rows.markdown(cells)


@pytest.mark.sweep
def test_a_smoke_run_of_the_triton_kernels_verifies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    needs("triton", "cuda-host")
    found = run(monkeypatch, tmp_path, "fanrank-triton", "--batches", "2", "--ks", "3")
    assert {row.phase for row in found} >= {"derive", "kernel", "planned", "end_to_end", "tensors"}
    assert all(row.identical == 1.0 and row.repeatable for row in found if row.phase != "derive")


def test_a_wrong_answer_is_seen():
    problem = gpu_corpora.load_shaped(TINY)
    expected = gpu_systems.reference(problem, 5, 1)
    cell = gpu_run.cell_of(problem, 2, 5, expected)
    assert [(variant.start, variant.stop) for variant in cell.variants] == [(0, 2), (2, 4)]

    def answer(number: int) -> gpu_systems.HitArrays:
        scores, documents, counts = (part[2 * number : 2 * number + 2].copy() for part in expected)
        if number == 1:
            scores[0, 0] += 1
        return scores, documents, counts

    ready = gpu_systems.Ready(lambda number: None, answer, False)
    assert gpu_run.verify(cell, ready) == {"identical": 0.75, "repeatable": True}
    row = gpu_rows.GpuRow("b", "r", "c", "s", "kernel", 2, 5, identical=0.75)
    assert row.wrong


def test_a_failing_system_is_a_row_and_times_of_a_cpu_are_no_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    needs("cuda-host")

    def broken(name: str, *_: object) -> None:
        raise RuntimeError(f"no {name}\nhere")

    monkeypatch.setattr(gpu_systems, "make", broken)
    monkeypatch.setattr(gpu_corpora, "SMOKE", {"fiqa-shaped": TINY})
    assert gpu_run.main(["--smoke", "--systems", "fanrank-numpy", "--out", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[0])["error"] == "RuntimeError: no fanrank-numpy"
    if not torch.cuda.is_available():
        for refused in (["--smoke", "--out", str(gpu_run.RESULTS)], []):
            with pytest.raises(SystemExit):
                gpu_run.main(refused)


def test_a_tuning_is_written_as_its_table_has_it():
    pytest.importorskip("triton", reason="triton is not installed")
    from fanrank.kernels.triton.verbs import Tuning

    tuning = gpu_tune.change_setting(gpu_tune.change_setting(Tuning(), "narrow_tile_bits", 12), "score.warps", 16)
    assert (
        gpu_tune.render_tuning("GPU", tuning) == '"GPU": Tuning(narrow_tile_bits=12, score=score.Settings(warps=16)),'
    )
    assert all(gpu_tune.change_setting(Tuning(), name, values[0]) for name, values in gpu_tune.TRITON.items())


def test_the_scoring_kernel_takes_other_threads():
    from fanrank.kernels.cuda.launcher import source_of

    edited = gpu_tune.edited_score(source_of("score"), 256, 6)
    assert "constexpr i32 THREADS = 256;" in edited
    assert "__launch_bounds__(256, 6)" in edited
    with pytest.raises(ValueError, match="adapt"):
        gpu_tune.edited_score("", 256, 6)
