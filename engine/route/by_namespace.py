"""A strategy for each namespace: one batch over many tenants, each answered by its own policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ParameterError, QueryError
from ..hybrid.strategy import PLAIN, Strategy
from ..records.query import Query
from .cascade import Cascade
from .policy import STRATEGY, Answerer, answerer_to_dict, strategy_of
from .router import Router

KIND = "by-namespace"


@dataclass(frozen=True)
class ByNamespace:
    """Maps namespaces to strategies or policies; `default` answers the namespaces that are not in the mapping.

    A query that searches several namespaces, or all below a path, is answered by their strategy if they have one in
    common. Otherwise it needs a strategy of its own. Values are what `Engine.search` takes as its strategy. Any name
    can be that of a namespace, also ``name`` and ``kind``, which in a plain mapping say that it is a strategy or a
    policy. Raises `ParameterError`.
    """

    strategies: Mapping[str, Answerer] = field(hash=False)
    default: Answerer = PLAIN

    def __post_init__(self) -> None:
        if not isinstance(self.strategies, Mapping):
            raise ParameterError(f"strategies must map namespaces to strategies, not {self.strategies!r:.200}")
        strategies = {}
        for namespace, value in self.strategies.items():
            if not isinstance(namespace, str):
                raise ParameterError(f"a namespace's name must be a string, not {namespace!r:.200}")
            try:
                strategies[namespace] = strategy_of(value)
            except ParameterError as error:
                raise ParameterError(f"namespace {namespace!r}: {error}") from None
        object.__setattr__(self, "strategies", strategies)
        object.__setattr__(self, "default", strategy_of(self.default))

    def __repr__(self) -> str:
        return f"ByNamespace({self.strategies!r}, default={self.default!r})"

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> ByNamespace:
        """From a plain mapping of namespaces, whose ``""`` is also the default, or from the mapping of `to_dict`.

        Raises `ParameterError`.
        """
        if "kind" not in value:
            if not value:
                raise ParameterError("the mapping of namespaces to strategies is empty; leave it out, or name one")
            return cls(value, value.get("", PLAIN))
        fields = {name: part for name, part in value.items() if name != "kind"}
        if value["kind"] != KIND or set(fields) != {"strategies", "default"}:
            raise ParameterError(f"a mapping of kind {KIND!r} has 'strategies' and 'default', not {value!r:.200}")
        return cls(**fields)

    def answerer(self, query: Query, position: int) -> Answerer:
        """What answers the query at a position of a batch. Raises `QueryError` where its namespaces differ."""
        if query.namespaces is not None:
            names = list(query.namespaces)
        elif query.under is not None:
            path = query.under.rstrip("/")
            names = [path, *(name for name in self.strategies if name.startswith(f"{path}/"))]
        else:
            return self.strategies.get(query.namespace, self.default)
        first, *others = (self.strategies.get(name, self.default) for name in names)
        if not all(same_answerer(first, other) for other in others):
            raise QueryError(
                f"query {position} searches namespaces that have different strategies; give it one: Query(strategy=...)"
            )
        return first

    # A model is loaded where one of these needs it, and a launch is shared as all of these allow.
    @property
    def every(self) -> tuple[Answerer, ...]:
        """All its strategies and policies."""
        return (*self.strategies.values(), self.default)

    @property
    def dense(self) -> bool:
        """Whether queries of a namespace need vectors."""
        return any(bool(answerer.dense) for answerer in self.every)

    @property
    def learned(self) -> bool:
        """Whether queries of a namespace compare learned term weights."""
        return any(bool(answerer.learned) for answerer in self.every)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, which `of` takes."""
        return {
            "kind": KIND,
            "strategies": {name: answerer_to_dict(answerer) for name, answerer in self.strategies.items()},
            "default": answerer_to_dict(self.default),
        }


AnyAnswerer = Answerer | ByNamespace
"""What answers a batch."""


_FIELDS = {"kind", *(name for one in (Strategy, Cascade, Router) for name in one.__dataclass_fields__)}
"""All that the mapping of a strategy or a policy can hold."""
_KINDS = ("cascade", "router", STRATEGY)


def answerer_of(value: Any) -> AnyAnswerer:
    """As `strategy_of`, and also a `ByNamespace`, its `to_dict`, or a plain mapping of namespaces.

    The mapping of a strategy or a policy has a ``name`` or a ``kind``. Any other mapping is one of namespaces. So only
    a `ByNamespace` names a namespace ``name`` or ``kind``. Raises `ParameterError`.
    """
    if isinstance(value, ByNamespace):
        return value
    if not isinstance(value, Mapping):
        return strategy_of(value)
    if value.get("kind") == KIND or not {"name", "kind"} & set(value):
        return ByNamespace.of(value)
    name = "kind" if "kind" in value else "name"
    hint = f"for a namespace called {name!r} pass fanrank.routing.ByNamespace({{...}})"
    if set(value) == {"name"} and _names_answerer(value["name"]):
        raise ParameterError(f"a mapping of nothing but a 'name' is no strategy; give the name itself, or {hint}")
    try:
        return strategy_of(value)
    except ParameterError as error:
        if not _may_name_namespace(value, name):
            raise
        raise ParameterError(f"{error}; a mapping with {name!r} is one strategy or policy: {hint}") from None


def _may_name_namespace(value: Mapping[str, Any], name: str) -> bool:
    """Whether `name`, a key of the mapping, may be meant as a namespace, though it is a field of a policy."""
    if not set(value) <= _FIELDS:
        return True
    kind = value[name]
    return (name == "kind" or not isinstance(kind, str)) and kind not in _KINDS and _names_answerer(kind)


def _names_answerer(value: Any) -> bool:
    """Whether this would be an answerer, were it the value of a namespace."""
    try:
        strategy_of(value)
    except ParameterError:
        return False
    return True


def same_answerer(one: AnyAnswerer, other: AnyAnswerer) -> bool:
    """Whether both give the same answers, with the same bits."""
    if one is other:
        return True
    try:
        # Equal tables can list their entries in another order, and shares are added up in that order, which changes
        # the sums. Their texts tell the order.
        return bool(one == other) and repr(one) == repr(other)
    except Exception:  # comparing a fusion of the caller's own may raise
        return False
