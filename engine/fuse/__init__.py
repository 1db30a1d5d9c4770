"""Fusion: several ranked lists become one list. Each method has a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..errors import ParameterError, choices, refuse_unknown
from .agent_rrf import AgentRRF
from .boosted import Boosted
from .decay import Decay
from .fusion import Fusion
from .linear import Linear
from .minmax import MinMax
from .rrf import RRF
from .score_rrf import ScoreRRF
from .zscore import ZScore

__all__ = [
    "FUSIONS",
    "RRF",
    "AgentRRF",
    "Boosted",
    "Decay",
    "Fusion",
    "Linear",
    "MinMax",
    "ScoreRRF",
    "ZScore",
    "fusion_of",
    "fusion_to_dict",
]

FUSIONS: dict[str, type[Any]] = {
    kind.name: kind for kind in (RRF, ScoreRRF, ZScore, MinMax, AgentRRF, Decay, Boosted, Linear)
}


def fusion_of(data: str | Mapping[str, Any]) -> Fusion:
    """Make a fusion from its name, or from a mapping with its ``name`` and some of its fields.

    Fields that are left out have their defaults. Raises `ParameterError` for an unknown name or field, or a value that
    the fusion declines.
    """
    if isinstance(data, str):
        data = {"name": data}
    if not isinstance(data, Mapping):
        raise ParameterError(f"a fusion is a name or a mapping with a name, not {data!r}")
    name = data.get("name")
    kind = FUSIONS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ParameterError(f"unknown fusion {name!r}{choices(name, FUSIONS)}")
    names = [field.name for field in fields(kind)]
    parameters = {key: value for key, value in data.items() if key != "name"}
    refuse_unknown(parameters, names, f"the fusion {name!r} has no parameter")
    fusion: Fusion = kind(**parameters)
    return fusion


def fusion_to_dict(fusion: Fusion) -> dict[str, Any]:
    """The fusion as plain JSON values. `fusion_of` makes an equal fusion from them."""
    return {"name": fusion.name} | {
        field.name: _plain(getattr(fusion, field.name))
        for field in fields(fusion)  # type: ignore[arg-type]
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
