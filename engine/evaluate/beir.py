"""Loads datasets in the BEIR layout, and in those that MS MARCO and hand-made sets have (SPEC A110, A126).

=============== ================================ ==========================================================
part            files, the first that is there   form
=============== ================================ ==========================================================
documents       ``corpus.jsonl``                 an object a line: ``_id``, ``title``, ``text``
                ``collection.tsv``, corpus.tsv   MS MARCO: id, tab, text
queries         ``queries.jsonl``                an object a line: ``_id``, ``text``
                ``queries.<split>.tsv``,         MS MARCO: id, tab, text
                ``queries.tsv``
judgements      ``qrels/<split>.tsv``,           query, document, score; or TREC's four columns: query, iteration,
                ``qrels/<split>.txt``,           document, score
                ``qrels.<split>.tsv``
=============== ================================ ==========================================================
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..errors import DatasetError, DuplicateIdError, RecordError
from ..records.jsonl import read_json_lines
from ..records.query import Query
from ..records.record import Record
from .dataset import Dataset, RecordStream

LARGEST_GRADE = 2**31 - 1
"""trec_eval keeps grades in 32 bits and would count others wrongly."""

T = TypeVar("T")

_CORPUS = ("corpus.jsonl", "collection.tsv", "corpus.tsv")
_QUERIES = ("queries.jsonl", "queries.{split}.tsv", "queries.tsv")
_JUDGEMENTS = ("qrels/{split}.tsv", "qrels/{split}.txt", "qrels.{split}.tsv")


def load_beir(
    path: str | os.PathLike[str], *, split: str = "test", strict: bool = True, stream: bool = False
) -> Dataset:
    """Load the dataset in a directory in the BEIR or the MS MARCO layout. Its name is the directory's.

    - A document's text is its title, a space and its text, as BEIR joins them.
    - Only the queries that `split` judges are loaded, in the order of their file.
    - An id may be a whole number, which becomes its digits. A score is a whole number, and may be written ``1.0``.
    - A grade of 0 or less is kept and counts as not relevant.
    - A judgement of a document that the corpus lacks is an error. Without `strict` it is a relevant document that no
      system can find, as trec_eval counts it.
    - A query that is itself a document must not count as found. It has the document's id and ends with the same text,
      as in ArguAna. BEIR compares the id alone, which would remove true answers from a set that numbers queries and
      documents alike, such as Cranfield.
    - With `stream` the corpus is read twice, once here to check it and once by whoever iterates ``records``, and never
      held: 8 bytes a document stay during the check.

    Raises `DatasetError` for a missing or broken file, and `RecordError` for a broken line of documents or queries.
    Each names file and line.
    """
    root = Path(path)
    if not root.is_dir():
        raise DatasetError(f"{root}: not a directory; a BEIR set is one that holds corpus.jsonl, queries.jsonl, qrels/")
    judgements_file = _find(root, _JUDGEMENTS, split)
    if judgements_file is None:
        splits = sorted(file.stem for file in (root / "qrels").glob("*.t*"))
        expected = root / _JUDGEMENTS[0].format(split=split)
        raise DatasetError(f"{expected}: missing; splits there: {', '.join(splits) or 'none'}")
    corpus, queries_file = _found(root, _CORPUS, split), _found(root, _QUERIES, split)
    read = partial(_read, corpus, _document)
    held = None if stream else list(read())
    texts = _texts_of_queries(queries_file)
    judged = _read_judgements(judgements_file, texts, queries_file.name)
    if not judged:
        raise DatasetError(f"{judgements_file}: holds no judgement")
    queries = [Query(text, id=name) for name, text in texts.items() if name in judged]
    relevant = {query: judged[query].grades for query in texts if query in judged}
    wanted = {document for query in judged.values() for document in query.grades}
    checked = _check_corpus(read() if held is None else held, read, wanted, {q: texts[q] for q in relevant})
    if strict:
        for query in judged.values():
            for document, where in query.places.items():
                if document not in checked.found:
                    raise DatasetError(
                        f"{where}: {corpus.name} has no document {document!r}; with strict=False it counts as a "
                        "relevant document that nothing finds"
                    )
    records = RecordStream(lambda: (record for _, record in read()), checked.size)
    return Dataset(
        root.resolve().name,
        records if held is None else [record for _, record in held],
        queries,
        relevant,
        own=checked.own,
    )


def _find(root: Path, names: Iterable[str], split: str) -> Path | None:
    return next((file for name in names if (file := root / name.format(split=split)).is_file()), None)


def _found(root: Path, names: tuple[str, ...], split: str) -> Path:
    file = _find(root, names, split)
    if file is None:
        others = ", ".join(name.format(split=split) for name in names[1:])
        raise DatasetError(f"{root / names[0]}: missing, and so are {others}")
    return file


class _Corpus:
    """What one pass over the documents found."""

    def __init__(self) -> None:
        self.size = 0
        self.found: set[str] = set()
        """The judged documents that are there."""
        self.own: dict[str, str] = {}


def _check_corpus(
    documents: Iterable[tuple[str, Record]],
    read: Callable[[], Iterator[tuple[str, Record]]],
    judged: set[str],
    queries: Mapping[str, str],
) -> _Corpus:
    """Look at every document once. Raises `DuplicateIdError` for an id that stands there twice."""
    corpus = _Corpus()
    # A hash takes 8 bytes a document, a set of the ids about 100.
    hashes = array("q")
    for _, record in documents:
        hashes.append(hash(record.id))
        if record.id in judged:
            corpus.found.add(record.id)
        # The query repeats the document's text without its title.
        if record.id in queries and _ends_with(record.text, queries[record.id]):
            corpus.own[record.id] = record.id
    corpus.size = len(hashes)
    values = np.sort(np.frombuffer(hashes, dtype=np.int64))
    several = set(values[1:][values[1:] == values[:-1]].tolist())
    if several:
        _refuse_duplicates(read(), several)
    return corpus


def _refuse_duplicates(documents: Iterable[tuple[str, Record]], several: set[int]) -> None:
    """Raise `DuplicateIdError` for an id of these hashes that stands there twice; different ids may share a hash."""
    seen: set[str] = set()
    for where, record in documents:
        if hash(record.id) in several:
            if record.id in seen:
                raise DuplicateIdError("stands in an earlier line already", where=where, record_id=record.id)
            seen.add(record.id)


def _ends_with(document: str, query: str) -> bool:
    words = query.split()
    return bool(words) and document.split()[-len(words) :] == words


def _read(file: Path, parse: Callable[[Any], T]) -> Iterator[tuple[str, T]]:
    """(position, parsed object) of each line of a JSON lines file, or of a file of ids and texts parted by tabs."""
    if file.suffix != ".tsv":
        yield from read_json_lines(file, parse)
        return
    for where, line in _lines(file):
        name, tab, text = line.partition("\t")
        if not tab:
            raise RecordError(f"must be an id, a tab and a text: {line[:60]!r}", where=where)
        try:
            yield where, parse({"_id": name, "text": text})
        except RecordError as error:
            raise error.at(where) from None


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """(position, line without its end) of each line that is not blank."""
    with file.open("rb") as handle:
        for number, line in enumerate(handle, 1):
            if line.strip():
                where = f"{file.name}:{number}"
                try:
                    yield where, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise RecordError(f"not UTF-8 at byte {error.start}", where=where) from None


def _document(data: Any) -> Record:
    name = _id(data)
    parts = {part: data.get(part) or "" for part in ("title", "text")}
    if "text" not in data:
        raise RecordError("'text' is missing", record_id=name)
    for part, value in parts.items():
        if not isinstance(value, str):
            raise RecordError(f"{part!r} must be a string, not {type(value).__name__}", record_id=name)
    return Record(name, f"{parts['title']} {parts['text']}".strip())


def _query(data: Any) -> tuple[str, str]:
    name = _id(data)
    if not isinstance(data.get("text"), str):
        raise RecordError("a query's 'text' must be a string", record_id=name)
    return name, data["text"]


def _id(data: Any) -> str:
    if not isinstance(data, Mapping):
        raise RecordError(f"must be a JSON object, not {type(data).__name__}")
    name = data.get("_id")
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name)
    if not isinstance(name, str) or not name:
        raise RecordError(f"'_id' must be a non-empty string or a whole number, not {name!r}")
    return name


def _texts_of_queries(file: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for where, (name, text) in _read(file, _query):
        if name in texts:
            raise DuplicateIdError("stands in an earlier line already", where=where, record_id=name)
        texts[name] = text
    return texts


class _Judged:
    """A query's judgements: the grade of each document, and the position of its line."""

    def __init__(self) -> None:
        self.grades: dict[str, int] = {}
        self.places: dict[str, str] = {}


def _read_judgements(file: Path, queries: Mapping[str, str], queries_name: str) -> dict[str, _Judged]:
    judged: dict[str, _Judged] = {}
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise DatasetError(f"{file}: not UTF-8 at byte {error.start}") from None
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r")
        columns = line.split("\t") if "\t" in line else line.split()
        if not line.strip() or (number == 1 and columns[0] == "query-id"):
            continue
        where = f"{file}:{number}"
        if len(columns) not in (3, 4):
            raise DatasetError(
                f"{where}: must have 3 columns (query-id, corpus-id, score) or TREC's 4 (query, iteration, document, "
                f"score), parted by tabs or spaces: {line!r}"
            )
        query, document, printed = columns[0], columns[-2], columns[-1]
        if query not in queries:
            raise DatasetError(f"{where}: {queries_name} has no query {query!r}")
        grade = _grade(printed, where)
        of = judged.setdefault(query, _Judged())
        of.places.setdefault(document, where)
        if of.grades.setdefault(document, grade) != grade:
            raise DatasetError(f"{where}: document {document!r} was judged otherwise for query {query!r} before")
    return judged


def _grade(printed: str, where: str) -> int:
    try:
        grade = float(printed)
        if grade == int(grade) and abs(grade) <= LARGEST_GRADE:
            return int(grade)
    except (ValueError, OverflowError):
        pass
    raise DatasetError(
        f"{where}: the score must be a whole number of at most 32 bits, such as 1 or 1.0, not {printed!r}"
    )
