"""An engine's reports on its work: explanations of scores, health, drift, recency, imports and backups."""

from . import _public
from .engine.carry.importing import Imported
from .engine.monitor.health import DriftReport, HealthReport
from .engine.monitor.recency import Recency
from .engine.records.explanation import ChannelShare, Explanation, FusedExplanation, TermContribution
from .engine.storage.backup import BackupReport

__all__ = [
    "BackupReport",
    "ChannelShare",
    "DriftReport",
    "Explanation",
    "FusedExplanation",
    "HealthReport",
    "Imported",
    "Recency",
    "TermContribution",
]

_public.publish(__name__)
