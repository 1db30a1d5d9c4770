"""SGD is replayed as an agent's memory without losing a turn."""

from __future__ import annotations

import gzip
import json
import sys
from itertools import islice, pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
try:
    from bench.harness import workload
    from bench.harness.workload import SGD_LANES
finally:
    sys.path.remove(str(ROOT))


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
