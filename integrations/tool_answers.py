"""What the tools of `tools.py` answer to a model: JSON of bounded length, which says what it leaves out.

``{"answers": [{"query": ..., "ids": [...]}], "memories": [{"id": ..., "time": ..., "text": ...}], "note": ...}``: each
query with the ids of its memories, best first, and each memory once, however many queries found it.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.records.record import CATEGORIES, Record

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 that count as a token."""

ECHO = 80
"""Bytes of a query, and of the word why it found nothing, that an answer repeats."""
QUERY_BYTES = 2 * ECHO + 60
"""Bytes that the answer to one query may take without its memories."""
FRAME_BYTES = 400
"""Bytes that an answer takes beside queries and memories: brackets, names and the note."""
LEAST_TEXT = 200
"""Bytes of each text that are shown before the next memory is left out."""
MARK_BYTES = 50
"""Bytes of the words that tell how much of a text was cut."""


@dataclass(frozen=True)
class Answer:
    """What one query found: its memories, best first, or a word why there are none."""

    query: str
    memories: Sequence[Record]
    note: str | None = None


def least_tokens(queries: int) -> int:
    """The least budget, in tokens, that holds the answer to so many queries, and a first memory."""
    return -(-(FRAME_BYTES + queries * QUERY_BYTES + 4 * LEAST_TEXT) // BYTES_PER_TOKEN)


def write_answers(answers: Sequence[Answer], labels: Sequence[str], tokens: int, zone: dt.tzinfo) -> str:
    """The answers as JSON of at most `tokens` times `BYTES_PER_TOKEN` bytes.

    Where not all fits, long texts are cut, all at the same length. Where the texts would be shorter than `LEAST_TEXT`,
    memories are left out, those of the last ranks first. A note says what was cut or left out.
    """
    found: dict[str, Record] = {}
    for rank in range(max((len(answer.memories) for answer in answers), default=0)):
        for answer in answers:
            if rank < len(answer.memories):
                found.setdefault(answer.memories[rank].id, answer.memories[rank])
    budget = tokens * BYTES_PER_TOKEN
    frames = {id: memory_frame(record, labels, zone) for id, record in found.items()}
    whole = {id: record.text for id, record in found.items()}
    # Escapes and brackets only make it longer, so what is too long unescaped need not be written out.
    if sum(map(len, whole.values())) <= budget:
        text = _join(answers, frames, whole, None)
        if len(text.encode()) <= budget:
            return text
    return _cut_to(answers, frames, whole, tokens)


def _cut_to(answers: Sequence[Answer], frames: dict[str, dict[str, Any]], texts: dict[str, str], tokens: int) -> str:
    budget = tokens * BYTES_PER_TOKEN
    mentions = dict.fromkeys(frames, 0)
    for answer in answers:
        for record in answer.memories:
            mentions[record.id] += 1
    # Texts beyond the budget are cut in any case, so no more of them is measured.
    sizes = {id: _size(text[:budget]) for id, text in texts.items()}
    frame_sizes = {
        id: _size(frame) + mentions[id] * (_size(id) + 2) + len(', "text": ') for id, frame in frames.items()
    }
    left = budget - FRAME_BYTES - len(answers) * QUERY_BYTES
    kept: list[str] = []
    needed = 0
    for id in frames:
        needed += frame_sizes[id] + min(sizes[id], LEAST_TEXT)
        if needed > left:
            break
        kept.append(id)
    room = left - sum(frame_sizes[id] for id in kept)
    longest = _common_length([sizes[id] for id in kept], room)
    shown = {id: texts[id] if sizes[id] <= longest else cut(texts[id], longest) for id in kept}
    said = [f"{len(frames) - len(kept)} more memories were found"] if len(kept) < len(frames) else []
    shortened = sum(sizes[id] > longest for id in kept)
    if shortened:
        said.append(f"{shortened} of the texts {'is' if shortened == 1 else 'are'} cut")
    note = f"{' and '.join(said)}: an answer holds about {tokens:,} tokens; ask for less at once to see more"
    return _join(answers, frames, shown, note)


def _common_length(sizes: Sequence[int], room: int) -> int:
    """The largest length such that the texts, each cut to it, fit into the room."""
    left = room
    ordered = sorted(sizes)
    for number, size in enumerate(ordered):
        share = left // (len(ordered) - number)
        if size > share:
            return share
        left -= size
    return ordered[-1] if ordered else 0


def cut(text: str, size: int) -> str:
    """The longest beginning of `text` that, with a word about the rest, takes `size` bytes of JSON."""
    low, high = 0, min(len(text), size)
    while low < high:
        middle = (low + high + 1) // 2
        if _size(text[:middle]) <= size - MARK_BYTES:
            low = middle
        else:
            high = middle - 1
    # Half a word misleads. Where no space is near, as in Chinese, the text is cut between characters.
    space = text.rfind(" ", max(0, low - 30), low)
    end = space if space > 0 else low
    return f"{text[:end]} … [{len(text) - end:,} more characters]"


def _join(answers: Sequence[Answer], frames: dict[str, dict[str, Any]], texts: dict[str, str], note: str | None) -> str:
    rows = []
    for answer in answers:
        row: dict[str, Any] = {
            "query": _shortened(answer.query),
            "ids": [record.id for record in answer.memories if record.id in texts],
        }
        if answer.note:
            row["note"] = _shortened(answer.note)
        rows.append(row)
    value: dict[str, Any] = {"answers": rows, "memories": [{**frames[id], "text": text} for id, text in texts.items()]}
    return write(value if note is None else {**value, "note": note})


def _shortened(text: str) -> str:
    if len(text) * 6 <= ECHO or _size(text[: ECHO + 1]) <= ECHO:
        return text
    end = min(len(text), ECHO)
    while _size(text[:end]) > ECHO - 3:
        end -= 1
    return f"{text[:end]}…"


def memory_frame(record: Record, labels: Sequence[str], zone: dt.tzinfo) -> dict[str, Any]:
    """What is told of a memory beside its text: its id, its time, and the labels that it has."""
    frame: dict[str, Any] = {"id": record.id}
    if record.time is not None:
        frame["time"] = write_time(record.time, zone)
    for label in labels:
        value = getattr(record, label) if label in CATEGORIES else label_of(record, label)
        if value is not None:
            frame[label] = value
    return frame


def label_of(record: Record, label: str) -> Any:
    """A record's value of a declared column: a key of `extra`, or a (dotted) key of the payload."""
    if label in record.extra:
        return record.extra[label]
    value: Any = record.payload or {}
    if label in value:
        return value[label]
    for key in label.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def write_time(seconds: float, zone: dt.tzinfo) -> str:
    """A time as ISO 8601 text, a midnight as its date alone; seconds since 1970 where the calendar ends."""
    try:
        text = dt.datetime.fromtimestamp(seconds, zone).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} seconds since 1970"
    return text[:10] if text[11:19] == "00:00:00" else text.replace("+00:00", "Z")


def write(value: Any) -> str:
    """JSON as a model reads it with the fewest tokens: characters as they are, and ``?`` for lone surrogates."""
    return json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace").decode()


def _size(value: Any) -> int:
    return len(write(value).encode())
