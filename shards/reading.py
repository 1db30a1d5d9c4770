"""`ShardedReading`: the verbs of `ShardedEngine` that read records without ranking them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from ..engine.engine import Engine
from ..engine.errors import QueryError, RecordError, StorageError
from ..engine.index.columns import ORDER
from ..engine.index.masks import unknown_column
from ..engine.listing import matching
from ..engine.listing.listing import Listing
from ..engine.moments import Moment
from ..engine.monitor.health import DriftReport, HealthReport
from ..engine.monitor.monitor import checked_namespace, checked_scope, observed_ids
from ..engine.monitor.recency import Recency
from ..engine.reading import checked_wanted
from ..engine.records.filters import Filter, parse_filter
from ..engine.records.hits import join_names
from ..engine.records.jsonl import checked_ids
from ..engine.records.query import Query
from ..engine.records.record import Record
from ..engine.search.batch import combine_filters
from ..engine.writing import Writing
from .coordinator.coordinator import Coordinator
from .coordinator.holding import View
from .coordinator.learning import Drifts, find_windows, frequencies_of, ranks_over, recency, tell
from .listing.listing import ShardedPages
from .listing.matching import count_passing, events_passing, ids_passing, values_passing
from .processes.links import Waiting, call_all
from .protocol.order import strip
from .search.launches import Launch
from .search.searcher import ShardedSearcher


class ShardedReading(Writing):
    """A part of `ShardedEngine`, which says what it is. Its verbs that write are those of an engine."""

    coordinator: Coordinator
    searcher: ShardedSearcher
    template: Engine
    """An empty engine with the memory's parameters and models."""
    _closed: bool

    @cached_property
    def _drifts(self) -> Drifts:
        return Drifts()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("the engine is closed")

    def fetch(self, ids: Sequence[str], *, namespace: str = "") -> list[Record | None]:
        """As `Engine.fetch`, at one epoch in all shards."""
        batch, name = checked_ids(ids, "fetch"), checked_namespace(namespace)
        found = self._records_of({name: list(dict.fromkeys(batch))})
        return [found.get((name, record_id)) for record_id in batch]

    def _records_of(self, ids: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Record]:
        """The live records with these ids, whole, by (namespace, id), in the order of the ids."""
        self._check_open()
        keys = [(name, record_id) for name, some in ids.items() for record_id in some]

        def read(view: View, until: float | None) -> dict[tuple[str, str], Record]:
            wanted = view.placement.by_shard(keys)
            links = self.coordinator.links
            sent: dict[int, Waiting] = {
                shard: links[shard].send("fetch", view.at(shard), some) for shard, some in wanted.items()
            }
            found: dict[tuple[str, str], Record] = {}
            for answer in Launch(self.coordinator, view, until, None).receive(sent).values():
                found |= answer
            return found

        found = self.searcher.retry(read)
        return {key: strip(found[key]) for key in keys if key in found}

    def get(self, id: str, *, namespace: str = "") -> Record | None:
        """As `Engine.get`."""
        if not isinstance(id, str):
            raise RecordError(f"an id must be a string, not {id!r}")
        return self.fetch([id], namespace=namespace)[0]

    def records(
        self,
        *,
        filter: Filter | Mapping[str, Any] | None = None,
        namespace: str | None = "",
        order: str = "written",
        reverse: bool = False,
        after: str | None = None,
        limit: int | None = None,
        texts: bool = True,
    ) -> Listing:
        """As `Engine.records`: each page is of one epoch of all shards, and a cursor stays good while namespaces move.

        A cursor of an engine's listing is none of this one.
        """
        self._check_open()
        wanted = checked_wanted(filter, namespace, order, reverse, limit, texts)
        stores = self.coordinator.owner.settings.get("stores")
        # That of the first shard stays as long as the memory does.
        secret = str(stores[0]) if stores else self.template.index.memory.secret

        def begin() -> Listing:
            return Listing(ShardedPages(self.searcher, self.coordinator, wanted), wanted, secret, after, limit)

        return self.searcher.declaring(begin, [wanted.filter])

    def count(self, filter: Filter | Mapping[str, Any] | None = None, *, namespace: str | None = "") -> int:
        """As `Engine.count`."""
        return sum(self.read_all(count_passing, parse_filter(filter), checked_scope(namespace)).values())

    def ids(self, filter: Filter | Mapping[str, Any] | None = None, *, namespace: str = "") -> Iterator[str]:
        """As `Engine.ids`."""
        name = checked_namespace(namespace)
        answers = self.read_all(ids_passing, parse_filter(filter), name)
        pairs = sorted(pair for answer in answers.values() for pair in answer.get(name, ()))
        return iter([record_id for _, record_id in pairs])

    def distinct(
        self,
        column: str,
        filter: Filter | Mapping[str, Any] | None = None,
        *,
        namespace: str | None = "",
    ) -> dict[str | float | None, int]:
        """As `Engine.distinct`."""
        if column == ORDER:
            raise unknown_column(column, "to count by", self.template.index.memory.schema)
        counts: Counter[str | float | None] = Counter()
        for answer in self.read_all(values_passing, parse_filter(filter), checked_scope(namespace), column).values():
            counts.update(answer)
        return matching.in_order(counts)

    def events(
        self,
        since: Moment,
        until: Moment,
        *,
        type: str | None = "Event",
        filter: Filter | Mapping[str, Any] | None = None,
        namespace: str = "",
    ) -> list[tuple[str, float]]:
        """As `Engine.events`."""
        query = Query(since=since, until=until, filter=filter, namespace=namespace)
        if type is not None and not isinstance(type, str):
            raise QueryError(f"events takes a 'type' that is a string or None, not {type!r}")
        if query.since is None or query.until is None:
            raise QueryError("events takes the first and the last moment, 'since' and 'until'")
        span = float(query.since), float(query.until)
        answers = self.read_all(events_passing, combine_filters(query), namespace, type, *span)
        found = sorted(event for answer in answers.values() for event in answer)
        return [(record_id, -time) for time, _, record_id in found]

    def read_all(
        self, function: Callable[..., Any], filter: Filter | None, namespace: str | None, *arguments: Any
    ) -> dict[int, Any]:
        """What a function of `listing/matching.py` gives in all shards that may hold such records, at one epoch."""
        self._check_open()

        def read(view: View, until: float | None) -> dict[int, Any]:
            # Shards have a column more, which a filter is not to name.
            matching.compiled(self.template.index.memory.state, filter)
            shards = range(view.placement.shards) if namespace is None else view.placement.homes(namespace)
            links, asked = self.coordinator.links, (function, filter, namespace, *arguments)
            sent = {shard: links[shard].send("read", view.at(shard), *asked) for shard in shards}
            return Launch(self.coordinator, view, until, None).receive(sent)

        return self.searcher.declaring(lambda: self.searcher.retry(read), [filter])

    def read_parts(self, namespace: str, function: Callable[..., Any], *arguments: Any) -> dict[int, Any]:
        """What `Shard.read` gives for a function in each shard that holds a namespace, at one epoch."""
        self._check_open()

        def read(view: View, until: float | None) -> dict[int, Any]:
            links = self.coordinator.links
            homes = view.placement.homes(namespace)
            sent = {home: links[home].send("read", view.at(home), function, *arguments) for home in homes}
            return Launch(self.coordinator, view, until, None).receive(sent)

        return self.searcher.retry(read)

    def sizes(self) -> dict[str, int]:
        """The live records of each namespace."""
        self._check_open()
        return self.searcher.retry(lambda view, until: Launch(self.coordinator, view, until, None).sizes())

    def observe(
        self, ids: Iterable[str], *, namespace: str = "", now: Moment | None = None, windows: int | None = None
    ) -> None:
        """As `Engine.observe`."""
        self._check_open()
        batch, moment, name = observed_ids(ids), Query(now=now).now, checked_namespace(namespace)
        window = self.template.window
        found = self.read_parts(name, find_windows, name, batch, window).values()
        ranks = ranks_over(found, window, None if moment is None else float(moment))
        tell(self.coordinator, name, "observe_ranks", ranks, name, windows)

    def resolved(self, name: str, entity: str, *, namespace: str = "", times: int = 1) -> None:
        """As `Engine.resolved`."""
        self._check_open()
        checked = checked_namespace(namespace)
        tell(self.coordinator, checked, "resolved", name, entity, checked, times)

    def recency(self, namespace: str = "") -> Recency:
        """As `Engine.recency`, as of now: what is observed later does not change it."""
        self._check_open()
        own = self.template.monitor
        rule = Recency(epsilon=own.epsilon, max_windows=own.max_windows, rate=own.rate)
        return recency(self.coordinator, rule, checked_namespace(namespace))

    def drift(self, namespace: str = "") -> DriftReport:
        """As `Engine.drift`: since the last call in this process."""
        self._check_open()
        name = checked_namespace(namespace)
        return self._drifts.check(name, self.read_parts(name, frequencies_of, name).values())

    def health(self, namespace: str = "") -> HealthReport:
        """As `Engine.health`: of the searches that this process has asked since it opened the memory."""
        return self.template.health(namespace)

    def stats(self) -> dict[str, Any]:
        """As `Engine.stats`, added up over the shards, and ``shards``: the statistics of each."""
        self._check_open()
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
        self._check_open()
        with self.coordinator.paused():
            answers = call_all(self.coordinator.links, None, "verify")
        return {name: sum(each[name] for each in answers.values()) for name in ("records", "missing", "extra")}

    def flush(self) -> None:
        """As `Engine.flush`."""
        self._check_open()
        call_all(self.coordinator.links, None, "flush")
