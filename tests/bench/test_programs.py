"""The algebra of programs, against loops and against the engine's methods; the search, its memory and its frontier."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fanrank.engine.evaluate.dataset import Dataset
from fanrank.engine.feedback.pool import Pool, round_moved
from fanrank.engine.feedback.registry import feedback_of
from fanrank.engine.feedback.rocchio import BETAS, KS, Rocchio
from fanrank.engine.records.query import Query as RecordedQuery
from fanrank.engine.records.record import Record
from fanrank.engine.vectors.vectors import normalize

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
try:
    from bench.research import algebra, programs
    from bench.research.algebra import BASELINE, KNOWN, Aggr, Corpus, Intp, Query, Rerank, Retr, Sentence
    from bench.research.programs import Registry, Trial
finally:
    sys.path.remove(str(ROOT))

DOCUMENTS, QUERIES, WIDTH = 60, 9, 17


def vectors(seed: int) -> dict[str, Any]:
    """Clustered, so that feedback moves ranks."""
    chance = np.random.default_rng(seed)
    centres = chance.normal(size=(6, WIDTH))

    def rows(count: int, noise: float) -> Any:
        return normalize(centres[np.arange(count) % 6] + noise * chance.normal(size=(count, WIDTH))).astype(float)

    return {"documents": rows(DOCUMENTS, 0.6), "queries": rows(QUERIES, 0.9), "sentences": rows(DOCUMENTS, 0.7)}


def corpus(seed: int = 0, **more: Any) -> Corpus:
    return Corpus(**vectors(seed), **more)


def pool_of(found: Corpus, queries: Any) -> Pool:
    """The first ten hits, as the engine would hand them to feedback."""
    cosines = queries @ found.documents.T
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :10]
    values = np.take_along_axis(cosines, order, axis=1)
    assert found.sentences is not None
    firsts = found.sentences[order]
    return Pool(
        ["a query"] * len(queries),
        values,
        values,
        found.documents[order].astype(np.float16),
        np.full(len(queries), 10),
        lambda n: firsts[:, :n],
        lambda moved: pool_of(found, moved),
    )


# Values


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (Rerank(algebra.soft_centroid()), "softcentroid"),
        (Rerank(algebra.soft_centroid(start=algebra.soft_centroid())), "softcentroid-2"),
        (Rerank(Intp(Query(), Aggr(Retr(Query(), 3), "mean"), 0.5)), "uniform-centroid"),
        (Rerank(Aggr(Retr(Query(), 1), "mean")), "hard-top1"),
        (Rerank(algebra.first_sentence()), "first-sentence"),
    ],
)
def test_known_programs_are_the_engines_methods_bit_for_bit(program: Rerank, name: str):
    for seed in range(3):
        found = corpus(seed)
        moved = feedback_of(name)(found.queries, pool_of(found, found.queries))
        if name != "hard-top1":
            assert found.vector(program.vector).tobytes() == moved.tobytes()
        assert found.rounded(program.vector).tobytes() == round_moved(found.queries, moved).tobytes()


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("beta", BETAS)
def test_rocchio_is_an_interpolation(k: int, beta: float):
    found = corpus()
    moved = Rocchio(k, beta)(found.queries, pool_of(found, found.queries))
    program = Rerank(algebra.rocchio(k, beta))
    np.testing.assert_allclose(found.vector(program.vector), moved, rtol=0.0, atol=1e-14)
    expected = np.argsort(-(round_moved(found.queries, moved) @ found.documents.T), axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(found.ranked(program, 10)[0], expected)


def test_the_baseline_ranks_by_cosine_then_by_number():
    given = vectors(0)
    given["documents"][40:50] = given["documents"][:10]  # ties
    found = Corpus(**given)
    for k in (1, 7, DOCUMENTS, 200):
        documents, cosines = found.ranked(BASELINE, k)
        for query, row, values in zip(given["queries"], documents, cosines, strict=True):
            scored = [(-sum(a * b for a, b in zip(query, d, strict=True)), n) for n, d in enumerate(given["documents"])]
            assert [(-value, n) for value, n in zip(values, row, strict=True)] == sorted(scored)[:k]


def test_the_largest_of_each_component():
    found = corpus()
    documents, _ = found.ranked(BASELINE, 4)
    largest = found.vector(Aggr(Retr(Query(), 4), "max"))
    for query in range(QUERIES):
        for component in range(WIDTH):
            assert largest[query, component] == max(found.documents[n, component] for n in documents[query])


def test_the_largest_leaves_out_what_is_barred():
    found = corpus(barred=np.full(QUERIES, DOCUMENTS - 1))
    largest = found.vector(Aggr(Retr(Query(), DOCUMENTS), "max"))
    np.testing.assert_array_equal(largest, np.tile(found.documents[:-1].max(axis=0), (QUERIES, 1)))
    assert (found.documents[-1] > largest[0]).any()


def test_a_barred_document_is_no_hit_and_no_feedback():
    barred = corpus().ranked(BASELINE, 1)[0][:, 0]
    barred[3] = -1
    found = corpus(barred=barred)
    for program in KNOWN:
        documents, cosines = found.ranked(program, DOCUMENTS)
        assert (documents != barred[:, None])[cosines > -np.inf].all()
        assert ((documents == -1).sum(axis=1) == (barred >= 0)).all()
    best = found.ranked(BASELINE, 1)[0][:, 0]
    np.testing.assert_array_equal(found.vector(Aggr(Retr(Query(), 1), "mean")), found.documents[best])


def test_nothing_left_leaves_the_query_as_it_is():
    given = {name: rows[:1] for name, rows in vectors(0).items()}
    found = Corpus(**given, barred=np.array([0]))
    for program in KNOWN:
        assert found.rounded(program.vector).tobytes() == given["queries"].tobytes()


def test_sentences_must_be_there():
    found = Corpus(**{name: rows for name, rows in vectors(0).items() if name != "sentences"})
    with pytest.raises(ValueError, match="needs vectors of first sentences"):
        found.vector(algebra.first_sentence())


# Expressions


def test_costs_count_encoder_passes():
    one = algebra.first_sentence()
    two = algebra.first_sentence(start=one)
    assert [algebra.cost(program) for program in KNOWN] == [1, 1, 1, 1, 1, 2]
    assert [algebra.cost(Rerank(vector)) for vector in (one, two, Intp(two, one, 0.5))] == [2, 3, 3]
    assert algebra.rounds(Rerank(two)) == 2


def test_families_and_print():
    soft = Rerank(algebra.soft_centroid())
    assert str(soft) == "RERANK(INTP(ENC(query), AGGR(RETR(ENC(query), 3), softmax 0.05), 0.5))"
    assert algebra.family(soft) == "Rerank(Intp(Query(), Aggr(Retr(Query()), softmax)))"
    assert algebra.family(soft) == algebra.family(Rerank(algebra.soft_centroid(10, 0.1, 0.5)))
    assert algebra.family(soft) != algebra.family(Rerank(algebra.rocchio(3, 0.5)))


def test_equal_programs_are_equal():
    hits = Retr(Query(), 3)
    assert Aggr(hits, "mean", 0.5) == Aggr(hits, "mean")
    assert Aggr(hits, "softmax", 0.0) == Aggr(hits, "softmax", 0.05) != Aggr(hits, "softmax", 0.1)
    assert Sentence(hits) == Sentence(Retr(Query(), 1))


@pytest.mark.parametrize("program", KNOWN, ids=str)
def test_trees_are_json_values(program: Rerank):
    assert algebra.of_tree(json.loads(json.dumps(algebra.to_tree(program)))) == program


def test_neighbours_differ_in_one_place():
    soft = Rerank(algebra.soft_centroid())
    found = set(algebra.neighbours(soft))
    assert soft not in found
    assert {Rerank(algebra.soft_centroid(k=k)) for k in (1, 2, 5, 10)} <= found
    assert {Rerank(algebra.soft_centroid(tau=tau)) for tau in (0.01, 0.5)} <= found
    assert {Rerank(algebra.soft_centroid(alpha=alpha)) for alpha in (0.1, 1.0)} <= found
    assert Rerank(Intp(Query(), Aggr(Retr(Query(), 3), "mean"), 0.5)) in found
    assert len(found) == 4 + 5 + 9 + 2
    assert not list(algebra.neighbours(BASELINE))


# The search


def trial(program: Rerank, *deltas: float) -> Trial:
    return Trial(program, {f"c{number}": delta for number, delta in enumerate(deltas)})


def test_the_frontier():
    base, soft, rocchio = trial(BASELINE, 0.0, 0.0), trial(KNOWN[2], 2.0, 1.0), trial(KNOWN[1], 1.0, 0.5)
    harmful = trial(Rerank(algebra.soft_centroid(k=10)), 9.0, -0.1)
    dear = trial(Rerank(algebra.first_sentence()), 1.5, 1.5)
    better = trial(Rerank(algebra.first_sentence(0.4)), 1.6, 1.5)
    assert programs.frontier([]) == []
    assert programs.frontier([base]) == [base]
    assert programs.frontier([base, rocchio, harmful, soft]) == [soft]
    assert programs.frontier([dear, soft, base]) == [soft]
    assert programs.frontier([dear, better, soft, base]) == [soft, better]
    assert harmful.mean > soft.mean
    assert not harmful.universal


def test_the_registry_remembers_and_rules_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(programs, "commit", lambda: "none")
    path, setting = tmp_path / "deep" / "registry.jsonl", {"corpora": ["c0"], "model": "m"}
    registry = Registry(path, setting)
    registry.add(trial(BASELINE, 0.0))
    members = [Rerank(algebra.soft_centroid(alpha=alpha)) for alpha in algebra.GRID["alpha"]]
    for program in members[: programs.RULED_OUT_AFTER - 1]:
        registry.add(trial(program, -1.0))
    assert not registry.ruled_out
    registry.add(trial(members[-1], -0.5))
    assert registry.ruled_out == {algebra.family(members[0])}
    again = Registry(path, setting)
    assert again.trials == registry.trials
    assert again.ruled_out == registry.ruled_out
    assert not Registry(path, {"corpora": ["c0"], "model": "another"}).trials
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["kind"] for row in rows].count("ruled out") == 1
    assert (rows[-1]["tried"], rows[-1]["best_mean"]) == (programs.RULED_OUT_AFTER, -0.5)
    for seed in range(30):
        proposed = programs.propose(again, random.Random(seed), True)
        assert proposed not in again.trials
        assert algebra.family(proposed) not in again.ruled_out
        assert algebra.rounds(proposed) <= programs.MOST_ROUNDS


def test_a_universal_member_keeps_its_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(programs, "commit", lambda: "none")
    registry = Registry(tmp_path / "registry.jsonl", {})
    for alpha in algebra.GRID["alpha"]:
        registry.add(trial(Rerank(algebra.soft_centroid(alpha=alpha)), 0.0 if alpha == 0.1 else -1.0))
    assert not registry.ruled_out


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A BEIR folder and its embeddings: a query's relevant documents are those of its cluster."""
    monkeypatch.setenv("FANRANK_DATA", str(tmp_path))
    monkeypatch.setattr(programs, "commit", lambda: "none")
    root = tmp_path / "tiny"
    (root / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{n}", "title": "T", "text": f"Document {n}. More."} for n in range(DOCUMENTS)]
    queries = [{"_id": f"q{n}", "text": f"query {n}"} for n in range(QUERIES)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = [f"q{q}\td{d}\t1" for q in range(QUERIES) for d in range(DOCUMENTS) if q % 6 == d % 6]
    (root / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    # Rows in another order than the dataset's.
    arrays = {name: rows[::-1] for name, rows in vectors(0).items()}
    ids = {"document_ids": [row["_id"] for row in documents[::-1]], "query_ids": [row["_id"] for row in queries[::-1]]}
    np.savez(tmp_path / "tiny.npz", **arrays, **{name: np.array(names) for name, names in ids.items()})
    return tmp_path


def run(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    common = ("--corpus", "tiny", "--embeddings", str(folder / "tiny.npz"), "--json")
    programs.main([*common, *more])
    return json.loads(capsys.readouterr().out)


def test_a_search_from_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("pytrec_eval")
    registry = folder / "registry.jsonl"
    found = run(folder, capsys, "--programs", "25", "--registry", str(registry))
    rows = [json.loads(line) for line in registry.read_text().splitlines()]
    tried = [row for row in rows if row["kind"] == "trial"]
    assert found["tried"] == len(tried) == 25
    assert [algebra.of_tree(row["tree"]) for row in tried[: len(KNOWN)]] == list(KNOWN)
    assert len({row["program"] for row in tried}) == 25
    # The registry's figures, computed from the arrays in their other order.
    soft = next(row for row in tried if row["tree"] == algebra.to_tree(KNOWN[2]))
    ideal = sum(1.0 / np.log2(rank + 2) for rank in range(10))
    values = {}
    for program in (BASELINE, KNOWN[2]):
        documents, _ = corpus().ranked(program, 10)
        gained = [[n % 6 == query % 6 for n in row] for query, row in enumerate(documents.tolist())]
        each = [sum(hit / np.log2(rank + 2) for rank, hit in enumerate(row)) / ideal for row in gained]
        values[program] = float(np.mean(each))
    assert soft["ndcg@10"]["tiny"] == pytest.approx(values[KNOWN[2]], abs=1e-6)
    assert soft["mean"] == pytest.approx(100.0 * (values[KNOWN[2]] - values[BASELINE]), abs=1e-4)
    assert soft["mean"] > 0.0
    best = max((row for row in tried if row["universal"] and row["cost"] == 1), key=lambda row: row["mean"])
    assert found["frontier"][0]["mean"] == best["mean"] >= soft["mean"]
    # The same seed repeats it; a second run goes on.
    other = folder / "other.jsonl"
    assert run(folder, capsys, "--programs", "25", "--registry", str(other)) == found
    assert run(folder, capsys, "--programs", "5", "--registry", str(registry))["tried"] == 30


def test_the_table(folder: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("pytrec_eval")
    common = ["--corpus", "tiny", "--embeddings", str(folder / "tiny.npz")]
    programs.main([*common, "--programs", "3", "--registry", str(folder / "r.jsonl")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 tried (3 of cost 1); 0 families ruled out"
    assert lines[1] == "| cost | mean gain | tiny | program |"
    assert lines[3].startswith("| 1 | +")


def test_without_sentences_no_program_needs_them(folder: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("pytrec_eval")
    np.savez(folder / "tiny.npz", **{name: rows for name, rows in vectors(0).items() if name != "sentences"})
    run(folder, capsys, "--programs", "20", "--registry", str(folder / "r.jsonl"))
    rows = [json.loads(line) for line in (folder / "r.jsonl").read_text().splitlines()]
    assert {row["cost"] for row in rows if row["kind"] == "trial"} == {1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"documents": None}, "no array 'documents'"),
        ({"queries": np.ones((4, WIDTH))}, "queries has 4 rows, and the dataset 9"),
        ({"document_ids": np.array([f"x{n}" for n in range(DOCUMENTS)])}, "document_ids lacks 'd0' and 59 more"),
        ({"documents": np.zeros((DOCUMENTS, WIDTH))}, "has length 0"),
    ],
)
def test_embeddings_that_do_not_fit(change: dict[str, Any], message: str):
    records = [Record(f"d{n}", "text") for n in range(DOCUMENTS)]
    judged = {f"q{n}": {"d0": 1} for n in range(QUERIES)}
    dataset = Dataset("tiny", records, [RecordedQuery("text", id=name) for name in judged], judged)
    arrays = {name: rows for name, rows in {**vectors(0), **change}.items() if rows is not None}
    with pytest.raises(ValueError, match=message):
        programs.cell_of(dataset, arrays)


def test_a_document_without_a_sentence_has_no_anchor():
    records = [Record(f"d{n}", "text") for n in range(DOCUMENTS)]
    judged = {f"q{n}": {"d0": 1} for n in range(QUERIES)}
    dataset = Dataset("tiny", records, [RecordedQuery("text", id=name) for name in judged], judged, own={"q2": "d2"})
    arrays = vectors(0)
    arrays["sentences"][:] = 0.0
    found = programs.cell_of(dataset, arrays).corpus
    assert found.rounded(algebra.first_sentence()).tobytes() == found.queries.tobytes()
    assert found.barred is not None
    assert found.barred.tolist() == [-1, -1, 2, -1, -1, -1, -1, -1, -1]
