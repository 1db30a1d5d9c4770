"""`fanrank eval` with all that it measures by, and `fanrank published`, whose figures are what `eval` gives."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import borders
from support.commands import fails, make_beir, run, run_json
from support.evaluations import Letters, needs, write_locomo

from fanrank.engine.backends import choose as backend
from fanrank.engine.errors import AnswerError
from fanrank.engine.evaluate import command
from fanrank.engine.evaluate.chat import ChatModel
from fanrank.engine.evaluate.headlines import HEADLINES, Evaluated, simulated_session
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.route.classifier import Classifier
from fanrank.engine.route.policy import save
from fanrank.engine.route.router import Router

Asked = tuple[object, ...]
TURNS = ["Where did the puppy go?", "To Lisbon.", "With Ana.", "How nice for all."]


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    session = [{"speaker": "Ann", "dia_id": f"D1:{n}", "text": text} for n, text in enumerate(TURNS, 1)]
    asked = [{"question": "Where did the puppy go?", "answer": "Lisbon", "evidence": ["D1:2"], "category": 4}]
    conversation = {"session_1": session, "session_1_date_time": "1:56 pm on 8 May, 2023"}
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps([{"sample_id": "c", "conversation": conversation, "qa": asked}]))
    return path


def test_eval(tmp_path: Path) -> None:
    beir = make_beir(tmp_path / "toy")
    result = run_json("eval", "beir", beir, "--analyzer", "minimal", "-k", "10")
    assert (result["dataset"], result["preset"], result["analyzer"]) == ("toy", "default", "minimal")
    assert (result["backend"], result["n"]) == (backend.choose().name, 4)
    # The two documents on each subject tie and the older comes first: every query finds one at rank 1.
    assert result["metrics"]["hit@1"] == result["metrics"]["mrr"] == result["metrics"]["recall@3"] == 1.0
    assert result["metrics"]["ndcg@10"] < 1.0  # q0's better document has the lower rank
    assert {"recall@100", "ndcg@10"} <= set(run_json("eval", "beir", beir)["metrics"])
    text = run("eval", "beir", beir, "--analyzer", "minimal").stdout.splitlines()
    known = "preset default, analyzer minimal, method lucene, k1 1.2, b 0.75, backend "
    assert text[0] == f"toy: n = 4, strategy bm25, {known}{backend.choose().name}"
    assert ["hit@1", "1.0000"] in [line.split() for line in text]


def test_eval_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pytrec_eval", None)
        assert "pip install 'fanrank[eval]'" in fails("eval", "beir", tmp_path)
    assert "not a directory" in fails("eval", "beir", tmp_path / "none")
    assert "no.json" in fails("eval", "locomo", tmp_path / "no.json")
    assert "no preset 'opsem' for beir" in fails("eval", "beir", tmp_path, "--preset", "opsem")


def test_eval_measures_what_records_borrow(chat: Path) -> None:
    common = ("eval", "locomo", chat, "--unit", "turn")
    plain = run_json(*common)
    assert "neighbours" not in plain["parameters"]
    near = run_json(*common, "--neighbours", 1, "--neighbour-weight", ".5")
    assert near["parameters"]["neighbours"] == {"window": 1, "weight": 0.5}
    # The turn with the answer has no word of the question.
    assert plain["metrics"]["mrr"] < near["metrics"]["mrr"] == 0.5
    shown = run(*common, "--neighbours", 1, "--neighbour-weight", ".5").stdout
    assert "strategy bm25, 1 neighbours by 0.5, preset " in shown.splitlines()[0]
    several = run_json(*common, "--strategy", "bm25", "--strategy", "conversation", "--neighbours", 1)
    assert several["parameters"]["neighbours"] == {"window": 1, "weight": 0.25}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--neighbour-weight", ".5"], "--neighbour-weight needs a number of neighbours"),
        (["--neighbours", "1", "--strategy", "rm3"], "rm3 does not let records borrow from their neighbours"),
    ],
)
def test_neighbours_where_there_are_none_are_one_line(chat: Path, arguments: list[str], said: str) -> None:
    assert said in fails("eval", "locomo", chat, "--unit", "turn", *arguments)


def test_what_strategies_found_is_written_and_measured_again(chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cues of a dialogue read texts; a metric is asked for by trec_eval's name; a log tells how far it is."""
    folder, asked = chat.parent, ("--metric", "recip_rank", "--metric", "P_2")
    common = ("eval", "locomo", chat, "--unit", "turn", *asked)
    how = (*common, "--strategy", "bm25", "--strategy", "dialogue-words", "--write-runs", folder)
    made = run_json(*how)
    assert made["systems"]["dialogue-words"] == {"recip_rank": 0.5, "P_2": 0.5}
    assert made["differences"][0]["p"] == made["differences"][0]["p_holm"] == 0.0001
    again = run_json(*common, *(part for path in made["runs"].values() for part in ("--run", path)))
    assert (again["systems"], again["differences"], "analyzer" in again) == (
        made["systems"],
        made["differences"],
        False,
    )
    assert run_json(*common, "--run", made["runs"]["bm25"])["systems"] == {"bm25": made["systems"]["bm25"]}
    assert "the folder for runs has no name" in fails(*common, "--strategy", "bm25", "--write-runs", "")
    (folder / "broken.run").write_text("q Q0 d 1\n")
    assert "broken.run:1: a line of a TREC run is" in fails(*common, "--run", folder / "broken.run")
    (folder / "other.run").write_text("q Q0 d 1 2.5 x\n")
    assert "answers no query of locomo" in fails(*common, "--run", folder / "other.run")
    borders.shrink(monkeypatch, LEAST_TOLD=1)
    lines = run(*how).stderr.splitlines()
    assert {"indexed 4 of 4 records", "1 questions by bm25 ...", "1 questions by dialogue-words ..."} <= set(lines)


def turn(role: str, content: str, gold: bool = False) -> dict[str, Any]:
    return {"role": role, "content": content, "has_answer": gold}


@pytest.fixture
def longmemeval(tmp_path: Path) -> Asked:
    """Four questions of two types, one of them an abstention question, each with three sessions."""
    sessions = [
        [turn("user", "I adopted a puppy called Rex.", True), turn("assistant", "Lovely.")],
        [turn("user", "The marathon in Berlin was rainy.", True)],
        [turn("assistant", "Here is a recipe of soup.")],
    ]
    entries = [
        {
            "question_id": name,
            "question_type": kind,
            "question": question,
            "answer": answer,
            "answer_session_ids": [gold],
            "haystack_session_ids": ["s1", "s2", "s3"],
            "haystack_sessions": sessions,
        }
        for name, kind, question, answer, gold in (
            ("q1", "user", "How is the puppy called?", "Rex", "s1"),
            ("q2", "user", "Where was the rainy marathon?", "Berlin", "s2"),
            ("q3", "other", "Which marathon?", "Berlin", "s2"),
            ("q4_abs", "other", "Which recipe of cake?", "Not told.", "s3"),
        )
    ]
    path = tmp_path / "longmemeval.json"
    path.write_text(json.dumps(entries))
    return "eval", "longmemeval", path


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a model answers with the words of the first record, and judges yes where they hold the reference answer."""

    def complete(model: ChatModel, system: str, user: str) -> str:
        if model.model == "lost":
            raise AnswerError(f"{model.url} answers 404")
        if "Reference answer: " not in user:
            return user.split("\n\n")[0]
        gold, answer = user.split("Reference answer: ")[1].split("\n\nAnswer to grade: ")
        return "Yes." if gold in answer else "No."

    monkeypatch.setattr(ChatModel, "complete", complete)
    return "http://127.0.0.1:1/v1"


def test_readings_reach_the_loader(longmemeval: Asked) -> None:
    assert run_json(*longmemeval)["n"] == 3
    assert run_json(*longmemeval, "--preset", "agentir")["n"] == 4
    found = run_json(*longmemeval, "--abstention", "--unit", "turn", "--text", "user")
    assert found["n"] == 4
    assert not {"latency", "ms_per_query", "stages_ms"} & set(found)
    reading = {"abstention": True, "unit": "turn", "text": "user"}
    assert {name: found["parameters"][name] for name in reading} == reading
    assert run_json(*longmemeval, "--whole")["parameters"]["passages"] is False
    assert "longmemeval is not read with 'captions'; locomo have it" in fails(*longmemeval, "--captions")
    assert "longmemeval is not read with 'strict'; beir have it" in fails(*longmemeval, "--lost-documents")
    assert "unknown text 'speakers'; there are: user, roles, turns" in fails(*longmemeval, "--text", "speakers")


def test_latency_and_answers_in_context_are_printed(longmemeval: Asked) -> None:
    found = run_json(*longmemeval, "--preset", "agentir", "--latency", 2)
    assert found["latency"]["n"] == 2
    assert found["latency"]["p50_ms"] <= found["latency"]["p95_ms"] <= found["latency"]["p99_ms"]
    assert found["answers"]["metrics"]["answer_substring@5"] == 3 / 4
    lines = run(*longmemeval, "--preset", "agentir", "--latency", 2).stdout.splitlines()
    assert any(line.startswith("  warm: mean ") and "queries/s alone" in line for line in lines)
    assert "  answer_substring@5     0.7500" in lines
    assert any(line.startswith("  other (n = 2): answer_substring@5 0.5000") for line in lines)


def test_models_answer_and_judge(longmemeval: Asked, url: str) -> None:
    how = (*longmemeval, "--preset", "opsem", "--answer-with", url, "--model", "small", "--answer-depth", 1)
    found = run_json(*how, "--judge", "large", "--abstention")
    assert (found["judged"]["n"], found["judged"]["strict"]) == (4, 0.75)
    assert [each["judgement"] for each in found["judged"]["answers"]] == ["yes", "yes", "yes", "no"]
    assert found["judged"]["per_category"]["user"]["lenient"] == 1.0
    sampled = run_json(*how, "--per-type", 1, "--answer-seed", 3)
    assert sampled["judged"]["n"] == 2
    printed = run(*how, "--abstention")
    assert "  judged (n = 4): strict 0.7500, lenient 0.7500" in printed.stdout
    assert "answered and judged 4 of 4 questions" in printed.stderr


def test_slips_with_models_are_named(longmemeval: Asked, url: str) -> None:
    assert "--per-type is for answers by a model; give its server with --answer-with" in fails(
        *longmemeval, "--per-type", 3
    )
    assert "give --model" in fails(*longmemeval, "--answer-with", url)
    assert "must begin with http" in fails(*longmemeval, "--answer-with", "host", "--model", "m")
    assert "answers 404" in fails(*longmemeval, "--answer-with", url, "--model", "lost")
    several = ("--strategy", "bm25", "--strategy", "dense")
    assert "--answer-with is for one" in fails(*longmemeval, *several, "--answer-with", url, "--model", "m")


def test_several_strategies_make_a_table(longmemeval: Asked) -> None:
    other = json.dumps(replace(NAMED["bm25"], name="short", depth=1).to_dict())
    found = run_json(*longmemeval, "--strategy", "bm25", "--strategy", other, "--latency", 9)
    assert list(found["systems"]) == ["bm25", "short"]
    assert [(row["first"], row["second"]) for row in found["differences"]] == [("short", "bm25")]
    assert found["metric"] == "hit@5"
    assert found["latency"]["short"]["n"] == 3
    printed = run(*longmemeval, "--strategy", "bm25", "--strategy", other, "--latency", 9).stdout
    assert "hit@5" in printed
    assert "ms a query, warm" in printed
    alone = run_json(*longmemeval, "--strategy", "bm25")
    assert found["systems"]["bm25"] == alone["metrics"]
    assert "each of another name" in fails(*longmemeval, "--strategy", "bm25", "--strategy", "bm25")
    assert "for one strategy" in fails(*longmemeval, "--strategy", "bm25", "--strategy", other, "--tau", 0.1)


def measure(*arguments: object) -> Any:
    return run_json("eval", "locomo", *arguments, "--preset", "opsem")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two conversations of three sessions; letter counts are the encoder that is installed."""
    monkeypatch.setattr(command, "default_encoder", lambda why: "letters")
    monkeypatch.setattr(command, "open_encoder", lambda *given, **how: Letters())
    return write_locomo(tmp_path / "locomo.json", marathon=1)


def test_a_cascade_tells_what_it_skipped_and_took(file: Path) -> None:
    bm25 = measure(file)
    assert (bm25["encoder"], bm25["strategy"]) == (None, "bm25")
    confident = {row["tau"]: row["skip"] for row in bm25["margin_sweep"]}
    for tau, skip in confident.items():
        found = measure(file, "--strategy", "cascade", "--tau", tau)
        assert found["skip"] == skip
        assert found["answered_by"].get("bm25", 0) == round(6 * skip)
        assert found["encoder"] == {"name": "letters", "version": "1", "default": True}
        assert found["parameters"]["strategy"]["tau"] == tau
    assert len(set(confident.values())) > 1
    assert measure(file, "--strategy", "cascade")["parameters"]["strategy"]["tau"] == 0.10
    given = measure(file, "--strategy", "cascade", "--encoder", "letters")
    assert given["encoder"] == {"name": "letters", "version": "1"}
    as_json = json.dumps(Cascade(0.3, escalate=NAMED["rrf"]).to_dict())
    assert set(measure(file, "--strategy", as_json)["answered_by"]) <= {"bm25", "rrf"}

    lines = run("eval", "locomo", file, "--preset", "opsem", "--strategy", "cascade", "--tau", "2").stdout.splitlines()
    scoring = "preset opsem, analyzer opsem, method lucene, k1 1.5, b 0.75, encoder letters (the default), backend "
    assert lines[0].startswith(f"locomo: n = 6, strategy cascade, {scoring}")
    assert lines[1] == "  answered by agent_rrf: 6; skipped 0.0%"


def test_a_policy_of_a_file(file: Path, tmp_path: Path) -> None:
    terms = ("puppy",)
    told = Classifier(("multi-hop", "single-hop"), terms, np.ones(1), np.array([[0.0], [9.0]]), np.array([1.0, 0.0]))
    table = {"single-hop": NAMED["bm25"], "multi-hop": NAMED["rrf"]}
    save(tmp_path / "router.json", Router(table, NAMED["dense"], told), {})
    for types, counts in (
        ("none", {"rrf": 4, "bm25": 2}),
        ("predicted", {"rrf": 4, "bm25": 2}),
        # LoCoMo's multi-hop questions are what AgentIR calls multi-session, which this table has not.
        ("oracle", {"bm25": 2, "dense": 4}),
    ):
        found = measure(file, "--policy", tmp_path / "router.json", "--types", types)
        assert dict(found["answered_by"]) == counts
        assert "skip" not in found
        assert found["parameters"]["types"] == types
    save(tmp_path / "cascade.json", Cascade(0.3), {})
    assert measure(file, "--policy", tmp_path / "cascade.json")["parameters"]["strategy"]["tau"] == 0.3
    found = measure(file, "--policy", tmp_path / "cascade.json", "--tau", "0", "--encoder", "letters")
    assert found["parameters"]["strategy"]["tau"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--strategy", "bm25", "--policy", "cascade.json"], "give a strategy or a policy, not both"),
        (["--tau", "0.1"], "tau is a cascade's threshold, and 'bm25' is none"),
        (["--strategy", "fused", "--tau", "0.1"], "tau is a cascade's threshold"),
        (["--encoder", "letters", "--tau", "0.1"], "--tau and --policy are for one strategy"),
        (["--strategy", "cascade", "--tau", "-1"], "tau must be"),
        (["--strategy", "cascade", "--types", "predicted"], "types 'predicted'"),
        (["--policy", "none.json"], "none.json"),
        (["--policy", "locomo.json"], "locomo.json"),
        (["--strategy", "cascades"], "unknown strategy 'cascades'"),
        (["--strategy", '{"kind":'], "not JSON"),
    ],
)
def test_slips_with_policies_are_one_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(file.parent)
    save(file.parent / "cascade.json", Cascade(0.3), {})
    assert said in fails("eval", "locomo", file, *arguments)


def test_each_has_a_figure_a_command_or_a_reason() -> None:
    rows = run_json("published")["headlines"]
    assert len(rows) == len(HEADLINES) > 30
    assert len({row["source"] for row in rows}) == 5
    assert all(row["here"] for row in rows)
    for row, headline in zip(rows, HEADLINES, strict=True):
        assert bool(row["command"]) == (not isinstance(headline.here, str) and not callable(headline.here))
    lines = run("published").stdout.splitlines()
    assert lines[0].startswith("AgentIR, Table 17: ")


def test_what_is_computed() -> None:
    here = {row["what"]: row["here"] for row in run_json("published")["headlines"]}
    assert here["tenants at 0, 63, 89 % skipped"] == "154, 416, 1,399"
    assert here["ms a query at 63.0 % skipped"] == "19.94"
    assert here["serial shares, FiQA and SciDocs"] == "0.31, 0.46"
    seconds, slow = simulated_session("sequential").split(" s, ")
    assert float(seconds) == pytest.approx(459.2, rel=0.03)
    assert float(slow.partition("%")[0]) == pytest.approx(75.5, abs=1.0)


def test_what_is_measured_is_exact(data: Path) -> None:
    needs(data, "locomo/locomo10.json")
    for row, headline in zip(run_json("published", "--data", data)["headlines"], HEADLINES, strict=True):
        if isinstance(headline.here, Evaluated) and headline.here.strategy == "bm25" and "LoCoMo" in row["what"]:
            assert float(row["here"]) == pytest.approx(float(row["published"]), abs=6e-4), row
