"""The few strategies and policies that `make test` takes where a test is one of many alike."""

from collections.abc import Iterable
from typing import Any

import pytest

# One for each channel, interaction, fusion, feedback and policy.
FEW = (
    *("bm25", "dense", "dense-top3", "dense-lse10", "dense-int8", "sparse", "rm3", "graph", "temporal", "conversation"),
    *("rrf", "agent_rrf", "score_rrf", "fused", "minmax", "decay", "softcentroid-fused", "first-sentence", "again"),
    *("recall", "recall-source", "dialogue", "all", "auto", "cascade", "entropy", "router", "soft"),
)


def each(names: Iterable[str]) -> list[Any]:
    """These names as parameters, those beyond the few marked as extended."""
    return [pytest.param(name, marks=[] if name in FEW else pytest.mark.extended) for name in names]
