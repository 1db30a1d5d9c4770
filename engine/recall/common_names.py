"""Names that are common English words too ("Will", "May"), and the evidence that a query uses one as a name (B025)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ..text.stopwords import NLTK_ENGLISH

_NAMES = """
    april art august autumn bill buck chance chase chip chuck cliff crystal dale dawn don drew eve faith frank gene
    grace grant hope hunter jack jasmine joy june lance lane mark mason max may melody miles misty nick olive pat
    patience penny pepper pierce ray rich rob robin rocky rose ruby sage scarlet sky skip stone sue summer sunny violet
    wade will willow
"""
_TIMES = "in since until till by during last next this every early late mid of before after from through around"
_INTRODUCING = "does did do about with without than named called has is was whose tell ask told asked met"
_ACTING = "is was has does had did said says likes wants"
_DETERMINING = "a an the my our your his her their this that some any no"
COMMON = NLTK_ENGLISH | frozenset(_NAMES.split())
"""Stop words, and common nouns, verbs and adjectives that people bear as names. A name of one such word needs evidence
in the query; a longer name ("Will Smith") does not."""

_PEOPLE = frozenset(_NAMES.split()) & NLTK_ENGLISH
"""Stop words that people bear as names. Other stop words ("it", "the") are names by a capital letter alone."""

_MONTHS = frozenset(["april", "may", "june", "august"])
# Before a month, a season or a day, a capital letter is no evidence.
_OF_TIME = frozenset(_TIMES.split())
# After these a name is due, and a verb is not.
_BEFORE_NAME = frozenset(_INTRODUCING.split())
# Verb forms that no modal verb and no noun phrase continues with: "Will is", "May has", "Grace was".
_FINITE = frozenset(_ACTING.split())
# After these a common noun is due: "the bill is due".
_DETERMINERS = frozenset(_DETERMINING.split())
_WORD = re.compile(r"\w+")
_SENTENCE_ENDS = frozenset(".!?:\n")


@lru_cache(maxsize=16)
def _capitals(text: str) -> tuple[tuple[bool, bool], ...]:
    """Of each word (``\\w+``), whether it begins a sentence, and whether it begins with a capital letter.

    Empty for a text all in capitals. Kept, as a text is asked about for each of its names.
    """
    found: list[tuple[bool, bool]] = []
    end = 0
    for match in _WORD.finditer("" if text.isupper() else text):
        begins = not found or not _SENTENCE_ENDS.isdisjoint(text[end : match.start()])
        found.append((begins, match[0][0].isupper()))
        end = match.end()
    return tuple(found)


def is_named(text: str, words: Sequence[str], position: int) -> bool:
    """Whether the word at `position` of `words` (as of `words_of(text)`) is used as a name.

    It is, if it is no word of `COMMON`. Otherwise one of these must hold:

    - it has a possessive s ("Will's"), or a finite verb follows it ("Will likes", "May is")
    - it has a capital letter inside a sentence that is not all capitals, and it does not date ("in May", "May 5")
    - the word before it calls for a name ("does will know", "about may")
    - it is all there is ("Will?")
    """
    word = words[position]
    if word not in COMMON or len(words) == 1:
        return True
    capitals = _capitals(text)
    # Case folding may split a word in rare scripts. Then, and where all is in capitals, letters tell nothing.
    aligned = len(capitals) == len(words)
    first, capital = capitals[position] if aligned else (position == 0, False)
    before = "" if first else words[position - 1]
    after = words[position + 1] if position + 1 < len(words) else ""
    if word in _MONTHS and (before in _OF_TIME or after.isdigit()):
        return False
    if word not in NLTK_ENGLISH or word in _PEOPLE:
        acts = after == "s" or after in _FINITE or (first and after.endswith("s") and after not in NLTK_ENGLISH)
        if (acts and before not in _DETERMINERS) or before in _BEFORE_NAME:
            return True
    return capital and not first
