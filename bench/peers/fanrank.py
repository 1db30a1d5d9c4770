"""fanrank itself, on its CPU backends. The analyzer `nltk` has the stop words and stemmer that others are given."""

import os
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.settings import ENVIRONMENT_VARIABLE

from ..harness.cases import K1, B
from .adapter import Arrays


class Peer:
    def __init__(self, stop: list[str]) -> None:
        self.stop = stop

    def version(self) -> str:
        return version("fanrank")

    def build(self, texts: Iterable[str], folder: Path, threads: int) -> None:
        records = (fr.Record(id=str(number), text=text) for number, text in enumerate(texts))
        options: Any = {"analyzer": "nltk", "method": "lucene", "k1": K1, "b": B, "keep_texts": False}
        self.engine = fr.Engine.from_records(records, threads=threads, **options)
        self.engine.flush()  # or due merges are not in what is saved
        self.engine.save(folder)

    def store(self, batches: Iterable[list[tuple[str, str]]], folder: Path) -> None:
        with fr.Engine.open(folder / "memory", analyzer="nltk") as engine:
            for batch in batches:
                engine.add([fr.Record(name, text) for name, text in batch])

    def open(self, folder: Path) -> str:
        name = os.environ.get(ENVIRONMENT_VARIABLE) or backend.choose(among=backend.CPU).name
        self.engine = fr.Engine.load(folder, backend=name)
        return name

    def ask(self, texts: list[str], k: int) -> Any:
        hits = self.engine.search(texts, k=k, threads=1)
        return hits.ids, hits.scores, hits

    def arrays(self, result: Any, k: int) -> Arrays:
        ids, scores, _ = result
        found = np.array([[-1 if name is None else int(name) for name in row] for row in ids], np.int64)
        return found, np.where(found >= 0, scores, 0.0)
