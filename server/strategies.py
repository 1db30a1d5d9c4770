"""The strategy of a request: read once, and bounded.

It is data. Nothing in it names an encoder, a reranker, a file or code: an object has the fields of `Strategy.to_dict`
and its like, and any other is refused by its name. What it can do is ask for much work, so its numbers are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ..engine.errors import FanrankError
from ..engine.route.by_namespace import AnyAnswerer, ByNamespace, answerer_of
from ..engine.route.cascade import Cascade
from ..engine.route.policy import Answerer
from ..engine.route.router import Router
from .limits import Limits
from .problems import Problem

FREE = {"long_chars", "medium_chars", "base", "rows", "dimension", "overlap", "widen_below"}
"""Whole numbers by which no search does more work."""
REPEATS = {"rounds", "iterations"}
"""Whole numbers that say how often something is done again."""


def read_strategy(value: Any, field: str, limits: Limits) -> Any:
    """The strategy or policy that a request gives at this field: a name as it is, an object read. Raises `Problem`."""
    if not isinstance(value, Mapping):
        return value
    try:
        answerer = answerer_of(value)
    except FanrankError as error:
        raise Problem.of(error, field=field) from None
    _check(answerer, field, limits)
    return answerer


def _check(answerer: AnyAnswerer, field: str, limits: Limits) -> None:
    """Raise `Problem` for a strategy that asks for more work than the limits allow."""
    if isinstance(answerer, ByNamespace):
        if len(answerer.strategies) > limits.namespaces:
            detail = f"strategies may be given for {limits.namespaces:,} namespaces"
            raise Problem(422, "StrategyTooLarge", detail, field=field)
        for one in answerer.every:
            _check(one, field, limits)
        return
    for name, value, usual in _settings(answerer):
        _check_setting(name, value, usual, field, limits)
    if _searches(answerer) > limits.searches:
        detail = (
            f"a strategy may have {limits.searches:,} channels, over all strategies of a policy, each counted again "
            "for each round of feedback"
        )
        raise Problem(422, "StrategyTooLarge", detail, field=field)


def _check_setting(name: str, value: Any, usual: Any, field: str, limits: Limits) -> None:
    if name == "depth" and value is None:
        detail = f"depth must be 1 to {limits.depth:,}; without it every record is listed"
        raise Problem(422, "StrategyTooLarge", detail, field=f"{field}.depth")
    if name == "approximate" and value is not None:
        detail = "this server's graphs have the default options; leave approximate out"
        raise Problem(422, "InvalidField", detail, field=f"{field}.approximate")
    if isinstance(value, int) and not isinstance(value, bool) and name not in FREE:
        most = limits.searches if name in REPEATS else limits.depth
        # What a strategy has by itself was chosen for it.
        if value > max(most, usual if isinstance(usual, int) else 0):
            raise Problem(422, "StrategyTooLarge", f"{name} may be {most:,}, not {value:,}", field=f"{field}.{name}")


def _settings(value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each setting of a strategy or policy and of all that it holds: its name, its value and its default."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += [inner for inner in one if not isinstance(inner, str | float)]
        elif is_dataclass(one):
            for setting in fields(one):
                inner = getattr(one, setting.name)
                yield setting.name, inner, setting.default
                waiting.append(inner)


def _searches(answerer: Answerer) -> int:
    """How many lists one query has made, at most."""
    if isinstance(answerer, Cascade):
        return 1 + _searches(answerer.escalate)
    if isinstance(answerer, Router):
        return sum(map(_searches, answerer.strategies.values()))
    return len(answerer.channels) * (1 + _rounds(answerer.feedback))


def _rounds(feedback: Any) -> int:
    """How often feedback moves a query; of feedback within feedback the product."""
    if feedback is None:
        return 0
    rounds = getattr(feedback, "rounds", 1)
    inner = getattr(feedback, "of", None)
    return int(rounds) * (1 if inner is None else _rounds(inner))
