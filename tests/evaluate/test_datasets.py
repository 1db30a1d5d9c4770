"""The loaders on small files in the upstream layouts and on the real files; how recent gold records are."""

import json
from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from support.evaluations import needs

from fanrank.engine.errors import DatasetError, DuplicateIdError, ParameterError, RecordError
from fanrank.engine.evaluate import Dataset, gold_recency, load_beir, load_locomo, load_longmemeval
from fanrank.engine.evaluate.recency import DAY
from fanrank.engine.records.query import Query
from fanrank.engine.records.record import Record


def utc(*moment: int) -> float:
    return datetime(*moment, tzinfo=timezone.utc).timestamp()


def write_beir(root: Path, **files: str) -> Path:
    contents = {
        "corpus": '{"_id": "d1", "title": "Wings", "text": "lift and drag"}\n'
        '{"_id": "d2", "title": "", "text": "heat"}\n\n{"_id": "d3", "text": ""}\n',
        "queries": '{"_id": "q2", "text": "heat?"}\n{"_id": "q1", "text": "lift?"}\n{"_id": "q3", "text": "no"}\n',
        "test": "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td2\t1\n",
    }
    contents.update(files)
    (root / "qrels").mkdir(parents=True)
    for name, text in contents.items():
        (root / (f"{name}.jsonl" if name in ("corpus", "queries") else f"qrels/{name}.tsv")).write_text(text)
    return root


def test_beir(tmp_path: Path) -> None:
    found = load_beir(write_beir(tmp_path / "toy"))
    assert found.name == "toy"
    assert [(r.id, r.text, r.namespace) for r in found.records] == [
        ("d1", "Wings lift and drag", ""),
        ("d2", "heat", ""),
        ("d3", "", ""),
    ]
    assert [(q.id, q.text) for q in found.queries] == [("q2", "heat?"), ("q1", "lift?")]
    assert list(found.relevant) == ["q2", "q1"]
    assert found.relevant == {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}
    assert found.members() == {"": ["d1", "d2", "d3"]}


def test_beir_unknown_document_counts_as_lost_where_asked(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "toy", test="q1\td9\t1\n")
    with pytest.raises(DatasetError, match=r"test\.tsv:1: corpus\.jsonl has no document 'd9'; with strict=False"):
        load_beir(root)
    assert load_beir(root, strict=False).relevant == {"q1": {"d9": 1}}


def test_beir_query_that_is_a_document(tmp_path: Path) -> None:
    corpus = '{"_id": "q1", "title": "Topic", "text": "an argument"}\n{"_id": "q2", "text": "another text"}\n'
    queries = '{"_id": "q1", "text": " an  argument"}\n{"_id": "q2", "text": "a question"}\n'
    root = write_beir(tmp_path / "toy", corpus=corpus, queries=queries, test="q1\tq2\t1\nq2\tq2\t1\n")
    assert load_beir(root).own == {"q1": "q1"}


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"test": "query-id\tcorpus-id\tscore\nq1\td1\n"}, DatasetError, r"test\.tsv:2: must have 3 columns"),
        ({"test": "q1 0 d1 1 x\n"}, DatasetError, r"test\.tsv:1: must have 3 columns .* or TREC's 4"),
        ({"test": "q1\td1\t1\nq1\td2\thigh\n"}, DatasetError, r"test\.tsv:2: the score must be a whole number"),
        ({"test": "q1\td1\t0.5\n"}, DatasetError, r"test\.tsv:1: the score must be a whole number.*not '0\.5'"),
        (
            {"test": "q1\td1\t1e300\n"},
            DatasetError,
            r"test\.tsv:1: the score must be a whole number of at most 32 bits",
        ),
        ({"test": "q1\td1\t2147483648\n"}, DatasetError, r"must be a whole number of at most 32 bits"),
        ({"test": "q1\td1\tinf\n"}, DatasetError, r"test\.tsv:1: the score must be a whole number.*not 'inf'"),
        ({"test": "q9\td1\t1\n"}, DatasetError, r"test\.tsv:1: queries\.jsonl has no query 'q9'"),
        ({"test": "q1\td1\t1\nq1\td1\t2\n"}, DatasetError, r"test\.tsv:2: document 'd1' was judged otherwise"),
        ({"test": "query-id\tcorpus-id\tscore\n"}, DatasetError, r"test\.tsv: holds no judgement"),
        ({"corpus": '{"_id": "d1", "text": "a"}\n{"_id": "d1"'}, RecordError, r"corpus\.jsonl:2: not JSON"),
        ({"corpus": '{"_id": "d1", "text": "a"}\n' * 2}, DuplicateIdError, r"corpus\.jsonl:2, id 'd1'"),
        ({"corpus": '{"_id": "d1", "title": "a"}\n'}, RecordError, r"corpus\.jsonl:1, id 'd1': 'text' is missing"),
        ({"corpus": '{"_id": "d1", "text": 7}\n'}, RecordError, r"corpus\.jsonl:1, id 'd1': 'text' must be a string"),
        ({"corpus": '{"_id": 7.5, "text": "a"}\n'}, RecordError, r"corpus\.jsonl:1: '_id' must be a non-empty string"),
        ({"corpus": '{"_id": true, "text": "a"}\n'}, RecordError, r"'_id' must be .* or a whole number, not True"),
        ({"corpus": '{"_id": "\\ud800", "text": "a"}\n'}, RecordError, r"corpus\.jsonl:1: 'id' holds a lone"),
        ({"queries": '["q1"]\n'}, RecordError, r"queries\.jsonl:1: must be a JSON object, not list"),
        ({"queries": '{"_id": "q1"}\n'}, RecordError, r"queries\.jsonl:1, id 'q1': a query's 'text'"),
        ({"queries": '{"_id": "q1", "text": "a"}\n' * 2}, DuplicateIdError, r"queries\.jsonl:2, id 'q1'"),
    ],
)
def test_beir_broken(tmp_path: Path, files: dict[str, str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_beir(write_beir(tmp_path / "toy", **files))


def test_beir_missing_files(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="not a directory"):
        load_beir(tmp_path / "nowhere")
    root = write_beir(tmp_path / "toy", dev="q1\td3\t1\r\nq1\td3\t1\r\n\r\n")
    assert load_beir(root, split="dev").relevant == {"q1": {"d3": 1}}
    with pytest.raises(DatasetError, match=r"train\.tsv: missing; splits there: dev, test"):
        load_beir(root, split="train")
    (root / "qrels" / "test.tsv").write_bytes(b"q1\t\xff\t1\n")
    with pytest.raises(DatasetError, match="not UTF-8 at byte 3"):
        load_beir(root)
    (root / "corpus.jsonl").unlink()
    with pytest.raises(DatasetError, match=r"corpus\.jsonl: missing"):
        load_beir(root)


@pytest.mark.parametrize(
    ("name", "documents", "queries", "judgements", "grades"),
    [("scifact", 5183, 300, 339, {1}), ("cranfield", 1400, 225, 1837, {0, 1, 2, 3, 4})],
)
def test_beir_real(data: Path, name: str, documents: int, queries: int, judgements: int, grades: set[int]) -> None:
    found = load_beir(needs(data, name))
    assert (found.name, len(found.records), len(found.queries)) == (name, documents, queries)
    assert sum(map(len, found.relevant.values())) == judgements
    assert not found.own
    assert {grade for of in found.relevant.values() for grade in of.values()} == grades


def write_locomo(file: Path, **changes: Any) -> Path:
    entry: dict[str, Any] = {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ann",
            "session_10": [{"speaker": "Ann", "dia_id": "D10:1", "text": "Tenth."}],
            "session_10_date_time": "12:05 am on 1 January, 2024",
            "session_2": [
                {"speaker": "Ann", "dia_id": "D2:1", "text": "Look!", "blip_caption": "a red kite"},
                {"speaker": "Bo", "dia_id": "D2:2", "text": "Nice."},
            ],
            "session_2_date_time": "1:56 pm on 8 May, 2023",
            "session_3": [{"speaker": "Bo", "dia_id": "D3:1", "text": "Third."}],
            "session_11_date_time": "a date of a session that does not exist",
        },
        "qa": [
            {"question": "clean?", "evidence": ["D2:1", "D10:1", "D2:2"], "category": 1},
            {"question": "nothing?", "evidence": [], "category": 5},
            {"question": "compound?", "evidence": ["D3:1; D10:1"], "category": 2},
            {"question": "broken too?", "evidence": ["D", "D:11:26", "D10:05"], "category": 4},
            {"question": "absent?", "category": 3},
        ],
    }
    entry.update(changes)
    file.write_text(json.dumps([entry]))
    return file


def test_locomo_strict(tmp_path: Path) -> None:
    found = load_locomo(write_locomo(tmp_path / "l.json"))
    assert found.name == "locomo"
    assert [(r.id, r.namespace, r.session, r.text, r.time) for r in found.records] == [
        ("D2", "conv-1", "D2", "Ann: Look!\nBo: Nice.", utc(2023, 5, 8, 13, 56)),
        ("D3", "conv-1", "D3", "Bo: Third.", None),
        ("D10", "conv-1", "D10", "Ann: Tenth.", utc(2024, 1, 1, 0, 5)),
    ]
    assert [(q.id, q.text, q.namespace) for q in found.queries] == [
        ("conv-1:0", "clean?", "conv-1"),
        ("conv-1:3", "broken too?", "conv-1"),
    ]
    assert [list(r.passages) for r in found.records] == [["Ann: Look!", "Bo: Nice."], ["Bo: Third."], ["Ann: Tenth."]]
    assert found.relevant == {"conv-1:0": {"D2": 1, "D10": 1}, "conv-1:3": {"D10": 1}}
    assert found.categories == {"conv-1:0": "multi-hop", "conv-1:3": "single-hop"}
    assert found.clusters == {"conv-1:0": "conv-1", "conv-1:3": "conv-1"}


def test_locomo_lenient_takes_the_first_session_of_each_string(tmp_path: Path) -> None:
    found = load_locomo(write_locomo(tmp_path / "l.json"), gold="lenient", text="turns")
    assert found.relevant["conv-1:2"] == {"D3": 1}
    assert list(found.relevant) == ["conv-1:0", "conv-1:2", "conv-1:3"]
    assert found.records[0].text == "Look!\nNice."
    assert list(found.records[0].passages) == ["Look!", "Nice."]


def test_what_says_nothing_is_no_passage(tmp_path: Path) -> None:
    sessions = {
        "session_1": [{"speaker": "Ann", "text": " "}, {"speaker": "Bo", "text": "Hi."}],
        "session_2": [{"speaker": "Ann", "blip_caption": "a red kite"}],
        "session_3": [],
    }
    questions = [{"question": "who?", "evidence": ["D1:2"], "category": 1}]
    file = write_locomo(tmp_path / "l.json", conversation=sessions, qa=questions)
    found = load_locomo(file, captions=True)
    assert [r.text for r in found.records] == ["Ann:  \nBo: Hi.", "Ann:  a red kite", ""]
    assert [r.passages and list(r.passages) for r in found.records] == [["Bo: Hi."], None, None]


def test_locomo_date_and_captions(tmp_path: Path) -> None:
    found = load_locomo(write_locomo(tmp_path / "l.json"), date=True, captions=True)
    assert found.records[0].text == "1:56 pm on 8 May, 2023\nAnn: Look! a red kite\nBo: Nice."
    assert found.records[1].text == "Bo: Third."
    # One set of vectors serves every reading of the text.
    assert list(found.records[0].passages) == ["Ann: Look!", "Bo: Nice."]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sample_id": "\ud800"}, "conversation 0, session_2: id 'D2': 'namespace' holds a lone"),
        ({"sample_id": None}, "conversation 0: 'sample_id': must be a string, not NoneType"),
        ({"conversation": []}, "conversation 0: 'conversation': must be an object, not a list"),
        ({"conversation": {"session_1_date_time": "x"}}, "conversation 0: holds no session_<number>"),
        ({"conversation": {"session_1": {}}}, "session_1: must be a list, not an object"),
        ({"conversation": {"session_1": ["hi"]}}, "session_1, turn 0: must be an object, not a string"),
        ({"conversation": {"session_1": [{"text": "hi"}]}}, "session_1, turn 0: 'speaker' is missing"),
        ({"conversation": {"session_1": [], "session_1_date_time": "May 8"}}, "session_1: not a date like"),
        (
            {"conversation": {"session_1": [], "session_1_date_time": "1:00 am on 31 June, 2023"}},
            "session_1: not a date",
        ),
        ({"qa": {}}, "conversation 0: 'qa': must be a list"),
        ({"qa": [{"evidence": ["D2:1"]}]}, "question 0: 'question' is missing"),
        ({"qa": [{"question": "?", "evidence": ["D9:1"]}]}, "question 0: the evidence names session 9"),
        ({"qa": [{"question": "?", "evidence": "D2:1"}]}, "question 0: 'evidence': must be a list, not a string"),
        ({"qa": []}, "holds no question with evidence"),
    ],
)
def test_locomo_broken(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((DatasetError, RecordError), match=message) as caught:
        load_locomo(write_locomo(tmp_path / "l.json", **changes))
    assert "l.json" in str(caught.value)


@pytest.mark.parametrize("load", [load_locomo, load_longmemeval])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"qa": []}', "must be a list, not an object"),
        (b'[\n{"qa": [}\n]', r":2: not JSON"),
        (b"[\xff]", "not UTF-8 at byte 1"),
        (b"[" * 100_000, "nested too deeply|not JSON"),
        (b"[7]", "must be an object, not int"),
        (None, "cannot be read"),
    ],
)
def test_broken_top_level(tmp_path: Path, load: Any, content: bytes | None, message: str) -> None:
    file = tmp_path / "file.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DatasetError, match=message) as caught:
        load(file)
    assert "file.json" in str(caught.value)


def test_locomo_real(data: Path) -> None:
    file = needs(data, "locomo/locomo10.json")
    lenient, strict = load_locomo(file, gold="lenient", text="turns"), load_locomo(file)
    assert (len(lenient.queries), len(strict.queries)) == (1982, 1978)  # with evidence, and well-formed (SPEC X15)
    assert len(strict.records) == 272
    assert len(strict.members()) == 10
    assert all(record.time is not None for record in strict.records)
    assert sum(record.text.count("\n") + 1 for record in strict.records) >= 5882
    turns = {(r.namespace, r.id): len(list(r.passages)) for r in strict.records}
    assert sum(turns.values()) == 5882
    # SPEC D018: 186, 1,123 and 669 questions, by the turns of the longest gold session.
    longest = [max(turns[q.namespace, name] for name in strict.relevant[str(q.id)]) for q in strict.queries]
    assert Counter((n > 15) + (n > 25) for n in longest) == {0: 186, 1: 1123, 2: 669}
    # Questions by category (SPEC D017).
    assert Counter(strict.categories.values()) == {
        "multi-hop": 281,
        "temporal": 321,
        "single-hop": 841,
        "open-domain": 89,
        "adversarial": 446,
    }


TURNS = [
    {"role": "user", "content": "My dog is Rex.", "has_answer": True},
    {"role": "assistant", "content": "Good dog."},
    {"role": "user", "content": "Yes."},
]


def write_longmemeval(file: Path, *more: dict[str, Any], **changes: Any) -> Path:
    entry: dict[str, Any] = {
        "question_id": "e1",
        "question_type": "single-session-user",
        "question": "What is my dog called?",
        "answer": "Rex",
        "question_date": "2023/06/01 (Thu) 00:58",
        "haystack_dates": ["2023/05/25 (Thu) 20:21", "2023/05/27 (Sat) 10:20"],
        "haystack_session_ids": ["answer_1", "other"],
        "haystack_sessions": [TURNS, [{"role": "assistant", "content": "Hello."}]],
        "answer_session_ids": ["answer_1"],
    }
    entry.update(changes)
    file.write_text(json.dumps([{k: v for k, v in entry.items() if v is not None}, *more]))
    return file


def test_longmemeval(tmp_path: Path) -> None:
    file = write_longmemeval(tmp_path / "m.json", {"question_id": "e2_abs"})
    found = load_longmemeval(file)
    assert found.name == "longmemeval"
    assert [(r.id, r.namespace, r.text, r.time) for r in found.records] == [
        ("answer_1", "e1", "user: My dog is Rex.\nassistant: Good dog.\nuser: Yes.", utc(2023, 5, 25, 20, 21)),
        ("other", "e1", "assistant: Hello.", utc(2023, 5, 27, 10, 20)),
    ]
    (query,) = found.queries
    assert (query.id, query.namespace, query.now) == ("e1", "e1", utc(2023, 6, 1, 0, 58))
    assert found.relevant == {"e1": {"answer_1": 1}}
    assert found.categories == {"e1": "single-session-user"}
    assert [list(r.passages) for r in found.records] == [
        ["user: My dog is Rex.", "assistant: Good dog.", "user: Yes."],
        ["assistant: Hello."],
    ]
    of_the_user = load_longmemeval(file, text="user").records
    assert [r.text for r in of_the_user] == ["My dog is Rex. Yes.", ""]
    assert [r.passages and list(r.passages) for r in of_the_user] == [["My dog is Rex.", "Yes."], None]


def test_longmemeval_many_questions_of_one_haystack(tmp_path: Path) -> None:
    file = write_longmemeval(
        tmp_path / "m.json",
        question=None,
        questions=["a?", "b?"],
        answers=["x", "y"],
        answer_session_ids=[["answer_1", "other"], "['other']"],
        haystack_sessions=[repr(TURNS), "[]"],
        haystack_session_ids="['answer_1', 'other']",
        haystack_dates=None,
    )
    found = load_longmemeval(file)
    assert [(q.id, q.text, q.namespace) for q in found.queries] == [("e1:0", "a?", "e1"), ("e1:1", "b?", "e1")]
    assert found.relevant == {"e1:0": {"answer_1": 1, "other": 1}, "e1:1": {"other": 1}}
    assert found.clusters == {"e1:0": "e1", "e1:1": "e1"}
    assert [(r.text[:20], r.time) for r in found.records] == [("user: My dog is Rex.", None), ("", None)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question_id": None}, "entry 0: 'question_id' is missing"),
        ({"question": None}, "entry 0: 'question' is missing"),
        ({"answer_session_ids": None}, "entry 0: 'answer_session_ids' is missing"),
        ({"answer_session_ids": ["lost"]}, "entry 0: gold session 'lost' is not in the haystack"),
        ({"answer_session_ids": []}, "entry 0: question 'e1' has no answer session"),
        ({"answer_session_ids": [7]}, "'answer_session_ids': must be a string, not int"),
        ({"haystack_dates": []}, "2 session ids, 2 sessions and 0 dates do not pair up"),
        ({"haystack_dates": ["yesterday", "today"]}, "session 0: not a date like .*: 'yesterday'"),
        ({"haystack_sessions": "__import__('os').getcwd()"}, "'haystack_sessions': must be a list, or a list's"),
        ({"haystack_sessions": ["[1,", []]}, "session 0: must be a list, or a list's Python literal"),
        ({"haystack_sessions": "{}"}, "'haystack_sessions': must be a list, not an object"),
        ({"haystack_sessions": [[{"content": "hi"}], []]}, "session 0, turn 0: 'role' is missing"),
        ({"haystack_session_ids": ["answer_1"] * 2}, "session 1: session 'answer_1' stands in the haystack twice"),
        ({"questions": ["a?", "b?"]}, "entry 0: 2 questions, but 1 lists of answer sessions"),
        ({"question_id": "e1_abs"}, "holds no question that can be answered"),
    ],
)
def test_longmemeval_broken(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message) as caught:
        load_longmemeval(write_longmemeval(tmp_path / "m.json", **changes))
    assert "m.json" in str(caught.value)


def test_longmemeval_real(data: Path) -> None:
    folder = needs(data, "longmemeval_subset")
    many = load_longmemeval(folder / "longmemeval_s_3haystacks.json")
    assert (len(many.records), len(many.queries), len(many.members())) == (120, 26, 3)
    one = load_longmemeval(folder / "longmemeval_oracle_2items.json")
    assert (len(one.records), len(one.queries)) == (2, 1)  # the other item is an abstention
    assert all(record.time is not None for record in many.records)


def test_ranks_and_ages_by_hand() -> None:
    times = {"a": 0.0, "b": 4 * DAY, "c": 4 * DAY, "d": 10 * DAY, "e": None}
    records = [Record(name, "", "x", time=time) for name, time in times.items()]
    queries = [Query("", namespace="x", id="q0", now=12 * DAY), Query("", namespace="x", id="q1")]
    relevant = {"q0": {"d": 1, "e": 1, "a": 0}, "q1": {"a": 1, "b": 1}}
    dataset = Dataset("toy", records, queries, relevant, {"q0": "new", "q1": "old"})
    assert gold_recency(dataset) == {
        "all": {"n": 2, "median_rank": 0.375, "median_age_days": 5.0},
        "new": {"n": 1, "median_rank": 0.0, "median_age_days": 2.0},
        # The oldest of four stands at 1, the two of one time in the middle at .5; without a now the newest counts.
        "old": {"n": 1, "median_rank": 0.75, "median_age_days": 8.0},
    }
    early = replace(dataset, queries=[replace(query, now=0.0) for query in queries])
    assert gold_recency(early)["new"]["median_age_days"] == 0.0
    timeless = replace(dataset, records=[Record(name, "", "x") for name in times])
    with pytest.raises(ParameterError, match="no gold record of toy has a time"):
        gold_recency(timeless)
