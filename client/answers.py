"""Answers of a server as the objects that the engine gives: hits, records, explanations, and errors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from ..engine import errors
from ..engine.carry.importing import Imported
from ..engine.carry.rows import from_json
from ..engine.errors import (
    FanrankError,
    KeyRefusedError,
    QueryError,
    RecordError,
    ServerError,
    UnknownColumnError,
    UnreachableError,
)
from ..engine.offered import Offered
from ..engine.records.decision import Decision
from ..engine.records.explanation import Explanation, FusedExplanation, explanation_of
from ..engine.records.hits import Hits, join_names
from ..engine.records.query import Query
from ..engine.records.record import Record
from ..engine.records.travelled import TravelledIds
from .calls import Asked

T = TypeVar("T")
Explain = Callable[[int, str], Explanation | FusedExplanation]


class Page(NamedTuple):
    """Records one after another, and where the next page begins: pass it as ``after``. None: nothing follows."""

    records: list[Record]
    after: str | None


def reader(read: Callable[..., T]) -> Callable[..., T]:
    """A function that reads an answer, and raises `UnreachableError` where the answer has another form."""

    @wraps(read)
    def checked(*arguments: Any) -> T:
        try:
            return read(*arguments)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            detail = "the answer has a form that this client does not know: is it a fanrank server of this version?"
            raise UnreachableError(detail) from error

    return checked


PER_HIT = "exchanges", "copies"
"""What may name several records for each hit."""


@reader
def read_hits(answers: Sequence[Any], asked: Asked, explain: Explain) -> Hits:
    """The hits of a batch that was answered in one part or in several."""
    rows = [row for answer in answers for row in answer["results"]]
    width = max(answer["width"] for answer in answers)
    shape = len(rows), width
    scores = np.full(shape, -np.inf)
    documents = np.full(shape, -1, dtype=np.int64)
    ids, spaces = np.full(shape, None, dtype=object), np.full(shape, None, dtype=object)
    listed = [np.full(shape, None, dtype=object) if any(name in row for row in rows) else None for name in PER_HIT]
    counts = np.array([len(row["ids"]) for row in rows], dtype=np.int32)
    reranked = np.full(shape, np.nan) if any(answer["reranked"] for answer in answers) else None
    records = np.full(shape, None, dtype=object) if asked.texts or asked.payload else None
    for number, (row, count) in enumerate(zip(rows, counts.tolist(), strict=True)):
        if not count:
            continue
        ids[number, :count] = row["ids"]
        scores[number, :count] = row["scores"]
        documents[number, :count] = row["documents"]
        spaces[number, :count] = row.get("namespaces", asked.queries[number].namespace)
        for name, array in zip(PER_HIT, listed, strict=True):
            if array is not None and name in row:
                array[number, :count] = np.fromiter(map(tuple, row[name]), dtype=object, count=count)
        if reranked is not None and "reranked" in row:
            reranked[number, :count] = [np.nan if score is None else score for score in row["reranked"]]
        if records is not None:
            records[number, :count] = [from_json(record)[0] for record in row["records"]]
    notes = [row.get("note") for row in rows]
    return Hits(
        scores,
        documents,
        counts,
        asked.queries,
        join_names([answer["backend"] for answer in answers]),
        TravelledIds(documents, ids, spaces, *listed),
        explain,
        reranked=reranked,
        decisions=tuple([Decision.of(row["decision"]) for row in rows]) if answers[0]["decided"] else None,
        source=_source(answers),
        annotator=lambda position, query: notes[position],
        records=records,
        texts=asked.texts,
        payload=asked.payload,
        missing_shards=tuple(sorted({shard for answer in answers for shard in answer.get("missing_shards", ())})),
        **_times(answers),
    )


def _times(answers: Sequence[Any]) -> dict[str, Any]:
    """The milliseconds and postings of an answer that brings them, added up over its parts."""
    if "timing" not in answers[0]:
        return {}
    timing: Counter[str] = Counter()
    for answer in answers:
        timing.update(answer["timing"])
    counted = [answer["postings"] for answer in answers]
    return {"timing": dict(timing), "postings": None if None in counted else sum(counted)}


def _source(answers: Sequence[Any]) -> list[int] | None:
    """The numbers of equal queries. Each part counts its own, so they are moved apart."""
    if any(answer["source"] is None for answer in answers):
        return None
    numbers: list[int] = []
    for answer in answers:
        start = len(numbers)
        numbers += [start + number for number in answer["source"]]
    return numbers


@reader
def read_records(answer: Any) -> list[Record | None]:
    """Records, None for those that are not there."""
    return [None if row is None else from_json(row)[0] for row in answer["records"]]


@reader
def read_number(answer: Any, name: str) -> int:
    """How many records, by the name that the answer gives to their number."""
    return int(answer[name])


@reader
def read_twins(answer: Any) -> list[tuple[str, ...]]:
    """The ids of each added record's twins."""
    return [tuple(map(str, ids)) for ids in answer["twins"]]


@reader
def read_namespaces(answer: Any) -> tuple[list[str], str | None]:
    """The names of namespaces, and where the next page begins, if there is one."""
    return [str(row["namespace"]) for row in answer["namespaces"]], answer.get("after")


@reader
def read_offered(answer: Any, verb: Offered) -> Any:
    """What a verb gave, as it is declared."""
    return verb.from_json(answer[verb.name])


def read_line(line: bytes) -> Record:
    """A record of a stream. Raises the error whose problem ended it."""
    row = _parsed(line)
    if "problem" in row and "text" not in row:
        raise_problem(row["problem"].get("status", 500), row["problem"])
    return _record(row)


@reader
def _parsed(line: bytes) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(line)
    row.get("problem", {}).keys()
    return row


@reader
def _record(row: Any) -> Record:
    return from_json(row)[0]


@reader
def read_imported(answer: Any) -> Imported:
    """What an import did."""
    return Imported(**answer)


@reader
def read_page(answer: Any) -> Page:
    """A page of records."""
    return Page([from_json(row)[0] for row in answer["records"]], answer["after"])


@reader
def read_explanation(answer: Any, position: int) -> Explanation | FusedExplanation:
    """The explanation of a score, for the query at this position of its batch."""
    return explanation_of(answer).at(position)


def checked_position(position: int, queries: Sequence[Query]) -> int:
    """The position in the batch, counted from its start. Raises `QueryError`."""
    if not -len(queries) <= position < len(queries):
        raise QueryError(f"no query {position} in a batch of {len(queries)}")
    return position % len(queries)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def raise_problem(status: int, document: Any) -> NoReturn:
    """Raise what the engine would have raised, or `ServerError` for what only a server refuses."""
    values = document if isinstance(document, dict) else {}
    code, detail = str(values.get("title", "")), str(values.get("detail", f"the server answered {status}"))
    field = values.get("field")
    kind = getattr(errors, code, None)
    if isinstance(kind, type) and issubclass(kind, FanrankError) and not issubclass(kind, ServerError):
        try:
            error = kind(detail)
        except TypeError:
            # Its constructor takes other arguments than a message.
            error = kind.__new__(kind, detail)
            error.args = (detail,)
        if isinstance(error, RecordError):
            error.where, error.record_id = _text(values.get("where")), _text(values.get("record"))
        elif isinstance(error, UnknownColumnError) and isinstance(columns := values.get("columns"), list):
            error.columns = tuple(map(str, columns))
        if isinstance(done := values.get("imported"), dict):
            error.imported = read_imported(done)
        raise error
    refused = KeyRefusedError if status in (401, 403) else ServerError
    where = f" ({field})" if field else ""
    raise refused(f"{detail}{where}", code=code, status=status, field=field)
