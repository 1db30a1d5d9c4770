"""How much the namespaces of a key, and each namespace, may hold: records, and bytes of them as JSON without vectors.

A write is counted before it is made. What is known is an upper bound: a delete is noticed when the bound is reached,
and what is held is measured again. So a write below its quota costs some additions.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakValueDictionary

from ..engine.carry.rows import to_json
from ..engine.errors import QuotaError
from ..engine.memory import Memory
from ..engine.records.record import Record
from .access import UNBOUNDED, Principal, Quota

KEPT_USAGES = 10_000
"""Keys and namespaces whose usage is kept. That of others is measured again at their next write."""
KNOWN = 60.0
"""Seconds for which measured bytes are good where the number of records says that nothing was deleted."""
Growth = tuple[int, int]
"""Records and bytes."""
Growths = dict[str, Growth]
"""By namespace."""


@dataclass
class Usage:
    """What is held, as far as it is known."""

    held: Growth = (0, 0)
    """At most so much by writes that ended."""
    pending: Growth = (0, 0)
    """By writes under way."""
    measured: tuple[float, int] | None = None
    """When it was measured, and how many records there should be by then."""

    def fits(self, quota: Quota, growth: Growth) -> bool:
        return self.measured is not None and self.exceeded(quota, growth) is None

    def exceeded(self, quota: Quota, growth: Growth) -> str | None:
        """What the quota is of that the growth would exceed."""
        for name, most, held, pending, more in zip(
            ("records", "bytes"), vars(quota).values(), self.held, self.pending, growth, strict=True
        ):
            if most is not None and more > 0 and held + pending + more > most:
                return name
        return None


@dataclass
class Scope:
    """A key or a namespace that has a quota, and what a write would add to it."""

    name: str
    quota: Quota
    usage: Usage
    spaces: Callable[[], Iterable[str]]
    growth: Growth


@dataclass
class Hold:
    """What writes under way were counted as."""

    parts: list[tuple[Usage, Growth]] = field(default_factory=list)


def size_of(record: Record) -> int:
    """Bytes of a record as JSON without its vectors."""
    text = json.dumps(to_json(record, vectors=False), ensure_ascii=False)
    return len(text.encode("utf-8", "surrogatepass"))


class Quotas:
    """The quotas of a server over a memory. `each` is that of every namespace; a key brings its own."""

    def __init__(self, engine: Memory, each: Quota) -> None:
        self.engine, self.each = engine, each
        # A write under way holds the usage that it is counted in, so that none is counted twice.
        self.used: WeakValueDictionary[tuple[str, str], Usage] = WeakValueDictionary()
        self.latest: OrderedDict[tuple[str, str], Usage] = OrderedDict()
        self.lock = threading.Lock()

    def bind(self, principal: Principal) -> bool:
        """Whether any quota bounds what this caller writes."""
        return self.each != UNBOUNDED or principal.quota != UNBOUNDED

    def take(
        self,
        hold: Hold,
        principal: Principal,
        growths: Growths,
        exact: Callable[[], Growths] | None = None,
    ) -> bool:
        """Count a write that adds at most so much to these namespaces.

        `exact` says what it adds indeed, where some records replace others; None: do nothing that takes long, and
        return False where that is needed. Raises `QuotaError`.
        """
        scopes = self._scopes(principal, growths)
        with self.lock:
            if all(scope.usage.fits(scope.quota, scope.growth) for scope in scopes):
                self._count(hold, scopes)
                return True
        if exact is None:
            return False
        scopes = self._scopes(principal, exact())
        for scope in scopes:
            if not scope.usage.fits(scope.quota, scope.growth):
                self._measure(scope)
        with self.lock:
            for scope in scopes:
                name = scope.usage.exceeded(scope.quota, scope.growth)
                if name is not None:
                    which = ("records", "bytes").index(name)
                    most, held = vars(scope.quota)[name], scope.usage.held[which] + scope.usage.pending[which]
                    raise QuotaError(
                        f"{scope.name} may hold {most:,} {name}; it holds {held:,}, and the write adds "
                        f"{scope.growth[which]:,}. Delete some, or ask for a larger quota"
                    )
            self._count(hold, scopes)
        return True

    def settle(self, hold: Hold, done: bool) -> None:
        """The writes ended; `done`: they were made."""
        with self.lock:
            for usage, growth in hold.parts:
                usage.pending = _sum(usage.pending, growth, -1)
                if done:
                    usage.held = _sum(usage.held, growth)
                    if usage.measured is not None:
                        usage.measured = usage.measured[0], usage.measured[1] + growth[0]

    def grows_by(self, records: Iterable[Record]) -> Growths:
        """What these records add where none of them replaces another."""
        growths: Growths = {}
        for record in records:
            growths[record.namespace] = _sum(growths.get(record.namespace, (0, 0)), (1, size_of(record)))
        return growths

    def grows_exactly(self, records: Sequence[Record]) -> Growths:
        """What these records add beside those that they replace."""
        growths, ids = self.grows_by(records), dict[str, list[str]]()
        for record in records:
            ids.setdefault(record.namespace, []).append(record.id)
        for namespace, names in ids.items():
            for old in self.engine.fetch(list(dict.fromkeys(names)), namespace=namespace):
                if old is not None:
                    growths[namespace] = _sum(growths[namespace], (1, size_of(old)), -1)
        return growths

    def _scopes(self, principal: Principal, growths: Growths) -> list[Scope]:
        scopes: list[Scope] = []
        if self.each != UNBOUNDED:
            for name, growth in growths.items():
                usage = self._usage("namespace", name)
                scopes.append(Scope(f"the namespace {name!r}", self.each, usage, partial(tuple, (name,)), growth))
        if principal.quota != UNBOUNDED:
            usage, total = self._usage("key", principal.name), (0, 0)
            for growth in growths.values():
                total = _sum(total, growth)
            name = f"the key {principal.label or principal.name!r}"
            scopes.append(Scope(name, principal.quota, usage, partial(self._reached, principal), total))
        return scopes

    def _usage(self, kind: str, name: str) -> Usage:
        with self.lock:
            usage = self.latest[kind, name] = self.used.setdefault((kind, name), Usage())
            self.latest.move_to_end((kind, name))
            if len(self.latest) > KEPT_USAGES:
                self.latest.popitem(last=False)
        return usage

    def _reached(self, principal: Principal) -> list[str]:
        return [name for name in self.engine.namespaces if principal.allows(name)]

    @staticmethod
    def _count(hold: Hold, scopes: list[Scope]) -> None:
        for scope in scopes:
            scope.usage.pending = _sum(scope.usage.pending, scope.growth)
            hold.parts.append((scope.usage, scope.growth))

    def _measure(self, scope: Scope) -> None:
        """Learn what is held. What ends meanwhile may be counted twice, until the next time."""
        usage, spaces, now = scope.usage, list(scope.spaces()), time.monotonic()
        with self.lock:
            before, known = usage.held, usage.measured
        records = sum(self.engine.count(namespace=name) for name in spaces)
        size = before[1]
        if scope.quota.bytes is not None and (known is None or known[1] != records or now > known[0] + KNOWN):
            size = sum(size_of(record) for name in spaces for record in self.engine.records(namespace=name))
        with self.lock:
            meanwhile = _sum(usage.held, before, -1)
            usage.held, usage.measured = _sum((records, size), meanwhile), (now, records + meanwhile[0])


def _sum(one: Growth, other: Growth, sign: int = 1) -> Growth:
    return one[0] + sign * other[0], one[1] + sign * other[1]


def counted(quotas: Quotas, principal: Principal, hold: Hold, record: Record) -> None:
    """Count one record of a stream that is imported. Raises `QuotaError`."""
    growth = quotas.grows_exactly([record])
    quotas.take(hold, principal, growth, lambda: growth)
