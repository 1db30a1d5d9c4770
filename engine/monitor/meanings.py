"""What names meant in past queries: counts of resolutions, by name and entity, as a prior for the next (SPEC B025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ParameterError
from ..locks import make_short_lock
from ..records.entities import words_of

MOST_NAMES = 10_000
"""Names that a namespace remembers. Beyond that the name is forgotten that was resolved the longest time ago."""
MEMORY = 256
"""Resolutions of one name. Beyond that all its counts are halved, so that old habits fade."""


class Meanings:
    """How often each name meant each entity, in one namespace. Safe to use from many threads."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        self._changes = 0
        self._kept = 0
        self._lock = make_short_lock()

    def resolved(self, name: str, entity: str, times: int = 1) -> None:
        """Count that `name` meant the entity with this id. Raises `ParameterError` as `Engine.resolved` does."""
        if not isinstance(name, str) or not words_of(name):
            raise ParameterError(f"a name must be a string that holds a word, not {name!r}")
        if not isinstance(entity, str) or not entity or not is_storable(entity):
            raise ParameterError(
                f"an entity's id must be a string that is not empty and holds no lone surrogate, not {entity!r}"
            )
        if isinstance(times, bool) or not isinstance(times, int) or not 1 <= times <= MEMORY:
            raise ParameterError(f"times must be an integer from 1 to {MEMORY}, not {times!r}")
        key = " ".join(words_of(name))
        with self._lock:
            counts = dict(self._counts.pop(key, {}))
            counts[entity] = counts.get(entity, 0) + times
            while sum(counts.values()) > MEMORY:
                counts = {name: half for name, count in counts.items() if (half := count // 2)}
            self._counts[key] = counts
            if len(self._counts) > MOST_NAMES:
                del self._counts[next(iter(self._counts))]
            self._changes += 1

    def of(self, name: str) -> Mapping[str, int]:
        """The counts of a name, which is given as its words joined by spaces, by entity id."""
        with self._lock:
            return self._counts.get(name, {})

    def changes(self) -> int | None:
        """A number of the present state, for `mark_kept`; None if nothing changed since."""
        with self._lock:
            return None if self._changes == self._kept else self._changes

    def mark_kept(self, changes: int) -> None:
        """Note that the state of this number is kept."""
        with self._lock:
            self._kept = changes

    def learned(self) -> dict[str, Any]:
        """All counts, as JSON that `restore` takes."""
        with self._lock:
            return dict(self._counts)

    def restore(self, learned: Mapping[str, Mapping[str, int]]) -> None:
        """Go on from what `learned` gave."""
        with self._lock:
            self._counts = {name: dict(counts) for name, counts in learned.items()}
            self._kept = self._changes


def is_storable(value: str) -> bool:
    """Whether a file can store the string. A lone surrogate would make every later checkpoint fail."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
