"""fanrank: rank a planner's whole fan-out in one launch, and get the same bits everywhere.

>>> import fanrank as fr
>>> engine = fr.Engine.from_records([fr.Record("1", "error 4711 was fixed by a restart"), fr.Record("2", "lunch")])
>>> engine.search(["fix for error 4711"], k=1)[0]
[('1', 1.6696243286132812)]
"""

from .engine.encoders.cache import CachedEncoder
from .engine.encoders.encoder import Encoder, OwnVectors
from .engine.encoders.sentence import SentenceEncoder
from .engine.encoders.sparse import SparseSentenceEncoder, TermEncoder, weights_of
from .engine.engine import Engine
from .engine.errors import (
    BackendUnavailableError,
    CacheError,
    DamagedIndexError,
    DamagedStoreError,
    DatasetError,
    DeadlineError,
    DeviceMemoryError,
    DuplicateIdError,
    EncoderError,
    FanrankError,
    ForeignIndexError,
    IndexFileError,
    MissingExtraError,
    ModelMismatchError,
    NewerFormatError,
    OverloadedError,
    ParameterError,
    PolicyFileError,
    QueryError,
    RecordError,
    StorageError,
    StoreLockedError,
    UnknownIdError,
)
from .engine.feedback.registry import feedback_of
from .engine.fuse import RRF, AgentRRF, Decay, MinMax, ScoreRRF, ZScore
from .engine.fuse.agent_rrf import RecencyWarning
from .engine.fuse.alpha import fit_alpha
from .engine.fuse.candidates import Candidates
from .engine.hybrid.strategy import STRATEGIES, Conversation, Dense, Graph, Learned, Lexical, Strategy, Temporal
from .engine.index.bm25 import BM25, METHODS
from .engine.monitor.health import DriftReport, HealthReport
from .engine.monitor.recency import Recency
from .engine.namespace import Namespace
from .engine.recall.conversation import PageRank
from .engine.recall.optimizer import Optimizer
from .engine.records.decision import Decision
from .engine.records.entities import Relation
from .engine.records.explanation import ChannelShare, Explanation, FusedExplanation, TermContribution
from .engine.records.filters import Filter, col, parse_filter
from .engine.records.hits import Hits
from .engine.records.jsonl import read_records
from .engine.records.query import Query, SearchScope
from .engine.records.record import Record
from .engine.rerank.reranker import CheckedReranker, CrossEncoderReranker, Verdict, validate
from .engine.route.callbacks import CascadeRouter, Retrieved
from .engine.route.cascade import Cascade
from .engine.route.classifier import Classifier
from .engine.route.cost import amortised, capacity
from .engine.route.policy import load as load_policy
from .engine.route.policy import save as save_policy
from .engine.route.router import Router
from .engine.serve.coalesce import Coalescer
from .engine.text.analyzers import ANALYZERS, Analyzer, get_analyzer
from .engine.text.time_expressions.parse import When, parse_when
from .engine.tune.drift import check as check_policy
from .engine.tune.measure import Labelled
from .engine.tune.tuner import tune
from .engine.vectors.interaction import Interaction

__version__ = "0.1.0"

__all__ = [
    "ANALYZERS",
    "BM25",
    "METHODS",
    "RRF",
    "STRATEGIES",
    "AgentRRF",
    "Analyzer",
    "BackendUnavailableError",
    "CacheError",
    "CachedEncoder",
    "Candidates",
    "Cascade",
    "CascadeRouter",
    "ChannelShare",
    "CheckedReranker",
    "Classifier",
    "Coalescer",
    "Conversation",
    "CrossEncoderReranker",
    "DamagedIndexError",
    "DamagedStoreError",
    "DatasetError",
    "DeadlineError",
    "Decay",
    "Decision",
    "Dense",
    "DeviceMemoryError",
    "DriftReport",
    "DuplicateIdError",
    "Encoder",
    "EncoderError",
    "Engine",
    "Explanation",
    "FanrankError",
    "Filter",
    "ForeignIndexError",
    "FusedExplanation",
    "Graph",
    "HealthReport",
    "Hits",
    "IndexFileError",
    "Interaction",
    "Labelled",
    "Learned",
    "Lexical",
    "MinMax",
    "MissingExtraError",
    "ModelMismatchError",
    "Namespace",
    "NewerFormatError",
    "Optimizer",
    "OverloadedError",
    "OwnVectors",
    "PageRank",
    "ParameterError",
    "PolicyFileError",
    "Query",
    "QueryError",
    "Recency",
    "RecencyWarning",
    "Record",
    "RecordError",
    "Relation",
    "Retrieved",
    "Router",
    "ScoreRRF",
    "SearchScope",
    "SentenceEncoder",
    "SparseSentenceEncoder",
    "StorageError",
    "StoreLockedError",
    "Strategy",
    "Temporal",
    "TermContribution",
    "TermEncoder",
    "UnknownIdError",
    "Verdict",
    "When",
    "ZScore",
    "amortised",
    "capacity",
    "check_policy",
    "col",
    "feedback_of",
    "fit_alpha",
    "get_analyzer",
    "load_policy",
    "parse_filter",
    "parse_when",
    "read_records",
    "save_policy",
    "tune",
    "validate",
    "weights_of",
]
