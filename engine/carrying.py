"""`Carrying`: the verbs of `Engine` that take a memory elsewhere, or give it another form."""

from __future__ import annotations

from .opening import OpenIndex
from .searcher import Searcher


class Carrying:
    """A part of `Engine`, which says what an engine is."""

    index: OpenIndex
    searcher: Searcher
