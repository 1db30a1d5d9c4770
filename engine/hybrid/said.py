"""What cues read of a record's text, kept as columns of its segment: whether it asks, and who speaks.

A text is read once. A number of four bytes a record holds both (`native/dialogue.hpp`): 0 where nobody has read it,
else 1, plus 2 where it asks, plus 4 times the number of its speaker, from 1 on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Integers
from ..index.segment import Segment
from ..index.snapshot import Snapshot
from ..index.union import namespaces_of
from ..locks import make_short_lock
from ..records.record import RecordsOf

WAS_READ, ASKS, SPEAKER_SHIFT = 1, 2, 2
NAME = "said"

_ASKS = re.compile(r"[?\uff1f\u061f][\s\"'\u201d\u2019)*_]*\Z")
_SPEAKER = re.compile(r"\s*([^\W\d_][^:\n]{0,39}):\s")
_WORDS = re.compile(r"\w\w+")
_LETTERS = re.compile(r"[a-z]+")
_YOU = frozenset(("you", "your", "yours"))
# "Can you", "I told you" and "thank you" do not ask what was said.
_OTHERWISE = frozenset(
    (
        *("can", "could", "will", "would", "should", "shall", "do", "may", "might", "are", "if", "to"),
        *("ask", "asked", "tell", "told", "give", "gave", "show", "showed", "send", "sent", "thank", "thanks"),
    )
)
_SUMS = "summar", "recap", "overview"


class Said:
    """What was read of the texts of a segment's records so far."""

    def __init__(self, size: int) -> None:
        self.values = np.zeros(size, dtype=np.int32)
        self.words: dict[str, set[int]] = {}
        """The numbers of the speakers whose name holds a word."""
        self._speakers: dict[str, int] = {}
        self._lock = make_short_lock()

    @property
    def arrays(self) -> tuple[npt.NDArray[np.int32]]:
        return (self.values,)

    def read(self, place: int, text: str) -> None:
        """Read the text of the record at this place."""
        match = _SPEAKER.match(text)
        value = WAS_READ + (ASKS if _ASKS.search(text) else 0)
        if match is not None and (words := words_of(match[1])):
            value += self._number(words) << SPEAKER_SHIFT
        self.values[place] = value

    def _number(self, words: frozenset[str]) -> int:
        name = " ".join(sorted(words))
        with self._lock:
            number = self._speakers.setdefault(name, len(self._speakers) + 1)
            for word in words:
                # A new set: another thread may be reading the old one.
                self.words[word] = self.words.get(word, set()) | {number}
        return number

    def named(self, words: frozenset[str]) -> set[int]:
        """The numbers of the speakers whose name holds one of these words."""
        known = self.words
        return set().union(*(known[word] for word in words if word in known))


def words_of(text: str) -> frozenset[str]:
    """The words by which a speaker is named."""
    return frozenset(_WORDS.findall(text.casefold()))


def asks_what_was_told(text: str) -> bool:
    """Whether a query asks for what an assistant said: it says "you" otherwise than to ask for something, or it asks
    for a summary, which an assistant's long turns are. It knows English words alone."""
    folded = text.casefold()
    # Most queries say neither, and cutting up their words takes ten times as long as looking.
    summary, recap, overview = _SUMS
    if "you" not in folded and summary not in folded and recap not in folded and overview not in folded:
        return False
    words = _LETTERS.findall(folded)
    return any(
        word.startswith(_SUMS) or (word in _YOU and before not in _OTHERWISE)
        for before, word in zip(["", *words], words, strict=False)
    )


def said_of(segment: Segment) -> Said:
    """What was read of a segment's texts; the segment keeps it."""
    known: Said | None = segment.derived.get(NAME)
    return segment.derived.setdefault(NAME, Said(segment.size)) if known is None else known


def read_texts(snapshot: Snapshot, namespace: str, records: RecordsOf, documents: Integers) -> None:
    """Read the texts of these documents that nobody has read. `namespace` is that of the query that found them."""
    for first, segment in zip(snapshot.firsts, snapshot.segments, strict=True):
        local = documents[(documents >= first) & (documents < first + segment.size)] - first
        column = said_of(segment)
        local = np.unique(local[column.values[local] == 0])
        if not len(local):
            continue
        ids = snapshot.ids_of(local + first)
        spaces = namespaces_of(snapshot, namespace, local + first)
        for space in dict.fromkeys(spaces.tolist()):
            own = np.flatnonzero(spaces == space)
            for place, record in zip(local[own].tolist(), records(space, ids[own].tolist()), strict=True):
                # A record that was deleted or replaced after the search began is left unread: a segment keeps
                # what its own document says.
                if record is not None:
                    column.read(place, record.text)


def said_by(snapshot: Snapshot, documents: Integers) -> tuple[Integers, Integers]:
    """(what was read of each document's text, the first document of its segment); 0 where a number is -1."""
    values, firsts = np.zeros(len(documents), dtype=np.int64), np.zeros(len(documents), dtype=np.int64)
    for first, segment in zip(snapshot.firsts, snapshot.segments, strict=True):
        inside = np.flatnonzero((documents >= first) & (documents < first + segment.size))
        if len(inside):
            values[inside], firsts[inside] = said_of(segment).values[documents[inside] - first], first
    return values, firsts


def asks(values: Integers) -> Flags:
    """[documents] whether each text asks."""
    found: Flags = (values & ASKS) != 0
    return found


def are_named(snapshot: Snapshot, values: Integers, firsts: Integers, words: Sequence[frozenset[str]]) -> Flags:
    """[documents] whether the words [documents] of its query name the speaker of each; see `said_by`."""
    found = np.zeros(len(values), dtype=np.bool_)
    speakers = values >> SPEAKER_SHIFT
    columns = dict(zip(snapshot.firsts, map(said_of, snapshot.segments), strict=True))
    known: dict[tuple[int, frozenset[str]], set[int]] = {}
    for place in np.flatnonzero(speakers).tolist():
        key = int(firsts[place]), words[place]
        if key not in known:
            known[key] = columns[key[0]].named(key[1])
        found[place] = int(speakers[place]) in known[key]
    return found
