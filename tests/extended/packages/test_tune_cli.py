"""`fanrank tune`, `fanrank search --policy` and drift, whose tests are those of SciPy."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support import borders, tiny_models
from support.commands import fails, run, run_json, save_index, write
from support.six_words import MIXED, SYSTEMS, Words, memory

import fanrank as fr
from fanrank.engine.errors import ParameterError, PolicyFileError
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.route import policy as policies
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.route.router import Router
from fanrank.engine.tune import command
from fanrank.engine.tune.drift import check, fisher, kolmogorov_smirnov, reference_of
from fanrank.engine.tune.measure import Labelled, Questions
from fanrank.engine.tune.tuner import tune

WORDS = ("tea", "error", "river", "deploy", "invoice", "garden", "coffee", "boat")
# Without a model: learned term weights stand in for what a dense system would know.
CHOSEN = ("--system", "bm25", "--system", "sparse", "--metric", "hit@1")


def rows() -> tuple[list[Any], list[Any]]:
    """Records, and questions that the words alone answer, and ones that only the weights do."""
    records = [
        {"id": word, "text": f"{word} {word} {WORDS[n - 1]}", "weights": {word: 2.0}} for n, word in enumerate(WORDS)
    ]
    questions = [{"text": f"{word} {WORDS[n - 3]}", "relevant": [word], "weights": {word: 1.0}, "type": "word"}
                 for n, word in enumerate(WORDS)]  # fmt: skip
    questions += [
        {"text": f"{word} {word} {word}", "relevant": {word: 2}, "weights": {WORDS[n - 2]: 1.0}, "type": "name"}
        for n, word in enumerate(WORDS)
    ]
    return records, questions


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return save_index(write(tmp_path / "records.jsonl", rows()[0]), tmp_path / "index", analyzer="minimal")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return write(tmp_path / "questions.jsonl", rows()[1])


def test_a_policy_from_an_index_and_questions(tmp_path: Path, index: Path, questions: Path) -> None:
    pytest.importorskip("sklearn")
    out = tmp_path / "policy.json"
    asked = ("tune", index, "--questions", questions, *CHOSEN, "--folds", "3", "--out", out)
    found = run_json(*asked, "--labels", "10")
    assert (found["labelled"], found["held_out"], found["metric"], found["source"]) == (10, 6, "hit@1", str(index))
    assert found["confirmation"]["n"] == 6
    assert set(found["systems"]) == {"bm25", "sparse"}
    assert found["chosen"]["name"] in [point["name"] for point in found["points"]]
    assert set(found["front"]) <= {point["name"] for point in found["points"]}
    assert "policy" not in found
    again = run_json(*asked, "--labels", "10")
    assert again["sweep"][0]["accuracy"] == found["sweep"][0]["accuracy"]
    # Another draw of the labels is another sample, and all of them leave nothing to confirm on.
    whole = run_json(*asked)
    assert (whole["labelled"], whole["confirmation"]) == (16, None)
    policy, about = policies.load(out)
    engine = fr.Engine.load(index)
    batch = [fr.Query(one["text"], weights=one["weights"]) for one in rows()[1]]
    hits = engine.search(batch, 1, strategy=policy)
    right = [found[0][0] in one["relevant"] for found, one in zip(hits, rows()[1], strict=True)]
    assert whole["chosen"]["accuracy"] == sum(right) / 16
    assert about["reference"]["values"] == [float(value) for value in right]
    text = run(*asked, "--labels", "10").stdout
    for part in ("10 labelled questions, 6 others", "chosen on the labelled questions", "chosen on 6 others"):
        assert part in text
    assert f"written to {out}" in text.partition("policy: ")[2]
    assert max(map(len, text.splitlines())) < 240


def test_without_out_the_policy_is_in_the_answer(index: Path, questions: Path) -> None:
    found = run_json("tune", index, "--questions", questions, *CHOSEN, "--types-given")
    assert policies.answerer_to_dict(policies.strategy_of(found["policy"])) == found["policy"]
    assert found["classifier"] is None
    assert set(found["types"]) == {"name", "word"}


def test_drift_by_the_command(tmp_path: Path, index: Path, questions: Path) -> None:
    out = tmp_path / "policy.json"
    many = write(tmp_path / "many.jsonl", [one for one in rows()[1] for _ in range(4)])
    asked = ("tune", index, "--questions", many)
    untyped = write(tmp_path / "untyped.jsonl", [{**one, "type": None} for one in rows()[1] for _ in range(4)])
    run("tune", index, "--questions", untyped, *CHOSEN, "--labels", "99", "--out", out)
    about = policies.load(out)[1]
    # A cascade that surely decides by confidence, whatever the times of this run chose.
    policy = Cascade(0.2, escalate="sparse")
    engine = fr.Engine.load(index)
    from fanrank.engine.tune.drift import reference_of
    from fanrank.engine.tune.measure import Questions

    labelled = [command.labelled_of(one) for one in rows()[1]] * 4
    policies.save(
        out, policy, {**about, "reference": reference_of(Questions(engine, labelled, "hit@1").answer(policy), "x")}
    )
    same = run_json(*asked, "--check", out)
    assert same["drifted"] is False
    assert [test["name"] for test in same["tests"]] == ["skip", "confidence", "accuracy"]
    assert "no drift" in run(*asked, "--check", out).stdout
    one_kind = write(tmp_path / "names.jsonl", [one for one in rows()[1] if one["type"] == "name"] * 4)
    changed = run_json("tune", index, "--questions", one_kind, "--check", out, code=1)
    assert changed["drifted"] is True
    assert "DRIFTED" in run("tune", index, "--questions", one_kind, "--check", out, code=1).stdout
    # Only as many as asked for.
    assert run_json(*asked, "--check", out, "--labels", "5", code=0)["n"] == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["records.jsonl"], "records without questions"),
        (["index"], "--questions"),
        (["index", "--check", "p.json"], "--questions"),
        (["index", "--questions", "unlabelled.jsonl", *CHOSEN], "'tea' has no relevant record"),
        (["index", "--questions", "wrong.jsonl", *CHOSEN], "wrong.jsonl:1: a question's 'relevant'"),
        (["index", "--questions", "questions.jsonl", "--system", "magic"], "unknown strategy 'magic'"),
        (["index", "--questions", "questions.jsonl", "--system", "bm25"], "bm25 and another"),
        (["index", "--questions", "questions.jsonl", *CHOSEN, "--unit", "turn"], "'unit' says how a dataset is read"),
        # Two of the systems count ages; asked for by name, they are not left out.
        (["index", "--questions", "questions.jsonl", "--system", "bm25", "--system", "decay"], "'decay' counts ages"),
        (["index", "--questions", "questions.jsonl", "--check", "damaged.json"], "the 'decided' of its reference"),
    ],
)
@pytest.mark.usefixtures("index", "questions")
def test_what_the_command_declines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("unlabelled.jsonl"), [{"text": "tea"}, {"text": "river", "relevant": ["river"]}])
    write(Path("wrong.jsonl"), [{"text": "tea", "relevant": "tea"}])
    about = {"metric": "hit@1", "reference": {"n": 1, "values": [1.0]}}
    policies.save(Path("damaged.json"), fr.strategies.STRATEGIES["bm25"], about)
    assert message in fails("tune", *arguments)


WISHES = (
    *(("--out", "p.json"), ("--metric", "hit@5"), ("--system", "bm25")),
    *(("--confidence", "margin"), ("--margin", "0.1"), ("--folds", "5"), ("--vectors",)),
)


@pytest.mark.parametrize("wish", WISHES)
def test_checking_takes_no_wishes_for_tuning(index: Path, questions: Path, wish: tuple[str, ...]) -> None:
    found = run("tune", index, "--questions", questions, "--check", "p.json", *wish, code=2)
    assert f"--check tunes nothing: leave out {wish[0]}" in found.stderr


def test_what_cannot_be_written_is_told_first(
    tmp_path: Path, index: Path, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*given: Any, **how: Any) -> Any:
        raise AssertionError("it tuned")

    monkeypatch.setattr(command, "tune", unreachable)
    asked = ("tune", index, "--questions", questions, *CHOSEN)
    assert "there is no folder" in fails(*asked, "--out", tmp_path / "none" / "policy.json")
    assert "cannot be written" in fails(*asked, "--out", tmp_path)


def test_without_times_the_default_systems_count_no_ages(
    tmp_path: Path, index: Path, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink(monkeypatch, SYSTEMS=("bm25", "decay", "sparse"))
    found = run_json("tune", index, "--questions", questions, "--metric", "hit@1", "--types-given")
    assert list(found["systems"]) == ["bm25", "sparse"]
    assert list(found["left_out"]) == ["decay"]
    text = run("tune", index, "--questions", questions, "--metric", "hit@1", "--types-given").stdout
    assert "left out: decay: it counts ages" in text
    dated = write(tmp_path / "dated.jsonl", [{**one, "now": 1.0} for one in rows()[1]])
    found = run_json("tune", index, "--questions", dated, "--metric", "hit@1", "--types-given")
    assert list(found["systems"]) == ["bm25", "decay", "sparse"]
    assert found["left_out"] == {}


def test_a_dataset_with_its_encoder(tmp_path: Path) -> None:
    """BEIR, a model of two layers, all five systems but the one that needs a time; the others confirm."""
    pytest.importorskip("sentence_transformers")
    model = tiny_models.transformer(tmp_path / "model", "BertModel")
    root = tmp_path / "toy"
    (root / "qrels").mkdir(parents=True)
    words = [word for word in tiny_models.WORDS if word != ":"][:12]
    write(
        root / "corpus.jsonl", [{"_id": f"d{n}", "title": "", "text": f"{word} {word}"} for n, word in enumerate(words)]
    )
    write(root / "queries.jsonl", [{"_id": f"q{n}", "text": f"{word} {words[n - 1]}"} for n, word in enumerate(words)])
    lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in range(len(words)))]
    (root / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "policy.json"
    systems = [part for name in ("dense", "rrf", "fused") for part in ("--system", name)]
    how = ("--encoder", model, "--embeddings", tmp_path / "cache", *systems, "--out", out)
    found = run_json("tune", root, "--labels", "8", *how)
    assert (found["labelled"], found["held_out"], found["source"]) == (8, 4, "toy")
    assert list(found["confirmation"]["systems"]) == ["bm25", "dense", "rrf", "fused"]
    assert json.loads(out.read_text())["about"]["model"]["name"] == found["encoder"]["name"] == "model"
    report = run("tune", root, "--check", out, "--encoder", model).stdout
    assert report.startswith(f"{out}: 12 questions now, 4 when it was tuned")


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 30), st.integers(1, 30))
def test_fisher_against_scipy(first: int, second: int, n: int, m: int) -> None:
    first, second = min(first, n), min(second, m)
    expected = stats.fisher_exact([[first, n - first], [second, m - second]]).pvalue
    assert fisher(first, n, second, m) == pytest.approx(expected, rel=1e-6)


@given(st.integers(2, 40), st.integers(2, 40), st.integers(0, 99))
@settings(max_examples=50)
def test_kolmogorov_smirnov_against_scipy(n: int, m: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    first, second = random.integers(0, 30, n) / 10, random.integers(0, 40, m) / 10
    distance, p = kolmogorov_smirnov(first, second)
    assert distance == pytest.approx(stats.ks_2samp(first, second).statistic, abs=1e-12)
    scaled = distance * math.sqrt(n * m / (n + m))
    assert p == pytest.approx(stats.kstwobign.sf(scaled), abs=1e-9)


def test_drift_is_told_from_no_drift(tmp_path: Path) -> None:
    engine = memory()
    many = MIXED * 5
    found = tune(
        engine, [Labelled(one.query, one.relevant) for one in many], systems=SYSTEMS, metric="hit@1", repeats=1
    )
    forced = Cascade(0.3, escalate="dense")
    policies.save(tmp_path / "policy.json", found.policy, found.about)
    policy, about = policies.load(tmp_path / "policy.json")
    assert policy.to_dict() == found.policy.to_dict()
    assert not check(policy, about, engine, many).drifted

    run = Questions(engine, many, "hit@1").answer(forced)
    about = {**about, "reference": reference_of(run, "labelled")}
    same = check(forced, about, engine, many[::-1])
    assert [test.name for test in same.tests] == ["skip", "confidence", "accuracy"]
    assert not same.drifted
    assert all(test.then == pytest.approx(test.now) for test in same.tests)
    # Only questions of one kind are asked now: another skip share, other confidences.
    changed = check(forced, about, engine, [one for one in many if one.type == "sense"])
    assert changed.drifted
    assert changed.to_dict()["drifted"] is True
    # Questions without labels say nothing of accuracy.
    plain = check(forced, about, engine, [one.query for one in many])
    assert [test.name for test in plain.tests] == ["skip", "confidence"]
    # The records' vectors are of another model now.
    other = Words()
    other.version = "2"  # type: ignore[misc]
    moved = check(forced, about, memory(other), many)
    assert moved.model_changed
    assert moved.drifted
    with pytest.raises(ParameterError, match="says nothing"):
        check(forced, {}, engine, many)
    with pytest.raises(ParameterError, match="with a judge"):
        check(forced, {**about, "judged": True}, engine, many)


REFERENCE = {"of": "x", "n": 2, "decided": 2, "escalated": 1, "types": {"a": 1}, "confidences": [0.5, None],
             "values": [1.0, 0.0]}  # fmt: skip

DAMAGED: dict[str, list[Any]] = {
    "n": [3, None],
    "values": [[1.0], [1.0, "x"], [1.0, None], [1.0, math.nan], [1.0, 10**400], [True, 1.0]],
    "decided": [None, 3, "2", 0],
    "escalated": [3, -1, 0.5],
    "types": [[], {"a": "1"}, {"a": 2, "b": 1}],
    "confidences": [[], [0.5, "x"], None],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_reference_is_named(name: str) -> None:
    policy, engine = Cascade(0.3, escalate="dense"), memory()
    assert check(policy, {"metric": "hit@1", "reference": REFERENCE}, engine, MIXED).reference == 2
    without = {other: own for other, own in REFERENCE.items() if other != name}
    for damaged in ([], without, *({**REFERENCE, name: bad} for bad in DAMAGED[name])):
        with pytest.raises(PolicyFileError, match=r"damaged: .*reference"):
            check(policy, {"metric": "hit@1", "reference": damaged}, engine, MIXED)
    for about in ({"metric": 3}, {"k": "5"}, {"k": 0}):
        with pytest.raises(PolicyFileError, match="damaged"):
            check(policy, {"reference": REFERENCE, **about}, engine, MIXED)


@pytest.mark.parametrize(
    "how",
    [NAMED["bm25"], Router({"name": NAMED["bm25"], "sense": NAMED["dense"]}, NAMED["bm25"])],
    ids=["a strategy for all, which decides nothing", "a router"],
)
def test_drift_of_types(how: Any) -> None:
    engine = memory()
    typed = [Labelled(fr.Query(one.query.text, type=one.type), one.relevant) for one in MIXED] * 4
    about = {"metric": "hit@1", "reference": reference_of(Questions(engine, typed, "hit@1").answer(how), "labelled")}
    same = check(how, about, engine, typed)
    assert [test.name for test in same.tests][-1] == "accuracy"
    assert not same.drifted
    for kind in ("name", "sense"):
        found = check(how, about, engine, [one for one in typed if one.query.type == kind])
        assert found.drifted
        assert found.tests[0].name.startswith("share of ")
        assert found.tests[0].p == pytest.approx(min(1.0, 2 * fisher(24, 48, 24, 24)))


def test_a_judge_s_values_are_not_compared_with_a_metric_s() -> None:
    engine = memory()
    found = tune(engine, MIXED, systems=("bm25", "dense"), metric="hit@1", repeats=1)
    with pytest.raises(ParameterError, match="tuned on hit@1, which a judge's values are no match for"):
        check(found.policy, found.about, engine, MIXED, judge=lambda query, ids: 5.0)
