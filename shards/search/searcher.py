"""`ShardedSearcher`: answers a batch of queries over the shards of a memory.

::

    batch ── route ─┬─ forward: one shard, as an engine ────────────┐
                    ├─ spread: statistics ─ all its shards ─ merge ─┼─ rows in the batch's order
                    └─ whole: a copy of the namespace ──────────────┘

All that one launch asks of one shard goes in one message. All shards answer at one epoch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, TypeVar

from ...engine.encoders.embed import checked_terms
from ...engine.encoders.encoder import check_rows
from ...engine.encoders.pins import Models
from ...engine.engine import Engine
from ...engine.errors import FanrankError, ParameterError, QueryError, ShardError, UnknownColumnError
from ...engine.hybrid.evidence import Evidence
from ...engine.hybrid.strategy import Strategy
from ...engine.index.columns import ORDER
from ...engine.records.explanation import Explanation, FusedExplanation
from ...engine.records.hits import Hits
from ...engine.records.query import Query, QueryDefaults, check_k
from ...engine.route.by_namespace import AnyAnswerer
from ...engine.route.parts import Part, join
from ...engine.route.policy import Answerer
from ...engine.search.given import AnyBatch, as_queries
from ...engine.search.options import SearchOptions
from ...engine.search.shaping import with_fields
from ...engine.searcher import Searcher, TakeRecords, check_vectors
from ...engine.serve.stream import as_plain_queries, check_stream, run_in_order
from ...engine.signatures import SearchKeywords
from ...engine.storage.state import MemoryState, names_under
from ...engine.vectors.vectors import unit_rows
from ..coordinator.checks import check_columns
from ..coordinator.coordinator import Coordinator
from ..coordinator.deciding import View
from ..coordinator.learning import carry_learned
from ..processes.links import UnavailableError, call_all, pause
from ..protocol.messages import Count, Scope
from ..protocol.statistics import Counts
from ..replicas.whole_copies import WHOLE
from ..shard.records import find_records
from .candidates import CollectJob, EvidenceJob, weave
from .jobs import Counted, Failures, ForwardJob, Job, SpreadJob
from .launches import Again, Launch
from .routing import Routed, route_batch, shards_of

T = TypeVar("T")

TRIES = 4
"""Attempts at a newer epoch before writers are held off for the last one."""

REFUSE, ALLOW = "refuse", "allow"
PARTIAL = (REFUSE, ALLOW)
"""What becomes of an answer that some shards have not given."""


class ShardedSearcher(Searcher):
    """Answers batches for `ShardedEngine`, its coalescer and its namespaces.

    `template` is an empty engine with the memory's parameters: it checks arguments, encodes and counts. `partial` is
    one of `PARTIAL`.
    """

    pins = False

    def __init__(self, template: Engine, coordinator: Coordinator, partial: str) -> None:
        super().__init__(template.index, template.searcher.models, template.backend, template.monitor)
        self.template = template
        self.coordinator = coordinator
        self.partial = partial
        self._first: View | None = None

    def answer(
        self,
        queries: AnyBatch,
        k: int,
        answerer: AnyAnswerer,
        options: SearchOptions,
        state: MemoryState | None = None,
        clock: float | None = None,
    ) -> Hits:
        """The hits of a batch over all shards, at one epoch.

        Raises as `Engine.search`, `ShardError` and `DeadlineError`.
        """
        asked = as_queries(queries, "search")
        check_vectors(asked, self.models.pin)
        k = check_k(k)
        return self.retry(
            lambda launch: self._answer_at(launch, asked, k, answerer, options), partial=self.partial == ALLOW
        )

    def collect(self, queries: tuple[Query, ...], strategy: Strategy, options: SearchOptions) -> Evidence:
        """As `Searcher.collect`, at one epoch. A query's documents ascend with the writes; what else their numbers say,
        differs from an engine's.
        """
        return self.retry(
            lambda launch: weave(self.ask(launch, queries, 1, strategy, options, CollectJob, EvidenceJob))
        )

    def allowing(self, partial: str) -> ShardedSearcher:
        """The same searcher with another `partial`. Raises `ParameterError`."""
        if partial not in PARTIAL:
            raise ParameterError(f"partial must be one of {', '.join(map(repr, PARTIAL))}, not {partial!r}")
        changed = copy.copy(self)
        changed.partial = partial
        return changed

    def stream(
        self, batches: Iterable[AnyBatch], k: int, options: SearchOptions, *, ahead: int, defaults: QueryDefaults
    ) -> Iterator[Hits]:
        """As `Engine.search_stream`: a batch is answered at the epoch at which it was read."""
        k = check_stream(batches, k, ahead)
        # Batches that are under way at once share the threads of a shard.
        keywords: SearchKeywords = {"threads": 1 if ahead else options.threads, "execution": options.execution}
        keywords |= {"timing": options.timing, "texts": options.texts, "payload": options.payload}
        held: set[ExitStack] = set()

        def begin(batch: AnyBatch) -> Callable[[], Hits]:
            try:
                queries = as_plain_queries(batch, defaults)
            except FanrankError as error:
                self.count_failure(batch, error)
                raise
            pinned, reading = copy.copy(self), ExitStack()
            pinned._first = reading.enter_context(self.coordinator.reading())
            held.add(reading)

            def finish() -> Hits:
                try:
                    return pinned.search(queries, k, keywords)
                finally:
                    held.discard(reading)
                    reading.close()

            return finish

        def run() -> Iterator[Hits]:
            try:
                # The owner's threads wait for the shards.
                yield from run_in_order(batches, begin, ahead=ahead, workers=ahead + 1)
            finally:
                # What was read and never begun is let go of.
                for reading in held:
                    reading.close()

        return run()

    def declare(self, error: UnknownColumnError, names: Iterable[str]) -> None:
        """Declare columns in all shards. Raises as `Storage.declare`."""
        wanted = list(dict.fromkeys((*error.columns, *names)))
        coordinator, memory = self.coordinator, self.index.ready()
        if not memory.declares or (ORDER in wanted and memory.schema.auto):
            raise error
        keys: set[str] = set()
        if not memory.schema.auto:
            # Nobody waits for a name that no record has.
            keys = set().union(*call_all(coordinator.links, coordinator.until(), "keys", wanted).values()) - {ORDER}
            memory.check_held(error, wanted, keys)
        with coordinator.paused():
            memory.declare(error, names, keys)
            copies = [whole.link for whole in coordinator.wholes.values() if whole.link is not None]
            links = [*coordinator.links, *copies]
            call_all(links, coordinator.until(), "declare", wanted)

    def fetch_parts(self, ids: Sequence[str], namespace: str, size: int, take: TakeRecords) -> None:
        """As `Searcher.fetch_parts`, at one epoch of all shards. Where one has gone on, `take` is given ids again."""

        def fetch(launch: Launch) -> None:
            for first in range(0, len(ids), size):
                part = ids[first : first + size]
                found = launch.read_records(find_records, {namespace: part})
                take(part, [found.get((namespace, name)) for name in part])

        self.retry(fetch)

    def retry(self, read: Callable[[Launch], T], *, partial: bool = False) -> T:
        """What `read` gives at an epoch that all shards keep. With `partial`, shards may be missing.

        It is called again where a shard has gone on, the last time while nobody writes. A batch of a stream first asks
        for the epoch at which it was read. Raises `ShardError`.
        """
        coordinator, first = self.coordinator, self._first
        coordinator.check_open()
        until = coordinator.until()
        attempt = 0

        def launch(view: View) -> Launch:
            return Launch(coordinator, view, until, set() if partial else None)

        while attempt < TRIES:
            try:
                with coordinator.reading() as view:
                    return read(launch(first or view))
            except UnavailableError as error:  # noqa: PERF203
                pause(until, error)
            except Again as again:
                attempt, first = attempt + 1, None
                if again.restarted or attempt > 1:
                    coordinator.recover(until, again.shards)
        with coordinator.quiet(until):
            for _ in range(2):  # the first one may find whole copies missing, and make them
                with suppress(Again):
                    return read(launch(coordinator.view))
        raise ShardError("a shard is started anew again and again; its log says why")

    def _answer_at(
        self, launch: Launch, queries: tuple[Query, ...], k: int, answerer: AnyAnswerer, options: SearchOptions
    ) -> Hits:
        """The hits of a batch at one epoch. Raises `Again`."""
        answered = self.ask(launch, queries, k, answerer, options, ForwardJob, SpreadJob)
        parts, answers = [part for part, _ in answered], [hits for _, hits in answered]
        # A single part has all rows, in their order.
        hits = answers[0] if len(answers) == 1 else join(queries, parts, answers)
        return replace(hits, missing_shards=tuple(sorted(launch.missing))) if launch.missing else hits

    def ask(
        self,
        launch: Launch,
        queries: tuple[Query, ...],
        k: int,
        answerer: AnyAnswerer,
        options: SearchOptions,
        forward: type[Job],
        spread: type[SpreadJob],
    ) -> list[tuple[Part, Any]]:
        """The parts of a batch with their answers: `forward` asks one shard of a part, `spread` several.

        Whole copies that this needs are made first, then raises `Again`.
        """
        check_columns(queries, self.template.index.memory.state)
        modelled = self.models.encoder is not None and getattr(self.models.encoder, "encodes", True)
        placement, expiring = launch.view.placement, self.coordinator.expiring
        routed = route_batch(queries, answerer, options, placement, self.template.bm25, modelled, expiring)
        self._bring_whole(launch, routed)
        jobs: list[Job] = []
        failures = Failures(routed)
        for each in routed:
            given = tuple(queries[row] for row in each.part.rows)
            try:
                encoded = encode_queries(given, each.part.answerer, self.models)
            except FanrankError as error:
                failures.add(error, each.part)
            else:
                kind = spread if each.way is None else forward
                jobs.append(kind(launch, each, given, encoded, k, options, self.explain_job))
        counted = self.count_scopes(launch, [job for job in jobs if isinstance(job, SpreadJob)])
        for job in jobs:
            job.send(counted)
        launch.send()
        answers: list[tuple[Part, Any]] = []
        for job in jobs:
            try:
                answers.append((job.routed.part, job.receive()))
            except FanrankError as error:  # noqa: PERF203
                failures.add(error, job.routed.part)
        failures.check()
        return answers

    def count_scopes(self, launch: Launch, jobs: Sequence[SpreadJob]) -> Counted:
        """The statistics of all scopes of these jobs, with the terms of their queries.

        Those of a split namespace are known here. Those of several namespaces, of records that expire, and of filtered
        records are asked of the shards.
        """
        terms: dict[Scope, dict[str, None]] = {}
        for job in jobs:
            for scope, query in zip(job.routed.scopes, job.queries, strict=True):
                terms.setdefault(scope, {}).update(dict.fromkeys(self._terms_of(query)))
        counted: dict[Scope, tuple[int | None, Counts]] = {}
        items: dict[int, list[tuple[Scope, tuple[str, ...]]]] = {}
        for scope, own in terms.items():
            known_here = scope.names and scope.single and scope.apart is None and scope.now is None
            table = self.coordinator.tables.get(scope.names[0]) if known_here and scope.names else None
            known = None if table is None else table.at(launch.view.epoch, own)
            if table is not None and known is None:
                raise Again
            if known is not None and not known[1].expiring:
                counted[scope] = known
                continue
            for shard in shards_of(scope, launch.view.placement):
                items.setdefault(shard, []).append((scope, tuple(own)))
        answers = launch.ask({shard: [Count(tuple(own))] for shard, own in items.items()})
        parts: dict[Scope, list[Counts]] = {}
        for shard, (answer,) in answers.items():
            for (scope, _), counts in zip(items[shard], answer, strict=True):
                parts.setdefault(scope, []).append(counts)
        fields = len(self.template.bm25.fields)
        return counted | {
            scope: (None, Counts.sum(parts.get(scope, ()), fields)) for scope in terms if scope not in counted
        }

    def _terms_of(self, query: Query) -> Sequence[str]:
        return self.template.analyzer(query.text) if query.terms is None else query.terms

    def _bring_whole(self, launch: Launch, routed: Sequence[Routed], *, explaining: bool = False) -> None:
        """Have whole copies of what is read as one. Raises `Again` once they are made, and `SplitNamespaceError`."""
        ways = ((WHOLE if explaining else each.way, each) for each in routed)
        asked = [(way, each) for way, each in ways if way is not None and way < 0]
        if not asked:
            return
        # Queries may be asked as of a moment before records expired.
        sizes = launch.sizes(expired=True)
        wanted: dict[int, dict[str, int]] = {}
        for way, each in asked:
            whole, chosen = self.coordinator.wholes[way], each.part.answerer
            why = "an explanation" if explaining else "the query" if chosen is None else f"strategy {chosen.name!r}"
            for scope in each.scopes:
                names = names_under(sizes, scope.under) if scope.under is not None else scope.names or ()
                own = {name: sizes.get(name, 0) for name in names}
                whole.check(own, why)
                wanted.setdefault(whole.number, {}).update(own)
        made = False
        for number, read in wanted.items():
            whole = self.coordinator.wholes[number]
            if whole.link is not None and whole.holds(read, launch.view.at(number)):
                continue
            # Together they may be queries of many callers, so the error names none.
            whole.check(read, "the batch", named=False)
            self.coordinator.copy_whole(
                number, sorted(read), sizes, lambda new, link: carry_learned(self.coordinator, new, link)
            )
            made = True
        if made:
            raise Again

    def explain_job(self, job: Job, row: int, record_id: str) -> Explanation | FusedExplanation:
        """How a record scores for a query of a job, by the records of its search."""

        def explain(launch: Launch) -> Explanation | FusedExplanation:
            before, names = job.launch.view, job.routed.scopes[row].names
            # Writes to other namespaces change no score.
            changed = names is None or self.coordinator.changes.since(names, before.epoch)
            if launch.view.content != before.content and changed:
                raise QueryError(
                    "records of the query's namespaces were written since the search, whose scores can be explained no "
                    "more; search again, or ask engine.explain"
                )
            spread = isinstance(job, SpreadJob)
            if spread:
                self._bring_whole(launch, [job.routed], explaining=True)
            shard = WHOLE if spread else job.shard
            asked = ForwardJob(launch, job.routed, job.given, job.queries, job.k, job.options, self.explain_job)
            place = launch.add(shard, asked.forward((job.queries[row],), record_id))
            launch.send()
            explanation: Explanation | FusedExplanation = launch.answer(shard, place)
            return explanation

        return self.retry(explain)


def encode_queries(queries: Sequence[Query], answerer: Answerer | None, models: Models) -> tuple[Query, ...]:
    """The queries with what `answerer` compares and their texts can give. What they bring themselves stays.

    A policy decides later which strategies it needs, so its queries get what any of them compares. Raises
    `EncoderError`.
    """
    made = list(queries)
    encoder, terms = models.encoder, models.term_encoder
    if answerer is not None and answerer.dense and encoder is not None and getattr(encoder, "encodes", True):
        _fill(made, "vector", lambda texts: unit_rows(check_rows(encoder.queries(texts), texts, encoder))[:, None])
    if answerer is not None and answerer.learned and terms is not None:
        _fill(made, "weights", lambda texts: checked_terms(terms.queries(texts), len(texts), terms))
    return tuple(made)


def _fill(queries: list[Query], field: str, encode: Callable[[list[str]], Iterable[Any]]) -> None:
    """Give queries without this field what is made of their texts; equal texts are encoded once."""
    rows_of: dict[str, list[int]] = {}
    for row, query in enumerate(queries):
        if getattr(query, field) is None and query.terms is None and query.text.strip():
            rows_of.setdefault(query.text, []).append(row)
    if rows_of:
        for value, rows in zip(encode(list(rows_of)), rows_of.values(), strict=True):
            for row in rows:
                queries[row] = with_fields(queries[row], **{field: value})
