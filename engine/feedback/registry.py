"""Feedback by name, and to and from plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..errors import ParameterError, choices, refuse_unknown
from .amp import Amp, Gated, NormConvergence, Projection, TailGap
from .centroid import SoftCentroid, WeightedCentroid
from .first_sentence import FirstSentence, SentenceAmp
from .iterated import Iterated
from .pool import Feedback
from .rocchio import Rocchio, RocchioFloor
from .routed import AdaptiveSoftCentroid, FactoidRoute

FEEDBACKS: Mapping[str, type[Feedback]] = {
    kind.name: kind
    for kind in (
        *(Rocchio, RocchioFloor, SoftCentroid, WeightedCentroid, Iterated, FirstSentence, TailGap),
        *(AdaptiveSoftCentroid, FactoidRoute, Amp, SentenceAmp, Gated, NormConvergence, Projection),
    )
}

PROGRAMS: Mapping[str, Feedback] = {
    "p1": Amp(),
    "p19": SentenceAmp(),
    "p28": NormConvergence(),
    "p32": TailGap(),
    "p33": Gated(SentenceAmp(), k=1),
    "p40": Iterated(Rocchio(), fresh=True),
    "p97": SentenceAmp(k=2),
    "p102": Gated(),
    "p103": Iterated(SentenceAmp(), fresh=True),
    "p164": Projection(),
}
"""The Test-Time Compute paper's programs, by their numbers there."""

PRESETS: Mapping[str, Feedback] = {
    "hard-top1": WeightedCentroid(k=1, alpha=1.0, weighting="top"),
    "uniform-centroid": WeightedCentroid(weighting="uniform"),
    "linear-centroid": WeightedCentroid(weighting="linear"),
    "cosine-centroid": WeightedCentroid(weighting="cosine"),
    "softcentroid-2": Iterated(fresh=True),
    "softcentroid-3": Iterated(rounds=3, fresh=True),
    "softcentroid-k5": SoftCentroid(k=5, alpha=0.35),
    "softcentroid-k10": SoftCentroid(k=10),
    **PROGRAMS,
}
"""Rows of Tables 5 and 16 of the Test-Time Compute paper, and its programs. Methods with their defaults are in
`FEEDBACKS` instead."""


def feedback_of(value: str | Mapping[str, Any] | Feedback) -> Feedback:
    """Make feedback from a name of `PRESETS` or `FEEDBACKS`, or from ``{"name": …, field: value, …}``.

    `feedback_to_dict` makes such a mapping. A feedback object is returned as it is. Raises `ParameterError` for an
    unknown name or field, or a value out of range.
    """
    if isinstance(value, str):
        return PRESETS[value] if value in PRESETS else _kind(value)()
    if isinstance(value, Mapping):
        if not isinstance(value.get("name"), str):
            raise ParameterError(f"feedback must say its 'name', a string: {dict(value)!r}")
        kind = _kind(value["name"])
        known = ["name", *(field.name for field in fields(kind))]  # type: ignore[arg-type]
        refuse_unknown(value, known, f"feedback {kind.name!r} has no field")
        arguments = {
            field: feedback_of(setting) if field == "of" else setting
            for field, setting in value.items()
            if field != "name"
        }
        return kind(**arguments)
    if isinstance(value, Feedback) and not isinstance(value, type):
        return value
    raise ParameterError(f"feedback must be a name or an object with its fields, not {value!r}")


def feedback_to_dict(feedback: Feedback) -> dict[str, Any]:
    """The name and all fields as JSON values. `feedback_of` makes equal feedback from them."""
    values = {field.name: getattr(feedback, field.name) for field in fields(feedback)}  # type: ignore[arg-type]
    return {
        "name": feedback.name,
        **{field: feedback_to_dict(value) if isinstance(value, Feedback) else value for field, value in values.items()},
    }


def _kind(name: str) -> type[Feedback]:
    if name not in FEEDBACKS:
        raise ParameterError(f"no feedback {name!r}{choices(name, [*FEEDBACKS, *PRESETS])}")
    return FEEDBACKS[name]
