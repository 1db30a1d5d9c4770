"""Vectors and learned weights of an engine as its segments hold them, and as the records that it was given say."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

import fanrank as fr
from fanrank.engine.index import learned
from fanrank.engine.index.segment import Segment
from fanrank.engine.records.record import Record

D = 5
Bits = dict[tuple[str, str], bytes]


@dataclasses.dataclass
class Letters:
    """Counts the letters a to e, a vector a text; keeps what it was asked."""

    name: str = "letters"
    version: str = "1"
    dimension: int = D
    encodes: bool = True
    asked: list[list[str]] = dataclasses.field(default_factory=list)

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
        if not self.encodes:
            raise AssertionError("must not be asked")
        self.asked.append(list(texts))
        return np.array([self.one(text) for text in texts], dtype=np.float32)

    queries = documents

    @staticmethod
    def one(text: str) -> list[float]:
        return [text.count(letter) + 0.1 for letter in "abcde"]


@dataclasses.dataclass
class Terms:
    """Each word of a text is a term, which weighs as much as the version is long."""

    version: str = "1"
    name: str = "terms"

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> list[dict[str, float]]:
        return [dict.fromkeys(text.split(), float(len(self.version))) for text in texts]

    queries = documents


def own(dimension: int = D) -> Letters:
    return Letters("own", "1", dimension, encodes=False)


def bits(engine: fr.Engine) -> Bits:
    """The rows of every live document, read off the segments one by one."""
    found: Bits = {}
    for namespace, snapshot in engine.index.memory.snapshots.items():
        for number, part in enumerate(snapshot.segments):
            alive = snapshot.alive(number)
            for position, name in enumerate(part.ids.strings.tolist()):
                if alive is not None and not alive[position]:
                    continue
                rows = b""
                if part.vectors is not None:
                    assert len(part.vectors) == part.size
                    assert part.vectors.matrix.dtype == np.float16
                    assert not part.vectors.matrix.flags.writeable
                    start, end = part.vectors.offsets[position : position + 2].tolist()
                    rows = part.vectors.matrix[start:end].tobytes()
                assert (namespace, name) not in found
                found[namespace, name] = rows
    return found


def weights(engine: fr.Engine) -> dict[tuple[str, str], dict[str, int]]:
    """The integer weights of every live document, read off the nested snapshots."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    terms = engine.index.memory.weight_terms.strings
    for namespace, snapshot in engine.index.memory.snapshots.items():
        nested = snapshot.learned
        assert (nested.firsts, nested.numbers, nested.size) == (snapshot.firsts, snapshot.numbers, snapshot.size)
        df = dict.fromkeys(range(len(terms)), 0)
        for number, (part, inner) in enumerate(zip(snapshot.segments, nested.segments, strict=True)):
            assert inner is part.nested("learned")
            assert inner.ids is part.ids
            assert inner.columns is part.columns
            assert not inner.lengths.any()
            assert part.learned is None or part.learned.postings
            alive, theirs = snapshot.alive(number), nested.alive(number)
            np.testing.assert_array_equal(alive, theirs)
            names = part.ids.strings.tolist()
            for position, name in enumerate(names):
                if alive is None or alive[position]:
                    found[namespace, name] = {}
            for place, term in enumerate(inner.terms.tolist()):
                for posting in range(*inner.offsets[place : place + 2].tolist()):
                    document = int(inner.documents[posting])
                    if alive is None or alive[document]:
                        found[namespace, names[document]][terms[term]] = int(inner.frequencies()[0, posting])
                        df[term] += 1
        counted = nested.document_frequencies(np.arange(len(terms), dtype=np.int32))
        assert counted.tolist() == list(df.values())
    return found


Kept = dict[tuple[str, str], Record]


def expected_bits(kept: Kept) -> Bits:
    """By the records as they were given, their embeddings normalised once."""
    return {key: b"" if r.embedding is None else r.embedding.tobytes() for key, r in kept.items()}


def expected_weights(kept: Kept) -> dict[tuple[str, str], dict[str, int]]:
    step = learned.DOCUMENT_STEP
    return {
        key: {term: round(w / step) for term, w in (r.weights or {}).items() if round(w / step)}
        for key, r in kept.items()
    }


def check(engine: fr.Engine, kept: Kept) -> None:
    assert bits(engine) == expected_bits(kept)
    assert weights(engine) == expected_weights(kept)
    rows = sum(len(part.vectors.matrix) for part in segments_of(engine) if part.vectors is not None)
    postings = sum(part.nested("learned").postings for part in segments_of(engine))
    stats = engine.stats()
    assert (stats["vectors"], stats["weights"]) == (rows, postings)
    assert rows >= sum(0 if r.embedding is None else len(r.embedding) for r in kept.values())
    assert (stats["vector_bytes"] > 0) == (rows > 0)
    for namespace, snapshot in engine.index.memory.snapshots.items():
        assert snapshot.has_vectors == any(part.vectors is not None for part in snapshot.segments)
        own_stats = engine.namespace(namespace).stats()
        assert own_stats["weights"] == sum(part.nested("learned").postings for part in snapshot.segments)


def segments_of(engine: fr.Engine) -> list[Segment]:
    return [part for snapshot in engine.index.memory.snapshots.values() for part in snapshot.segments]
