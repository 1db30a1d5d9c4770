"""The borders: constants at which the product goes on another way, and how a test makes them small.

A test names a constant, by the last part of its module too where several have one; `shrink` sets it in every module.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from . import source

# Names of which several modules have one, and which module's a test means.
MEANT = {
    "CLOSING": "server.logs", "FIRST": "engine.search.shaping", "GROWTH": "engine.search.shaping",
    "LINGER": "engine.serve.coalesce", "PAGE": "engine.listing.listing", "PAIRS": "engine.recall.conversation",
    "PAUSE": "engine.storage.storage", "PENDING": "cpu_fallback.dense", "ROOM": "cpu_fallback.native",
    "STEP": "engine.search.newest", "TERMS": "kernels.fanout", "TEXTS": "engine.hybrid.occasions",
    "WRITERS": "engine.writing", "cpu_dense": "cpu_fallback.dense", "device_dense": "kernels.dense",
}  # fmt: skip

# Modules that read a border once, when they are imported, and where the old value does no harm.
FROZEN = {"LUCENE_ENGLISH": "engine.text.analyzers", "SYSTEMS": "engine.cli.tune"}

# So small that a few dozen records cross every border of a search.
SMALL: dict[str, Any] = {
    "select.MIN_GROUPS": 3, "select.GROUPS_PER_K": 2, "CONTIGUOUS_GROUP": 4, "WINDOW_DOCUMENTS": 4,
    "COUNTED_DOCUMENTS": 24, "DERIVE_CHUNK": 16, "MAX_SEGMENT_DOCUMENTS": 16, "INLINE_DOCUMENTS": 6, "BUILD_CHUNK": 24,
    "MERGE_BLOCK": 5, "postings.FLAGS": 32, "segment.MASKS": 2, "native.MASKS": 2, "DENSE_POSTINGS": 2,
    "segment.DENSE_SHARE": 8, "BLOCK_POSTINGS": 2, "GROUPS": 2, "LEAST_POSTINGS": 2, "RANKS": (1, 2, 3, 5), "FIRST": 2,
    "GROWTH": 2, "DEEP_PLACES": 40, "STEP": 3, "TIME_BLOCK": 2, "DERIVE_SHARE": 2, "SCATTER_BLOCK": 3,
    "THREADS_PAY": True, "search.GROUP": 3, "CHUNK_BYTES": 64, "search.MANY": 1, "MAX_PENDING": 5, "native.TILE": 8,
    "FADED_TILE": 4, "DENSE_USES": 2, "PRUNED_DOCUMENTS": 4, "SHARED_POSTINGS": 2, "LENT_SHARE": 1, "LATER_SHARE": 2,
    "KEPT_POSTINGS": 2, "ROOM": 2, "MIN_ROOM": 2, "POSTINGS_PER_RECORD": 4, "WINDOWED_RECORDS": 12,
}  # fmt: skip


def shrink(monkeypatch: pytest.MonkeyPatch, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
    """Sets borders, by their names. Raises where that would change nothing.

    All that hold a border are imported first: a module imported later would keep the small value after the test. A
    module whose optional package is missing is left out, as nothing can read it.
    """
    for key, value in {**(values or {}), **named}.items():
        for owner, name in list(_places(key)):
            monkeypatch.setattr(owner, name, value)


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
    owner, name = next(_places(key))
    return getattr(owner, name)


def _places(key: str) -> Iterator[tuple[Any, str]]:
    """(object, attribute) of all that hold the border."""
    for place, owner, local in _held(key):
        try:
            target = importlib.import_module(f"{source.PACKAGE}.{place}")
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] == source.PACKAGE:
                raise
            continue
        yield getattr(target, owner) if owner else target, local


@cache
def _held(key: str) -> tuple[tuple[str, str, str], ...]:
    """(module, its class, name there) of all that hold the border.

    Raises where setting it would do nothing, or not everything.
    """
    where, _, name = key.rpartition(".")
    meant = MEANT.get(where or name)
    homes = [
        (module, owner)
        for module, owner in source.homes(name)
        if (module == meant if meant else not where or module.rpartition(".")[2] == where)
    ]
    if len(homes) != 1:
        raise LookupError(f"{key!r} is a constant of {[module for module, _ in homes] or 'no module'}")
    ((module, owner),) = homes
    read = source.reads(module, name, owner)
    if all(one.frozen for one in read):
        raise LookupError(f"no code reads {key!r} when it runs")
    for one in read:
        if one.frozen and one.module != FROZEN.get(key):
            raise LookupError(f"{one.module}:{one.line} reads {key!r} once, when it is imported or compiled")
    if owner:
        return ((module, owner, name),)
    return tuple((one, "", own) for one, own in source.holders(module, name))
