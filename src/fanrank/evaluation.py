"""Datasets, metrics, published protocols, tests of significance, and tuning on labelled questions."""

from . import _public
from .engine.evaluate import (
    PRESETS,
    Dataset,
    Evaluation,
    Preset,
    compare,
    evaluate,
    find_preset,
    load_beir,
    load_locomo,
    load_longmemeval,
    rank,
    render,
    run,
    study,
    study_conversations,
    study_strategies,
)
from .engine.fuse.alpha import AlphaFit, fit_alpha
from .engine.metrics.bootstrap import Comparison, cluster_bootstrap, paired_bootstrap
from .engine.metrics.ranking import METRICS, means, per_query
from .engine.rerank.reranker import Verdict, validate
from .engine.tune.drift import check as check_policy
from .engine.tune.measure import Labelled, labelled_questions
from .engine.tune.parameters import TunedBM25, tune_bm25
from .engine.tune.tuned import Tuned
from .engine.tune.tuner import tune

__all__ = [
    "METRICS",
    "PRESETS",
    "AlphaFit",
    "Comparison",
    "Dataset",
    "Evaluation",
    "Labelled",
    "Preset",
    "Tuned",
    "TunedBM25",
    "Verdict",
    "check_policy",
    "cluster_bootstrap",
    "compare",
    "evaluate",
    "find_preset",
    "fit_alpha",
    "labelled_questions",
    "load_beir",
    "load_locomo",
    "load_longmemeval",
    "means",
    "paired_bootstrap",
    "per_query",
    "rank",
    "render",
    "run",
    "study",
    "study_conversations",
    "study_strategies",
    "tune",
    "tune_bm25",
    "validate",
]

_public.publish(__name__)
