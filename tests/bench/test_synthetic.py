"""The synthetic memory is what it says, from its seed alone, and its questions find their records."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.benches import load

import fanrank as fr

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


def test_times_ascend_at_the_rate_asked_for(records: list[fr.Record]):
    times = [float(record.time) for record in records]
    assert all(one <= other for one, other in pairwise(times))
    newest_four_weeks = sum(time >= times[-1] - 4 * WEEK for time in times)
    assert newest_four_weeks == pytest.approx(4 * synthetic.PER_WEEK, abs=2)
    assert SyntheticMemory(6_000).times(100).tolist() == times[100:]
    assert SyntheticMemory(BLOCK + 9).times(BLOCK + 2).tolist() == [
        r.time for r in SyntheticMemory(BLOCK + 9).stream(BLOCK + 2)
    ]


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
