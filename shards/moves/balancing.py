"""Which namespaces are to go where, so that the shards hold about as much as each other."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from ..protocol.placement import Placement, chosen_shard

SLACK = 0.1
"""A shard is full that holds a tenth more bytes than the mean. Less would move records for little."""

TOGETHER = 1_024
"""Namespaces that go together. Each costs a row of a decision."""


@dataclass(frozen=True)
class Step:
    """A namespace that is to go to other shards."""

    namespace: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    records: int
    bytes: int
    why: str

    @property
    def is_whole(self) -> bool:
        """Whether it lies whole in one shard, before and after."""
        return len(self.before) == len(self.after) == 1


@dataclass(eq=False)
class _Plan:
    placement: Placement
    sizes: dict[str, dict[int, tuple[int, int]]]
    """(records, bytes) of each namespace, by shard."""
    loads: dict[int, int]
    """The bytes of each shard after the steps so far."""
    steps: dict[str, Step] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        return sum(self.loads.values()) / len(self.loads) * (1 + SLACK)

    def emptiest(self, shards: Iterable[int]) -> list[int]:
        return sorted(shards, key=lambda shard: (self.loads[shard], shard))

    def step(self, namespace: str, after: tuple[int, ...], why: str) -> None:
        before, held = self.placement.homes(namespace), self.sizes[namespace]
        records, size = (sum(each[kind] for each in held.values()) for kind in (0, 1))
        self.steps[namespace] = Step(namespace, before, after, records, size, why)
        if len(before) == len(after):
            for source, target in zip(before, after, strict=True):
                own = held.get(source, (0, 0))[1]
                self.loads[source] -= own
                self.loads[target] += own
            return
        for source, (_, own) in held.items():
            self.loads[source] -= own
        for target in after:
            self.loads[target] += size // len(after)


def plan_steps(holdings: Mapping[int, Mapping[str, tuple[int, int]]], placement: Placement) -> list[Step]:
    """The steps that even the shards out. `holdings` are (records, bytes) of each namespace, by shard.

    1. A namespace of which a shard holds more than `split_at` records is split, or gets further parts, in the shards
       that hold the least.
    2. A namespace that is not where its name says goes there, unless that shard were full then. So of added shards each
       gets the namespaces that choose it, and the table becomes small.
    3. While the fullest shard is full, the namespace or part there that comes closest to half of what it has more than
       the emptiest one goes to that one, if it makes them more even.
    """
    sizes: dict[str, dict[int, tuple[int, int]]] = {}
    for shard, own in holdings.items():
        for namespace, held in own.items():
            sizes.setdefault(namespace, {})[shard] = held
    loads = {shard: sum(size for _, size in own.values()) for shard, own in holdings.items()}
    plan = _Plan(placement, sizes, loads)
    _split(plan)
    _bring_home(plan)
    _even_out(plan)
    return [*plan.steps.values()]


def together(steps: Iterable[Step], page: int) -> list[list[Step]]:
    """The steps in groups that are one move each: small namespaces that stay whole go together, a page of them."""
    apart: list[list[Step]] = []
    groups: list[list[Step]] = []
    size = 0
    for step in steps:
        if not step.is_whole or step.records > page:
            apart.append([step])
            continue
        if not groups or size + step.records > page or len(groups[-1]) == TOGETHER:
            groups.append([])
            size = 0
        groups[-1].append(step)
        size += step.records
    return [*groups, *apart]


def is_outgrown(records: int, parts: tuple[int, ...], placement: Placement) -> bool:
    """Whether a shard with so many records of a namespace is to share them with a shard that holds none."""
    return records > placement.split_at and len(parts) < placement.shards


def _split(plan: _Plan) -> None:
    placement = plan.placement
    for namespace, held in sorted(plan.sizes.items()):
        parts = placement.homes(namespace)
        if not any(is_outgrown(records, parts, placement) for records, _ in held.values()):
            continue
        total = sum(records for records, _ in held.values())
        wanted = min(max(-(-total // placement.split_at), len(parts) + 1), placement.shards)
        others = plan.emptiest(shard for shard in plan.loads if shard not in parts)
        plan.step(namespace, (*parts, *others[: wanted - len(parts)]), "split")


def _bring_home(plan: _Plan) -> None:
    placement, limit = plan.placement, plan.limit
    for namespace, home in sorted(placement.moved.items()):
        if namespace in plan.steps or namespace not in plan.sizes:
            continue
        chosen = chosen_shard(namespace, placement.shards)
        if plan.loads[chosen] + plan.sizes[namespace].get(home, (0, 0))[1] <= limit:
            plan.step(namespace, (chosen,), "home")


def _even_out(plan: _Plan) -> None:
    units: dict[int, list[tuple[int, str]]] = {shard: [] for shard in plan.loads}
    for namespace, held in plan.sizes.items():
        if namespace not in plan.steps:
            for shard, (_, size) in held.items():
                insort(units[shard], (size, namespace))
    stuck: set[int] = set()
    while len(stuck) < len(plan.loads):
        full = max((shard for shard in plan.loads if shard not in stuck), key=lambda shard: plan.loads[shard])
        if plan.loads[full] <= plan.limit or not _relieve(plan, full, units[full]):
            stuck.add(full)


def _relieve(plan: _Plan, full: int, units: list[tuple[int, str]]) -> bool:
    """Let one namespace or part go from a full shard to the emptiest one; whether there is one that helps."""
    target = plan.emptiest(plan.loads)[0]
    gap = plan.loads[full] - plan.loads[target]
    place = bisect_right(units, gap // 2, key=itemgetter(0))
    # Of what is smaller than half the gap the largest, else what is a little larger.
    for index in [*range(place - 1, -1, -1), *range(place, len(units))]:
        size, namespace = units[index]
        if size >= gap:
            break
        parts = plan.placement.homes(namespace)
        if size and namespace not in plan.steps and target not in parts:
            del units[index]
            plan.step(namespace, tuple(target if part == full else part for part in parts), "even")
            return True
    return False
