"""Occasions that only a memory can date: "since I joined", "before the launch", "the last time we met".

A query names an occasion by a few words. An event of the memory is that occasion if one sentence of its text says so,
by fixed rules (`Occasion.said_in`). They rather miss an event than take another one. Then the query names no time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_SENTENCE = re.compile(r"[.!?;:\n]+\s+|[.!?;:\n]+\Z|\n")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Words between a subject and its verb, and articles before a noun.
_BETWEEN = _set("have has had just finally first last all both also then already officially recently")
_ARTICLES = _set("the a an my our your his her their this that")
# What an occasion's words may leave out in a text.
_LIGHT = _set("to at in on of for with from into by as up off out and") | _ARTICLES
# Words of a sentence that tells of something that was not, or is not yet.
_DENIED = _set("not no never without nobody none cannot almost nearly will would could might may should")
_DENIED |= _set("plan plans planned planning prepare preparing hope hopes want wants going if unless")
_DENIED |= _set("postponed cancelled canceled delayed next upcoming tomorrow before after until since")
_PREPOSITIONS = _set("for to about of at from by toward towards on in with like than")
# Verbs that say too little alone.
_HELPING = (("was",), ("were",), ("got",), ("did",))
_SUBJECTS = {"i": ("i", "user", "we"), "we": ("we",), "you": ("you", "assistant", "agent")}


@dataclass(frozen=True)
class Occasion:
    """What a query names: who (lower case; "" where it is a noun) did what, and whether the last time is meant.

    `words` are lower case, the verb first; of a noun, all words that say more than "the". At least one.
    """

    who: str
    words: tuple[str, ...]
    last: bool = False

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms in which a text may have the first word: a verb as it is, a noun also as a regular verb's past."""
        first = self.words[0]
        return (first,) if self.who else (first, first + "d" if first.endswith("e") else first + "ed")

    def said_in(self, text: str) -> bool:
        """Whether a sentence of an event's text says that this occasion took place.

        The sentence holds all words, and none of those that deny, plan or postpone ("not", "will", "planned"). A verb
        stands as the query has it, right behind its subject. The subject "I" is "I", "we", "user" or left out where the
        sentence begins with the verb; "we" is "we" or "... and I"; "you" is "you", "assistant" or "agent"; a name is
        itself. The first word of a noun may also be a verb ("launch", "launched"), and no preposition stands before it.
        """
        return any(self._said_by(_words(sentence)) for sentence in _SENTENCE.split(text))

    def _said_by(self, words: Sequence[str]) -> bool:
        if _DENIED.intersection(words) or any(word.endswith(("n't", "n’t", "'ll", "’ll")) for word in words):
            return False
        _, *others = self.words
        stands = self._has_subject if self.who else self._stands_free
        return all(other in words for other in others) and any(
            word in self.forms and stands(words, position) for position, word in enumerate(words)
        )

    @staticmethod
    def _stands_free(words: Sequence[str], position: int) -> bool:
        while position and words[position - 1] in _ARTICLES:
            position -= 1
        return not position or words[position - 1] not in _PREPOSITIONS

    def _has_subject(self, words: Sequence[str], verb: int) -> bool:
        position = verb - 1
        while position >= 0 and words[position] in _BETWEEN:
            position -= 1
        if position < 0:
            return self.who == "i"
        subject = re.sub(r"['’](?:ve|d)\Z", "", words[position])
        if self.who == "we" and subject == "i":
            return position > 1 and words[position - 1] == "and"
        if self.who in ("i", "we") and position and words[position - 1] == "and" and subject != "i":
            return False
        return subject in _SUBJECTS.get(self.who, (self.who,))


FindEvent = Callable[[Occasion], "float | None"]
"""The time of the event of a memory that is an occasion; None where there is none, or where it is not sure which."""


def occasion_of(who: str, words: str, last: bool) -> Occasion | None:
    """The occasion that a query's words name. None if they are too few, or name a time of their own."""
    named = _words(words)
    if any(word in _TIMES or not word.isascii() or word[0].isdigit() for word in named):
        return None
    kept = tuple(dict.fromkeys(word for word in named if word not in _LIGHT and word not in _BETWEEN))
    if (
        not kept
        or kept in _HELPING
        or (who and kept[0] not in PASTS and not (kept[0].endswith("ed") and len(kept[0]) > 4))
    ):
        return None
    return Occasion(who, kept, last)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


# Past forms that do not end in -ed after three letters.
PASTS = _set(
    """
    became began bought broke brought built came caught chose did drove fell flew forgot found gave got grew had
    heard held kept knew learnt led left lost made met moved paid quit ran rode said sang sat saw sent slept sold
    spent spoke stood swam taught thought told took was went were woke won wore wrote
    """
)
# Words of other time expressions. An occasion that holds one is not looked up: "since I joined in March".
_TIMES = _set(
    """
    january february march april may june july august september october november december jan feb mar apr jun jul aug
    sep sept oct nov dec monday tuesday wednesday thursday friday saturday sunday today yesterday tomorrow tonight night
    morning afternoon evening noon midnight minute minutes hour hours day days week weeks weekend weekends month months
    quarter quarters year years decade decades spring summer autumn winter ago earlier later past previous start
    beginning middle end early late recently lately now then
    """
)
