"""Batches of candidates for the tests of fusion: as plain Python for the oracle, as arrays for what is tested."""

import math
import random
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from fanrank.engine.fuse.candidates import Candidates, Channel

DAY = 86_400.0
NOW = 1_700_000_000.0


@dataclass
class Evidence:
    """What a channel says of a document."""

    score: float = 0.0
    scored: bool = True
    listed: bool = True


@dataclass
class Document:
    number: int
    evidence: dict[str, Evidence]
    time: float = math.nan
    importance: float = math.nan


@dataclass
class FusionQuery:
    """One query and its candidates, by number."""

    documents: list[Document] = field(default_factory=list)
    now: float = NOW
    type: str | None = None


def batch_of(batch: list[FusionQuery], names: list[str]) -> Candidates:
    offsets = np.concatenate([[0], np.cumsum([len(asked.documents) for asked in batch])]).astype(np.int64)
    documents = [document for asked in batch for document in asked.documents]
    channels = {}
    for name in names:
        evidence = [document.evidence[name] for document in documents]
        channels[name] = Channel.of(
            np.array([own.score for own in evidence], dtype=np.float64),
            np.array([own.scored for own in evidence], dtype=np.bool_),
            np.array([own.listed for own in evidence], dtype=np.bool_),
            offsets,
        )
    return Candidates(
        offsets=offsets,
        documents=np.array([document.number for document in documents], dtype=np.int64),
        channels=channels,
        now=np.array([asked.now for asked in batch], dtype=np.float64),
        times=np.array([document.time for document in documents], dtype=np.float64),
        importance=np.array([document.importance for document in documents], dtype=np.float64),
        types=tuple(asked.type for asked in batch),
    )


def scores_of(*rows: list[float], name: str = "bm25") -> Candidates:
    """Queries whose one channel lists every candidate with these scores."""
    batch = [
        FusionQuery([Document(number, {name: Evidence(score)}) for number, score in enumerate(scores)])
        for scores in rows
    ]
    return batch_of(batch, [name])


TYPES = [None, "multi-session", "knowledge-update", "single-session-user", "unheard of"]
# Few values, so that ties and constant channels are common; quanta as BM25 has them, cosines as float16 rows give them.
LEXICAL = st.one_of(st.sampled_from([0.0, 1.0, 2.5]), st.integers(0, 1 << 25).map(lambda quanta: quanta / 2**18))
COSINES = st.one_of(st.sampled_from([-0.25, 0.0, 0.5, 1.0]), st.floats(-1.0, 1.001))


@st.composite
def batches(draw: st.DrawFn, *, signed: bool = True) -> list[FusionQuery]:
    """Ragged batches of bm25, dense and a channel that may list nothing; with `signed` cosines below 0 among them."""
    cosines = COSINES if signed else COSINES.map(abs)
    empty = draw(st.booleans())
    batch = []
    for _ in range(draw(st.integers(0, 4))):
        documents = []
        for number in sorted(draw(st.sets(st.integers(0, 99), max_size=7))):
            held, matched, extra = draw(st.booleans()), draw(st.booleans()), not empty and draw(st.booleans())
            evidence = {
                "bm25": Evidence(draw(LEXICAL) if matched else 0.0, True, matched),
                "dense": Evidence(draw(cosines) if held else 0.0, held, held and draw(st.booleans())),
                "other": Evidence(draw(cosines) if extra else 0.0, extra, extra),
            }
            time = draw(st.one_of(st.just(math.nan), st.floats(NOW - 4e7, NOW + 1e6), st.sampled_from([NOW, 0.0])))
            importance = draw(st.one_of(st.just(math.nan), st.floats(0.0, 1.0)))
            documents.append(Document(number, evidence, time, importance))
        batch.append(FusionQuery(documents, type=draw(st.sampled_from(TYPES))))
    return batch


def large(seed: int) -> list[FusionQuery]:
    """A batch of 30 queries with 0 to 300 candidates."""
    source = random.Random(seed)
    batch = []
    for _ in range(30):
        documents = []
        for number in range(source.choice([0, 1, 2, 3, 15, 16, 17, 80, 300])):
            matched, held = source.random() < 0.7, source.random() < 0.8
            evidence = {
                "bm25": Evidence(source.randrange(1, 1 << 23) / 2**18 if matched else 0.0, True, matched),
                "dense": Evidence(source.uniform(0.0, 1.0) if held else 0.0, held, held and source.random() < 0.5),
                "other": Evidence(0.5, True, source.random() < 0.1),
            }
            documents.append(Document(number, evidence, NOW - source.uniform(-1e5, 1e7), source.random()))
        batch.append(FusionQuery(documents, type=source.choice(TYPES)))
    return batch
