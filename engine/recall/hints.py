"""Type hints: the record types that a question asks for, found by trigger words (SPEC B040, B041)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..records.entities import words_of

PREFERENCE, EVENT, ENTITY = "Preference", "Event", "Entity"

PREFERENCE_TRIGGERS = ("prefer", "like", "want", "setting", "configure", "my default")
EVENT_TRIGGERS = ("when did", "at what time", "happened", "occurred", "was it", "did I")
ENTITY_TRIGGERS = ("who is", "who's")
"""Triggers match whole words, so "likely" is not "like". Case, and space or punctuation between words, do not matter
(B041)."""
MENTION_TRIGGERS = ("what is", "what's", "tell me about")
"""These count only where a mention of an entity follows: "what is Kestrel", not "what is Kestrel's timeout" (B041)."""

# Words that may stand between such a trigger and the mention.
_DETERMINERS = frozenset(["a", "an", "the", "my", "our", "your", "this", "that"])
_POSSESSIVE = "s"

Phrases = tuple[tuple[str, ...], ...]


def _phrases(triggers: Iterable[str]) -> Phrases:
    return tuple(words_of(trigger) for trigger in triggers)


_PLAIN = {
    PREFERENCE: _phrases(PREFERENCE_TRIGGERS),
    EVENT: _phrases(EVENT_TRIGGERS),
    ENTITY: _phrases(ENTITY_TRIGGERS),
}
_BEFORE_MENTION = _phrases(MENTION_TRIGGERS)


def type_hints(text: str, names: Iterable[str] = ()) -> tuple[str, ...]:
    """The record types for which the text holds a trigger, in the order Preference, Event, Entity.

    `names` are the mentions of entities in the text, in its own words. A text without a trigger has no type.
    """
    words = words_of(text)
    kinds = {kind for kind, phrases in _PLAIN.items() if any(_places(words, phrase) for phrase in phrases)}
    if ENTITY not in kinds and _asks_for_mention(words, _phrases(names)):
        kinds.add(ENTITY)
    return tuple(kind for kind in _PLAIN if kind in kinds)


def without_event_triggers(words: Sequence[str]) -> list[str]:
    """The words (as of `words_of`) without those of Event triggers, which say that something happened but not what."""
    dropped = {
        start + offset for phrase in _PLAIN[EVENT] for start in _places(words, phrase) for offset in range(len(phrase))
    }
    return [word for start, word in enumerate(words) if start not in dropped]


def _asks_for_mention(words: Sequence[str], names: Phrases) -> bool:
    starts = {begin + len(phrase) for phrase in _BEFORE_MENTION for begin in _places(words, phrase)}
    starts |= {start + 1 for start in starts if start < len(words) and words[start] in _DETERMINERS}
    return any(
        start in starts and list(words[start + len(name) :][:1]) != [_POSSESSIVE]
        for name in names
        if name
        for start in _places(words, name)
    )


def _places(words: Sequence[str], phrase: tuple[str, ...]) -> list[int]:
    """The positions in `words` at which the phrase begins."""
    size = len(phrase)
    return [start for start in range(len(words) - size + 1) if tuple(words[start : start + size]) == phrase]
