"""Loads LoCoMo (``locomo10.json``), long conversations whose sessions are the records (A120, D008, R10, R40 to R42).

Two publications read the same file in different ways, so the reading is a parameter:

========== ============================================== =========================================
parameter  first value                                    second value
========== ============================================== =========================================
gold       lenient (R40): the first ``D<number>`` of each strict (R41): an evidence string counts if
           evidence string                                it is ``D<session>:<turn>`` and no more
text       turns (R40): the turns' texts                  speakers (R10): ``Speaker: text``
========== ============================================== =========================================

A question without a gold session is dropped: of 1,986 questions the lenient rule keeps 1,982 and the strict rule 1,978.

With the unit ``turn`` each turn is a record, and gold are the turns that the evidence names by the same rule; evidence
of a turn that is not there is left out (2 strings of the upstream file). With ``exchange`` the same records are ranked
by exchanges (`by_exchange`): who speaks first in a session asks, and the other answers.

The passages that are embedded are the turns that are not empty, in the form of `text`, without date and captions
(D002). Without `passages` a session's whole text is one vector, as in the first source (X16).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Literal, get_args

from ..errors import DatasetError, ParameterError, choices
from ..index.neighbours import USER
from ..records.query import Query
from ..records.record import Record
from .dataset import Dataset, Unit, build_at, by_exchange, expect, member, read_json

Gold = Literal["lenient", "strict"]
Text = Literal["turns", "speakers"]

OTHER = "other"
"""The role of who answers: a person, and no assistant."""

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}

_SESSION = re.compile(r"session_(\d+)", re.ASCII)
_LENIENT = re.compile(r"D(\d+)(?::(\d+))?", re.ASCII)
_STRICT = re.compile(r"\s*D(\d+):(\d+)\s*", re.ASCII)
_DATE = re.compile(
    r"\s*(\d{1,2}):(\d\d)\s*([ap])m\s+on\s+(\d{1,2})\s+([a-z]+),?\s+(\d{4})\s*", re.ASCII | re.IGNORECASE
)
# Listed here because strptime's %B and %p depend on the locale.
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def load_locomo(
    path: str | os.PathLike[str],
    *,
    gold: Gold = "strict",
    text: Text = "speakers",
    unit: Unit = "session",
    date: bool = False,
    captions: bool = False,
    passages: bool = True,
    events: bool = False,
) -> Dataset:
    """Load the dataset ``locomo`` from the upstream JSON file.

    A conversation is a namespace (its ``sample_id``) and a cluster. Session n is the record ``Dn``: its text has one
    line for each turn, and its time is the session's date, read as UTC. Question i of conversation c has the id
    ``c:i``.

    - `gold`: ``lenient`` takes the first session or turn that each evidence string names, ``strict`` leaves out a
      string that is not one ``D<session>:<turn>`` and no more. A question without gold is dropped.
    - `text`: ``turns`` takes the turns' texts, ``speakers`` makes lines ``Speaker: text``
    - `unit`: with ``turn`` each turn is a record, with its ``dia_id`` as its id and the session's time; with
      ``exchange`` a hit is a turn with its answer
    - `date`: the session's date is the first line of each record
    - `captions`: the caption of a turn's picture follows the turn's text
    - `passages`: each turn is embedded; otherwise a session is embedded as a whole
    - `events`: records are of type ``Event``, which the temporal channel lists

    Raises `DatasetError` or `RecordError`, naming file and place.
    """
    for name, value, known in (
        ("gold", gold, get_args(Gold)),
        ("text", text, get_args(Text)),
        ("unit", unit, get_args(Unit)),
    ):
        if value not in known:
            raise ParameterError(f"unknown {name} {value!r}{choices(value, known)}")
    conversations = expect(read_json(path), list, str(path))
    records: list[Record] = []
    queries: list[Query] = []
    relevant: dict[str, dict[str, int]] = {}
    categories: dict[str, str] = {}
    clusters: dict[str, str] = {}
    answers: dict[str, str] = {}
    unanswerable: set[str] = set()
    seen: set[str] = set()
    for number, entry in enumerate(conversations):
        where = f"{path}: conversation {number}"
        entry = expect(entry, dict, where)
        space = member(entry, "sample_id", str, where)
        if space in seen:
            raise DatasetError(f"{where}: 'sample_id' {space!r} stands there twice")
        seen.add(space)
        sessions = _sessions(member(entry, "conversation", dict, where), where)
        ids: set[str] = set()
        for session, (turns, moment) in sessions.items():
            place = f"{where}, session_{session}"
            lines = _lines(turns, text, captions, place)
            time = None if moment is None else _seconds(moment, place)
            first = [moment] if date and moment is not None else []
            shared = {"namespace": space, "session": f"D{session}", "type": "Event" if events else None, "time": time}
            if unit != "session":
                asks = member(turns[0], "speaker", str, place) if unit == "exchange" and turns else None
                for turn, (line, _) in zip(turns, lines, strict=True):
                    record_id = member(turn, "dia_id", str, place)
                    if record_id in ids:
                        raise DatasetError(f"{place}: 'dia_id' {record_id!r} stands there twice")
                    ids.add(record_id)
                    role = None if asks is None else USER if turn["speaker"] == asks else OTHER
                    whole = "\n".join([*first, line])
                    records.append(build_at(place, Record, id=record_id, text=whole, role=role, **shared))
                continue
            ids.add(f"D{session}")
            spoken = [passage for _, passage in lines if passage] if passages else []
            whole = "\n".join([*first, *(line for line, _ in lines)])
            records.append(build_at(place, Record, id=f"D{session}", text=whole, passages=spoken or None, **shared))
        for position, question in enumerate(member(entry, "qa", list, where)):
            place = f"{where}, question {position}"
            question = expect(question, dict, place)
            found = _gold(question, gold, unit, place)
            if unit != "session":
                found = [name for name in found if name in ids]
            if not found:
                continue
            for name in found:
                if name not in ids:
                    raise DatasetError(f"{place}: the evidence names session {name[1:]}, which is not there")
            name = f"{space}:{position}"
            queries.append(Query(member(question, "question", str, place), namespace=space, id=name))
            relevant[name] = dict.fromkeys(found, 1)
            category = question.get("category")
            categories[name] = CATEGORIES.get(category, str(category)) if isinstance(category, int) else str(category)
            clusters[name] = space
            if question.get("answer") is not None:
                answers[name] = str(question["answer"])
            elif "adversarial_answer" in question:
                unanswerable.add(name)
    if not queries:
        raise DatasetError(f"{path}: holds no question with evidence")
    dataset = Dataset(
        "locomo",
        records,
        queries,
        relevant,
        categories,
        clusters,
        answers=answers,
        unanswerable=frozenset(unanswerable),
    )
    return by_exchange(dataset) if unit == "exchange" else dataset


def _sessions(conversation: Mapping[str, Any], where: str) -> dict[int, tuple[list[Any], str | None]]:
    sessions: dict[int, tuple[list[Any], str | None]] = {}
    # The upstream file also holds dates of sessions that do not exist.
    for key, turns in conversation.items():
        if match := _SESSION.fullmatch(key):
            moment = conversation.get(f"{key}_date_time")
            if moment is not None:
                moment = expect(moment, str, f"{where}, {key}_date_time")
            sessions[int(match[1])] = (expect(turns, list, f"{where}, {key}"), moment)
    if not sessions:
        raise DatasetError(f"{where}: holds no session_<number>")
    return dict(sorted(sessions.items()))


def _lines(turns: list[Any], form: Text, captions: bool, where: str) -> list[tuple[str, str]]:
    """For each turn, its line of the document and its passage, which is ``""`` for an empty turn."""
    lines = []
    for number, turn in enumerate(turns):
        place = f"{where}, turn {number}"
        turn = expect(turn, dict, place)
        words = expect(turn.get("text") or "", str, f"{place}: 'text'")
        before = "" if form == "turns" else f"{member(turn, 'speaker', str, place)}: "
        caption = f" {expect(turn['blip_caption'], str, place)}" if captions and turn.get("blip_caption") else ""
        lines.append((f"{before}{words}{caption}", f"{before}{words}" if words.strip() else ""))
    return lines


def _gold(question: Mapping[str, Any], rule: Gold, unit: Unit, where: str) -> list[str]:
    """The ids of the gold records, in the order of their numbers, each once."""
    found = set()
    for evidence in expect(question.get("evidence") or [], list, f"{where}: 'evidence'"):
        evidence = expect(evidence, str, f"{where}: 'evidence'")
        match = _LENIENT.search(evidence) if rule == "lenient" else _STRICT.fullmatch(evidence)
        if match and (unit == "session" or match[2]):
            found.add((int(match[1]), 0 if unit == "session" else int(match[2])))
    return [f"D{session}" if unit == "session" else f"D{session}:{turn}" for session, turn in sorted(found)]


def _seconds(moment: str, where: str) -> float:
    match = _DATE.fullmatch(moment)
    month = match[5][:3].lower() if match else ""
    if match is None or month not in _MONTHS:
        raise DatasetError(f"{where}: not a date like '1:56 pm on 8 May, 2023': {moment!r}")
    hour = int(match[1]) % 12 + (12 if match[3].lower() == "p" else 0)
    try:
        parsed = datetime(
            int(match[6]), _MONTHS.index(month) + 1, int(match[4]), hour, int(match[2]), tzinfo=timezone.utc
        )
    except ValueError as error:
        raise DatasetError(f"{where}: not a date: {moment!r} ({error})") from None
    return parsed.timestamp()
