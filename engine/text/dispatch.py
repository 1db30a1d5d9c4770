"""Chooses how texts become term ids: by compiled loops, or by the analyzer token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import native
from ..settings import ENVIRONMENT_VARIABLE, compiled_loops
from .analyzers import Analyzer, WordRecipe, word_recipe

if TYPE_CHECKING:
    from ...native._compiled import Analysis

_STEMS = {"minimal": "none", "stopword": "none", "full": "step_one", "nltk": "nltk", "agent": "nltk"}
"""By the base name of an analyzer, how the compiled loops stem for it."""


@dataclass(frozen=True)
class TokenPath:
    """A way from texts to term ids. Every path gives the same ids."""

    name: str
    """``compiled`` or ``plain``."""
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def choose_token_path(analyzer: Analyzer) -> TokenPath:
    """The path for the texts of an analyzer on this machine."""
    if word_recipe(analyzer) is None:
        return TokenPath("plain", f"the compiled loops do not know the tokens of {analyzer.name!r}")
    if compiled_loops() is not None:
        return TokenPath("compiled", native.reason)
    return TokenPath("plain", native.reason if native.compiled is None else f"{ENVIRONMENT_VARIABLE} is numpy")


def make_native(analyzer: Analyzer, **sizes: int) -> Analysis | None:
    """The compiled loops for an analyzer and an empty vocabulary, or None where the analyzer goes token by token.

    `sizes` are those of `Sizes` in `native/text.hpp`.
    """
    recipe, loops = word_recipe(analyzer), compiled_loops()
    if recipe is None or loops is None:
        return None
    analysis: Analysis = loops.Analysis(
        analyzer,
        _STEMS[recipe.base],
        not recipe.drop_numeric,
        _lone_stop_words(analyzer, recipe),
        names=recipe.base == "agent",
        **sizes,
    )
    return analysis


def _lone_stop_words(analyzer: Analyzer, recipe: WordRecipe) -> list[str]:
    """The stop words that are one token: "don't" is none, and its pieces, such as "don", need not be stop words."""
    return [word for word in sorted(recipe.stop_words) if analyzer.tokenize(word) == [word]]
