"""SGD replayed as an agent's memory, for the server. The synthetic memory is in `synthetic.py`."""

import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .paths import data_folder

SGD_LANES = 6
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
    following = islice(replayed, 20 * questions)
    asked = list(dict.fromkeys(text for _, text, by_user in following if by_user))
    draw = np.random.default_rng(20)
    vectors, of_questions = (
        draw.standard_normal((count, DIMENSION), dtype=np.float32) for count in (len(kept), questions)
    )
    # Texts that recur have one vector, as a model would give it.
    place: dict[str, int] = {}
    vectors = vectors[[place.setdefault(text, number) for number, (_, text, _) in enumerate(kept)]]
    asked = [text for text in asked if text not in place][:questions]
    return Work(
        ids=[name for name, _, _ in kept],
        texts=[text for _, text, _ in kept],
        vectors=vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        questions=asked,
        question_vectors=(of_questions / np.linalg.norm(of_questions, axis=1, keepdims=True))[: len(asked)],
    )


def replay_sgd(path: Path) -> Iterator[tuple[str, str, bool]]:
    """(id, text, whether a user said it) of SGD as agent memory. Several dialogues run side by side, each a session.

    A tool call and its results are records of their own before the utterance that reports them. Raises `OSError` if the
    file cannot be read.
    """
    random_numbers = random.Random(42)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        dialogues = (list(turns) for _, turns in groupby(map(json.loads, lines), lambda turn: turn["dialogue_id"]))
        lanes = [iter(dialogue) for dialogue in islice(dialogues, SGD_LANES)]
        while lanes:
            lane = random_numbers.randrange(len(lanes))
            turn = next(lanes[lane], None)
            if turn is not None:
                for record in _parts(turn, f"{path.name.split('.')[0]}-{turn['dialogue_id']}-{turn['turn']}"):
                    random_numbers.random()
                    yield record
            elif (following := next(dialogues, None)) is not None:
                lanes[lane] = iter(following)
            else:
                del lanes[lane]


def _parts(turn: Mapping[str, Any], name: str) -> Iterator[tuple[str, str, bool]]:
    if call := turn.get("service_call"):
        yield f"{name}-call", f"{call['method']} {_flat(call['parameters'])}", False
        yield f"{name}-output", "; ".join(map(_flat, turn.get("service_results") or ())) or "no results", False
    yield name, turn["utterance"], turn["speaker"] == "USER"


def _flat(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name} {value}" for name, value in values.items())
