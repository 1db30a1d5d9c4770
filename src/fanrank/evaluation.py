"""Datasets, synthetic memories, metrics, published protocols, tests of significance, tuning on labelled questions."""

from . import _public
from .engine.evaluate import (
    PRESETS,
    Dataset,
    Evaluation,
    Preset,
    SyntheticMemory,
    SyntheticQuestion,
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
    synthetic_records,
)
from .engine.fuse.alpha import AlphaFit, fit_alpha
from .engine.metrics.bootstrap import Comparison, cluster_bootstrap, paired_bootstrap
from .engine.metrics.ranking import METRICS, means, per_query
from .engine.rerank.reranker import Verdict, validate
from .engine.tune.drift import check as check_policy
from .engine.tune.measure import Labelled, labelled_questions
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
    "SyntheticMemory",
    "SyntheticQuestion",
    "Tuned",
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
    "synthetic_records",
    "tune",
    "validate",
]

_public.publish(__name__)
