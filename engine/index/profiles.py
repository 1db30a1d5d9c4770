"""Profiles: BM25's method, k1 and b, by what the records of a memory are like.

A profile is a row of fixed numbers and reads no record. A b that followed the lengths of the live records would do
better on none of the sets below by more than their profile does, and would move all scores with every write.

Differences in points of Hit@1 / Hit@5 / nDCG@10 to ``literature``, with the default analyzer of 2026-11. LoCoMo turns:
1,977 questions, sessions 1,978; SciFact 300; Cranfield 225; code: 1,671 first sentences of docstrings that look for
their function among 12,195 of Python's standard library. In brackets the standard error of Hit@1:

=============  =====================  ====================  ====================  ====================  ================
profile        turns                  sessions              SciFact               Cranfield             code
=============  =====================  ====================  ====================  ====================  ================
``general``    +1.7 +1.3 +1.4 (.4)    +.4 -.1 +.1 (.3)      -.7 +.3 -.2 (.7)      +1.3 +1.3 +.1 (1.0)   -.7 0 -.2 (.3)
``chat``       +2.6 +1.8 +2.1 (.5)    +.8 +.2 +.2 (.3)      +.3 0 -.7 (1.0)       -1.3 +.4 -1.2 (1.5)   -3.2 -2.5 -2.7
``documents``  +1.3 +.8 +.9 (.3)      -.5 +.6 -.2 (.3)      0 -.3 0 (.9)          +.9 +.9 +.7 (1.4)     -2.1 -2.8 -2.6
=============  =====================  ====================  ====================  ====================  ================

Records of chats are short and of like length, so a long one is rarely long for nothing and a large b only hurts; bodies
of functions differ in length by more than their mean, and there a small b costs 2 to 3 points. ``bm25l`` at b .75 lies
between the two: it loses .7 points of Hit@1 on SciFact, one standard error, and .7 on code, two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ParameterError, choices
from ..settings import PROFILE_VARIABLE
from .bm25 import BM25


@dataclass(frozen=True)
class Profile:
    """BM25's parameters for one kind of record; `about` says for which."""

    name: str
    method: str
    k1: float
    b: float
    about: str


# Sources: A010 (literature).
PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            "general", "bm25l", 2.0, 0.75, "any records, also mixed ones: a compromise over chats, documents and code"
        ),
        Profile("chat", "bm25l", 1.5, 0.5, "turns or sessions of conversations"),
        Profile("documents", "lucene", 1.8, 0.5, "abstracts, articles, notes of some hundred words"),
        Profile("code", "lucene", 1.2, 0.75, "functions, logs, tool output: lengths differ by more than their mean"),
        Profile("literature", "lucene", 1.2, 0.75, "the constants that most papers and libraries name"),
    )
}
"""The profiles by name."""
DEFAULT_PROFILE = "general"
"""The profile of an engine that names none, unless the environment names another (`engine/settings.py`)."""
CHOSEN = ("profile", "method", "k1", "b")
"""The parameters of an engine that are chosen for the caller where they are None."""
LITERATURE = "literature"
"""The profile of memories that were made before there were profiles."""


def default_profile() -> str:
    """The name of the profile of an engine that names none."""
    return os.environ.get(PROFILE_VARIABLE) or DEFAULT_PROFILE


def bm25_of(
    profile: str,
    method: str | None = None,
    k1: float | None = None,
    b: float | None = None,
    delta: float | None = None,
    query_tf: str = "count",
    fields: Mapping[str, float] | None = None,
) -> BM25:
    """The parameters of a profile. What is given explicitly wins.

    Raises `ParameterError` for a name that is no profile, and as `BM25`.
    """
    if not isinstance(profile, str) or profile not in PROFILES:
        where = f" (from {PROFILE_VARIABLE})" if os.environ.get(PROFILE_VARIABLE) == profile else ""
        raise ParameterError(f"unknown profile {profile!r}{where}{choices(profile, PROFILES)}")
    row = PROFILES[profile]
    return BM25(
        row.method if method is None else method,
        row.k1 if k1 is None else k1,
        row.b if b is None else b,
        delta,
        query_tf,
        {"text": 1.0} if fields is None else fields,
    )
