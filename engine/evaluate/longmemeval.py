"""Loads LongMemEval (``longmemeval_s.json`` and its variants), a haystack of chat sessions for each question.

Sources: SPEC A115, R12, R25.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple, get_args

from ..errors import DatasetError, ParameterError, choices
from ..records.query import Query
from ..records.record import Record
from .dataset import Dataset, Unit, build_at, by_exchange, expect, member, read_json

Text = Literal["user", "roles", "turns"]

_ABSTAIN = "_abs"  # ends the id of a question that its haystack cannot answer

_DATE = re.compile(r"\s*(\d{4})/(\d{1,2})/(\d{1,2})\s*(?:\([A-Za-z]+\))?\s*(\d{1,2}):(\d\d)\s*", re.ASCII)


def load_longmemeval(
    path: str | os.PathLike[str],
    *,
    text: Text = "roles",
    unit: Unit = "session",
    passages: bool = True,
    abstention: bool = False,
) -> Dataset:
    """Load the dataset ``longmemeval`` from an upstream JSON file.

    Every haystack is a namespace (its ``question_id``) and every session in it is a record.

    - `text`: ``user`` joins the user's turns by a space, as the upstream code does; ``roles`` gives a line
      ``role: content`` for each turn; ``turns`` gives the contents alone, a line for each turn.
    - `unit`: with ``turn`` each turn is a record, ``<session>_<number>`` counted from 1, and gold are those turns of
      the gold sessions that the file marks with ``has_answer``. A question without such a turn is dropped. With
      ``exchange`` a hit is a user's turn with its answer.
    - `passages`: those of the same turns that are not empty are embedded; otherwise a session is embedded as a whole.
    - `abstention`: keep the questions that the haystack cannot answer (``*_abs``); otherwise they are dropped. Their
      gold sessions are those that speak of nearly the same. One that names none counts 0 in every ranking metric.

    A query's gold records are its ``answer_session_ids``, and its `now` is the question's date. An entry may have
    several ``questions`` about its haystack, with a list of gold ids for each; their query ids are ``id:0``, ``id:1``,
    …. A list may be given as a string with a Python literal, as table exports write it. A session that a haystack names
    twice is kept once.

    Raises `DatasetError` or `RecordError`, naming file and place.
    """
    form = _Form(text, unit, passages)
    records: list[Record] = []
    queries: list[Query] = []
    relevant: dict[str, dict[str, int]] = {}
    categories: dict[str, str] = {}
    clusters: dict[str, str] = {}
    answers: dict[str, str] = {}
    unanswerable: set[str] = set()
    seen: set[str] = set()
    for number, entry in enumerate(expect(read_json(path), list, str(path))):
        where = f"{path}: entry {number}"
        entry = expect(entry, dict, where)
        space = member(entry, "question_id", str, where)
        if space in seen:
            raise DatasetError(f"{where}: 'question_id' {space!r} stands there twice")
        seen.add(space)
        abstains = space.endswith(_ABSTAIN)
        if abstains and not abstention:
            continue
        haystack = _haystack(entry, space, form, where)
        date = entry.get("question_date")
        now = None if date is None else _seconds(date, f"{where}: 'question_date'")
        asked = _questions(entry, space, where)
        golds = _answers(entry, len(asked), where)
        for (name, question, gold), answer in zip(asked, golds, strict=True):
            for session in gold:
                if session not in haystack:
                    raise DatasetError(f"{where}: gold session {session!r} is not in the haystack")
            if not gold and not abstains:
                raise DatasetError(f"{where}: question {name!r} has no answer session")
            found = [record_id for session in gold for record_id in haystack[session].gold]
            if not found and not abstains:
                continue
            queries.append(Query(question, namespace=space, id=name, now=now))
            relevant[name] = dict.fromkeys(found, 1)
            categories[name] = str(entry.get("question_type"))
            clusters[name] = space
            if answer is not None:
                answers[name] = answer
            if abstains:
                unanswerable.add(name)
        records.extend(record for session in haystack.values() for record in session.records)
    if not queries:
        raise DatasetError(f"{path}: holds no question that can be answered")
    dataset = Dataset(
        "longmemeval",
        records,
        queries,
        relevant,
        categories,
        clusters,
        answers=answers,
        unanswerable=frozenset(unanswerable),
    )
    return by_exchange(dataset) if unit == "exchange" else dataset


@dataclass(frozen=True)
class _Form:
    """How a session becomes records."""

    text: Text
    unit: Unit
    passages: bool

    def __post_init__(self) -> None:
        for name, value, known in (("text", self.text, get_args(Text)), ("unit", self.unit, get_args(Unit))):
            if value not in known:
                raise ParameterError(f"unknown {name} {value!r}{choices(value, known)}")


class _Session(NamedTuple):
    records: list[Record]
    gold: list[str]
    """Ids of the records that are gold where this session is."""


def _haystack(entry: Mapping[str, Any], space: str, form: _Form, where: str) -> dict[str, _Session]:
    names = _list(entry, "haystack_session_ids", where)
    sessions = _list(entry, "haystack_sessions", where)
    dates = _list(entry, "haystack_dates", where) if entry.get("haystack_dates") is not None else [None] * len(names)
    if not len(names) == len(sessions) == len(dates):
        raise DatasetError(
            f"{where}: {len(names)} session ids, {len(sessions)} sessions and {len(dates)} dates do not pair up"
        )
    haystack: dict[str, _Session] = {}
    for number, (name, session, date) in enumerate(zip(names, sessions, dates, strict=True)):
        place = f"{where}, session {number}"
        turns = _turns(_literal(session, place), form.text, place)
        time = None if date is None else _seconds(date, place)
        shared = {"namespace": space, "session": name, "time": time}
        if form.unit != "session":
            expect(name, str, f"{place}: the session's id")
            records = [
                build_at(place, Record, id=f"{name}_{turn.number}", text=turn.text, role=turn.role, **shared)
                for turn in turns
            ]
            gold = [record.id for record, turn in zip(records, turns, strict=True) if turn.gold]
        else:
            text = (" " if form.text == "user" else "\n").join(turn.text for turn in turns)
            spoken = [turn.text for turn in turns if turn.spoken] if form.passages else []
            records = [build_at(place, Record, id=name, text=text, passages=spoken or None, **shared)]
            gold = [name]
        kept = haystack.setdefault(name, _Session(records, gold))
        if [record.text for record in kept.records] != [record.text for record in records]:
            raise DatasetError(f"{place}: session {name!r} stands in the haystack twice, with different turns")
    return haystack


class _Turn(NamedTuple):
    number: int
    role: str
    text: str
    spoken: bool
    gold: bool


def _turns(session: list[Any], form: Text, where: str) -> list[_Turn]:
    turns = []
    for number, turn in enumerate(session):
        place = f"{where}, turn {number}"
        turn = expect(turn, dict, place)
        role = member(turn, "role", str, place)
        content = expect(turn.get("content") or "", str, f"{place}: 'content'")
        if form == "user" and role != "user":
            continue
        text = f"{role}: {content}" if form == "roles" else content
        turns.append(_Turn(number + 1, role, text, bool(content.strip()), turn.get("has_answer") is True))
    return turns


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


def _answers(entry: Mapping[str, Any], count: int, where: str) -> list[str | None]:
    """The gold answer of each of the entry's questions; None where the file has none. A number becomes its text."""
    if "questions" not in entry:
        golds = [entry.get("answer")]
    elif "answers" in entry:
        golds = _list(entry, "answers", where)
    else:
        golds = [None] * count
    if len(golds) != count:
        raise DatasetError(f"{where}: {count} questions, but {len(golds)} answers")
    return [None if answer is None else str(answer) for answer in golds]


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
