"""Datasets, metrics, published protocols, judged answers, significance, and tuning on labels."""

from . import _public
from .engine.evaluate import (
    PRESETS,
    Answering,
    AnswerJudge,
    ChatAnswerer,
    ChatJudge,
    ChatModel,
    Dataset,
    Evaluation,
    JudgedAnswer,
    JudgedAnswers,
    Latency,
    Preset,
    QuestionAnswerer,
    answer_metrics,
    answer_substring,
    answers_in_context,
    compare,
    compare_strategies,
    draw_per_category,
    evaluate,
    find_preset,
    gold_recency,
    judge_answers,
    load_beir,
    load_locomo,
    load_longmemeval,
    measure_latency,
    rank,
    render,
    run,
    study_strategies,
    token_recall,
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
from .engine.tune.weights import FittedWeights, fit_weights

__all__ = [
    "METRICS",
    "PRESETS",
    "AlphaFit",
    "AnswerJudge",
    "Answering",
    "ChatAnswerer",
    "ChatJudge",
    "ChatModel",
    "Comparison",
    "Dataset",
    "Evaluation",
    "FittedWeights",
    "JudgedAnswer",
    "JudgedAnswers",
    "Labelled",
    "Latency",
    "Preset",
    "QuestionAnswerer",
    "Tuned",
    "TunedBM25",
    "Verdict",
    "answer_metrics",
    "answer_substring",
    "answers_in_context",
    "check_policy",
    "cluster_bootstrap",
    "compare",
    "compare_strategies",
    "draw_per_category",
    "evaluate",
    "find_preset",
    "fit_alpha",
    "fit_weights",
    "gold_recency",
    "judge_answers",
    "labelled_questions",
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
    "tune",
    "tune_bm25",
    "validate",
]

_public.publish(__name__)
