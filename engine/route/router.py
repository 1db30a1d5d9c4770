"""The strategy that is best for a query's type (SPEC A095, A097)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..arrays import Floats
from ..errors import ParameterError
from ..fuse.candidates import Candidates, Fused
from ..fuse.fusion import check_name, check_number
from ..hybrid.strategy import STRATEGIES, Strategy
from .classifier import Classifier

TABLE_A095: dict[str, Strategy] = {
    "knowledge-update": STRATEGIES["rrf"],
    "multi-session": STRATEGIES["agent_rrf"],
    "single-session-assistant": STRATEGIES["dense"],
    "single-session-preference": STRATEGIES["rrf"],
    "single-session-user": STRATEGIES["dense"],
    "temporal-reasoning": STRATEGIES["bm25"],
}
"""LongMemEval's types and AgentIR's best system for each (A095); of single-session-user's three equals the one with
the fewest lists. Fitted to that workload: on another it loses to plain BM25 (A102), so make your own with a few
labelled queries."""


@dataclass(frozen=True)
class Router:
    """Types to strategies. A type is the query's own, or the classifier's prediction; see `Classifier.types`.

    A discrete router answers a query by the strategy that the `table` has for its type; `default` is for types
    that it has not and for queries of no known type. A `soft` one runs every strategy that may be best, each
    with the probability that it is, and adds ``weight / (k + rank)`` over their lists. A query of a known type has one
    strategy for certain, which a soft router ranks as that strategy does.

    `table` and `default` take what `Strategy.of` takes. Raises `ParameterError`, also for two different strategies of
    one name.
    """

    table: Mapping[str, Strategy] = field(hash=False)
    default: Strategy
    classifier: Classifier | None = None
    soft: bool = False
    k: float = 60.0
    name: str = "router"

    def __post_init__(self) -> None:
        check_name("a router's name", self.name)
        if not isinstance(self.table, Mapping):
            raise ParameterError(f"a router's table must be a mapping of types to strategies, not {self.table!r}")
        for type in self.table:
            check_name("a type in a router's table", type)
        object.__setattr__(self, "table", {type: Strategy.of(own) for type, own in self.table.items()})
        object.__setattr__(self, "default", Strategy.of(self.default))
        if self.classifier is not None:
            object.__setattr__(self, "classifier", Classifier.of(self.classifier))
        if not isinstance(self.soft, bool):
            raise ParameterError(f"a router's soft must be true or false, not {self.soft!r}")
        check_number("a router's k", self.k, 0.0)
        for own in self._all():
            if own != self.strategies[own.name]:
                raise ParameterError(f"a router has two different strategies of the name {own.name!r}; rename one")

    @property
    def strategies(self) -> dict[str, Strategy]:
        """Its strategies by name, in the table's order, the default last unless the table has it."""
        found: dict[str, Strategy] = {}
        for own in self._all():
            found.setdefault(own.name, own)
        return found

    def best(self, type: str | None) -> Strategy:
        """The strategy for this type."""
        return self.default if type is None else self.table.get(type, self.default)

    def weights(self, probabilities: Floats | None, types: Sequence[str | None]) -> list[dict[str, float]]:
        """For each query of a batch the probability that each strategy is best: ``sum of P(type) [best(type) = s]``.

        `probabilities` float64 [B, labels] are the classifier's (None: nothing is known of queries without a type,
        whose default has weight 1), `types` [B] what is known: a query's type has probability 1. Names in the order of
        `strategies`, weights of 0 left out.
        """
        if probabilities is not None and self.classifier is None:
            raise ParameterError("probabilities are of a classifier's labels, and this router has no classifier")
        shares: dict[str, Floats] = {name: np.zeros(len(types)) for name in self.strategies}
        if probabilities is not None and self.classifier is not None:
            expected = (len(types), len(self.classifier.labels))
            if probabilities.shape != expected:
                raise ParameterError(f"probabilities must have the shape {expected}, not {probabilities.shape}")
            for label, own in zip(self.classifier.labels, probabilities.T, strict=True):
                shares[self.best(label).name] += own
        found: list[dict[str, float]] = []
        for query, type in enumerate(types):
            if type is not None or probabilities is None:
                found.append({self.best(type).name: 1.0})
            else:
                found.append({name: float(own[query]) for name, own in shares.items() if own[query] > 0.0})
        return found

    def blend(self, weights: Sequence[Mapping[str, float]], candidates: Candidates) -> Fused:
        """``sum over strategies of weight / (k + rank)``, ranks from 1, a list without the candidate adding 0.

        The candidates' channels are strategies' lists, by name, those that no query needs left out; `weights` [B] as
        the method of this name makes them. A list of weight 0 keeps nothing. Shares are added in the order of
        `strategies`, so a query's scores do not depend on what the others of its batch need.
        """
        shares: dict[str, Floats] = {}
        kept = np.zeros(len(candidates.documents), dtype=np.bool_)
        for name in self.strategies:
            if name not in candidates.channels:
                continue
            channel = candidates.channels[name]
            own = np.array([weight.get(name, 0.0) for weight in weights], dtype=np.float64)[candidates.owners]
            counted = channel.listed & (own > 0.0)
            shares[name] = np.where(counted, own / (self.k + np.maximum(channel.ranks, 1)), 0.0)
            kept |= counted
        return Fused.of(shares, kept)

    @property
    def dense(self) -> bool:
        """Whether queries need vectors, for a strategy or for the classifier."""
        compared = any(own.dense for own in self._all())
        return compared or (self.classifier is not None and self.classifier.dimension > 0)

    @property
    def learned(self) -> bool:
        """Whether a strategy compares learned term weights."""
        return any(own.learned for own in self._all())

    @property
    def aged(self) -> bool:
        """Whether a strategy depends on the query's own time."""
        return any(own.aged for own in self._all())

    def needs_now(self, type: str | None) -> bool:
        """Whether queries of this type (None: of none that is known) may have to say their own time."""
        told = [None] if self.classifier is None else self.classifier.labels
        types = told if type is None else [type]
        # A soft router runs every strategy that a type may call for.
        asked = self._all() if self.soft and type is None else [self.best(own) for own in types]
        return any(strategy.needs_now(own) for strategy in asked for own in types)

    def deep(self, *, complete: bool = False) -> Router:
        """The same with all its strategies over all records that pass."""
        table = {type: own.deep(complete=complete) for type, own in self.table.items()}
        return replace(self, table=table, default=self.default.deep(complete=complete))

    @classmethod
    def of(cls, value: Router | Mapping[str, Any]) -> Router:
        """A router, or the one of a mapping with ``"kind": "router"`` and its fields. Raises `ParameterError`."""
        return value if isinstance(value, Router) else cls(**policy_fields(cls, "router", value))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, which `of` takes."""
        return {
            "kind": "router",
            "name": self.name,
            "table": {type: own.to_dict() for type, own in self.table.items()},
            "default": self.default.to_dict(),
            "classifier": None if self.classifier is None else self.classifier.to_dict(),
            "soft": self.soft,
            "k": self.k,
        }

    def __str__(self) -> str:
        table = ", ".join(f"{type} -> {own.name}" for type, own in self.table.items())
        rest = f"{'else ' if table else ''}{self.default.name}"
        how = "blended by the type's probabilities" if self.soft else "by type"
        told = "" if self.classifier is None else f" (predicted: {self.classifier})"
        return f"{self.name}: {how}{told}: {', '.join(part for part in (table, rest) if part)}"

    def _all(self) -> tuple[Strategy, ...]:
        return (*self.table.values(), self.default)


def policy_fields(cls: type[Any], kind: str, value: object) -> dict[str, Any]:
    """The fields of `cls` that a mapping of this kind gives. Raises `ParameterError` for others, or a missing one."""
    if not isinstance(value, Mapping) or value.get("kind") != kind:
        raise ParameterError(f"a {kind} is a mapping with the kind {kind!r}, not {value!r:.200}")
    known = cls.__dataclass_fields__
    given = {name: own for name, own in value.items() if name != "kind"}
    for name in given:
        if name not in known:
            raise ParameterError(f"a {kind} has no {name!r}; it has: {', '.join(known)}")
    for name in ("table", "default"):
        if name in known and name not in given:
            raise ParameterError(f"a {kind} needs {name!r}")
    return given
