"""fanrank: rank a planner's whole fan-out in one launch, and get the same bits everywhere.

>>> import fanrank as fr
>>> engine = fr.Engine.from_records([fr.Record("1", "error 4711 was fixed by a restart"), fr.Record("2", "lunch")])
>>> engine.search(["fix for error 4711"], k=1)[0]
[('1', 1.6696243286132812)]
"""

from .engine.bm25 import BM25, METHODS
from .engine.engine import Engine
from .engine.errors import (
    BackendUnavailableError,
    DamagedIndexError,
    DamagedStoreError,
    DatasetError,
    DeviceMemoryError,
    DuplicateIdError,
    FanrankError,
    ForeignIndexError,
    IndexFileError,
    MissingExtraError,
    NewerFormatError,
    ParameterError,
    QueryError,
    RecordError,
    StorageError,
    StoreLockedError,
    UnknownIdError,
)
from .engine.explain import Explanation, TermContribution
from .engine.filters import Filter, col, parse_filter
from .engine.health import DriftReport, HealthReport
from .engine.namespace import Namespace
from .engine.recency import Recency
from .engine.records import Hits, Query, Record, SearchScope, read_records
from .engine.text import ANALYZERS, Analyzer, get_analyzer
from .engine.when import When, parse_when

__version__ = "0.1.0"

__all__ = [
    "ANALYZERS",
    "BM25",
    "METHODS",
    "Analyzer",
    "BackendUnavailableError",
    "DamagedIndexError",
    "DamagedStoreError",
    "DatasetError",
    "DeviceMemoryError",
    "DriftReport",
    "DuplicateIdError",
    "Engine",
    "Explanation",
    "FanrankError",
    "Filter",
    "ForeignIndexError",
    "HealthReport",
    "Hits",
    "IndexFileError",
    "MissingExtraError",
    "Namespace",
    "NewerFormatError",
    "ParameterError",
    "Query",
    "QueryError",
    "Recency",
    "Record",
    "RecordError",
    "SearchScope",
    "StorageError",
    "StoreLockedError",
    "TermContribution",
    "UnknownIdError",
    "When",
    "col",
    "get_analyzer",
    "parse_filter",
    "parse_when",
    "read_records",
]
