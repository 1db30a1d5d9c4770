"""Corpora as arrays of token numbers. They are prepared once, so that every system reads the same tokens quickly.

A prepared corpus is a folder of plain arrays. Three documents "b a", "", "a a" with the query "a" are:
vocabulary ``["b", "a"]``, tokens ``[0, 1, 1, 1]``, offsets ``[0, 2, 2, 4]``, query_tokens ``[1]``,
query_offsets ``[0, 1]``, query_texts ``["a"]``. A query holds each of its terms once, because systems weigh a
repeated query term differently, and this is not measured here. It holds no unknown terms.
"""

import gzip
import json
import random
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .cases import Corpus
from .paths import CACHE, data_folder

FORMAT = 1
WORD = re.compile(r"[a-z0-9]+")
SYNTHETIC_SHIFT = 10
"""Zipf-Mandelbrot shift. It removes the head of the distribution, where stop words would be: a query touches about a
quarter of all documents."""
SYNTHETIC_SPREAD = 0.5
BLOCK = 1 << 16
"""Tokens that are drawn, or turned into strings, at a time."""


@dataclass(frozen=True)
class Tokens:
    """A prepared corpus of N documents and Q queries."""

    name: str
    vocabulary: list[str]
    tokens: npt.NDArray[np.int32]  # [total length]
    offsets: npt.NDArray[np.int64]  # [N + 1]
    query_tokens: npt.NDArray[np.int32]
    query_offsets: npt.NDArray[np.int64]  # [Q + 1]
    query_texts: list[str]

    @property
    def documents(self) -> int:
        return len(self.offsets) - 1

    @property
    def queries(self) -> int:
        return len(self.query_offsets) - 1

    def each_document(self) -> Iterator[list[str]]:
        """Every document as a list of strings, one after another. Each term is one shared string object."""
        return _as_lists(self.tokens, self.offsets, self.vocabulary)

    def query_terms(self) -> list[list[str]]:
        """Every query as a list of distinct strings."""
        return list(_as_lists(self.query_tokens, self.query_offsets, self.vocabulary))

    def query_ids(self, query: int) -> npt.NDArray[np.int32]:
        """The token numbers of one query."""
        return self.query_tokens[self.query_offsets[query] : self.query_offsets[query + 1]]


def _as_lists(
    tokens: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], vocabulary: list[str]
) -> Iterator[list[str]]:
    strings = np.array(vocabulary, dtype=object)
    first, last = 0, len(offsets) - 1
    while first < last:
        stop = max(int(np.searchsorted(offsets, offsets[first] + BLOCK, side="right")) - 1, first + 1)
        words = strings[tokens[offsets[first] : offsets[stop]]].tolist()
        bounds = (offsets[first : stop + 1] - offsets[first]).tolist()
        for start, end in pairwise(bounds):
            yield words[start:end]
        first = stop


def folder_of(corpus: Corpus) -> Path:
    return CACHE / "corpora" / corpus.name


def prepare(corpus: Corpus) -> Path:
    """The folder of the prepared corpus; it is made if it is missing. Raises `FileNotFoundError` without the data."""
    folder = folder_of(corpus)
    stamp = json.dumps([FORMAT, corpus.stamp])
    if (folder / "stamp.json").is_file() and (folder / "stamp.json").read_text() == stamp:
        return folder
    tokens = {"beir": _beir, "sgd": _sgd, "synthetic": _synthetic}[corpus.source](corpus)
    save(tokens, folder, stamp)
    return folder


def save(tokens: Tokens, folder: Path, stamp: str) -> None:
    """Write a prepared corpus to `folder` in place of what is there. `stamp` says what it depends on."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("tokens", "offsets", "query_tokens", "query_offsets"):
        np.save(folder / f"{name}.npy", getattr(tokens, name))
    (folder / "texts.json").write_text(
        json.dumps({"name": tokens.name, "vocabulary": tokens.vocabulary, "query_texts": tokens.query_texts})
    )
    (folder / "stamp.json").write_text(stamp)


def load(folder: Path) -> Tokens:
    """A prepared corpus. The tokens are memory-mapped, so that all readers of a large corpus share its memory."""
    texts = json.loads((folder / "texts.json").read_text())
    arrays = {name: np.load(folder / f"{name}.npy") for name in ("offsets", "query_tokens", "query_offsets")}
    return Tokens(**texts, **arrays, tokens=np.load(folder / "tokens.npy", mmap_mode="r"))


def from_texts(name: str, documents: Iterable[str], queries: Iterable[str], stop: frozenset[str], limit: int) -> Tokens:
    """Tokens are lower-cased runs of letters and digits without `stop`; queries the first `limit` with a known one."""
    vocabulary: dict[str, int] = {}
    tokens: list[int] = []
    offsets = [0]
    for text in documents:
        kept = (word for word in WORD.findall(text.lower()) if word not in stop)
        tokens.extend(vocabulary.setdefault(word, len(vocabulary)) for word in kept)
        offsets.append(len(tokens))
    query_tokens: list[int] = []
    query_offsets = [0]
    query_texts: list[str] = []
    for text in queries:
        known = dict.fromkeys(vocabulary[word] for word in WORD.findall(text.lower()) if word in vocabulary)
        if known and len(query_texts) < limit:
            query_tokens.extend(known)
            query_offsets.append(len(query_tokens))
            query_texts.append(text)
    return Tokens(
        name,
        list(vocabulary),
        np.array(tokens, np.int32),
        np.array(offsets, np.int64),
        np.array(query_tokens, np.int32),
        np.array(query_offsets, np.int64),
        query_texts,
    )


def _stop_words(corpus: Corpus) -> frozenset[str]:
    if not corpus.stop_words:
        return frozenset()
    return frozenset((data_folder() / "stopwords" / "nltk_english.txt").read_text().split())


def document_texts(corpus: Corpus) -> Iterator[str]:
    """The texts of a corpus as they were written, one after another; of a synthetic one its words."""
    if corpus.source == "beir":
        rows = _json_lines(data_folder() / corpus.name / "corpus.jsonl")
        return (f"{row.get('title', '')} {row['text']}" for row in rows)
    if corpus.source == "sgd":
        return (row["utterance"] for row in sgd_turns())
    return (" ".join(terms) for terms in load(prepare(corpus)).each_document())


def _json_lines(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as handle:
        yield from map(json.loads, handle)


def sgd_turns() -> Iterator[dict[str, str]]:
    """Every turn of SGD; the splits number their dialogues alike, so a dialogue's id begins with its split."""
    for split in ("train", "dev", "test"):
        with gzip.open(data_folder() / "sgd" / f"{split}.turns.jsonl.gz", "rt", encoding="utf-8") as handle:
            for turn in map(json.loads, handle):
                yield {**turn, "dialogue_id": f"{split}-{turn['dialogue_id']}"}


def _beir(corpus: Corpus) -> Tokens:
    folder = data_folder() / corpus.name
    judged = {line.split("\t")[0] for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]}
    queries = [row["text"] for row in _json_lines(folder / "queries.jsonl") if row["_id"] in judged]
    random.Random(corpus.seed).shuffle(queries)
    return from_texts(corpus.name, document_texts(corpus), queries, _stop_words(corpus), corpus.queries)


def _sgd(corpus: Corpus) -> Tokens:
    documents: list[str] = []
    said_by_user: list[int] = []
    for row in sgd_turns():
        if row["speaker"] == "USER":
            said_by_user.append(len(documents))
        documents.append(row["utterance"])
    # Twice as many as needed, because a turn that holds only stop words makes no query.
    sample = random.Random(corpus.seed).sample(said_by_user, 2 * corpus.queries)
    return from_texts(corpus.name, documents, (documents[turn] for turn in sample), _stop_words(corpus), corpus.queries)


def _synthetic(corpus: Corpus) -> Tokens:
    assert corpus.documents is not None
    shape = corpus.shape
    random_numbers = np.random.default_rng(corpus.seed)
    weights = 1.0 / (np.arange(shape.vocabulary) + 1 + SYNTHETIC_SHIFT)
    cumulative = np.cumsum(weights / weights.sum())
    mean = np.log(shape.length) - SYNTHETIC_SPREAD**2 / 2
    lengths = np.maximum(1, random_numbers.lognormal(mean, SYNTHETIC_SPREAD, corpus.documents)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])

    def drawn(count: int) -> npt.NDArray[np.int32]:
        found = np.searchsorted(cumulative, random_numbers.random(count))
        return np.minimum(found, shape.vocabulary - 1).astype(np.int32)

    tokens = np.empty(int(offsets[-1]), np.int32)
    for start in range(0, len(tokens), BLOCK):
        tokens[start : start + BLOCK] = drawn(len(tokens[start : start + BLOCK]))
    vocabulary = [f"w{number}" for number in range(shape.vocabulary)]
    queries = []
    for document in random_numbers.integers(0, corpus.documents, corpus.queries):
        terms = np.unique(tokens[offsets[document] : offsets[document + 1]])
        low, high = shape.terms
        length = int(random_numbers.integers(low, high + 1))
        query = random_numbers.choice(terms, min(len(terms), length), replace=False)
        queries.append(query)
    return Tokens(
        corpus.name,
        vocabulary,
        tokens,
        offsets,
        np.concatenate(queries).astype(np.int32),
        np.cumsum([0, *map(len, queries)]),
        [" ".join(vocabulary[term] for term in query) for query in queries],
    )
