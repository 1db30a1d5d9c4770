"""What rows rest on: made corpora and memories, the reference, the check of answers, and the commands' formulas."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.benches import load
from support.source import ROOT

import fanrank as fr

cases, code, corpora = load("harness.cases", "harness.code", "harness.corpora")
callgrind, reference, rows, systems = load("harness.callgrind", "harness.reference", "harness.rows", "harness.systems")
asking, methods, verify = load("harness.asking", "harness.methods", "harness.verify")
instructions, serve = load("instructions", "serve")


@pytest.fixture
def tiny() -> Any:
    texts = ["b a", "", "a a", "c d b", "D e"]
    return corpora.from_texts("tiny", texts, ["a", "e B b zz", "zz"], frozenset({"c"}), 10)


def test_every_system_has_a_peer_and_every_peer_an_adapter() -> None:
    assert {system.peer for system in systems.SYSTEMS.values()} == set(systems.PEERS)
    assert all((ROOT / "bench" / "peers" / f"{name}.py").is_file() for name in systems.PEERS)


def test_a_prepared_corpus(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiny.vocabulary == ["b", "a", "d", "e"]
    assert tiny.tokens.tolist() == [0, 1, 1, 1, 2, 0, 2, 3]
    assert tiny.offsets.tolist() == [0, 2, 2, 4, 6, 8]
    assert tiny.query_terms() == [["a"], ["e", "b"]]  # distinct and known; a query of unknown terms alone is left out
    monkeypatch.setattr(corpora, "CACHE", tmp_path)
    corpus = cases.Corpus("s", "synthetic", queries=5, documents=50, seed=5)
    once = corpora.load(corpora.prepare(corpus))
    assert [*once.each_document()] == [*corpora._synthetic(corpus).each_document()]
    assert [*once.each_document()] != [*corpora._synthetic(dataclasses.replace(corpus, seed=6)).each_document()]


def test_postings_and_scores_are_the_formula(tiny: Any) -> None:
    postings = reference.postings_of(tiny)
    assert postings.offsets.tolist() == [0, 2, 4, 6, 7]
    assert postings.documents.tolist() == [0, 3, 0, 2, 3, 4, 4]
    assert postings.frequencies.tolist() == [1, 1, 1, 2, 1, 1, 1]
    for formula in ("lucene", "robertson_floor"):
        expected = []
        for document in tiny.each_document():
            score = 0.0
            for term in tiny.query_terms()[1]:
                df, tf = sum(term in other for other in tiny.each_document()), document.count(term)
                odds = (5 - df + 0.5) / (df + 0.5)
                idf = math.log(1 + odds) if formula == "lucene" else max(1e-6, math.log(odds))
                score += idf * tf / (tf + 1.2 * (0.25 + 0.75 * len(document) / 1.6))
            expected.append(score)
        assert reference.scores(postings, tiny.query_ids(1), formula) == pytest.approx(expected, rel=1e-12)
    lengths = np.array([0, 1, 23, 24, 39, 40, 41, 42, 55, 56, 59, 60, 87, 88, 95, 96])
    assert reference.byte4(lengths).tolist() == [0, 1, 23, 24, 39, 40, 40, 42, 54, 56, 56, 60, 84, 88, 88, 96]


@pytest.mark.parametrize(
    ("found", "k", "share"),
    [
        ([0, 1], 2, 1.0),
        ([0, 2], 2, 1.0),  # ties with the last
        ([0, 3], 2, 0.5),
        ([0, 0], 2, 0.5),  # the same document twice
        ([0, 1, 2, 3], 10, 1.0),  # only four match
        ([0, 1, 2, 4], 10, 0.75),
    ],
)
def test_overlap_counts_ties_and_refuses_the_rest(found: list[int], k: int, share: float) -> None:
    assert verify.overlap(np.array(found), np.array([3.0, 2.0, 2.0, 1.0, 0.0]), k, 1e-6) == share


def test_right_answers_pass_and_wrong_ones_fail(tiny: Any) -> None:
    postings, peer = reference.postings_of(tiny), systems.Peer("scaled", scale=2.2)
    documents, found = np.full((2, 4), -1), np.zeros((2, 4))
    for query in range(2):
        truth = reference.scores(postings, tiny.query_ids(query))
        best = np.argsort(-truth, kind="stable")[: int((truth > 0).sum())]
        documents[query, : len(best)] = best
        found[query, : len(best)] = truth[best] * 2.2

    def passes() -> bool:
        return bool(verify.check(peer, tiny, postings, range(2), 4, documents, found).passed(peer.tolerance))

    assert passes()
    found[0, 0] *= 1.01
    assert not passes()
    found[0, 0] /= 1.01
    documents[1, 0] = -1
    assert not passes()


def test_rows_are_read_back_and_what_is_no_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results" / "x.jsonl"
    assert rows.read(path) == []
    rows.append(path, [{"method": "plain", "ms": 1.5}])
    assert rows.read(path) == [{"method": "plain", "ms": 1.5}]
    for line, reason in [("[]", "not a JSON object"), ("{", "not JSON")]:
        path.write_text(path.read_text().splitlines()[0] + "\n" + line + "\n")
        with pytest.raises(ValueError, match=rf"x\.jsonl:2: .*{reason}"):
            rows.read(path)


PYTHON = (
    '"""A file."""\n\n\ndef f(a: int, *, b: str = "x") -> str:  # why\n    """Says what."""\n    return f"{a:>3}" + b\n'
)
CPP = '// A file.\nint f(int a) { return a + 1\'000; }  // why\nconst char* link = "http://x"; /* two */\n'


def test_the_hash_of_code_follows_code_and_not_words() -> None:
    words = PYTHON.replace("why", "because").replace("Says what", "Says more").replace('"x"', "'x'")
    assert code.python_code(words) == code.python_code(PYTHON)
    for old, new in (("3", "4"), ('"x"', '"y"'), (":>", ":<"), ("+ b", "+ b + b"), ("int", "float")):
        assert code.python_code(PYTHON.replace(old, new, 1)) != code.python_code(PYTHON)
    assert code.c_code(CPP.replace("why", "because").replace("two", "one")) == code.c_code(CPP)
    for old, new in (("1'000", "1'001"), ("http://x", "http://y")):
        assert code.c_code(CPP.replace(old, new)) != code.c_code(CPP)
    for name, bench in code.BENCHES.items():
        assert any(path.suffix in code.SUFFIXES for pattern in bench.files for path in ROOT.glob(pattern)), name


def test_figures_of_the_commands() -> None:
    week = 7 * 86_400.0
    times = [0.0, 1.0, 2 * week, 5 * week + 1, 5 * week + 2]
    assert [methods.newest_windows(times, count) for count in (1, 2, 3, 9)] == [5 * week, 2 * week, 0.0, 0.0]
    plain = [[1.0] * 100, [4.0] * 10, [2.0] * 50]
    found = serve.figures([[2.0] * 50, [5.0] * 10, [2.5] * 20], plain, 2.0)
    assert found["queries_per_s"] == asking.FAN_OUT * 20 / 2.0
    assert (found["share"], found["overhead_ms"], found["p50_ms"], found["p99_ms"]) == (0.5, 1.0, 2.0, 5.0)


PROFILE = """events: Ir
fn=python
7 100
cfn=fanrank::python::(anonymous namespace)::search(_object*)
calls=1 9
7 900
fn=fanrank::python::(anonymous namespace)::search(_object*)
9 50
cfn=fanrank::text::Analysis::encode(fanrank::python::Ref const&)
calls=1 3
9 300
cfn=void fanrank::search::score<int>(fanrank::text::Terms)
calls=2 4
+2 550
fn=void fanrank::search::score<int>(fanrank::text::Terms)
4 410
cfn=fanrank::search::keep_best(fanrank::search::Hits&)
calls=1 2
4 140

totals: 1000
"""


def test_instructions_go_to_the_phase_that_called(tmp_path: Path) -> None:
    found = callgrind.by_phase(callgrind.parse(PROFILE), instructions.PHASES)
    assert found == {"analysis": 300, "plan": 0, "score": 410, "select": 140, "binding": 50}
    path, under, before = tmp_path / "rows.jsonl", {"python": "3"}, {(1, "whole"): 100_000}
    rows.append(path, instructions.rows_of("native", under, before))
    kept = instructions.recorded(path, "native", under)
    assert kept == before
    assert instructions.changes(kept, {(1, "whole"): 102_000}) == ([], False)
    assert instructions.changes(kept, {(1, "whole"): 102_001})[1]
    assert not instructions.changes(kept, {(1, "whole"): 90_000})[1]


(synthetic,) = load("harness.synthetic")
BLOCK, WEEK, SyntheticMemory = synthetic.BLOCK, synthetic.WEEK, synthetic.SyntheticMemory


@pytest.fixture(scope="module")
def records() -> list[fr.Record]:
    return list(SyntheticMemory(6_000).stream())


def test_the_seed_alone_decides(records: list[fr.Record]):
    assert list(SyntheticMemory(6_000).stream()) == records
    other = list(SyntheticMemory(200, seed=7).stream())
    assert [record.text for record in other] != [record.text for record in records[:200]]


def test_a_longer_memory_begins_with_a_shorter_one_and_any_stretch_can_be_made():
    longer = SyntheticMemory(BLOCK + 300)
    around = list(longer.stream(BLOCK - 5, BLOCK + 5))
    assert [record.id for record in around] == [f"r{number}" for number in range(BLOCK - 5, BLOCK + 5)]
    assert list(SyntheticMemory(BLOCK + 2).stream(BLOCK - 5)) == around[:7]
    assert list(longer.stream(40, 40)) == []


def test_questions_hold_words_of_their_gold_and_are_mostly_about_recent_records():
    memory = SyntheticMemory(40_000)
    questions = memory.questions(600)
    texts = {record.id: set(record.text.split()) for record in memory.stream()}
    ages = []
    for question in questions:
        words = question.text.split()
        assert 3 <= len(words) <= 6
        assert len(set(words)) == len(words)
        assert set(words) <= texts[question.gold]
        assert memory.end <= question.now < memory.end + 3600
        ages.append((memory.records - int(question.gold[1:])) * memory.interval / WEEK)
    assert 0.5 < sum(age < 1 for age in ages) / len(ages) < 0.75  # .8 (1 - exp(-1.4)) = .60
    assert 0.1 < sum(age > 6 for age in ages) / len(ages) < 0.3
    assert memory.questions(600) == questions
    assert memory.questions(600, seed=1) != questions
