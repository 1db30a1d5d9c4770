"""fanrank: rank a planner's whole fan-out in one launch, and get the same bits everywhere.

>>> import fanrank as fr
>>> engine = fr.Engine.from_records([fr.Record("1", "error 4711 was fixed by a restart"), fr.Record("2", "lunch")])
>>> engine.search(["fix for error 4711"], k=1)[0]
[('1', 2.32672119140625)]

What most programs need is here. The rest is by theme:

- `fanrank.errors`: what calls raise, and warnings
- `fanrank.strategies`: channels, fusions, feedback and rerankers, and the strategies that have names
- `fanrank.published`: what reproduces a source
- `fanrank.routing`: classifiers, decisions, policy files and costs
- `fanrank.encoders`: texts to vectors and to weighted terms
- `fanrank.text`: analyzers and BM25 methods
- `fanrank.scopes`: filters, namespaces and time spans
- `fanrank.reports`: explanations, health and drift
- `fanrank.evaluation`: datasets, metrics, tests of significance and tuning
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import _public
from . import errors as errors

if TYPE_CHECKING:
    from . import encoders as encoders
    from . import evaluation as evaluation
    from . import published as published
    from . import reports as reports
    from . import routing as routing
    from . import scopes as scopes
    from . import strategies as strategies
    from . import text as text
    from .client.asynchronous import AsyncClient
    from .client.opening import open as open
    from .client.synchronous import Client
    from .engine.encoders.encoder import OwnVectors
    from .engine.encoders.sentence import SentenceEncoder
    from .engine.engine import Engine
    from .engine.errors import FanrankError
    from .engine.hybrid.strategy import Strategy
    from .engine.index.bm25 import BM25
    from .engine.memory import Memory
    from .engine.records.entities import Relation
    from .engine.records.filters import col
    from .engine.records.hit import Hit
    from .engine.records.hits import Hits
    from .engine.records.jsonl import read_records
    from .engine.records.neighbours import Neighbours
    from .engine.records.query import Query, SearchScope
    from .engine.records.record import Record
    from .engine.route.cascade import Cascade
    from .engine.route.router import Router
    from .engine.serve.coalesce import Coalescer
    from .engine.text.time_expressions.parse import parse_when
    from .shards.engine import ShardedEngine

__version__ = "0.1.0"

__all__ = [
    "BM25",
    "AsyncClient",
    "Cascade",
    "Client",
    "Coalescer",
    "Engine",
    "FanrankError",
    "Hit",
    "Hits",
    "Memory",
    "Neighbours",
    "OwnVectors",
    "Query",
    "Record",
    "Relation",
    "Router",
    "SearchScope",
    "SentenceEncoder",
    "ShardedEngine",
    "Strategy",
    "col",
    "open",
    "parse_when",
    "read_records",
]

_HOMES = {
    "AsyncClient": "client.asynchronous",
    "BM25": "engine.index.bm25",
    "Cascade": "engine.route.cascade",
    "Client": "client.synchronous",
    "Coalescer": "engine.serve.coalesce",
    "Engine": "engine.engine",
    "FanrankError": "engine.errors",
    "Hit": "engine.records.hit",
    "Hits": "engine.records.hits",
    "Memory": "engine.memory",
    "Neighbours": "engine.records.neighbours",
    "OwnVectors": "engine.encoders.encoder",
    "Query": "engine.records.query",
    "Record": "engine.records.record",
    "Relation": "engine.records.entities",
    "Router": "engine.route.router",
    "SearchScope": "engine.records.query",
    "SentenceEncoder": "engine.encoders.sentence",
    "ShardedEngine": "shards.engine",
    "Strategy": "engine.hybrid.strategy",
    "col": "engine.records.filters",
    "open": "client.opening",
    "parse_when": "engine.text.time_expressions.parse",
    "read_records": "engine.records.jsonl",
}
"""The module of each name, below this package. It is loaded when the name is first read."""

_THEMES = ("encoders", "errors", "evaluation", "published", "reports", "routing", "scopes", "strategies", "text")

if not TYPE_CHECKING:
    # Type checkers do not see this function. If they did, they would accept every misspelled name of the package.
    def __getattr__(name: str) -> Any:
        if name in _THEMES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        importlib.import_module(f"{__name__}.{_HOMES[name]}")
        _publish_loaded()
        return globals()[name]


def _publish_loaded() -> None:
    """Make public every name whose module is loaded: an engine gives out hits before a caller reads `fanrank.Hits`."""
    for name, home in _HOMES.items():
        module = sys.modules.get(f"{__name__}.{home}")
        if name not in globals() and hasattr(module, name):
            globals()[name] = getattr(module, name)
            _public.publish(__name__, (name,))


def __dir__() -> list[str]:
    return sorted({*__all__, *_THEMES, *(name for name in globals() if name.startswith("__"))})
