"""Evaluation: loaders of published datasets, metrics, bootstrap tests, published protocols and studies."""

from __future__ import annotations

from ..metrics.answers import answer_metrics, answer_substring, token_recall
from ..metrics.bootstrap import Comparison, cluster_bootstrap, paired_bootstrap
from ..metrics.ranking import METRICS, means, per_query
from .answering import (
    AnswerJudge,
    JudgedAnswer,
    JudgedAnswers,
    QuestionAnswerer,
    answers_in_context,
    draw_per_category,
    judge_answers,
)
from .beir import load_beir
from .chat import ChatAnswerer, ChatJudge, ChatModel
from .command import Answering, compare_strategies, evaluate
from .comparison import study_strategies
from .dataset import Dataset
from .latency import Latency, measure_latency
from .locomo import load_locomo
from .longmemeval import load_longmemeval
from .presets import PRESETS, Preset, find_preset
from .protocol import Evaluation, compare, rank, run
from .recency import gold_recency
from .tables import render

__all__ = [
    "METRICS",
    "PRESETS",
    "AnswerJudge",
    "Answering",
    "ChatAnswerer",
    "ChatJudge",
    "ChatModel",
    "Comparison",
    "Dataset",
    "Evaluation",
    "JudgedAnswer",
    "JudgedAnswers",
    "Latency",
    "Preset",
    "QuestionAnswerer",
    "answer_metrics",
    "answer_substring",
    "answers_in_context",
    "cluster_bootstrap",
    "compare",
    "compare_strategies",
    "draw_per_category",
    "evaluate",
    "find_preset",
    "gold_recency",
    "judge_answers",
    "load_beir",
    "load_locomo",
    "load_longmemeval",
    "means",
    "measure_latency",
    "paired_bootstrap",
    "per_query",
    "rank",
    "render",
    "run",
    "study_strategies",
    "token_recall",
]
