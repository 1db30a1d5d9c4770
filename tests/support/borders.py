"""The borders: constants at which the product goes on another way, and how a test makes them small.

A test names a constant, never the file that defines it. `shrink` sets it where it is defined and in every module that
imported it by name, so that no module goes on with the old value.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import pytest

from . import source


class Border(NamedTuple):
    module: str
    """That defines it, without "fanrank."; a class of it after a colon."""
    changes: str
    """What is different on its two sides, or what a test puts in its place."""
    frozen: tuple[str, ...] = ()
    """Modules that read it once, when they are imported, and where the old value does no harm."""


# By name; where several modules define one of this name, the last part of the module's name stands before it.
BORDERS: dict[str, Border] = {
    # Adapters.
    "beir.ROWS": Border("integrations.beir", "Documents of one file of vectors."),
    "MASK_BYTES": Border("integrations.candidates", "Bytes of the candidates' masks in one launch."),
    # The server.
    "PART": Border("server.search", "Queries of a stream that are answered at once."),
    "MOST_LINES": Border("server.logs", "Lines of the log that wait; further ones are left out."),
    "CLOSING": Border("server.logs", "Seconds in which the lines that wait are written at the end."),
    "RESTS": Border("server.metrics", "How long the memory's sizes stay, in times of how long they took."),
    "LATE_PAUSE": Border("server.metrics", "Seconds until shards that did not answer are asked for sizes again."),
    # Shards.
    "followers.PAGE": Border("shards.replicas.followers", "Records of a page of a leader that fills a follower."),
    "BEHIND": Border("shards.replicas.followers", "Records that wait for a follower before it is filled anew."),
    "TOGETHER": Border("shards.moves.grouping", "Namespaces that go to other shards by one decision."),
    # Writes and segments.
    "BUILD_CHUNK": Border("engine.storage.writes", "Records after which a write begins another chunk."),
    "BUILD_CHARACTERS": Border("engine.storage.writes", "Characters after which a write begins another chunk."),
    "READ": Border("engine.storage.writes", "Records read before their characters are counted."),
    "MAX_SEGMENT_DOCUMENTS": Border("engine.index.snapshot", "A segment of so many documents is closed."),
    "WINDOW_DOCUMENTS": Border("engine.index.merge", "From here on a segment also closes at a time window's end."),
    "COUNTED_DOCUMENTS": Border("engine.index.snapshot", "From here on a namespace counts frequencies in one array."),
    "LISTED": Border("engine.index.record_ids", "Ids cut out one by one; of more documents they are gathered."),
    "FIRST": Border("engine.search.shaping", "Hits that a query with distinct reads at first."),
    "GROWTH": Border("engine.search.shaping", "How much deeper each following list is."),
    "DEEP_PLACES": Border("engine.search.shaping", "With more places, deep rows are searched apart, in portions."),
    "BLOCK_SHARE": Border("engine.index.time_order", "Below this share a filter is applied to a part of an order."),
    "CELLS": Border("engine.index.time_order", "Cells of a matrix in which live documents are counted."),
    "KEPT_ORDERS": Border("engine.index.time_order", "Orders that a segment keeps; then all are let go."),
    "TEXTS": Border("engine.hybrid.occasions", "Texts of events that are read together."),
    "MOST_TEXTS": Border("engine.hybrid.occasions", "With more texts to read, an occasion has no time."),
    "STEP": Border("engine.search.newest", "Documents of an ordered segment looked at in one step."),
    "COMPILED": Border("engine.search.batch", "Compiled filters that a snapshot keeps; then all are let go."),
    "POSTINGS_PER_RECORD": Border("engine.index.document_terms", "With more postings, deleted records are read."),
    "FILTERED": Border("engine.index.snapshot", "Filtered corpora kept; the oldest is let go."),
    "INLINE_DOCUMENTS": Border("engine.storage.memory", "A larger merge waits for the background."),
    "MAX_SEGMENTS": Border("engine.storage.memory", "With more segments a writer merges them all."),
    "LEAST_UNUSED": Border("engine.storage.renumber", "Dead entries from which on a vocabulary is made anew."),
    "UNUSED_SHARE": Border("engine.storage.renumber", "Share of unused entries from which on it is."),
    "DOCUMENTS_PER_UNUSED": Border("engine.storage.renumber", "Documents for each unused entry, at most."),
    "COUNT_SHARE": Border("engine.storage.renumber", "What must have left the index before the unused are counted."),
    "CHECKPOINT_CHANGES": Border("engine.storage.memory", "Changes after which the index files are written."),
    "PAUSE": Border("engine.storage.memory", "Seconds before the background tries again after a failure."),
    "PENDING_CHUNK": Border("engine.storage.pending", "Records that a change by filter reads at a time."),
    "MAX_PARTS": Border("engine.storage.index_files", "With more parts the smaller half is written as one."),
    "REPLAY_CHUNK": Border("engine.storage.record_store", "Rows of a replay held at a time."),
    "READ_TERMS": Border("engine.recall.statements", "Terms of statements that are read while a lock is held."),
    "MOST_NAMES": Border("engine.monitor.meanings", "Names whose meanings are kept; then the oldest is forgotten."),
    "STREAM_ROWS": Border("engine.storage.record_stream", "Rows of a stream of all records held at a time."),
    "COLUMN_RECORDS": Border("engine.storage.other_columns", "Records whose values of a new column are read together."),
    "FILTER_RECORDS": Border("engine.carry.export", "Records that the filter of an export looks at together."),
    "BATCH_RECORDS": Border("engine.carry.importing", "Records after which an import writes a batch."),
    "BATCH_CHARACTERS": Border("engine.carry.importing", "Characters after which an import writes a batch."),
    "GROUP_RECORDS": Border("engine.carry.tables", "Records after which a row group of a table ends."),
    "GROUP_NUMBERS": Border("engine.carry.tables", "Numbers of embeddings after which a row group of a table ends."),
    "READ_RECORDS": Border("engine.carry.tables", "Records of a table that are read at a time."),
    "FETCH_CHUNK": Border("engine.storage.sqlite", "Ids of one look-up."),
    "MAX_ROWS": Border("engine.storage.record_store", "Rows of one statement."),
    "PAGES": Border("engine.storage.backup", "Pages of a backup that are copied at a time."),
    "FOLD_FRAMES": Border("engine.storage.commit_log", "Pages of the log after which it is folded in."),
    "_MIGRATION": Border("engine.storage.sqlite", "Statements that bring an older store up to date."),
    "WRITERS": Border("engine.writing", "Threads that write for those who await."),
    # Listings.
    "PAGE": Border("engine.listing.listing", "Records of a listing read at a time."),
    "streams.PAGE": Border("shards.listing.streams", "Records that a shard gives at a time to an export."),
    "changes.KEPT": Border("shards.coordinator.changes", "Namespaces whose last writes a sharded memory remembers."),
    "WRITER_ATTEMPTS": Border("engine.listing.listing", "Readings of a page beside writes before these are held off."),
    "LEAST_ENTRIES": Border("engine.listing.orders", "Positions of a segment read first."),
    "MOST_ENTRIES": Border("engine.listing.orders", "Positions of a segment read at a time at most."),
    "PADDED_BYTES": Border("engine.listing.orders", "More bytes of ids are sorted as strings."),
    # Postings and what is derived from them.
    "MERGE_BLOCK": Border("engine.index.postings", "Postings that numpy moves at a time in a merge."),
    "COMPILED_BLOCK": Border("engine.index.postings", "Postings that the extension moves at a time in a merge."),
    "postings.FLAGS": Border("engine.index.postings", "With more places, sorting instead of a table of flags."),
    "TIME_BLOCK": Border("engine.index.segment", "Documents whose latest time is kept together."),
    "segment.MASKS": Border("engine.index.segment", "Filter masks kept by a segment; the oldest is let go."),
    "native.MASKS": Border("engine.index.native", "Filters whose masks a snapshot keeps."),
    "segment.DENSE_SHARE": Border("engine.index.segment", "A list with one in so many documents may get a dense row."),
    "DENSE_POSTINGS": Border("engine.index.segment", "The shortest list that may get a dense row."),
    "BLOCK_POSTINGS": Border("engine.index.native", "Postings of a block of a skip table."),
    "GROUPS": Border("engine.index.native", "Groups of a skip table for each posting."),
    "LEAST_POSTINGS": Border("engine.index.native", "The shortest list with a skip table."),
    "RANKS": Border("engine.index.native", "Ranks of a list whose contributions bound a search."),
    "TILE_BITS": Border("engine.index.contributions", "Documents of a tile with a bound of its own, as a power of 2."),
    "DERIVE_CHUNK": Border("engine.index.contributions", "Postings derived at a time."),
    "masks._CHUNK": Border("engine.index.masks", "Documents of a filter looked at at a time."),
    "FEW_RANGES": Border("engine.arrays", "Fewer ranges are searched one by one."),
    # The search in numpy.
    "MIN_TILES": Border("cpu_fallback.prune", "Tiles scored before any is left out."),
    "select.MIN_GROUPS": Border("cpu_fallback.select", "Least number of groups whose maxima bound the k-th score."),
    "select.GROUPS_PER_K": Border("cpu_fallback.select", "Groups for each hit wanted."),
    "CONTIGUOUS_GROUP": Border("cpu_fallback.select", "Longer rows are grouped by neighbours, others by stride."),
    "FIRST_BLOCK": Border("cpu_fallback.newest", "Documents of the first block from the newest on."),
    "LAST_BLOCK": Border("cpu_fallback.newest", "Documents at which blocks no longer double."),
    "LEAST_WORK": Border("cpu_fallback.newest", "Documents of a block for all its queries together, at least."),
    "FEW_POSTINGS": Border("cpu_fallback.newest", "With fewer postings in a chunk, all that match get a key."),
    "LEAST_MEMBERS": Border("cpu_fallback.newest", "With fewer documents in a group, all that match get a key."),
    "newest.MANY": Border("cpu_fallback.newest", "Candidates for each hit from which on a row is thinned out first."),
    "DERIVE_SHARE": Border("cpu_fallback.segment_work", "A list is derived once one in so many postings are read."),
    "SCATTER_BLOCK": Border("cpu_fallback.score", "Postings added in one go."),
    "THREADS_PAY": Border("cpu_fallback.search", "Whether numpy uses more than one thread."),
    "search.GROUP": Border("cpu_fallback.search", "Queries ranked together."),
    "CHUNK_BYTES": Border("cpu_fallback.score", "Score rows of one chunk."),
    "search.MANY": Border("cpu_fallback.search", "Candidates for each hit from which on a row is ranked alone."),
    "MAX_PENDING": Border("cpu_fallback.search", "Candidates kept before they are ranked."),
    # The search in compiled loops, which take these as arguments.
    "native.TILE": Border("cpu_fallback.native", "Documents of a tile."),
    "FADED_TILE": Border("cpu_fallback.native", "Documents of a tile where scores fade."),
    "SCAN_PERCENT": Border("cpu_fallback.native", "With more postings a tile is looked through by document."),
    "PRUNED_DOCUMENTS": Border("cpu_fallback.native", "A smaller segment is read in full."),
    "ROOM": Border("cpu_fallback.native", "Candidates for each hit before the best are picked out."),
    "MIN_ROOM": Border("cpu_fallback.native", "Least number of candidates before the best are picked out."),
    "DENSE_USES": Border("cpu_fallback.native", "Uses of a list after which it gets a dense row."),
    "SHARED_POSTINGS": Border("cpu_fallback.native", "Postings from which on several threads answer one query."),
    # Vectors.
    "vectors.BLOCK_VALUES": Border("engine.vectors.vectors", "Numbers of vectors worked on at a time."),
    "_SUBNORMAL": Border("engine.vectors.vectors", "A number that a processor may flush to zero."),
    "_EXPONENTS": Border("engine.vectors.vectors", "What makes a half-precision number of its bits."),
    "EXACT_INSTEAD": Border("engine.vectors.approximate", "An index asked for one in so many rows is given up."),
    "cpu_dense.QUERIES": Border("cpu_fallback.dense", "Queries scored together."),
    "cpu_dense.SCORES": Border("cpu_fallback.dense", "Scores held at once."),
    "COPIED_SCORES": Border("cpu_fallback.dense", "The same where an interaction copies them."),
    "PENDING": Border("cpu_fallback.dense", "Rows that wait to be scored exactly."),
    "GATHER": Border("cpu_fallback.dense", "Fewer than one in so many rows are gathered, not masked."),
    "cpu_dense.DENSE": Border("cpu_fallback.dense", "A search for more documents is answered in float64 at once."),
    "cpu_dense.MIN_GROUPS": Border("cpu_fallback.dense", "Least number of groups that bound the k-th score."),
    "EXACT_CODES": Border("cpu_fallback.dense", "Dimensions from which on int8 products are added in parts."),
    "device_dense.QUERIES": Border("kernels.dense", "Queries scored together on a device."),
    "CPU_SCORES": Border("kernels.dense", "Scores of a block where torch runs on a CPU."),
    "CPU_BLOCK_VALUES": Border("kernels.dense", "Numbers of a block where torch runs on a CPU."),
    # The device search.
    "search.MAX_CANDIDATES": Border("kernels.search", "Candidates of one launch; a larger batch takes several."),
    "MAX_DESCRIPTORS": Border("kernels.search", "Descriptors of one launch; a larger batch takes several."),
    "fanout.QUERIES": Border("kernels.fanout", "Padded numbers of queries of a fan-out."),
    "TERMS": Border("kernels.fanout", "Padded numbers of terms of a fan-out."),
    "WIDTHS": Border("kernels.fanout", "Padded numbers of hits of a fan-out."),
    "fanout.SEGMENTS": Border("kernels.fanout", "Padded numbers of segments of a fan-out."),
    "LEAST_TILES": Border("kernels.fanout", "Padded number of tiles of a fan-out over few documents."),
    "TABLED_POSTINGS": Border("kernels.work", "Postings a tile from which on a list has tables."),
    "MAX_POSTINGS": Border("kernels.device", "Postings in a segment on a device."),
    "MAX_CLASSES": Border("kernels.device", "Kinds of postings in a segment, at 4 bytes a posting."),
    # Texts.
    "analyzers._BLOCK": Border("engine.text.analyzers", "Ids gathered in a list before they go to an array."),
    "CACHE_LIMIT": Border("engine.text.analyzers", "Words kept by a cache before it is emptied."),
    "LUCENE_ENGLISH": Border("engine.text.stopwords", "Stop words of Lucene.", frozen=("engine.text.analyzers",)),
    "MAX_CACHED_TOKENS": Border("engine.text.vocabulary:TermIndexer", "Tokens kept before the cache begins anew."),
    "grammar.WORD": Border("engine.text.time_expressions.grammar", "What finds the words that rules begin with."),
    # Evidence, encoders and callers.
    "SPARE": Border("engine.hybrid.fading", "Records of a faded list beyond those that are needed."),
    "conversation.GROUP": Border("engine.recall.conversation", "Edges into a turn that are added one by one."),
    "PAIRS": Border("engine.recall.conversation", "Pairs of turns counted at a time."),
    "entity_graph.CHUNK": Border("engine.recall.entity_graph", "Products worked on at a time."),
    "entity_graph.DENSE_SHARE": Border("engine.recall.entity_graph", "With fewer keys, sorting instead of a table."),
    "cache.CHUNK": Border("engine.encoders.cache", "Texts encoded before they are written to the cache."),
    "embed.CHUNK": Border("engine.encoders.embed", "Texts encoded at a time while records are read."),
    "LINGER": Border("engine.serve.coalesce", "Seconds after which an idle launching thread ends."),
    "coalesce.SMALL": Border("engine.serve.coalesce", "A larger launch must not be much wider than its callers ask."),
    "LOOK_PAST": Border("engine.serve.coalesce", "Callers with other options that a launch looks past."),
    "DEFAULT_ENCODER": Border("engine.evaluate.encoders", "The encoder where none is named."),
    "SYSTEMS": Border(
        "engine.tune.tuner", "Strategies that are tuned where none are named.", frozen=("engine.cli.tune",)
    ),
}

# Module-level values that are worked out from a border when their module is imported.
DERIVED: dict[str, tuple[tuple[str, str, Callable[[Any], Any]], ...]] = {
    "TILE_BITS": (("cpu_fallback.prune", "TILE", lambda bits: 1 << bits),),
}

# So small that a few dozen records cross every border of a search.
SMALL: dict[str, Any] = {
    "TILE_BITS": 2,
    "MIN_TILES": 2,
    "select.MIN_GROUPS": 3,
    "select.GROUPS_PER_K": 2,
    "CONTIGUOUS_GROUP": 4,
    "WINDOW_DOCUMENTS": 4,
    "POSTINGS_PER_RECORD": 4,
    "COUNTED_DOCUMENTS": 24,
    "DERIVE_CHUNK": 16,
    "MAX_SEGMENT_DOCUMENTS": 16,
    "INLINE_DOCUMENTS": 6,
    "BUILD_CHUNK": 24,
    "MERGE_BLOCK": 5,
    "postings.FLAGS": 32,
    "segment.MASKS": 2,
    "native.MASKS": 2,
    "DENSE_POSTINGS": 2,
    "segment.DENSE_SHARE": 8,
    "BLOCK_POSTINGS": 2,
    "GROUPS": 2,
    "LEAST_POSTINGS": 2,
    "RANKS": (1, 2, 3, 5),
    "FIRST": 2,
    "GROWTH": 2,
    "DEEP_PLACES": 40,
    "STEP": 3,
    "TIME_BLOCK": 2,
    "FIRST_BLOCK": 2,
    "LAST_BLOCK": 8,
    "LEAST_WORK": 4,
    "FEW_POSTINGS": 3,
    "LEAST_MEMBERS": 2,
    "newest.MANY": 1,
    "DERIVE_SHARE": 2,
    "SCATTER_BLOCK": 8,
    "THREADS_PAY": True,
    "search.GROUP": 3,
    "CHUNK_BYTES": 64,
    "search.MANY": 1,
    "MAX_PENDING": 5,
    "native.TILE": 8,
    "FADED_TILE": 4,
    "DENSE_USES": 2,
    "PRUNED_DOCUMENTS": 4,
    "SHARED_POSTINGS": 2,
    "ROOM": 2,
    "MIN_ROOM": 2,
}


def shrink(monkeypatch: pytest.MonkeyPatch, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
    """Sets borders, by their keys in `BORDERS`. Raises where that would change nothing.

    All that hold a border are imported first: a module imported later would keep the small value after the test. A
    module whose optional package is missing is left out, as nothing can read it.
    """
    for key, value in {**(values or {}), **named}.items():
        for owner, name, derive in list(_places(key)):
            monkeypatch.setattr(owner, name, value if derive is None else derive(value))


@contextmanager
def shrunken(values: Mapping[str, Any] | None = None, /, **named: Any) -> Iterator[None]:
    """`shrink` for a block of code."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, values, **named)
        yield


def shrink_all(monkeypatch: pytest.MonkeyPatch, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
    """All borders of a search as small as `SMALL`, some of them as given."""
    shrink(monkeypatch, {**SMALL, **(values or {}), **named})


def value(key: str) -> Any:
    """What the border is now."""
    owner, name, _ = next(_places(key))
    return getattr(owner, name)


@cache
def fault(key: str) -> str | None:
    """Why setting this border would do nothing, or not everything; None where it does."""
    if key not in BORDERS:
        return f"{key!r} is not in the table of tests/support/borders.py"
    module, _, owner = BORDERS[key].module.partition(":")
    name = key.rpartition(".")[2]
    if not source.defines(module, name, owner):
        return f"{BORDERS[key].module} does not define {name}"
    read = source.reads(module, name, owner)
    if not any(not one.frozen for one in read):
        return f"no code reads {key!r} when it runs"
    known = {*BORDERS[key].frozen, *(place for place, _, _ in DERIVED.get(key, ()))}
    for one in read:
        if one.frozen and one.module not in known:
            return f"{one.module}:{one.line} reads {key!r} once, when it is imported or compiled"
    return None


def _places(key: str) -> Iterator[tuple[Any, str, Callable[[Any], Any] | None]]:
    """(object, attribute, how its value follows from the border's) of all that hold the border."""
    if reason := fault(key):
        raise LookupError(reason)
    _, _, owner = BORDERS[key].module.partition(":")
    for place, local, derive in _held(key):
        try:
            target = importlib.import_module(f"{source.PACKAGE}.{place}")
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] == source.PACKAGE:
                raise
            continue
        yield getattr(target, owner) if owner else target, local, derive


@cache
def _held(key: str) -> tuple[tuple[str, str, Callable[[Any], Any] | None], ...]:
    module, _, owner = BORDERS[key].module.partition(":")
    name = key.rpartition(".")[2]
    if owner:
        return ((module, name, None),)
    return (*((*one, None) for one in source.holders(module, name)), *DERIVED.get(key, ()))
