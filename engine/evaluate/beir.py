"""Loads datasets in the BEIR layout: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/<split>.tsv`` (SPEC A110)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DatasetError, DuplicateIdError, RecordError
from ..records.jsonl import read_json_lines
from ..records.query import Query
from ..records.record import Record
from .dataset import Dataset

T = TypeVar("T")


def load_beir(path: str | os.PathLike[str], *, split: str = "test", strict: bool = True) -> Dataset:
    """Load the dataset in a BEIR directory. Its name is the directory's.

    - A document's text is its title, a space and its text, as BEIR joins them.
    - Only the queries that `split` judges are loaded, in the order of ``queries.jsonl``.
    - A grade of 0 or less is kept and counts as not relevant.
    - A judgement of a document that the corpus lacks is an error. Without `strict` it is a relevant document that no
      system can find, as trec_eval counts it.
    - A query that is itself a document must not count as found. It has the document's id and ends with the same text,
      as in ArguAna. BEIR compares the id alone, which would remove true answers from a set that numbers queries and
      documents alike, such as Cranfield.

    Raises `DatasetError` for a missing or broken file, and `RecordError` for a broken line of the two JSON files. Each
    names file and line.
    """
    root = Path(path)
    if not root.is_dir():
        raise DatasetError(f"{root}: not a directory; a BEIR set is one that holds corpus.jsonl, queries.jsonl, qrels/")
    judgements_file = root / "qrels" / f"{split}.tsv"
    if not judgements_file.is_file():
        splits = sorted(file.stem for file in (root / "qrels").glob("*.tsv"))
        raise DatasetError(f"{judgements_file}: missing; splits there: {', '.join(splits) or 'none'}")
    records = list(_unique(root / "corpus.jsonl", _document, lambda record: record.id))
    texts = dict(_unique(root / "queries.jsonl", _query, lambda query: query[0]))
    judged = _read_judgements(judgements_file, {record.id for record in records} if strict else None, texts)
    if not judged:
        raise DatasetError(f"{judgements_file}: holds no judgement")
    queries = [Query(text, id=name) for name, text in texts.items() if name in judged]
    relevant = {query: judged[query] for query in texts if query in judged}
    # The query repeats the document's text without its title.
    self_ids = {r.id: r.id for r in records if r.id in relevant and _ends_with(r.text, texts[r.id])}
    return Dataset(root.resolve().name, records, queries, relevant, own=self_ids)


def _ends_with(document: str, query: str) -> bool:
    words = query.split()
    return bool(words) and document.split()[-len(words) :] == words


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
    if not isinstance(name, str) or not name:
        raise RecordError(f"'_id' must be a non-empty string, not {name!r}")
    return name


def _unique(file: Path, parse: Callable[[Any], T], name: Callable[[T], str]) -> Iterator[T]:
    if not file.is_file():
        raise DatasetError(f"{file}: missing")
    seen: set[str] = set()
    for where, item in read_json_lines(file, parse):
        if name(item) in seen:
            raise DuplicateIdError("stands in an earlier line already", where=where, record_id=name(item))
        seen.add(name(item))
        yield item


def _read_judgements(file: Path, documents: set[str] | None, queries: Mapping[str, str]) -> dict[str, dict[str, int]]:
    judged: dict[str, dict[str, int]] = {}
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise DatasetError(f"{file}: not UTF-8 at byte {error.start}") from None
    for number, line in enumerate(lines, 1):
        columns = line.rstrip("\r").split("\t")
        if not line.strip() or (number == 1 and columns[0] == "query-id"):
            continue
        where = f"{file}:{number}"
        if len(columns) != 3:
            raise DatasetError(f"{where}: must have 3 columns parted by tabs (query-id, corpus-id, score): {line!r}")
        query, document, printed = columns
        try:
            grade = int(printed)
        except ValueError:
            raise DatasetError(f"{where}: the score must be an integer, not {printed!r}") from None
        if query not in queries:
            raise DatasetError(f"{where}: queries.jsonl has no query {query!r}")
        if documents is not None and document not in documents:
            raise DatasetError(f"{where}: corpus.jsonl has no document {document!r}")
        if judged.setdefault(query, {}).setdefault(document, grade) != grade:
            raise DatasetError(f"{where}: document {document!r} was judged otherwise for query {query!r} before")
    return judged
