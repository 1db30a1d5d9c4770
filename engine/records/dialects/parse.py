"""`parse_filter`: the filter expression for a filter in our JSON form, or in that of another library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import ParameterError, choices
from .. import filters
from ..filters import Filter
from . import haystack, langgraph, llama_index, mem0, openai
from .place import Place

_READERS: dict[str, Callable[[Any, Place], Filter | None]] = {
    "langgraph": langgraph.read,
    "mem0": mem0.read,
    "llama_index": llama_index.read,
    "haystack": haystack.read,
    "openai": openai.read,
}


def parse_filter(spec: Any, dialect: str | None = None, *, payload: bool = False) -> Filter | None:
    """The filter expression for `spec`: an expression itself, our JSON form, or the form of another library.

    `dialect` names the library: ``langgraph``, ``mem0``, ``llama_index``, ``haystack`` or ``openai``. None and an
    empty filter give None, no filter. Our own form maps columns to a value, to a list of values, or to comparisons
    (``{"importance": {">=": 0.5}}``). It maps ``and`` and ``or`` to lists of filters, and ``not`` to one filter.
    Several keys mean "and".

    A key of the spec names a column. With `payload` it names a key of `Record.payload` (the column ``payload.KEY``),
    whatever the built-in columns are called; our own form says ``payload.KEY`` itself. Where a library would fail at a
    record, as in comparing text with a number, the record does not match.

    Raises `QueryError`, which names the place in the filter, for unknown operators and anything else that is not of the
    form, and `ParameterError` for an unknown dialect.
    """
    if dialect is None:
        if payload:
            raise ParameterError("payload=True is for a dialect; write 'payload.KEY' for a key of the payload")
        return filters.parse_filter(spec)
    if dialect not in _READERS:
        raise ParameterError(f"unknown dialect {dialect!r}{choices(dialect, _READERS)}")
    if spec is None or isinstance(spec, Filter):
        return spec
    return _READERS[dialect](spec, Place(dialect, payload=payload))
