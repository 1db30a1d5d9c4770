"""What the tools of `server/mcp.py` take and give, as models with schemas, how texts are cut, and records made."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel, ConfigDict, Field, create_model

from ..engine.errors import RecordError
from ..engine.records.declared import declared
from ..engine.records.hits import Hits
from ..engine.records.record import CATEGORIES, NUMBERS, Record
from .mcp_fields import argument
from .problems import Problem

CUT = "…"
"""What stands at the end of a text that is not whole."""
FEW_HITS = 64
"""Hits of an answer that is written on the event loop."""
LONG_VALUE = 200
"""Characters of a value of the metadata, beyond which it is left out first."""


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: str = Field(description="What to remember, in words that a later question would use.")
    id: str | None = Field(None, description="A name of your own. Left out, it is made from the text.")
    metadata: dict[str, str | bool | int | float | None] = Field(
        default_factory=dict, description="Further values. Those of the memory's columns can be filtered by."
    )


if TYPE_CHECKING:
    NewRecord = _Given
else:
    _TAKEN = declared(Record, {*CATEGORIES, *NUMBERS, "payload"})
    NewRecord = create_model(
        "NewRecord",
        __base__=_Given,
        __doc__="A record to remember.",
        **{name: argument(each) for name, each in _TAKEN.items()},
    )


class Found(BaseModel):
    """A record as a search found it."""

    id: str
    score: float | None = None
    text: str
    time: float | None = Field(None, description="Seconds since 1970 UTC.")
    metadata: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None


class Answer(BaseModel):
    """The hits of one query, best first."""

    query: str
    hits: list[Found]
    note: str | None = Field(None, description="Why there are no hits.")


class Answers(BaseModel):
    """The answers in the order of the queries."""

    namespace: str
    answers: list[Answer]
    cut: str | None = Field(None, description="What was cut to keep the answer short, and how to read it.")


class Recent(BaseModel):
    """Records, newest first."""

    namespace: str
    records: list[Found]
    cut: str | None = Field(None, description="What was cut to keep the answer short, and how to read it.")


class Remembered(BaseModel):
    """What was written."""

    namespace: str
    ids: list[str] = Field(description="The id of each record, in the order given.")
    written: int = Field(description="How many were written. The others were there already.")
    twins: list[list[str]] | None = Field(None, description="Per record that was not there: those with its text.")


class Forgotten(BaseModel):
    """What was deleted."""

    namespace: str
    deleted: int
    unknown: int = Field(description="How many of the ids no record had.")


class Done(BaseModel):
    """What a verb gave."""

    namespace: str
    answer: Any = Field(description="What was found, or how many records were changed.")


class Explained(BaseModel):
    """How a record scores for a query."""

    namespace: str
    summary: str = Field(description="The parts of the score, a line each.")
    explanation: dict[str, Any] = Field(description="The same as values. The parts add up to the score exactly.")


def make_result(answer: BaseModel) -> CallToolResult:
    """The answer as values, and as the JSON text of the same for clients that read text alone."""
    values = answer.model_dump(mode="json", exclude_none=True)
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=values)


def is_small(hits: Hits) -> bool:
    """Whether an answer is written sooner than a thread would have begun with it.

    Texts are cut before; other values are not, and may be large.
    """
    if hits.payload or hits.records is None or hits.records.size > FEW_HITS:
        return False
    return not any(record.extra for record in hits.records.ravel() if record is not None)


def cut_texts(records: list[Found], budget: int) -> str | None:
    """Cut the longest texts and leave out payloads so that the records hold at most `budget` characters of them.

    All texts are cut to one length, the greatest that fits, so that a long one takes no room from short ones. Metadata
    may take as many characters again: beyond that its long values are left out, and then all of it. Returns what was
    cut and how to read it, None where all fits.
    """
    whole = budget
    held, room = [record for record in records if record.payload is not None], budget // 2
    # The sum ends where it is too large: 3,200 hits may have a payload of a megabyte each.
    sizes = accumulate(len(json.dumps(record.payload)) for record in held)
    left_out = len(held) if any(size > room for size in sizes) else 0
    if left_out:
        for record in records:
            record.payload = None
    else:
        budget -= sum(len(json.dumps(record.payload)) for record in held)
    longest = _longest([len(record.text) for record in records], budget)
    shortened = 0
    for record in records:
        if len(record.text) > longest:
            record.text = record.text[:longest] + CUT
            shortened += 1
    parts = [f"{shortened} texts end after {longest} characters, with {CUT}"] if shortened else []
    parts += [f"{left_out} payloads are left out"] if left_out else []
    parts += _cut_metadata(records, whole)
    if not parts:
        return None
    return f"{'; '.join(parts)}. Ask for fewer queries or hits, or read the resource memory://NAMESPACE/ID."


def _cut_metadata(records: list[Found], budget: int) -> list[str]:
    """Leave out long values, and all metadata where that is not enough. Returns what was left out."""
    if _size_of_metadata(records) <= budget:
        return []
    shortened = 0
    for record in records:
        kept = {name: value for name, value in (record.metadata or {}).items() if _size(name, value) <= LONG_VALUE}
        shortened += len(record.metadata or {}) - len(kept)
        record.metadata = kept or None
    if _size_of_metadata(records) <= budget:
        return [f"{shortened} long values of metadata are left out"]
    for record in records:
        record.metadata = None
    return ["the metadata is left out"]


def _size_of_metadata(records: list[Found]) -> int:
    return sum(_size(name, value) for record in records for name, value in (record.metadata or {}).items())


def _size(name: str, value: Any) -> int:
    return len(name) + len(json.dumps(value))


def _longest(lengths: list[int], budget: int) -> int:
    """The greatest length to which all can be cut so that their sum is within the budget."""
    left = budget
    for place, length in enumerate(ordered := sorted(lengths)):
        share = left // (len(ordered) - place)
        if length > share:
            return share
        left -= length
    return max(lengths, default=0)


def without_repeats(records: list[Record], given: list[NewRecord]) -> list[tuple[Record, NewRecord]]:
    """One record of those whose ids were made from equal texts. Of ids that were given twice the engine complains."""
    first: dict[str, int] = {}
    for place, record in enumerate(records):
        first.setdefault(record.id, place)
    pairs = zip(records, given, strict=True)
    return [pair for place, pair in enumerate(pairs) if pair[1].id is not None or first[pair[0].id] == place]


def make_record(given: NewRecord, place: int, namespace: str, now: float) -> Record:
    clash = sorted(given.metadata.keys() & {field.name for field in fields(Record)})
    if clash:
        raise Problem(422, "InvalidField", f"metadata may not hold {clash[0]!r}", field=f"records[{place}].metadata")
    values = given.model_dump(exclude={"metadata"}, exclude_none=True)
    if given.id is None:
        digest = hashlib.sha256(given.text.encode("utf-8", "surrogatepass")).hexdigest()
        values["id"] = f"text-{digest[:24]}"
    values.setdefault("time", now)
    metadata = {name: value for name, value in given.metadata.items() if value is not None}
    try:
        return Record.from_dict({**metadata, **values, "namespace": namespace})
    except RecordError as error:
        raise Problem(422, "RecordError", str(error), field=f"records[{place}]") from None


def found_in(hits: Hits, scores: bool = True) -> list[list[Found]]:
    """The hits of each query as a tool tells them."""
    rows = hits.to_dicts()
    keep = ("id", "text", "time", "payload")
    return [
        [
            Found(
                **{name: hit[name] for name in keep if name in hit},
                score=hit["score"] if scores else None,
                metadata=hit["metadata"] or None,
            )
            for hit in row
        ]
        for row in rows
    ]
