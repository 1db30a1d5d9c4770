"""`ShardedReading`: how the verbs of `ShardedEngine` that read records without ranking them reach the shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from ..engine.carrying import Carrying
from ..engine.engine import Engine
from ..engine.listing.listing import Wanted
from ..engine.listing.matching import read_matching
from ..engine.moments import Moment
from ..engine.monitor.health import DriftReport, HealthReport
from ..engine.monitor.monitor import checked_namespace, observed_ids
from ..engine.monitor.recency import Recency
from ..engine.reading import Reading
from ..engine.records.filters import Filter, parse_filter
from ..engine.records.hits import join_names
from ..engine.records.jsonl import checked_ids
from ..engine.records.query import Query
from ..engine.records.record import Record
from ..engine.searching import Searching
from ..engine.writing import Writing
from .coordinator.coordinator import Coordinator
from .coordinator.learning import find_windows, frequencies_of, most_frequent, ranks_over, recency, tell
from .listing.listing import ShardedPages
from .listing.matching import events_written, ids_written, matching_in
from .processes.links import call_all
from .search.launches import Launch
from .search.searcher import ShardedSearcher
from .shard.records import find_records, of_engine

T = TypeVar("T")


class ShardedReading(Searching, Reading, Writing, Carrying):
    """A part of `ShardedEngine`, which says what it is."""

    coordinator: Coordinator
    searcher: ShardedSearcher
    template: Engine
    """An empty engine with the memory's parameters and models."""
    _closed: bool

    def fetch(self, ids: Sequence[str], *, namespace: str = "") -> list[Record | None]:
        """As `Engine.fetch`, at one epoch in all shards."""
        batch, name = checked_ids(ids, "fetch"), checked_namespace(namespace)
        found = self.find({name: batch})
        return [found.get((name, record_id)) for record_id in batch]

    def find(self, ids: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Record]:
        """The live records with these ids, whole, by (namespace, id), in the order of the ids."""
        keys = dict.fromkeys((name, record_id) for name, some in ids.items() for record_id in some)
        found = self.searcher.retry(lambda launch: launch.read_records(find_records, keys))
        return {key: found[key] for key in keys if key in found}

    def _pages(self, wanted: Wanted) -> ShardedPages:
        """Each page is of one epoch of all shards, and a cursor stays good while namespaces move."""
        self.coordinator.check_open()
        return ShardedPages(self.searcher, wanted)

    def _secret(self) -> str:
        stores = self.coordinator.owner.settings.get("stores")
        # That of the first shard stays as long as the memory does.
        return str(stores[0]) if stores else self.template.index.memory.secret

    def ids(self, filter: Filter | Mapping[str, Any] | None = None, *, namespace: str = "") -> Iterator[str]:
        """As `Engine.ids`."""
        parsed, name = parse_filter(filter), checked_namespace(namespace)
        found = self.searcher.declaring(lambda: self.ids_where(parsed, name), [parsed])
        return iter(found.get(name, ()))

    def ids_where(self, filter: Filter | None, namespace: str | None) -> dict[str, list[str]]:
        """The ids of the live records that pass, by namespace, in the order of their writes."""
        pairs: dict[str, list[tuple[int, str]]] = {}
        for answer in self.each(ids_written, filter, namespace):
            for name, own in answer.items():
                pairs.setdefault(name, []).extend(own)
        return {name: [record_id for _, record_id in sorted(own)] for name, own in pairs.items()}

    def _events(
        self, filter: Filter | None, namespace: str, type: str | None, since: float, until: float
    ) -> list[tuple[str, float]]:
        found = sorted(chain.from_iterable(self._each(events_written, filter, namespace, type, since, until)))
        return [(record_id, -time) for time, _, record_id in found]

    def _each(
        self, read: Callable[..., T], filter: Filter | None, namespace: str | None, *arguments: Any
    ) -> Sequence[T]:
        return self.searcher.declaring(lambda: self.each(read, filter, namespace, *arguments), [filter])

    def each(self, read: Callable[..., T], filter: Filter | None, namespace: str | None, *arguments: Any) -> list[T]:
        """As `_each`, for who has declared the columns of the filter."""
        # Shards have a column more, which is not to be named.
        read_matching(read, self.template.index.memory.state, filter, namespace, *arguments)
        asked = matching_in, read, filter, namespace, *arguments
        answers = self.searcher.retry(
            lambda launch: launch.read(dict.fromkeys(launch.view.placement.holders(namespace), asked))
        )
        return [*answers.values()]

    def read_parts(self, namespace: str, function: Callable[..., Any], *arguments: Any) -> dict[int, Any]:
        """What `Shard.read` gives for a function in each shard that holds a namespace, at one epoch."""
        asked = function, *arguments
        return self.searcher.retry(
            lambda launch: launch.read(dict.fromkeys(launch.view.placement.homes(namespace), asked))
        )

    def sizes(self) -> dict[str, int]:
        """The live records of each namespace."""
        return self.searcher.retry(Launch.sizes)

    def observe(
        self, ids: Iterable[str], *, namespace: str = "", now: Moment | None = None, windows: int | None = None
    ) -> None:
        """As `Engine.observe`."""
        batch, moment, name = observed_ids(ids), Query(now=now).now, checked_namespace(namespace)
        window = self.template.window
        found = self.read_parts(name, find_windows, name, batch, window).values()
        ranks = ranks_over(found, window, None if moment is None else float(moment))
        tell(self.coordinator, name, "observe_ranks", ranks, name, windows)

    def resolved(self, name: str, entity: str, *, namespace: str = "", times: int = 1) -> None:
        """As `Engine.resolved`."""
        self.coordinator.check_open()
        checked = checked_namespace(namespace)
        tell(self.coordinator, checked, "resolved", name, entity, checked, times)

    def recency(self, namespace: str = "") -> Recency:
        """As `Engine.recency`, as of now: what is observed later does not change it."""
        self.coordinator.check_open()
        own = self.template.monitor
        rule = Recency(epsilon=own.epsilon, max_windows=own.max_windows, rate=own.rate)
        return recency(self.coordinator, rule, checked_namespace(namespace))

    def drift(self, namespace: str = "") -> DriftReport:
        """As `Engine.drift`: since the last call in this process."""
        name = checked_namespace(namespace)
        parts = self.read_parts(name, frequencies_of, name).values()
        return self.monitor.drift_of(name, most_frequent(parts))

    def health(self, namespace: str = "") -> HealthReport:
        """As `Engine.health`: of the searches that this process has asked since it opened the memory."""
        return self.template.health(namespace)

    def stats(self) -> dict[str, Any]:
        """As `Engine.stats`, added up over the shards, and ``shards``: the statistics of each."""
        self.coordinator.check_open()
        own = call_all(self.coordinator.links, self.coordinator.until(), "stats")
        view = self.coordinator.view
        total: dict[str, Any] = {}
        for each in own.values():
            for name, value in each.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "bytes_per_posting":
                    total[name] = total.get(name, 0) + value
        postings = total["postings"]
        total["bytes_per_posting"] = total["posting_bytes"] / postings if postings else 0.0
        total["backend"] = join_names(sorted(each["backend"] for each in own.values()))
        total["merging"] = any(each["merging"] for each in own.values())
        errors = (each["background_error"] for each in own.values())
        total["background_error"] = next((error for error in errors if error is not None), None)
        opened = dict.fromkeys(each["opened"] for each in own.values() if "opened" in each)
        total |= {"opened": "; ".join(opened)} if opened else {}
        total["namespaces"] = len(self.sizes())
        total["epoch"] = view.epoch
        total["split"] = {name: list(parts) for name, parts in view.placement.split.items()}
        total["shards"] = [own[number] for number in sorted(own)]
        return total

    def verify(self) -> dict[str, int]:
        """As `Engine.verify`, added up over the shards."""
        with self.coordinator.paused():
            answers = call_all(self.coordinator.links, None, "verify")
        return {name: sum(each[name] for each in answers.values()) for name in ("records", "missing", "extra")}

    def flush(self) -> None:
        """As `Engine.flush`."""
        self.coordinator.check_open()
        call_all(self.coordinator.links, None, "call", of_engine, "flush")
