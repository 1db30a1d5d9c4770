"""The parts of a `fanrank.Strategy`: channels, fusions, feedback and rerankers; and the named strategies."""

from . import _public
from .engine.feedback.pool import Feedback
from .engine.feedback.registry import feedback_of
from .engine.feedback.rm3 import RM3
from .engine.fuse import RRF, AgentRRF, Boosted, Decay, Linear, MinMax, ScoreRRF, ZScore
from .engine.fuse.candidates import Candidates, Fused
from .engine.fuse.fusion import Fusion
from .engine.hybrid.strategy import (
    STRATEGIES,
    ContextVectors,
    ContextWords,
    Conversation,
    Cue,
    Dense,
    Graph,
    Hinted,
    Learned,
    Lexical,
    Temporal,
)
from .engine.recall.conversation import PageRank
from .engine.recall.optimizer import Optimizer
from .engine.rerank.reranker import CheckedReranker, CrossEncoderReranker, Reranker
from .engine.vectors.index_options import Approximate
from .engine.vectors.interaction import Interaction

__all__ = [
    "RM3",
    "RRF",
    "STRATEGIES",
    "AgentRRF",
    "Approximate",
    "Boosted",
    "Candidates",
    "CheckedReranker",
    "ContextVectors",
    "ContextWords",
    "Conversation",
    "CrossEncoderReranker",
    "Cue",
    "Decay",
    "Dense",
    "Feedback",
    "Fused",
    "Fusion",
    "Graph",
    "Hinted",
    "Interaction",
    "Learned",
    "Lexical",
    "Linear",
    "MinMax",
    "Optimizer",
    "PageRank",
    "Reranker",
    "ScoreRRF",
    "Temporal",
    "ZScore",
    "feedback_of",
]

_public.publish(__name__)
