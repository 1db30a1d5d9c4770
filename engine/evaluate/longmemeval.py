"""Loads LongMemEval (``longmemeval_s.json`` and its variants), a haystack of chat sessions for each question.

Sources: SPEC A115, R12, R25.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Literal

from ..errors import DatasetError
from ..records.query import Query
from ..records.record import Record
from .dataset import Dataset, build_at, expect, member, read_json

Text = Literal["user", "roles"]

_DATE = re.compile(r"\s*(\d{4})/(\d{1,2})/(\d{1,2})\s*(?:\([A-Za-z]+\))?\s*(\d{1,2}):(\d\d)\s*", re.ASCII)


def load_longmemeval(path: str | os.PathLike[str], *, text: Text = "roles") -> Dataset:
    """Load the dataset ``longmemeval`` from an upstream JSON file.

    Every haystack is a namespace (its ``question_id``) and every session in it is a record. `text` says how a session
    becomes a document: ``user`` joins the user's turns by a space, as the upstream code does; ``roles`` gives a line
    ``role: content`` for each turn. Those of the same turns that are not empty are the passages that are embedded.

    A query's gold records are its ``answer_session_ids``, and its `now` is the question's date. Questions that the
    haystack cannot answer (``*_abs``) are skipped. An entry may have several ``questions`` about its haystack, with a
    list of gold ids for each; their query ids are ``id:0``, ``id:1``, …. A list may be given as a string with a Python
    literal, as table exports write it. A session that a haystack names twice is kept once.

    Raises `DatasetError` or `RecordError`, naming file and place.
    """
    records: list[Record] = []
    queries: list[Query] = []
    relevant: dict[str, dict[str, int]] = {}
    categories: dict[str, str] = {}
    clusters: dict[str, str] = {}
    seen: set[str] = set()
    for number, entry in enumerate(expect(read_json(path), list, str(path))):
        where = f"{path}: entry {number}"
        entry = expect(entry, dict, where)
        space = member(entry, "question_id", str, where)
        if space in seen:
            raise DatasetError(f"{where}: 'question_id' {space!r} stands there twice")
        seen.add(space)
        if space.endswith("_abs"):
            continue
        haystack = _haystack(entry, space, text, where)
        date = entry.get("question_date")
        now = None if date is None else _seconds(date, f"{where}: 'question_date'")
        for name, question, gold in _questions(entry, space, where):
            for session in gold:
                if session not in haystack:
                    raise DatasetError(f"{where}: gold session {session!r} is not in the haystack")
            if not gold:
                raise DatasetError(f"{where}: question {name!r} has no answer session")
            queries.append(Query(question, namespace=space, id=name, now=now))
            relevant[name] = dict.fromkeys(gold, 1)
            categories[name] = str(entry.get("question_type"))
            clusters[name] = space
        records.extend(haystack.values())
    if not queries:
        raise DatasetError(f"{path}: holds no question that can be answered")
    return Dataset("longmemeval", records, queries, relevant, categories, clusters)


def _haystack(entry: Mapping[str, Any], space: str, form: Text, where: str) -> dict[str, Record]:
    names = _list(entry, "haystack_session_ids", where)
    sessions = _list(entry, "haystack_sessions", where)
    dates = _list(entry, "haystack_dates", where) if entry.get("haystack_dates") is not None else [None] * len(names)
    if not len(names) == len(sessions) == len(dates):
        raise DatasetError(
            f"{where}: {len(names)} session ids, {len(sessions)} sessions and {len(dates)} dates do not pair up"
        )
    records: dict[str, Record] = {}
    for number, (name, session, date) in enumerate(zip(names, sessions, dates, strict=True)):
        place = f"{where}, session {number}"
        parts, passages = _parts(_literal(session, place), form, place)
        record = build_at(
            place,
            Record,
            id=name,
            text=("\n" if form == "roles" else " ").join(parts),
            namespace=space,
            session=name,
            time=None if date is None else _seconds(date, place),
            passages=passages or None,
        )
        if records.setdefault(record.id, record).text != record.text:
            raise DatasetError(f"{place}: session {name!r} stands in the haystack twice, with different turns")
    return records


def _parts(session: list[Any], form: Text, where: str) -> tuple[list[str], list[str]]:
    """(the document's piece for each turn, a passage for each turn that is not empty)."""
    parts, passages = [], []
    for number, turn in enumerate(session):
        place = f"{where}, turn {number}"
        turn = expect(turn, dict, place)
        role = member(turn, "role", str, place)
        content = expect(turn.get("content") or "", str, f"{place}: 'content'")
        if form == "user" and role != "user":
            continue
        parts.append(f"{role}: {content}" if form == "roles" else content)
        if content.strip():
            passages.append(parts[-1])
    return parts, passages


def _questions(entry: Mapping[str, Any], space: str, where: str) -> list[tuple[str, str, list[str]]]:
    gold = _list(entry, "answer_session_ids", where)
    if "questions" not in entry:
        return [(space, member(entry, "question", str, where), _ids(gold, where))]
    questions = _list(entry, "questions", where)
    if len(questions) != len(gold):
        raise DatasetError(f"{where}: {len(questions)} questions, but {len(gold)} lists of answer sessions")
    return [
        (f"{space}:{number}", expect(question, str, f"{where}, question {number}"), _ids(_literal(ids, where), where))
        for number, (question, ids) in enumerate(zip(questions, gold, strict=True))
    ]


def _ids(values: list[Any], where: str) -> list[str]:
    return [expect(value, str, f"{where}: 'answer_session_ids'") for value in values]


def _list(entry: Mapping[str, Any], name: str, where: str) -> list[Any]:
    if name not in entry:
        raise DatasetError(f"{where}: {name!r} is missing")
    return _literal(entry[name], f"{where}: {name!r}")


def _literal(value: Any, where: str) -> list[Any]:
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            raise DatasetError(f"{where}: must be a list, or a list's Python literal: {value[:60]!r}") from None
    return expect(value, list, where)


def _seconds(moment: Any, where: str) -> float:
    match = _DATE.fullmatch(expect(moment, str, where))
    try:
        if match is None:
            raise ValueError("another form")
        parsed = datetime(*(int(part) for part in match.groups()), tzinfo=timezone.utc)  # type: ignore[arg-type, misc]
    except ValueError:
        raise DatasetError(f"{where}: not a date like '2023/05/25 (Thu) 20:21': {moment!r}") from None
    return parsed.timestamp()
