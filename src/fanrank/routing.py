"""The parts of a `fanrank.Cascade` and a `fanrank.Router`: classifiers, files, tables and costs."""

from . import _public
from .engine.records.decision import Decision
from .engine.route.by_namespace import ByNamespace
from .engine.route.cascade import LONGMEMEVAL_THRESHOLDS
from .engine.route.classifier import Classifier
from .engine.route.cost import amortised, capacity
from .engine.route.policy import load as load_policy
from .engine.route.policy import save as save_policy
from .engine.route.router import LONGMEMEVAL_SYSTEMS

__all__ = [
    "LONGMEMEVAL_SYSTEMS",
    "LONGMEMEVAL_THRESHOLDS",
    "ByNamespace",
    "Classifier",
    "Decision",
    "amortised",
    "capacity",
    "load_policy",
    "save_policy",
]

_public.publish(__name__)
