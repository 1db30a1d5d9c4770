"""Ways to narrow a search: namespaces, filters and spans of time."""

from . import _public
from .engine.namespace import Namespace
from .engine.records.filters import Filter, parse_filter
from .engine.text.time_expressions.parse import When

__all__ = [
    "Filter",
    "Namespace",
    "When",
    "parse_filter",
]

_public.publish(__name__)
