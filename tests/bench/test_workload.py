"""The synthetic memory is what it says, from its seed alone, and SGD is replayed without losing a turn."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest

import fanrank as fr

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
try:
    from bench.harness import workload
    from bench.harness.workload import BLOCK, ROLES, SGD_LANES, TWO_YEARS, WEEK, Memory
finally:
    sys.path.remove(str(ROOT))


@pytest.fixture(scope="module")
def records() -> list[fr.Record]:
    return list(Memory(6_000).stream())


# The synthetic memory


def test_the_seed_alone_decides(records: list[fr.Record]):
    assert list(workload.synthetic(6_000)) == records
    other = list(workload.synthetic(200, seed=7))
    assert [record.text for record in other] != [record.text for record in records[:200]]


def test_a_longer_memory_begins_with_a_shorter_one_and_any_stretch_can_be_made():
    longer = Memory(BLOCK + 300)
    around = list(longer.stream(BLOCK - 5, BLOCK + 5))
    assert [record.id for record in around] == [f"r{number}" for number in range(BLOCK - 5, BLOCK + 5)]
    assert list(Memory(BLOCK + 2).stream(BLOCK - 5)) == around[:7]
    assert list(longer.stream(40, 40)) == []


def test_the_end_of_a_large_memory_is_made_without_its_beginning(monkeypatch: pytest.MonkeyPatch):
    made = []
    block = workload._block
    monkeypatch.setattr(workload, "_block", lambda seed, number: made.append(number) or block(seed, number))
    assert next(Memory(5_000_000).stream(4_999_999)).id == "r4999999"
    assert made == [4_999_999 // BLOCK]


def test_times_ascend_at_the_rate_asked_for(records: list[fr.Record]):
    times = [float(record.time) for record in records]
    assert all(one <= other for one, other in pairwise(times))
    newest_four_weeks = sum(time >= times[-1] - 4 * WEEK for time in times)
    assert newest_four_weeks == pytest.approx(4 * workload.PER_WEEK, abs=2)
    assert Memory(6_000).times(100).tolist() == times[100:]
    assert Memory(BLOCK + 9).times(BLOCK + 2).tolist() == [r.time for r in Memory(BLOCK + 9).stream(BLOCK + 2)]
    within = list(workload.synthetic(1_000, span=TWO_YEARS))
    assert 0.99 * TWO_YEARS < float(within[-1].time) - float(within[0].time) <= TWO_YEARS


def test_sessions_are_told_in_turns(records: list[fr.Record]):
    sessions: dict[str, list[fr.Record]] = {}
    for record in records:
        sessions.setdefault(str(record.session), []).append(record)
    for own in sessions.values():
        assert len({record.user for record in own}) == len({record.agent for record in own}) == 1
        for before, after in pairwise(own):
            assert (after.role == "tool output") == (before.role == "tool call")
            if after.role == "tool output":
                assert after.tool == before.tool is not None
    assert 5 < len(records) / len(sessions) < 20
    assert any(len(own) > 1 and own[1].id != f"r{int(own[0].id[1:]) + 1}" for own in sessions.values())  # interleaved


def test_roles_tools_and_importance(records: list[fr.Record]):
    shares = {role: count / len(records) for role, count in Counter(record.role for record in records).items()}
    assert set(shares) == set(ROLES)
    assert all(shares[role] > 0.1 for role in ("user", "assistant", "tool call", "tool output"))
    assert 0.005 < shares["system"] < 0.06
    assert all((record.tool is not None) == str(record.role).startswith("tool") for record in records)
    assert all(0 <= float(record.importance) <= 1 for record in records)
    assert len({record.user for record in records}) > 20


def test_texts_have_about_twelve_words_and_sessions_repeat_themselves(records: list[fr.Record]):
    words = [record.text.split() for record in records]
    assert 11 < sum(map(len, words)) / len(words) < 13
    frequency = Counter(word for text in words for word in set(text))

    def rare(text: list[str]) -> set[str]:
        return {word for word in text if frequency[word] < 60}

    last: dict[str, set[str]] = {}
    own = strangers = 0
    previous: set[str] = set()
    for record, text in zip(records, words, strict=True):
        held = rare(text)
        own += bool(held & last.get(str(record.session), set()))
        strangers += bool(held & previous)
        last[str(record.session)] = previous = held
    assert own > 3 * strangers


def test_vocabulary_drifts():
    early, late = (
        {word for record in Memory(2 * BLOCK).stream(first, first + 2_000) for word in record.text.split()}
        for first in (0, 2 * BLOCK - 2_000)
    )
    assert len(early & late) / len(early) < 0.75


def test_words_are_distinct_and_no_stop_words():
    assert len(set(workload._usual_words())) == workload.COMMON + workload.TOPIC_POOL
    assert len({workload._word(number, 4) for number in range(10_000)}) == 10_000
    analyzer = fr.text.get_analyzer("nltk")
    assert all(len(analyzer(word)) == 1 for word in workload._usual_words()[:500])


# Questions


def test_questions_hold_words_of_their_gold_and_are_mostly_about_recent_records():
    memory = Memory(40_000)
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


def test_a_question_finds_its_record():
    memory = Memory(2_000)
    engine = fr.Engine.from_records(memory.stream(), backend="numpy")
    questions = memory.questions(50)
    hits = engine.search([question.text for question in questions])
    assert sum(question.gold in row for question, row in zip(questions, hits.ids.tolist(), strict=True)) > 45


# SGD


def turn(dialogue: str, number: int, utterance: str, **more: object) -> dict[str, object]:
    speaker = "SYSTEM" if number % 2 else "USER"
    shared = {"dialogue_id": dialogue, "services": ["Restaurants_1"], "turn": number}
    return {**shared, "speaker": speaker, "utterance": utterance, **more}


@pytest.fixture
def dialogues(tmp_path: Path) -> Path:
    call = {"method": "FindRestaurants", "parameters": {"city": "San Jose"}}
    lines = [
        turn(f"1_{number:05d}", place, f"dialogue {number} turn {place}{'?' if number % 2 else '.'}", **more)
        for number in range(SGD_LANES + 40)
        for place, more in (
            (0, {}),
            (1, {"service_call": call, "service_results": [{"city": "San Jose", "name": f"Inn {number}"}]}),
            (2, {}),
        )
    ]
    path = tmp_path / "dev.turns.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


def test_a_replay_holds_every_turn_and_tool_call(dialogues: Path):
    records = list(workload.replay_sgd(dialogues))
    assert len({record.id for record in records}) == len(records) == 5 * (SGD_LANES + 40)
    assert all(one.time < other.time for one, other in pairwise(records))  # type: ignore[operator]
    own = [record for record in records if record.session == "dev-1_00003"]
    assert [record.role for record in own] == ["user", "tool call", "tool output", "assistant", "user"]
    assert [record.text for record in own[1:3]] == ["FindRestaurants city San Jose", "city San Jose name Inn 3"]
    assert [record.tool for record in own] == [None, "FindRestaurants", "FindRestaurants", None, None]
    assert {record.agent for record in own} == {"Restaurants_1"}
    assert len({record.user for record in records}) == 3
    assert [record.session for record in records] != sorted(str(record.session) for record in records)
    assert list(workload.replay_sgd(dialogues)) == records


def test_questions_of_a_replay_ask_back(dialogues: Path):
    records = {record.id: record for record in workload.replay_sgd(dialogues)}
    questions = workload.sgd_questions(dialogues, 10)
    assert len(questions) == 10
    for question in questions:
        gold = records[question.gold]
        assert gold.role == "tool output"
        assert float(gold.time or 0) < question.now
        assert question.text.endswith(" turn 2?")
        assert question.text.split()[1] == gold.text.split()[-1]


def test_real_dialogues(data: Path):
    if not (data / "sgd").is_dir():
        pytest.skip(f"no folder {data / 'sgd'}; set FANRANK_DATA")
    records = list(islice(workload.replay_sgd(data / "sgd"), 5_000))
    assert {record.role for record in records} == {"user", "assistant", "tool call", "tool output"}
    assert all(one.time < other.time for one, other in pairwise(records))  # type: ignore[operator]
    assert len({record.id for record in records}) == 5_000
    assert len({record.agent for record in records}) >= 1
    assert all(record.tool for record in records if str(record.role).startswith("tool"))
