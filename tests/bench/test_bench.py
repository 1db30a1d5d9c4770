"""The harness: what it declares, how it judges answers, and that rows carry everything. No peer has to be installed."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
# Only while importing: the root holds folders named like other people's packages.
sys.path.append(str(ROOT))
try:
    from bench import building, run
    from bench.harness import cases, client, corpora, measure, reference, rows, systems, verify
    from bench.report import format as report_format
    from bench.report import systems as report_systems
finally:
    sys.path.remove(str(ROOT))


def row(system: str, ms: float | None, case: str = "one", **more: object) -> rows.Row:
    return rows.Row("b", "r1", case, system, 10, 1, "kernel", ms_per_query=ms, **more)  # type: ignore[arg-type]


@pytest.fixture
def tiny() -> corpora.Tokens:
    texts = ["b a", "", "a a", "c d b", "D e"]
    return corpora.from_texts("tiny", texts, ["a", "e B b zz", "zz"], frozenset({"c"}), 10)


# Declarations


def test_every_system_has_a_declared_peer_and_every_peer_an_adapter_and_a_system():
    assert {system.peer for system in systems.SYSTEMS.values()} == set(systems.PEERS)
    assert all((ROOT / "bench" / "peers" / f"{name}.py").is_file() for name in systems.PEERS)
    assert all(name == item.name for name, item in [*systems.PEERS.items(), *systems.SYSTEMS.items()])
    assert systems.BASELINE in systems.SYSTEMS
    assert all("kernel" in system.phases for system in systems.SYSTEMS.values())


def test_declared_cases_are_the_promised_ones():
    assert cases.FULL == ("scifact", "synthetic-50k", "synthetic-300k", "sgd")
    assert {*cases.FULL, *cases.QUICK, "nq-shaped", "long-queries"} <= set(cases.CORPORA)
    assert not {"nq-shaped", "long-queries"} & {*cases.FULL, *cases.QUICK}
    assert cases.CORPORA["sgd"].stop_words
    assert (cases.KS, cases.THREADS, cases.K1, cases.B) == ((10, 100), (1, 2), 1.2, 0.75)
    cells = cases.grid((10, 100), (1, 2), ("kernel", "end_to_end"))
    assert len(set(cells)) == 8


def test_unknown_names_are_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        run.main(["--cases", "nothing"])
    assert "scifact" in capsys.readouterr().err


# Corpora


def test_layout_of_a_prepared_corpus(tiny: corpora.Tokens):
    assert tiny.vocabulary == ["b", "a", "d", "e"]
    assert tiny.tokens.tolist() == [0, 1, 1, 1, 2, 0, 2, 3]
    assert tiny.offsets.tolist() == [0, 2, 2, 4, 6, 8]
    assert tiny.query_terms() == [["a"], ["e", "b"]]  # distinct and known; a query of unknown terms alone is left out
    assert tiny.query_texts == ["a", "e B b zz"]


def test_synthetic_corpora_are_seeded():
    corpus = cases.Corpus("s", "synthetic", queries=20, documents=300, seed=5)
    once, again = corpora._synthetic(corpus), corpora._synthetic(corpus)
    other = corpora._synthetic(dataclasses.replace(corpus, seed=6))
    assert np.array_equal(once.tokens, again.tokens)
    assert once.query_texts == again.query_texts
    assert not np.array_equal(once.tokens[:1000], other.tokens[:1000])
    assert (once.documents, once.queries) == (300, 20)
    assert all(len(set(query)) == len(query) for query in once.query_terms())


def test_a_shape_is_kept(monkeypatch: pytest.MonkeyPatch):
    shape = cases.Shape(vocabulary=300, length=20, terms=(30, 50), filled=True)
    corpus = cases.Corpus("s", "synthetic", queries=40, documents=200, shape=shape)
    made = corpora._synthetic(corpus)
    lengths = np.diff(made.query_offsets)
    assert 30 <= lengths.min() < lengths.max() <= 50
    assert all(len(set(query)) == len(query) for query in made.query_terms())
    assert len(made.vocabulary) == 300
    assert 15 < len(made.tokens) / made.documents < 25
    once = made.document_terms()
    monkeypatch.setattr(corpora, "BLOCK", 7)
    again = corpora._synthetic(corpus)
    assert np.array_equal(again.tokens, made.tokens)
    assert again.document_terms() == once


def test_only_another_shape_makes_another_stamp():
    usual = cases.Corpus("s", "synthetic", queries=1, documents=5)
    assert usual.stamp == (
        "Corpus(name='s', source='synthetic', queries=1, documents=5, stop_words=False, seed=1)"  # as prepared long ago
    )
    assert dataclasses.replace(usual, shape=cases.Shape(length=9)).stamp != usual.stamp


def test_preparing_writes_once_and_loads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpora, "CACHE", tmp_path)
    corpus = cases.Corpus("s", "synthetic", queries=5, documents=50)
    folder = corpora.prepare(corpus)
    before = (folder / "tokens.npy").stat().st_mtime_ns
    assert corpora.prepare(corpus) == folder
    assert (folder / "tokens.npy").stat().st_mtime_ns == before
    assert corpora.load(folder).document_terms() == corpora._synthetic(corpus).document_terms()


# Reference and verification


def test_postings(tiny: corpora.Tokens):
    postings = reference.postings_of(tiny)
    assert postings.offsets.tolist() == [0, 2, 4, 6, 7]
    assert postings.documents.tolist() == [0, 3, 0, 2, 3, 4, 4]
    assert postings.frequencies.tolist() == [1, 1, 1, 2, 1, 1, 1]
    assert postings.touched(tiny) == (2 + 3) / 2


@pytest.mark.parametrize("formula", ["lucene", "robertson_floor"])
def test_reference_scores_are_the_formula(tiny: corpora.Tokens, formula: systems.Formula):
    postings = reference.postings_of(tiny)
    found = reference.scores(postings, tiny.query_ids(1), formula)
    expected = []
    for document in tiny.document_terms():
        score = 0.0
        for term in tiny.query_terms()[1]:
            df, tf = sum(term in other for other in tiny.document_terms()), document.count(term)
            odds = (5 - df + 0.5) / (df + 0.5)
            idf = math.log(1 + odds) if formula == "lucene" else max(1e-6, math.log(odds))
            score += idf * tf / (tf + 1.2 * (0.25 + 0.75 * len(document) / 1.6))
        expected.append(score)
    assert found == pytest.approx(expected, rel=1e-12)


def test_one_byte_lengths():
    lengths = np.array([0, 1, 23, 24, 39, 40, 41, 42, 55, 56, 59, 60, 87, 88, 95, 96])
    assert reference.byte4(lengths).tolist() == [0, 1, 23, 24, 39, 40, 40, 42, 54, 56, 56, 60, 84, 88, 88, 96]


def test_overlap_counts_ties_and_refuses_the_rest():
    truth = np.array([3.0, 2.0, 2.0, 1.0, 0.0])
    assert verify.overlap(np.array([0, 1]), truth, 2, 1e-6) == 1.0
    assert verify.overlap(np.array([0, 2]), truth, 2, 1e-6) == 1.0  # ties with the last
    assert verify.overlap(np.array([0, 3]), truth, 2, 1e-6) == 0.5
    assert verify.overlap(np.array([0, 0]), truth, 2, 1e-6) == 0.5  # the same document twice
    assert verify.overlap(np.array([0, 1, 2, 3]), truth, 10, 1e-6) == 1.0  # only four match
    assert verify.overlap(np.array([0, 1, 2, 4]), truth, 10, 1e-6) == 0.75
    assert verify.overlap(np.array([], np.int64), np.zeros(3), 2, 1e-6) == 1.0


def test_check_passes_right_answers_and_fails_wrong_ones(tiny: corpora.Tokens):
    postings = reference.postings_of(tiny)
    peer = systems.Peer("scaled", scale=2.2)
    documents, found = np.full((2, 4), -1), np.zeros((2, 4))
    for query in range(2):
        truth = reference.scores(postings, tiny.query_ids(query))
        best = np.argsort(-truth, kind="stable")[: int((truth > 0).sum())]
        documents[query, : len(best)] = best
        found[query, : len(best)] = truth[best] * 2.2

    def verdict() -> verify.Verdict:
        return verify.check(peer, tiny, postings, range(2), 4, documents, found)

    assert verdict().passed(peer.tolerance)
    found[0, 0] *= 1.01
    assert verdict().error == pytest.approx(0.01)
    assert not verdict().passed(peer.tolerance)
    found[0, 0] /= 1.01
    documents[1, 0] = -1
    assert verdict().overlap < 1
    assert not verdict().passed(peer.tolerance)


# Rows and tables


def test_rows_are_appended_and_read_back(tmp_path: Path):
    path = tmp_path / "results" / "x.jsonl"
    first, second = row("a", 1.5, machine={"cores": 2}), row("a", None, error="cannot be installed")
    rows.append(path, [first])
    rows.append(path, [second])
    assert rows.read(path) == [first, second]


def test_a_line_that_is_no_row_is_named(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    rows.append(path, [row("a", 1.0)])
    for line, reason in [('{"bench": "b"}', "missing"), ("[]", "not a JSON object"), ("{", "not JSON")]:
        path.write_text(path.read_text().splitlines()[0] + "\n" + line + "\n")
        with pytest.raises(ValueError, match=rf"x\.jsonl:2: .*{reason}"):
            rows.read(path)


def test_row_fields_are_the_promised_ones():
    promised = """bench case system version k threads phase ms_per_query ms_min ms_max reps queries postings_per_query
        build_docs_per_s index_bytes bytes_per_posting verified error machine commit date"""
    assert set(promised.split()) <= {item.name for item in dataclasses.fields(rows.Row)}


def test_ratios_stay_inside_a_place_and_a_run():
    measured = [row(systems.BASELINE, 2.0), row("x", 1.0), row(systems.BASELINE, 1.0, "two"), row("x", 4.0, "two")]
    found = report_systems.ratios([*measured, row("x", 9.0, "three"), row("y", None, error="no")])
    assert sorted(found["x"].values()) == [0.5, 4.0]
    assert "y" not in found
    assert report_format.geometric_mean(found["x"].values()) == pytest.approx(math.sqrt(2))
    assert math.isnan(report_format.geometric_mean([]))
    later = dataclasses.replace(measured[0], run="r2")
    assert rows.latest([*measured, later]) == [later]
    assert rows.latest([*measured, later], "r1") == measured


def test_tables_show_errors_and_what_did_not_verify():
    shown = report_systems.markdown(
        [row(systems.BASELINE, 2.0), row("x", 1.0, verified=False), row("y", None, error="no wheel")]
    )
    assert "1.00 (0.50) !" in shown
    assert "- one, y: no wheel" in shown
    assert report_systems.markdown([]) == "No rows."


# The whole method, with the one peer that Python carries and one that cannot be there


def test_a_run_measures_what_works_and_records_what_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with sqlite3.connect(":memory:") as connection:
        if ("ENABLE_FTS5",) not in connection.execute("PRAGMA compile_options").fetchall():
            pytest.skip("this Python's SQLite has no FTS5")
    for module in (corpora, measure):
        monkeypatch.setattr(module, "CACHE", tmp_path)
    monkeypatch.setattr(measure, "SHORTEST", 0.001)
    monkeypatch.setitem(systems.PEERS, "absent", systems.Peer("absent"))
    chosen = [systems.SYSTEMS["sqlite-fts5"], systems.System("absent", "absent", phases=("kernel",))]
    corpus = cases.Corpus("s", "synthetic", queries=12, documents=400)
    cells = cases.grid((5,), (1, 2), ("kernel", "end_to_end"))
    said: list[str] = []
    # A budget of hours: on a busy machine, too, every query fits into it.
    found = measure.run_case(corpus, chosen, cells, 2, 1e4, False, {"bench": "b", "run": "r"}, said.append)

    assert len(found) == 4  # neither has an end-to-end phase
    good, bad = found[::2], found[1::2]
    assert all(item.error is None and item.reps == 2 and item.queries == 12 for item in good)
    assert [item.verified for item in good] == [True, True]
    assert all(0 < item.ms_min <= item.ms_per_query <= item.ms_max for item in good)  # type: ignore[operator]
    assert all(item.bytes_per_posting and item.build_docs_per_s for item in good)
    assert all("No module named" in (item.error or "") and item.ms_per_query is None for item in bad)
    assert any("absent" in line for line in said)


def test_builds_are_rows_with_their_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with sqlite3.connect(":memory:") as connection:
        if ("ENABLE_FTS5",) not in connection.execute("PRAGMA compile_options").fetchall():
            pytest.skip("this Python's SQLite has no FTS5")
    for module in (corpora, building):
        monkeypatch.setattr(module, "CACHE", tmp_path)
    monkeypatch.setattr(building, "SINGLE", ("sqlite",))
    monkeypatch.setitem(systems.PEERS, "absent", systems.Peer("absent"))
    corpus = cases.Corpus("s", "synthetic", queries=2, documents=300)
    shared = {"bench": "b", "run": "r"}
    found = building.measure(corpus, ("sqlite", "absent"), (1, 2), 2, shared, lambda line: None)
    assert [(own.system, own.threads) for own in found] == [("sqlite", 1), ("absent", 1), ("absent", 2)]
    good = found[0]
    assert (good.error, good.reps, good.documents, good.streamed) == (None, 2, 300, False)
    assert good.docs_per_s is not None
    assert good.docs_per_s_max is not None
    assert 0 < good.docs_per_s <= good.docs_per_s_max
    assert good.index_bytes
    if sys.platform == "linux":
        assert good.peak_bytes is not None
        assert good.held_bytes is not None
    assert all("No module named" in (own.error or "") and own.docs_per_s is None for own in found[1:])
    assert building.table(found).count("\n") == 4


def test_a_corpus_that_is_not_there_is_a_row_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpora, "CACHE", tmp_path)
    monkeypatch.setenv("FANRANK_DATA", str(tmp_path / "nowhere"))
    cells = cases.grid((5,), (1,), ("kernel", "end_to_end"))
    chosen = [systems.SYSTEMS["scipy"], systems.SYSTEMS["fanrank-numpy"]]
    shared = {"bench": "b", "run": "r"}
    found = measure.run_case(cases.CORPORA["scifact"], chosen, cells, 1, 1.0, False, shared, lambda line: None)
    assert [(item.system, item.phase) for item in found] == [
        ("scipy", "kernel"),
        ("fanrank-numpy", "kernel"),
        ("fanrank-numpy", "end_to_end"),
    ]
    assert all("nowhere" in (item.error or "") for item in found)


def test_a_worker_that_dies_or_hangs_is_a_reason(tmp_path: Path):
    deleted = client.Worker(Path(sys.executable), "sqlite", 1, tmp_path / "log")
    deleted.process.kill()
    with pytest.raises(measure.PeerError, match="ended with code"):
        deleted.ask("build", 5)
    deleted.close()
    slow = client.Worker(Path(sys.executable), "sqlite", 1, tmp_path / "log")
    with pytest.raises(measure.PeerError, match="no answer"):
        slow.ask("load", 0.0, corpus="", scratch="")
    with pytest.raises(measure.PeerError, match="ended earlier"):
        slow.ask("build", 5)
