"""SGD replayed as an agent's memory, for the server. The synthetic memory is `fanrank.evaluation.SyntheticMemory`."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import fanrank as fr

from .paths import data_folder

START = 1577836800.0
"""2020-01-01 UTC, as a synthetic memory's."""
SGD_INTERVAL = 120.0
"""Seconds between two replayed records: about two years for all of SGD."""
SGD_LANES = 6
DIALOGUES_PER_USER = 20
DIMENSION = 64


@dataclass(frozen=True)
class Work:
    """What all systems hold and are asked. Vectors are drawn at random: a model's time is in no figure."""

    ids: Sequence[str]
    texts: Sequence[str]
    vectors: npt.NDArray[np.float32]
    """[records, DIMENSION] unit vectors."""
    questions: Sequence[str]
    question_vectors: npt.NDArray[np.float32]
    """[questions, DIMENSION]"""

    def vector_of(self, question: int) -> list[float]:
        return list(map(float, self.question_vectors[question]))


def load_work(records: int, questions: int) -> Work:
    """The first records of SGD as an agent's memory, and users' questions from what follows them."""
    replayed = replay_sgd(data_folder() / "sgd" / "train.turns.jsonl.gz")
    kept = [*islice(replayed, records)]
    asked = list(dict.fromkeys(each.text for each in islice(replayed, 20 * questions) if each.role == "user"))
    draw = np.random.default_rng(20)
    vectors, of_questions = (
        draw.standard_normal((count, DIMENSION), dtype=np.float32) for count in (len(kept), questions)
    )
    # Texts that recur have one vector, as a model would give it.
    place: dict[str, int] = {}
    vectors = vectors[[place.setdefault(record.text, number) for number, record in enumerate(kept)]]
    asked = [text for text in asked if text not in place][:questions]
    return Work(
        ids=[record.id for record in kept],
        texts=[record.text for record in kept],
        vectors=vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        questions=asked,
        question_vectors=(of_questions / np.linalg.norm(of_questions, axis=1, keepdims=True))[: len(asked)],
    )


def replay_sgd(
    path: Path, *, interval: float = SGD_INTERVAL, start: float = START, seed: int = 42
) -> Iterator[fr.Record]:
    """SGD as agent memory, in order of time; `path` is a ``.turns.jsonl.gz`` file or the folder that holds three.

    A dialogue is a session; several run side by side, and twenty dialogues in a row belong to one user. A tool call
    and its results are records of their own before the utterance that reports them. The service is the agent, and the
    method is the tool. Raises `OSError` if a file cannot be read.
    """
    random_numbers = random.Random(seed)
    dialogues = _dialogues(path)
    lanes = [iter(dialogue) for dialogue in islice(dialogues, SGD_LANES)]
    time = start
    while lanes:
        lane = random_numbers.randrange(len(lanes))
        turn = next(lanes[lane], None)
        if turn is None:
            following = next(dialogues, None)
            if following is None:
                del lanes[lane]
            else:
                lanes[lane] = iter(following)
            continue
        for fields in _parts(turn):
            time += random_numbers.expovariate(1 / interval)
            yield fr.Record(**fields, time=time)


def _dialogues(path: Path) -> Iterator[list[dict[str, Any]]]:
    files = [path / f"{split}.turns.jsonl.gz" for split in ("train", "dev", "test")] if path.is_dir() else [path]
    number = 0
    for file in files:
        dialogue: list[dict[str, Any]] = []
        split = file.name.split(".")[0]
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for turn in map(json.loads, lines):
                if dialogue and turn["dialogue_id"] != dialogue[0]["dialogue_id"]:
                    yield dialogue
                    dialogue, number = [], number + 1
                user = f"user-{number // DIALOGUES_PER_USER}"
                dialogue.append({**turn, "session": f"{split}-{turn['dialogue_id']}", "user": user})
        if dialogue:
            yield dialogue
            number += 1


def _parts(turn: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The records of a turn, without their times."""
    name = f"{turn['session']}-{turn['turn']}"
    shared = {"session": turn["session"], "user": turn["user"], "agent": turn["services"][0]}
    call = turn.get("service_call")
    if call:
        shared_by_tool = {**shared, "tool": call["method"]}
        text = f"{call['method']} {_flat(call['parameters'])}"
        yield {"id": f"{name}-call", "text": text, "role": "tool call", **shared_by_tool}
        results = "; ".join(map(_flat, turn.get("service_results") or ())) or "no results"
        yield {"id": f"{name}-output", "text": results, "role": "tool output", **shared_by_tool}
    role = "user" if turn["speaker"] == "USER" else "assistant"
    yield {"id": name, "text": turn["utterance"], "role": role, **shared}


def _flat(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name} {value}" for name, value in values.items())
