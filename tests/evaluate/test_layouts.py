"""The other layouts of documents, queries and judgements; corpora that are streamed; ways to read conversations."""

import json
from pathlib import Path
from typing import Any

import pytest

from fanrank.engine.errors import DatasetError, DuplicateIdError, ParameterError, RecordError
from fanrank.engine.evaluate import load_beir, load_locomo, load_longmemeval
from fanrank.engine.evaluate.dataset import RecordStream
from fanrank.engine.evaluate.presets import check_reading

CORPUS = '{"_id": 1, "title": "Wings", "text": "lift"}\n{"_id": "2", "text": "heat"}\n{"_id": 3, "text": "cold"}\n'
QUERIES = '{"_id": 10, "text": "lift?"}\n{"_id": "11", "text": "heat?"}\n'


def write(root: Path, **files: str) -> Path:
    for name, text in {"corpus.jsonl": CORPUS, "queries.jsonl": QUERIES, **files}.items():
        if text:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    "files",
    [
        {"qrels/test.tsv": "query-id\tcorpus-id\tscore\n10\t1\t1.0\n11\t2\t2\n11\t3\t0.0\n"},
        {"qrels/test.tsv": "10\t0\t1\t1\n11\tQ0\t2\t2\n11\t0\t3\t0\n"},
        {"qrels/test.txt": "10 0 1 1\n11 0 2 2\n11  0  3  0\n"},
        {"qrels.test.tsv": "10\t0\t1\t1\n11\t0\t2\t2\n11\t0\t3\t0\r\n"},
        {
            "corpus.jsonl": "",
            "queries.jsonl": "",
            "collection.tsv": "1\tWings lift\n2\theat\n\n3\tcold\n",
            "queries.test.tsv": "10\tlift?\n11\theat?\n",
            "qrels.test.tsv": "10\t0\t1\t1\n11\t0\t2\t2\n11\t0\t3\t0\n",
        },
    ],
)
def test_layouts_of_one_set(tmp_path: Path, files: dict[str, str]) -> None:
    found = load_beir(write(tmp_path / "toy", **files))
    assert [(record.id, record.text) for record in found.records] == [("1", "Wings lift"), ("2", "heat"), ("3", "cold")]
    assert [(query.id, query.text) for query in found.queries] == [("10", "lift?"), ("11", "heat?")]
    assert found.relevant == {"10": {"1": 1}, "11": {"2": 2, "3": 0}}


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"corpus.jsonl": "", "collection.tsv": "1 Wings\n"}, RecordError, r"collection\.tsv:1: must be an id, a tab"),
        ({"corpus.jsonl": "", "collection.tsv": "\tWings\n"}, RecordError, r"collection\.tsv:1: '_id' must be"),
        ({"corpus.jsonl": ""}, DatasetError, r"corpus\.jsonl: missing, and so are collection\.tsv, corpus\.tsv"),
        ({"queries.jsonl": ""}, DatasetError, r"queries\.jsonl: missing, and so are queries\.test\.tsv, queries\.tsv"),
        ({"corpus.jsonl": CORPUS + '{"_id": 2, "text": ""}'}, DuplicateIdError, r"corpus\.jsonl:4, id '2': stands in"),
        ({"qrels/test.tsv": "10\t1\t1\n10\t9\t1\n"}, DatasetError, r"test\.tsv:2: corpus\.jsonl has no document '9'"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_broken_layouts(
    tmp_path: Path, files: dict[str, str], error: type[Exception], message: str, stream: bool
) -> None:
    root = write(tmp_path / "toy", **{"qrels/test.tsv": "10\t1\t1\n", **files})
    with pytest.raises(error, match=message):
        load_beir(root, stream=stream)


def test_a_stream_gives_the_list(tmp_path: Path) -> None:
    root = write(tmp_path / "toy", **{"qrels/test.tsv": "10\t1\t1\n11\t2\t1\n"})
    (root / "corpus.jsonl").write_text("".join(f'{{"_id": {n}, "text": "word{n}"}}\n' for n in range(500)))
    listed, streamed = load_beir(root), load_beir(root, stream=True)
    assert isinstance(streamed.records, RecordStream)
    assert list(streamed.records) == listed.records == list(streamed.records)
    assert (len(streamed.records), streamed.sizes(), listed.sizes()) == (500, {"": 500}, {"": 500})
    assert listed.records[0] in streamed.records
    assert (streamed.queries, streamed.relevant, streamed.own) == (listed.queries, listed.relevant, listed.own)


def test_readings_that_a_kind_does_not_have_are_named() -> None:
    with pytest.raises(ParameterError, match=r"beir is not read with 'captions'; locomo have it|locomo has"):
        check_reading("beir", {"captions": True})
    with pytest.raises(ParameterError, match=r"locomo is not read with 'colour'\. Its options: gold, text"):
        check_reading("locomo", {"colour": "red"})
    for load in (load_locomo, load_longmemeval):
        for slip in ({"unit": "word"}, {"text": "loud"}):
            with pytest.raises(ParameterError, match=r"unknown (unit|text) '.*'; there are: "):
                load("missing.json", **slip)


def write_locomo(file: Path, evidence: list[str]) -> Path:
    turns = {
        "session_1": [{"speaker": "Ann", "text": "I got Rex.", "dia_id": "D1:1", "blip_caption": "a dog"}],
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_2": [
            {"speaker": "Bo", "text": "", "dia_id": "D2:1"},
            {"speaker": "Ann", "text": "Rain.", "dia_id": "D2:2"},
        ],
    }
    questions: list[dict[str, Any]] = [
        {"question": "Who?", "answer": 7, "evidence": evidence, "category": 2},
        {"question": "Not told?", "adversarial_answer": "x", "evidence": ["D2:2"], "category": 5},
    ]
    file.write_text(json.dumps([{"sample_id": "c", "conversation": turns, "qa": questions}]))
    return file


def test_locomo_turns_are_records(tmp_path: Path) -> None:
    file = write_locomo(tmp_path / "l.json", ["D2:02", "D1:1", "D2:9", "D1:1; D2:1"])
    found = load_locomo(file, unit="turn", date=True, captions=True)
    assert [(r.id, r.session, r.text) for r in found.records] == [
        ("D1:1", "D1", "1:56 pm on 8 May, 2023\nAnn: I got Rex. a dog"),
        ("D2:1", "D2", "Bo: "),
        ("D2:2", "D2", "Ann: Rain."),
    ]
    assert all(record.passages is None for record in found.records)
    assert found.relevant == {"c:0": {"D1:1": 1, "D2:2": 1}, "c:1": {"D2:2": 1}}
    # Evidence of a turn that is not there is left out; where nothing stays, the question is.
    assert list(load_locomo(write_locomo(file, ["D2:9"]), unit="turn").relevant) == ["c:1"]
    # The lenient rule takes the first that a string names, and needs a turn.
    lenient = load_locomo(write_locomo(file, ["D1:1; D2:1", "D2"]), unit="turn", gold="lenient")
    assert lenient.relevant["c:0"] == {"D1:1": 1}
    assert [record.type for record in load_locomo(file, unit="turn", events=True).records] == ["Event"] * 3
    # Who speaks first in a session asks, and the answer's exchange is gold.
    dataset = load_locomo(file, unit="exchange", gold="lenient")
    assert [record.role for record in dataset.records] == ["user", "user", "other"]
    assert dataset.relevant == {"c:0": {"D1:1": 1}, "c:1": {"D2:1": 1}}


def test_locomo_answers(tmp_path: Path) -> None:
    found = load_locomo(write_locomo(tmp_path / "l.json", ["D1:1"]))
    assert found.answers == {"c:0": "7"}
    assert found.unanswerable == {"c:1"}


def test_locomo_turns_need_names_of_their_own(tmp_path: Path) -> None:
    text = write_locomo(tmp_path / "l.json", ["D1:1"]).read_text()
    (tmp_path / "l.json").write_text(text.replace("D2:2", "D2:1"))
    with pytest.raises(DatasetError, match=r"session_2: 'dia_id' 'D2:1' stands there twice"):
        load_locomo(tmp_path / "l.json", unit="turn")
    (tmp_path / "l.json").write_text(text.replace("dia_id", "id"))
    with pytest.raises(DatasetError, match=r"session_1: 'dia_id' is missing"):
        load_locomo(tmp_path / "l.json", unit="turn")


def entry(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "question_id": name,
        "question_type": "temporal-reasoning",
        "question": "When?",
        "answer": "In May",
        "answer_session_ids": ["s1"],
        "haystack_session_ids": ["s1", "s2"],
        "haystack_sessions": [
            [{"role": "user", "content": "May."}, {"role": "assistant", "content": "Noted.", "has_answer": True}],
            [{"role": "user", "content": "Hi.", "has_answer": True}],
        ],
        **changes,
    }


def test_longmemeval_keeps_abstention_questions_where_asked(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text(json.dumps([entry("q1"), entry("q2_abs"), entry("q3_abs", answer_session_ids=[])]))
    assert list(load_longmemeval(file).relevant) == ["q1"]
    found = load_longmemeval(file, abstention=True)
    assert found.relevant == {"q1": {"s1": 1}, "q2_abs": {"s1": 1}, "q3_abs": {}}
    assert found.unanswerable == {"q2_abs", "q3_abs"}
    assert found.answers == dict.fromkeys(("q1", "q2_abs", "q3_abs"), "In May")


def test_longmemeval_turns_are_records(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    unmarked = entry("q2", answer_session_ids=["s2"], haystack_sessions=[[], [{"role": "user", "content": "Hi."}]])
    file.write_text(json.dumps([entry("q1"), unmarked, entry("q3", answer_session_ids=["s2"])]))
    found = load_longmemeval(file, unit="turn", text="turns")
    assert [(r.id, r.session, r.role, r.text) for r in found.records if r.namespace == "q1"] == [
        ("s1_1", "s1", "user", "May."),
        ("s1_2", "s1", "assistant", "Noted."),
        ("s2_1", "s2", "user", "Hi."),
    ]
    # A marked turn outside the gold sessions is not gold, and a question without a marked turn is dropped.
    assert found.relevant == {"q1": {"s1_2": 1}, "q3": {"s2_1": 1}}
    assert load_longmemeval(file, unit="exchange").relevant == {"q1": {"s1_1": 1}, "q3": {"s2_1": 1}}
    of_the_user = load_longmemeval(file, unit="turn", text="user")
    assert [r.id for r in of_the_user.records if r.namespace == "q1"] == ["s1_1", "s2_1"]
    assert list(of_the_user.relevant) == ["q3"]
    (whole, _, *_) = load_longmemeval(file, text="turns", passages=False).records
    assert (whole.text, whole.passages) == ("May.\nNoted.", None)


def test_longmemeval_answers_pair_up_with_questions(tmp_path: Path) -> None:
    several = {"question": None, "questions": ["a?", "b?"], "answer_session_ids": [["s1"], ["s2"]]}
    file = tmp_path / "m.json"
    file.write_text(json.dumps([entry("q", **several, answers=[3, "x"])]))
    assert load_longmemeval(file).answers == {"q:0": "3", "q:1": "x"}
    file.write_text(json.dumps([entry("q", **several, answers=["x"])]))
    with pytest.raises(DatasetError, match="2 questions, but 1 answers"):
        load_longmemeval(file)
    file.write_text(json.dumps([entry("q", **several)]))
    assert load_longmemeval(file).answers == {}
