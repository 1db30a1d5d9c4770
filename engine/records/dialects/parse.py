"""`parse_filter`: the filter expression for a filter in our JSON form, or in that of another library."""

from __future__ import annotations

from typing import Any

from .. import filters
from ..filters import Filter

DIALECTS = ("langgraph", "mem0", "llama_index", "haystack", "openai", "sql")
"""The forms of other libraries that `parse_filter` reads."""


def parse_filter(spec: Any, dialect: str | None = None, *, payload: bool = False) -> Filter | None:
    """The filter expression for `spec`: an expression itself, its JSON form, or the form of another library.

    None, ``{}`` and what a library takes for no filter give None.
    With `payload` the keys of the spec name keys of `Record.payload` (columns ``payload.KEY``), whatever built-in
    columns are called. Raises `QueryError`.
    """
    if dialect is None:
        return filters.parse_filter(spec)
    raise NotImplementedError(dialect)
