"""Answers of `recall` keep to their budget, and say what they leave out."""

from __future__ import annotations

import datetime as dt
import json
import random

import pytest
from support.tool_cases import NOW, asked, remembered, tools_of

import fanrank as fr
from fanrank.integrations.tool_answers import (
    BYTES_PER_TOKEN,
    LEAST_TEXT,
    Answer,
    cut,
    least_tokens,
    write,
    write_answers,
)

# --- Bounded answers


def answers_of(draw: random.Random, queries: int) -> list[Answer]:
    memories = [
        fr.Record(
            f"id-{number}" if draw.random() < 0.8 else f'"{number}\n' + "長" * draw.randint(1, 60),
            "".join(
                draw.choice(["word ", "ä", '"', "\n", "語", "🙂", "\x01"]) * draw.randint(1, 30)
                for _ in range(draw.randint(0, 60))
            ),
            time=draw.choice([None, NOW, 1e15, NOW - 52200]),
            type=draw.choice([None, "fact"]),
        )
        for number in range(40)
    ]
    return [
        Answer(
            draw.choice(["tea", "語" * 400, '"' * 500, "a\ud800"]),
            draw.sample(memories, draw.randint(0, 12)),
            "why" * 60,
        )
        for _ in range(queries)
    ]


@pytest.mark.parametrize("seed", range(24))
def test_an_answer_keeps_to_its_budget_and_says_what_it_leaves_out(seed: int) -> None:
    draw = random.Random(seed)
    queries = draw.randint(1, 20)
    answers = answers_of(draw, queries)
    tokens = draw.choice([least_tokens(queries), least_tokens(queries) + 300, 2000, 4000, 50_000])
    tokens = max(tokens, least_tokens(queries))
    text = write_answers(answers, ["type"], tokens, dt.timezone.utc)
    assert len(text.encode()) <= BYTES_PER_TOKEN * tokens
    value = json.loads(text)
    assert len(value["answers"]) == queries
    whole = {record.id: record.text for answer in answers for record in answer.memories}
    shown = {each["id"]: each["text"] for each in value["memories"]}
    assert len(shown) == len(value["memories"])
    short = [id for id, text in shown.items() if text != whole[id]]
    assert all("more characters]" in shown[id] for id in short)
    left_out = len(whole) - len(shown)
    assert (f"{left_out} more memories were found" in value.get("note", "")) == (left_out > 0)
    assert (f"{len(short)} of the texts" in value.get("note", "")) == (len(short) > 0)
    for answer, row in zip(answers, value["answers"], strict=True):
        assert row["ids"] == [record.id for record in answer.memories if record.id in shown]


def test_long_texts_share_the_room_and_short_ones_stay_whole() -> None:
    records = [fr.Record("long", "word " * 2000), fr.Record("other", "term " * 2000), fr.Record("short", "tea " * 20)]
    value = json.loads(write_answers([Answer("q", records)], [], 1000, dt.timezone.utc))
    long, other, short = (each["text"] for each in value["memories"])
    assert short == records[2].text
    assert abs(len(long) - len(other)) < 40
    kept = long.partition(" … [")[0]
    assert records[0].text.startswith(kept)
    assert long == f"{kept} … [{10_000 - len(kept):,} more characters]"
    assert 0.85 * 4000 < len(json.dumps(value, ensure_ascii=False).encode()) <= 4000


def test_the_last_ranks_are_left_out_first() -> None:
    rows = [[fr.Record(f"{row}.{rank}", "word " * 100) for rank in range(20)] for row in range(3)]
    value = json.loads(write_answers([Answer("q", row) for row in rows], [], 800, dt.timezone.utc))
    ranks = [[int(id.partition(".")[2]) for id in row["ids"]] for row in value["answers"]]
    assert all(row == [*range(len(row))] for row in ranks)
    assert max(map(len, ranks)) - min(map(len, ranks)) <= 1
    assert min(map(len, ranks)) >= 1
    # What is shown is long enough to be of use: a half of a word and the unused part of the mark may be missing.
    assert min(len(each["text"]) for each in value["memories"]) >= LEAST_TEXT - 60


@pytest.mark.parametrize("text", ["", "a", "語" * 500, "word " * 500, '"\\' * 500, "\x00" * 500, "🙂" * 500])
def test_a_cut_text_takes_its_size_in_json(text: str) -> None:
    for size in (LEAST_TEXT, 333, 1000):
        assert len(write(cut(text, size)).encode()) <= size


def test_a_memory_that_many_queries_find_is_told_once() -> None:
    tools = tools_of()
    [id] = remembered(tools, "Ana prefers tea")
    answer = asked(tools, "recall", {"queries": ["Ana", "tea", "prefers"]})
    assert [row["ids"] for row in answer["answers"]] == [[id]] * 3
    assert len(answer["memories"]) == 1
