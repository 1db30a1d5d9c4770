"""Ways to narrow a search or a listing: namespaces, filters and spans of time."""

from . import _public
from .engine.listing.listing import Listing
from .engine.namespace import Namespace
from .engine.records.dialects.parse import parse_filter
from .engine.records.filters import Filter
from .engine.text.time_expressions.occasions import Occasion
from .engine.text.time_expressions.parse import When

__all__ = [
    "Filter",
    "Listing",
    "Namespace",
    "Occasion",
    "When",
    "parse_filter",
]

_public.publish(__name__)
