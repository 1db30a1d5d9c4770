"""An engine of six words and questions that BM25, or vectors alone, answer, for the tests of tuning."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import fanrank as fr
from fanrank.engine.tune.measure import Labelled

WORDS = ("tea", "error", "river", "deploy", "invoice", "garden")
AXES = np.eye(len(WORDS))


class Words:
    """An encoder of six words: the vector of a text is that of its last word. It counts what it encodes."""

    name, version, dimension = "words", "1", len(WORDS)

    def __init__(self) -> None:
        self.asked = 0

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
        return np.array([AXES[WORDS.index(text.split()[-1])] for text in texts], dtype=np.float32)

    def queries(self, texts: Sequence[str]) -> Any:
        self.asked += len(texts)
        return self.documents(texts)


def memory(encoder: Any = None) -> fr.Engine:
    """For each word a record that says it twice, and the word before it once."""
    records = [{"id": f"says {word}", "text": f"{WORDS[n - 1]} {word} {word}"} for n, word in enumerate(WORDS)]
    return fr.Engine.from_records(records, encoder=Words() if encoder is None else encoder, analyzer="minimal")


def lexical(word: str, type: str | None = None) -> Labelled:
    """BM25 finds it at rank 1 with a margin; the dense system does not."""
    other = WORDS[WORDS.index(word) - 2]
    return Labelled(fr.Query(f"{word} {word} {word} zzz {other}"), {f"says {word}": 1}, type)


def dense(word: str, type: str | None = None) -> Labelled:
    """The last word is meant; two records say as much, and the first to arrive stands in front."""
    place = WORDS.index(word)
    other = WORDS[place - 3]
    return Labelled(fr.Query(f"{other} {word}"), {f"says {word}": 1}, type)


SYSTEMS = ("bm25", "dense", "rrf")
MIXED = [make(word, name) for make, name in ((lexical, "name"), (dense, "sense")) for word in WORDS]
