"""Searchers with given answers or that are counted, and an encoder without a model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fanrank.engine.hybrid.strategy import Strategy
from fanrank.engine.records.decision import Decision
from fanrank.engine.records.query import Query
from fanrank.engine.searcher import Searcher


def needs(data: Path, name: str) -> Path:
    """What the folder of datasets has by this name; skips the test where it has nothing."""
    if not (data / name).exists():
        pytest.skip(f"no {name} in {data}; set FANRANK_DATA to the folder that holds it")
    return data / name


class Answers(list[list[tuple[str, float]]]):
    """Of `Hits`, what an evaluation looks at."""

    backend = "scripted"
    timing = {"bm25": 3.0, "dense": 1.0}  # noqa: RUF012
    decisions: tuple[Decision, ...] | None = None


class Scripted:
    """A searcher with given answers and decisions by query id, which keeps the strategies that it was asked for."""

    def __init__(
        self, answers: dict[str, list[tuple[str, float]]], decisions: dict[str, Decision] | None = None
    ) -> None:
        self.answers, self.decisions = answers, decisions
        self.asked: list[Strategy | None] = []

    def search(
        self, queries: Sequence[Query], k: int = 10, *, strategy: Any = None, threads: int = 1, timing: bool = False
    ) -> Any:
        self.asked.append(strategy)
        found = Answers(self.answers[str(query.id)][:k] for query in queries)
        if self.decisions is not None:
            found.decisions = tuple(self.decisions[str(query.id)] for query in queries)
        return found


class Letters:
    """An encoder of letter counts that remembers what it was asked for."""

    name, version, dimension = "letters", "1", 26

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.embedded: list[str] = []

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
        self.embedded += texts
        return self._rows(texts)

    def queries(self, texts: Sequence[str]) -> Any:
        self.asked += texts
        return self._rows(texts)

    def _rows(self, texts: Sequence[str]) -> Any:
        return np.array([[t.lower().count(chr(97 + n)) + 0.1 for n in range(26)] for t in texts], dtype=np.float32)


def write_locomo(file: Path, *, marathon: int = 4) -> Path:
    """Two conversations of three sessions; the second question of each is of the category `marathon`.
    Only the caption of a picture answers the third."""
    sessions = {
        "session_1": [{"speaker": "Ann", "text": "I adopted a puppy called Rex in the spring."}],
        "session_2": [{"speaker": "Bo", "text": "The marathon in Berlin was rainy."}],
        "session_3": [{"speaker": "Ann", "text": "Rex ate my marathon shoes.", "blip_caption": "Unrelated"}],
    }
    questions = [
        {"question": "What is the name of the puppy?", "evidence": ["D1:1"], "category": 4},
        {"question": "Where was the rainy marathon?", "evidence": ["D2:1"], "category": marathon},
        {"question": "Quite unrelated words?", "evidence": ["D3:1"], "category": 5},
    ]
    talks = [{"sample_id": f"c{n}", "conversation": sessions, "qa": questions} for n in range(2)]
    file.write_text(json.dumps(talks))
    return file


def count_searches(monkeypatch: Any) -> list[int]:
    """The sizes of the searches from now on."""
    sizes: list[int] = []
    search = Searcher.search

    def counted(self: Searcher, queries: Any, k: int, keywords: Any) -> Any:
        sizes.append(len(queries))
        return search(self, queries, k, keywords)

    monkeypatch.setattr(Searcher, "search", counted)
    return sizes
