"""Chooses how many texts become term ids: by the compiled loops of `blocks.py`, or by the analyzer token by token."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..settings import compiled_loops
from .analyzers import Analyzer, word_recipe

if TYPE_CHECKING:
    from ...native._compiled import Analysis

LEAST_CHARACTERS = 1 << 12
"""Calls with fewer characters take the plain path. The compiled path takes some 70 us before the first token, and both
are equally fast at 2,500 characters. The 20 queries of a fan-out hold 1,200."""
LOADING_CHARACTERS = 1 << 22
"""The limit while the loops are not loaded. Importing numba and loading the compiled loops takes 0.3 to 0.8 s, in which
the plain path analyses this many characters. (Compiling the loops, once for each machine, takes some 10 s.)"""

LOOPS = f"{__package__}.blocks"


@dataclass(frozen=True)
class TokenPath:
    """A way from texts to term ids. Every path gives the same ids."""

    name: str
    """``compiled`` or ``plain``."""
    reason: str

    def serves(self, characters: int, before: int = 0) -> bool:
        """Whether a call takes the compiled loops. It has `characters`, earlier calls had `before`."""
        if self.name != "compiled" or characters < LEAST_CHARACTERS:
            return False
        return LOOPS in sys.modules or before + characters >= LOADING_CHARACTERS

    def loaded(self) -> TokenPath:
        """Loads the loops and returns this path, or the plain one if numba is installed but cannot be imported."""
        if self.name != "compiled":
            return self
        try:
            importlib.import_module(LOOPS)
        except ImportError as error:
            return TokenPath("plain", f"numba cannot be imported: {error}")
        return self

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def choose_token_path(analyzer: Analyzer) -> TokenPath:
    """The path for the texts of an analyzer on this machine."""
    from ..settings import ENVIRONMENT_VARIABLE

    if word_recipe(analyzer) is None:
        return TokenPath("plain", f"{analyzer.name!r} does not take runs of letters and digits one by one")
    if os.environ.get(ENVIRONMENT_VARIABLE) == "numpy":
        return TokenPath("plain", f"{ENVIRONMENT_VARIABLE} is numpy")
    if importlib.util.find_spec("numba") is None:
        return TokenPath("plain", "no numba; install fanrank[cpu] for compiled loops")
    least = f"fewer than {LEAST_CHARACTERS:,} characters, or {LOADING_CHARACTERS:,} before the loops are loaded"
    return TokenPath("compiled", f"numba; calls of {least}, go token by token")


_STEMS = {"minimal": "none", "stopword": "none", "full": "step_one", "nltk": "nltk"}


def make_native(analyzer: Analyzer, **sizes: int) -> Analysis | None:
    """The compiled analysis for an empty vocabulary, or None where the analyzer goes token by token.

    `sizes` are those of `Sizes` in `native/text.hpp`.
    """
    recipe, loops = word_recipe(analyzer), compiled_loops()
    if recipe is None or loops is None:
        return None
    # A stop word such as "don't" is never one token, and its pieces, such as "don", need not be stop words.
    stop_words = sorted(word for word in recipe.stop_words if analyzer.tokenize(word) == [word])
    analysis: Analysis = loops.Analysis(analyzer, _STEMS[recipe.base], not recipe.drop_numeric, stop_words, **sizes)
    return analysis
