"""Picks the words of a question that say what it is about (SPEC C009)."""

from __future__ import annotations

import re

from .stopwords import NLTK_ENGLISH

# Words with which people ask for a memory on any topic (C009).
_ASKING = """
    again also already answer answered asked could described discuss discussed earlier explain explained have know last
    like mention mentioned please previous previously recall remember remind said says should show spoke talk talked
    tell thing things told would yesterday
"""
TRIGGER_WORDS = NLTK_ENGLISH | frozenset(re.findall(r"\w+", _ASKING))
KEYWORDS = 3


def keywords(text: str) -> list[str]:
    """The first 3 distinct words of more than 3 characters that say what the text is about, in lower case."""
    words = (word.lower() for word in re.findall(r"\w+", text) if len(word) > 3)
    return list(dict.fromkeys(word for word in words if word not in TRIGGER_WORDS))[:KEYWORDS]
