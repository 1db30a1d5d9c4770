"""The router: chooses the strategy that is best for a query's type (SPEC A095, A097)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..arrays import Floats
from ..errors import ParameterError, refuse_unknown
from ..fuse.candidates import Candidates, Fused
from ..fuse.fusion import check_name, check_number
from ..hybrid.strategy import NAMED, Strategy
from .classifier import Classifier

LONGMEMEVAL_SYSTEMS: dict[str, Strategy] = {
    "knowledge-update": NAMED["rrf"],
    "multi-session": NAMED["agent_rrf"],
    "single-session-assistant": NAMED["dense"],
    "single-session-preference": NAMED["rrf"],
    "single-session-user": NAMED["dense"],
    "temporal-reasoning": NAMED["bm25"],
}
"""AgentIR's best system for each of LongMemEval's types (A095). Three systems are equally good for single-session-user;
this is the one with the fewest lists. The table is fitted to that workload and on another it loses to plain BM25
(A102), so make your own from a few labelled queries."""


@dataclass(frozen=True)
class Router:
    """Maps types to strategies. A query's type is its own or the classifier's prediction; see `Classifier.types`.

    A discrete router answers a query by the strategy that the `table` holds for its type. `default` is for types that
    are not in the table and for queries without a known type.

    A `soft` router runs every strategy that may be best. A strategy's weight is the probability that it is best, and
    the router adds ``weight / (k + rank)`` over the strategies' lists. A query of a known type has one strategy of
    weight 1, and its ranking is that of this strategy.

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
        object.__setattr__(self, "table", {type: Strategy.of(strategy) for type, strategy in self.table.items()})
        object.__setattr__(self, "default", Strategy.of(self.default))
        if self.classifier is not None:
            object.__setattr__(self, "classifier", Classifier.of(self.classifier))
        if not isinstance(self.soft, bool):
            raise ParameterError(f"a router's soft must be true or false, not {self.soft!r}")
        check_number("a router's k", self.k, 0.0)
        for strategy in self._all():
            if strategy != self.strategies[strategy.name]:
                raise ParameterError(f"a router has two different strategies of the name {strategy.name!r}; rename one")

    @property
    def strategies(self) -> dict[str, Strategy]:
        """The strategies by name, in the table's order. The default comes last unless the table has it."""
        by_name: dict[str, Strategy] = {}
        for strategy in self._all():
            by_name.setdefault(strategy.name, strategy)
        return by_name

    def best(self, type: str | None) -> Strategy:
        """The strategy for this type."""
        return self.default if type is None else self.table.get(type, self.default)

    def weights(self, probabilities: Floats | None, types: Sequence[str | None]) -> list[dict[str, float]]:
        """For each query, the probability that each strategy is best: ``sum of P(type) [best(type) = s]``.

        `types` [B] holds the known types, each with probability 1, or None. `probabilities` float64 [B, labels] are the
        classifier's for the queries without a type. If they are None, the default has weight 1 for those queries.
        Strategies stand in the order of `strategies`; those of weight 0 are left out.
        """
        if probabilities is not None and self.classifier is None:
            raise ParameterError("probabilities are of a classifier's labels, and this router has no classifier")
        shares: dict[str, Floats] = {name: np.zeros(len(types)) for name in self.strategies}
        if probabilities is not None and self.classifier is not None:
            expected = (len(types), len(self.classifier.labels))
            if probabilities.shape != expected:
                raise ParameterError(f"probabilities must have the shape {expected}, not {probabilities.shape}")
            for label, share in zip(self.classifier.labels, probabilities.T, strict=True):
                shares[self.best(label).name] += share
        weights: list[dict[str, float]] = []
        for query, type in enumerate(types):
            if type is not None or probabilities is None:
                weights.append({self.best(type).name: 1.0})
            else:
                weights.append({name: float(share[query]) for name, share in shares.items() if share[query] > 0.0})
        return weights

    def blend(self, weights: Sequence[Mapping[str, float]], candidates: Candidates) -> Fused:
        """``sum over strategies of weight / (k + rank)``, ranks from 1. A list without the candidate adds 0.

        The channels of `candidates` are the lists of the strategies, by name; lists that no query needs are left out.
        `weights` [B] are those of the method `weights`. A list of weight 0 keeps no candidate. Shares are added in the
        order of `strategies`, so a query's scores do not depend on the other queries of its batch.
        """
        shares: dict[str, Floats] = {}
        kept = np.zeros(len(candidates.documents), dtype=np.bool_)
        for name in self.strategies:
            if name not in candidates.channels:
                continue
            channel = candidates.channels[name]
            strategy_weights = np.array([weight.get(name, 0.0) for weight in weights], dtype=np.float64)[
                candidates.owners
            ]
            counted = channel.listed & (strategy_weights > 0.0)
            shares[name] = np.where(counted, strategy_weights / (self.k + np.maximum(channel.ranks, 1)), 0.0)
            kept |= counted
        return Fused.of(shares, kept)

    @property
    def dense(self) -> bool:
        """Whether queries need vectors, for a strategy or for the classifier."""
        compared = any(strategy.dense for strategy in self._all())
        return compared or (self.classifier is not None and self.classifier.dimension > 0)

    @property
    def learned(self) -> bool:
        """Whether a strategy compares learned term weights."""
        return any(strategy.learned for strategy in self._all())

    @property
    def aged(self) -> bool:
        """Whether a strategy depends on the query's own time."""
        return any(strategy.aged for strategy in self._all())

    def needs_now(self, type: str | None) -> bool:
        """Whether a query of this type (None: of unknown type) may need its own time, `Query.now`."""
        labels = [None] if self.classifier is None else self.classifier.labels
        types = labels if type is None else [type]
        # A soft router runs every strategy that a type may call for.
        strategies = self._all() if self.soft and type is None else [self.best(label) for label in types]
        return any(strategy.needs_now(label) for strategy in strategies for label in types)

    def deep(self, *, complete: bool = False) -> Router:
        """The same router with all strategies over all records that pass the query's filter."""
        table = {type: strategy.deep(complete=complete) for type, strategy in self.table.items()}
        return replace(self, table=table, default=self.default.deep(complete=complete))

    @classmethod
    def of(cls, value: Router | Mapping[str, Any]) -> Router:
        """A router from a mapping with ``"kind": "router"`` and its fields; a router is returned as it is.

        Raises `ParameterError`.
        """
        return value if isinstance(value, Router) else cls(**policy_fields(cls, "router", value))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, which `of` takes."""
        return {
            "kind": "router",
            "name": self.name,
            "table": {type: strategy.to_dict() for type, strategy in self.table.items()},
            "default": self.default.to_dict(),
            "classifier": None if self.classifier is None else self.classifier.to_dict(),
            "soft": self.soft,
            "k": self.k,
        }

    def __str__(self) -> str:
        table = ", ".join(f"{type} -> {strategy.name}" for type, strategy in self.table.items())
        default = f"{'else ' if table else ''}{self.default.name}"
        how = "blended by the type's probabilities" if self.soft else "by type"
        prediction = "" if self.classifier is None else f" (predicted: {self.classifier})"
        return f"{self.name}: {how}{prediction}: {', '.join(part for part in (table, default) if part)}"

    def _all(self) -> tuple[Strategy, ...]:
        return (*self.table.values(), self.default)


def policy_fields(cls: type[Any], kind: str, value: object) -> dict[str, Any]:
    """The fields of `cls` from a mapping of this ``kind``. Raises `ParameterError` for unknown or missing fields."""
    if not isinstance(value, Mapping) or value.get("kind") != kind:
        raise ParameterError(f"a {kind} is a mapping with the kind {kind!r}, not {value!r:.200}")
    known = cls.__dataclass_fields__
    values = {name: setting for name, setting in value.items() if name != "kind"}
    refuse_unknown(values, known, f"a {kind} has no")
    for name in ("table", "default"):
        if name in known and name not in values:
            raise ParameterError(f"a {kind} needs {name!r}")
    return values
