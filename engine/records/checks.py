"""What is said of the fields of records and queries, and checks of the values that they share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from ..errors import ParameterError, check_names
from ..moments import to_span
from .term_weights import TermWeights

T = TypeVar("T")


@dataclass(frozen=True)
class About:
    """One line on a field, the least value (of a text and of each in a list: the least length), examples, and the most
    that a number may be."""

    text: str
    least: int | None = None
    examples: tuple[str, ...] = ()
    most: int | None = None


def naming(kind: type[T]) -> type[T]:
    """Makes the constructor of a dataclass name the field that may be meant by an unknown keyword.

    It is written anew, with a parameter that takes unknown keywords. A wrapper around the old one would add a tenth to
    the time of a query's constructor; this one takes no longer than the old one.
    """
    plain = kind.__init__
    code, defaults = plain.__code__, plain.__defaults__ or ()
    names = code.co_varnames[1 : code.co_argcount]
    first = len(names) - len(defaults)
    # A field whose value is made for each object has an object as its default that stands for "not given".
    makers = {item.name: item.default_factory for item in fields(kind) if item.default_factory is not MISSING}  # type: ignore[arg-type]
    scope: dict[str, Any] = {"store": object.__setattr__, "check": check_names, "names": names, "defaults": defaults}
    scope |= {f"make_{name}": maker for name, maker in makers.items()}
    listed = ", ".join([*names[:first], *(f"{name}=None" for name in names[first:])])
    lines = [f"def __init__(self, {listed}, **unknown):"]
    lines.append(f"    if unknown: check(unknown, names, names, {kind.__name__!r})")
    for place, name in enumerate(names):
        value = f"make_{name}() if {name} is defaults[{place - first}] else {name}" if name in makers else name
        lines.append(f"    store(self, {name!r}, {value})")
    if hasattr(kind, "__post_init__"):
        lines.append("    self.__post_init__()")
    exec("\n".join(lines), scope)
    scope["__init__"].__defaults__ = defaults
    kind.__init__ = wraps(plain)(scope["__init__"])  # type: ignore[method-assign]
    return kind


def checked_weights(weights: object) -> Mapping[str, float]:
    """A copy of term weights, as a dictionary; `TermWeights` as they are, which are checked and never change. Raises
    `ValueError`; the caller adds what the weights belong to.
    """
    if type(weights) is TermWeights:
        return weights
    if not isinstance(weights, Mapping):
        raise ValueError(f"must map terms to numbers, not {type(weights).__name__}")
    for term, weight in weights.items():
        if not isinstance(term, str):
            raise ValueError(f"must have strings as terms, not {shorten(term)}")
        if not term.isascii() and term.encode("utf-8", "replace").decode() != term:
            raise ValueError(f"must have terms without lone surrogates, which no file can store, not {term!r}")
        if isinstance(weight, bool) or not isinstance(weight, (int, float, np.integer, np.floating)):
            raise ValueError(f"must map terms to numbers, not {term!r} to {shorten(weight)}")
        if not is_finite(weight) or weight < 0:
            raise ValueError(f"must be finite and 0 or more, not {shorten(weight)} as that of {term!r}")
    return {term: float(weight) for term, weight in weights.items()}


def is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond float64
        return False


def shorten(value: object) -> str:
    """`repr`, cut to 80 characters. An integer of 10**20 or more is not printed, as it can be of any length."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "an integer beyond float64"
    return text if len(text) <= 80 else text[:79] + "…"


def checked_span(name: str, span: object, least: float, most: float) -> float:
    """The parameter `name`, a length of time, in seconds. Raises `ParameterError`."""
    try:
        seconds = to_span(span)
    except ValueError as error:
        raise ParameterError(f"{name} {error}, not {shorten(span)}") from None
    if not least <= seconds <= most:
        raise ParameterError(f"{name} must lie between {least:g} and {most:g} seconds, not {shorten(span)}")
    return seconds
