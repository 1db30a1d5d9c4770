"""Evaluation: loaders of published datasets, metrics, bootstrap tests, published protocols and studies."""

from __future__ import annotations

from ..metrics.bootstrap import Comparison, cluster_bootstrap, paired_bootstrap
from ..metrics.ranking import METRICS, means, per_query
from .beir import load_beir
from .dataset import Dataset
from .hybrid import study, study_conversations, study_strategies
from .locomo import load_locomo
from .longmemeval import load_longmemeval
from .presets import PRESETS, Preset, find_preset
from .protocol import Evaluation, compare, evaluate, rank, run
from .synthetic import SyntheticMemory, SyntheticQuestion, synthetic_records
from .tables import render

__all__ = [
    "METRICS",
    "PRESETS",
    "Comparison",
    "Dataset",
    "Evaluation",
    "Preset",
    "SyntheticMemory",
    "SyntheticQuestion",
    "cluster_bootstrap",
    "compare",
    "evaluate",
    "find_preset",
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
]
