"""fanrank: rank a planner's whole fan-out in one launch, and get the same bits everywhere.

>>> import fanrank as fr
>>> engine = fr.Engine.from_records([fr.Record("1", "error 4711 was fixed by a restart"), fr.Record("2", "lunch")])
>>> engine.search(["fix for error 4711"], k=1)[0]
[('1', 1.6696243286132812)]
"""

from .engine.bm25 import BM25, METHODS
from .engine.errors import (
    BackendUnavailableError,
    DamagedIndexError,
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
    UnknownIdError,
)
from .engine.explain import Explanation, TermContribution
from .engine.records import Hits, Query, Record, read_records
from .engine.search import Engine
from .engine.text import ANALYZERS, Analyzer, get_analyzer

__version__ = "0.1.0"

__all__ = [
    "ANALYZERS",
    "BM25",
    "METHODS",
    "Analyzer",
    "BackendUnavailableError",
    "DamagedIndexError",
    "DatasetError",
    "DeviceMemoryError",
    "DuplicateIdError",
    "Engine",
    "Explanation",
    "FanrankError",
    "ForeignIndexError",
    "Hits",
    "IndexFileError",
    "MissingExtraError",
    "NewerFormatError",
    "ParameterError",
    "Query",
    "QueryError",
    "Record",
    "RecordError",
    "StorageError",
    "TermContribution",
    "UnknownIdError",
    "get_analyzer",
    "read_records",
]
