"""Type hints: the record types that a question asks for (SPEC B040, B041).

There are two readings. `hints_by_words` is the source's: a trigger counts wherever its words stand. So "what's that
like?" asks for Preferences, and "what did I say about climate?" for Events. `hints_by_grammar` wants the trigger in
the sense in which it asks for the type: "like" as the verb of someone, "did I" before a deed and not before "say".
"""

from __future__ import annotations

import re
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
_ASKS_WHO = (*_PLAIN[ENTITY], ("who", "was"))

# The patterns read a text in lower case, with straight apostrophes and one space between words.
_OWNER = r"(?:my|our|your|his|her|their|\w+'s)"
_ADVERBS = r"(?:(?:really|still|also|always|usually|even|ever|not|never|actually|most|best|particularly) )*"
_LIKES = (
    r"(?:like(?! (?:me|mine|us)\b)|love|enjoy|hate|want(?! (?:you )?to (?:know|see|hear|ask|find|check|understand)))"
)
# What stands before "like" where it compares: "looks like", "something like", "what is it like".
_COMPARES = (
    r"(?<!\blook )(?<!\bsound )(?<!\bfeel )(?<!\bseem )(?<!\btaste )(?<!\bsmell )(?<!\bact )(?<!\bbe )(?<!\bthings )"
    r"(?<!\bthing )(?<!\bsomething )(?<!\banything )(?<!\bnothing )(?<!\bis )(?<!\bwas )(?<!\bmuch )(?<!\bmore )"
)
# The verbs after "did I" that are deeds, and so events. Verbs of speech and thought ask for what was said, of any type.
_DEEDS = (
    r"(?:do|go|attend|visit|meet|travel|fly|drive|arrive|leave|start|finish|begin|buy|book|order|sign|move|join|"
    r"launch|ship|deploy|cancel|reserve|pay)"
)
_TIMES = r"(?:day|date|time|week|weekend|month|year|morning|afternoon|evening|night)"

_GRAMMAR = {
    PREFERENCE: re.compile(
        r"\bprefer(?:s|red|ences?)?\b"
        # Someone likes: "I still like". "I'd like" asks for something else, and so it has no place here.
        rf"|\b(?:i|we|they|he|she) {_ADVERBS}{_LIKES}(?:s|d|ed)?\b"
        # Does someone like: a pronoun, an owner and a noun, or a name of one or two words.
        rf"|\b(?:do|does|did|don't|doesn't|didn't|would(?! (?:i|we|you)\b)) "
        rf"(?:{_OWNER} \w+|(?!it\b|that\b|this\b)\w+(?: \w+)?) "
        rf"{_COMPARES}{_ADVERBS}{_LIKES}\b"
        rf"|\b{_OWNER} (?:\w+ ){{0,2}}?(?:settings?|preferences?|defaults?|favou?rites?)\b"
        r"|\bsettings? (?:for|of)\b"
        r"|\b(?:to|i|we|you|not) configured?\b"
    ),
    EVENT: re.compile(
        r"\bwhen (?:did|was|were)\b"
        rf"|\bat what time\b|\b(?:what|which) {_TIMES} (?:did|was|were)\b|\bhow long ago\b"
        r"|\bhappened\b(?! to (?:be|have|know|like)\b)"
        r"|\boccurred\b(?! to (?:me|us|you|him|her|them)\b)"
        rf"|\bdid (?:i|we) (?:ever )?{_DEEDS}\b"
    ),
    ENTITY: re.compile(r"\bwho(?:'s| is| was) (?:my|our|your|his|her|their|the) \w+"),
}


# Sources: B041.
def hints_by_words(text: str, names: Iterable[str] = ()) -> tuple[str, ...]:
    """The record types for which the text holds a trigger, in the order Preference, Event, Entity.

    `names` are the mentions of entities in the text, in its own words. A text without a trigger has no type.
    """
    words = words_of(text)
    kinds = {kind for kind, phrases in _PLAIN.items() if any(_places(words, phrase) for phrase in phrases)}
    if ENTITY not in kinds and _asks_for_mention(words, _BEFORE_MENTION, _phrases(names)):
        kinds.add(ENTITY)
    return tuple(kind for kind in _PLAIN if kind in kinds)


def hints_by_grammar(text: str, names: Iterable[str] = ()) -> tuple[str, ...]:
    """As `hints_by_words`, for triggers in the sense in which they ask for a type.

    Entity needs a mention behind "who is" too, or an owner or article ("who is my dentist").
    """
    flat = " ".join(text.casefold().replace("’", "'").split())
    kinds = {kind for kind, pattern in _GRAMMAR.items() if pattern.search(flat)}
    if ENTITY not in kinds and _asks_for_mention(words_of(text), (*_BEFORE_MENTION, *_ASKS_WHO), _phrases(names)):
        kinds.add(ENTITY)
    return tuple(kind for kind in _GRAMMAR if kind in kinds)


def without_event_triggers(words: Sequence[str]) -> list[str]:
    """The words (as of `words_of`) without those of Event triggers, which say that something happened but not what."""
    dropped = {
        start + offset for phrase in _PLAIN[EVENT] for start in _places(words, phrase) for offset in range(len(phrase))
    }
    return [word for start, word in enumerate(words) if start not in dropped]


def _asks_for_mention(words: Sequence[str], before: Phrases, names: Phrases) -> bool:
    starts = {begin + len(phrase) for phrase in before for begin in _places(words, phrase)}
    starts |= {start + 1 for start in starts if start < len(words) and words[start] in _DETERMINERS}
    different = set(names) - {()}  # a long text may repeat a name thousands of times
    return any(
        tuple(words[start : start + len(name)]) == name and list(words[start + len(name) :][:1]) != [_POSSESSIVE]
        for start in starts
        for name in different
    )


def _places(words: Sequence[str], phrase: tuple[str, ...]) -> list[int]:
    """The positions in `words` at which the phrase begins."""
    size = len(phrase)
    return [start for start in range(len(words) - size + 1) if tuple(words[start : start + size]) == phrase]
