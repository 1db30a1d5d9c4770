"""Which shard holds which records: a small table, which the owner keeps (`owner.py`).

A namespace lives in the shard that its name chooses (jump hashing), so a platform of a million tenants keeps no
row for each. The table holds only what lies elsewhere, and the namespaces that are split. A record of a split namespace
is in the part that its id chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...engine.errors import ParameterError
from ...engine.index.columns import stable_hash

SPLIT_AT = 20_000_000
"""Records from which a namespace is split: 8 GiB at 376 bytes a record, a third of a shard of 24 GiB."""
WHOLE_AT = 2_000_000
"""Records of a split namespace up to which strategies that need all of it at once are served from a whole copy."""


@dataclass(frozen=True)
class Placement:
    """The homes of all records at one moment. Immutable: a change makes another one, with the next `generation`."""

    shards: int
    split_at: int = SPLIT_AT
    whole_at: int = WHOLE_AT
    generation: int = 0
    moved: Mapping[str, int] = field(default_factory=dict)
    """The shards of the namespaces that are not where their names say."""
    split: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The shard of each part of the namespaces that are split."""

    def __post_init__(self) -> None:
        for name, low in (("shards", 1), ("split_at", 1), ("whole_at", 0), ("generation", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ParameterError(f"{name} must be {low} or more, not {value!r}")
        moved = ((name, (home,)) for name, home in self.moved.items())
        for namespace, parts in [*moved, *self.split.items()]:
            if not parts or any(not 0 <= part < self.shards for part in parts) or len(set(parts)) < len(parts):
                raise ParameterError(f"namespace {namespace!r} lies in shards {list(parts)}, of {self.shards}")

    def homes(self, namespace: str) -> tuple[int, ...]:
        """The shards that hold records of the namespace; one, unless it is split."""
        parts = self.split.get(namespace)
        return (self.home(namespace),) if parts is None else parts

    def holders(self, namespace: str | None) -> Sequence[int]:
        """The shards that may hold records of the namespace, or (None) of any."""
        return range(self.shards) if namespace is None else self.homes(namespace)

    def by_home(self, namespaces: Iterable[str]) -> dict[int, list[str]]:
        """The namespaces by the first of their shards, which keeps what is learned of them."""
        found: dict[int, list[str]] = {}
        for namespace in namespaces:
            found.setdefault(self.homes(namespace)[0], []).append(namespace)
        return found

    def home(self, namespace: str) -> int:
        """The shard of a namespace that is not split."""
        moved = self.moved.get(namespace)
        return chosen_shard(namespace, self.shards) if moved is None else moved

    def finder(self) -> Callable[[str, str], int]:
        """Gives the shard of a record. Of many records of one namespace, its name is hashed once."""
        homes: dict[str, tuple[int, ...]] = {}

        def find(namespace: str, record_id: str) -> int:
            parts = homes.get(namespace)
            if parts is None:
                parts = homes[namespace] = self.homes(namespace)
            return parts[0] if len(parts) == 1 else parts[chosen_part(record_id, len(parts))]

        return find

    def by_shard(self, ids: Mapping[str, Collection[str]]) -> dict[int, dict[str, list[str]]]:
        """The ids of records by shard and namespace, of those by namespace."""
        grouped: dict[int, dict[str, list[str]]] = {}
        for namespace, own in ids.items():
            parts = self.homes(namespace)
            if len(parts) == 1 and own:
                grouped.setdefault(parts[0], {})[namespace] = list(own)
                continue
            for record_id in own:
                shard = parts[chosen_part(record_id, len(parts))]
                grouped.setdefault(shard, {}).setdefault(namespace, []).append(record_id)
        return grouped

    def placed(self, places: Mapping[str, tuple[int, ...]]) -> Placement:
        """The placement in which each of these namespaces lies in these shards, in parts if they are several."""
        moved, split = {**self.moved}, {**self.split}
        for namespace, parts in places.items():
            moved.pop(namespace, None)
            split.pop(namespace, None)
            if len(parts) > 1:
                split[namespace] = parts
            elif parts[0] != chosen_shard(namespace, self.shards):
                moved[namespace] = parts[0]
        return replace(self, moved=moved, split=split, generation=self.generation + 1)

    def extended(self, count: int, namespaces: Iterable[str]) -> Placement:
        """The placement with so many more shards, in which each of these namespaces stays where it is."""
        shards = self.shards + count
        moved = dict(self.moved)
        for namespace in namespaces:
            if namespace not in self.split and namespace not in moved:
                home = chosen_shard(namespace, self.shards)
                if chosen_shard(namespace, shards) != home:
                    moved[namespace] = home
        kept = {name: home for name, home in moved.items() if chosen_shard(name, shards) != home}
        return replace(self, shards=shards, moved=kept, generation=self.generation + 1)


def chosen_shard(namespace: str, shards: int) -> int:
    """The shard that a namespace's name chooses. Where a shard is added, only namespaces that choose it move."""
    return _jump_hash(namespace, shards)


def chosen_part(record_id: str, parts: int) -> int:
    """The part of a split namespace that a record's id chooses.

    Where a part is added, records go from the others to the new one, and never among the others.
    """
    return _jump_hash(record_id, parts)


def _jump_hash(key: str, buckets: int) -> int:
    """The bucket of a key by jump consistent hashing: some log(buckets) steps, so 1,024 shards cost as little as 4.

    A further bucket takes its keys evenly from all others, which exchange none.
    """
    state, bucket, following = stable_hash(key), 0, 0
    while following < buckets:
        bucket = following
        state = (state * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        following = int((bucket + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return bucket
