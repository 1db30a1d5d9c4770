"""fanrank: rank a planner's whole fan-out in one launch, and get the same bits everywhere.

>>> import fanrank as fr
>>> engine = fr.Engine.from_records([fr.Record("1", "error 4711 was fixed by a restart"), fr.Record("2", "lunch")])
>>> engine.search(["fix for error 4711"], k=1)[0]
[('1', 1.6696243286132812)]

What most programs need is here. The rest is by theme:

- `fanrank.errors`: what calls raise, and warnings
- `fanrank.strategies`: channels, fusions, feedback and rerankers
- `fanrank.routing`: classifiers, decisions, policy files, callbacks and costs
- `fanrank.encoders`: texts to vectors and to weighted terms
- `fanrank.text`: analyzers and BM25 methods
- `fanrank.scopes`: filters, namespaces and time spans
- `fanrank.reports`: explanations, health and drift
- `fanrank.evaluation`: datasets, metrics, tests of significance and tuning
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from . import _public
from . import encoders as encoders
from . import errors as errors
from . import reports as reports
from . import routing as routing
from . import scopes as scopes
from . import strategies as strategies
from . import text as text
from .engine.encoders.encoder import OwnVectors
from .engine.encoders.sentence import SentenceEncoder
from .engine.engine import Engine
from .engine.errors import FanrankError
from .engine.hybrid.strategy import Strategy
from .engine.index.bm25 import BM25
from .engine.records.entities import Relation
from .engine.records.filters import col
from .engine.records.hit import Hit
from .engine.records.hits import Hits
from .engine.records.jsonl import read_records
from .engine.records.query import Query, SearchScope
from .engine.records.record import Record
from .engine.route.cascade import Cascade
from .engine.route.router import Router
from .engine.serve.coalesce import Coalescer
from .engine.text.time_expressions.parse import parse_when

if TYPE_CHECKING:
    from . import evaluation as evaluation
else:

    def __getattr__(name: str) -> ModuleType:
        # An engine imports the modules of the other themes anyway. This theme would add 20 modules to every import.
        # Type checkers do not see this function. If they did, they would accept every misspelled name of the package.
        if name == "evaluation":
            return importlib.import_module(f"{__name__}.evaluation")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"

__all__ = [
    "BM25",
    "Cascade",
    "Coalescer",
    "Engine",
    "FanrankError",
    "Hit",
    "Hits",
    "OwnVectors",
    "Query",
    "Record",
    "Relation",
    "Router",
    "SearchScope",
    "SentenceEncoder",
    "Strategy",
    "col",
    "parse_when",
    "read_records",
]

_THEMES = ("encoders", "errors", "evaluation", "reports", "routing", "scopes", "strategies", "text")

_public.publish(__name__)


def __dir__() -> list[str]:
    return sorted({*__all__, *_THEMES, *(name for name in globals() if name.startswith("__"))})
