"""Presets: the engine parameters and the loader options with which each source evaluates a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

from ..errors import ParameterError, choices
from ..index.profiles import bm25_of, default_profile
from ..text.analyzers import DEFAULT_ANALYZER
from .beir import load_beir
from .dataset import Dataset
from .locomo import load_locomo
from .longmemeval import load_longmemeval


@dataclass(frozen=True)
class Preset:
    """The parameters of one protocol on one kind of dataset. `reading` holds the options of the dataset's loader.

    A `method`, `k1` or `b` of None is that of an engine that names no profile; `find_preset` fills it in.
    """

    analyzer: str = DEFAULT_ANALYZER
    method: str | None = None
    k1: float | None = None
    b: float | None = None
    query_tf: str = "count"
    complete: bool = False
    reading: dict[str, Any] = field(default_factory=dict)

    def scoring(self) -> dict[str, Any]:
        """BM25's method, k1 and b, as a result names them."""
        return {"method": self.method, "k1": self.k1, "b": self.b}


_AGENTIR = Preset("nltk", "lucene", 1.2, 0.75, "count", complete=True)
"""What Table 26 of AgentIR states."""
_RANK_BM25 = Preset("minimal", "okapi", 1.5, 0.75, "count", complete=True)
"""The defaults of the package rank_bm25: AgentIR's rows of LoCoMo, and of the cascade on LongMemEval."""
_OPSEM = Preset("opsem", "lucene", 1.5, 0.75, "unique", complete=True)


PRESETS: dict[tuple[str, str], Preset] = {
    ("default", "beir"): Preset(),
    ("default", "locomo"): Preset(reading={"gold": "strict", "text": "speakers"}),
    ("default", "longmemeval"): Preset(reading={"text": "roles"}),
    ("agentir", "beir"): replace(_AGENTIR, complete=False),
    ("agentir", "locomo"): replace(_RANK_BM25, reading={"gold": "lenient", "text": "turns"}),
    # The source counts the 30 abstention questions: 500 questions in all.
    ("agentir", "longmemeval"): replace(_AGENTIR, reading={"text": "turns", "abstention": True}),
    ("agentir-cascade", "longmemeval"): replace(_RANK_BM25, reading={"text": "turns", "abstention": True}),
    ("opsem", "locomo"): replace(_OPSEM, reading={"gold": "strict", "text": "speakers"}),
    ("opsem", "longmemeval"): replace(_OPSEM, reading={"text": "roles"}),
}
"""By (preset, kind of dataset)."""


LOADERS: dict[str, Callable[..., Dataset]] = {
    "beir": load_beir,
    "locomo": load_locomo,
    "longmemeval": load_longmemeval,
}


def check_reading(kind: str, reading: Mapping[str, Any]) -> None:
    """Raise `ParameterError` for an option that the loader of a kind of dataset does not have."""
    known = list(signature(LOADERS[kind]).parameters)[1:]
    for name in reading:
        if name not in known:
            others = [other for other in LOADERS if name in signature(LOADERS[other]).parameters]
            of = f"; {' and '.join(others)} have it" if others else ""
            raise ParameterError(f"{kind} is not read with {name!r}{of}. Its options: {', '.join(known)}")


def find_preset(name: str, kind: str) -> Preset:
    """The preset of this name for a kind of dataset, with BM25's parameters filled in.

    Raises `ParameterError`, naming those that exist.
    """
    if kind not in LOADERS:
        raise ParameterError(f"no dataset kind {kind!r}{choices(kind, LOADERS)}")
    if (name, kind) not in PRESETS:
        known = [preset for preset, of in PRESETS if of == kind]
        raise ParameterError(f"no preset {name!r} for {kind}{choices(name, known)}")
    preset = PRESETS[name, kind]
    filled = bm25_of(default_profile(), preset.method, preset.k1, preset.b)
    return replace(preset, method=filled.method, k1=filled.k1, b=filled.b)
