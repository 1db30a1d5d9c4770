"""Snowball's stemmers, by PyStemmer."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import MissingExtraError, ParameterError


def snowball_stemmer(language: str) -> tuple[Callable[[str], str], str]:
    """PyStemmer's function from a word to its stem, and its version: two versions may differ in the stem of a word."""
    try:
        import Stemmer
    except ImportError:
        raise MissingExtraError("PyStemmer", "snowball") from None
    if language not in Stemmer.algorithms():
        raise ParameterError(f"PyStemmer {Stemmer.version()} has no stemmer for {language!r}: pip install -U PyStemmer")

    def stem(word: str) -> str:
        # Threads may not share a stemmer, and a new one takes half a microsecond. It remembers no words.
        stemmed: str = Stemmer.Stemmer(language, 0).stemWord(word)
        return stemmed

    return stem, Stemmer.version()
