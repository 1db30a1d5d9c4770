"""Splits text into sentences by fixed rules, which give the same result everywhere (SPEC E005).

The Test-Time Compute paper uses NLTK's Punkt, whose model is a download. These rules need no model. A sentence ends

- at a blank line;
- after ``. ! ? …`` (any number, then closing quotes and brackets), before white space and something that can start a
  sentence: anything but a lower-case letter or closing punctuation;
- after ``。 ！ ？``, before anything.

A single ``.`` does not end a sentence after a known abbreviation, after one letter (an initial), after letters with
periods between (``e.g.``, ``U.S.``, ``Ph.D.``), or after a number that begins the sentence (``2. Methods``). So
``3.5``, ``fanrank.io`` and ``et al. 2024`` stay whole. Some abbreviations often end a sentence: ``no.`` ends it unless
a digit follows, and ``etc.`` always ends it. A sentence that really ends in an abbreviation or an initial ("plan B.
Then …") is joined with the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

ABBREVIATIONS = frozenset(
    (
        *("dr", "mr", "mrs", "ms", "prof", "rev", "hon", "gen", "gov", "sen", "rep", "capt", "lt", "sgt", "st", "mt"),
        *("messrs", "mme", "mlle", "jr", "sr", "al", "approx", "ca", "cf", "vs", "viz", "resp", "incl", "esp"),
        *("vol", "vols", "ed", "eds", "pp", "dept", "univ", "assoc", "bros", "corp", "inc", "ltd", "co"),
        *("fig", "figs", "eq", "eqs", "eqn", "ref", "refs", "sec", "secs", "ch", "chap", "tab", "suppl"),
        *("jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"),
    )
)
BEFORE_NUMBERS = frozenset(("no", "nos", "nr", "art"))
"""Words that are abbreviations only where a digit follows."""

_LONGEST = 64  # characters before a full stop in which its word is looked for
_BLANK = re.compile(r"\n[^\S\n]*\n\s*")
_CLOSERS = "\"'”’»)\\]}"
_END = re.compile(rf"(?<![.!?…])(?P<mark>[.!?…]+)[{_CLOSERS}]*(?=\s)|[。！？]+[{_CLOSERS}」』]*")
_DOTTED = re.compile(r"[^\W\d_]{1,2}(?:\.[^\W\d_]{1,2})+\Z")
_WORD = re.compile(r"[^\s\"'“”‘’«»()\[\]{}/–—-]+\Z")
_NEXT = re.compile(r"\s*[\"'“”‘’«»(\[{]*")


def sentences(text: str) -> Iterator[str]:
    """The sentences of `text` in order, without white space at their ends. A blank text has none."""
    for paragraph in _BLANK.split(text):
        start = 0
        for end in _END.finditer(paragraph):
            if not _ends(paragraph, start, end):
                continue
            sentence = paragraph[start : end.end()].strip()
            if sentence:
                yield sentence
            start = end.end()
        last = paragraph[start:].strip()
        if last:
            yield last


def first_sentence(text: str) -> str:
    """The first sentence of `text`, or "" if it is blank."""
    return next(sentences(text), "")


def _ends(text: str, start: int, end: re.Match[str]) -> bool:
    mark = end["mark"]
    if mark is None:
        return True
    opened = _NEXT.match(text, end.end())
    position = opened.end() if opened else end.end()
    following = text[position : position + 1]
    if following.islower() or following in tuple(",;:!?.)]}"):
        return False
    if mark != ".":
        return True
    before = text[max(start, end.start() - _LONGEST) : end.start()]
    match = _WORD.search(before)
    word = match[0] if match else ""
    if before.strip() == word and word.isdecimal():
        return False
    if _DOTTED.match(word) or (len(word) == 1 and word.isalpha()):
        return False
    word = word.casefold()
    return word not in ABBREVIATIONS and not (word in BEFORE_NUMBERS and following.isdecimal())
