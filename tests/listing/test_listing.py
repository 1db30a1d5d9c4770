"""Listing, counting and paging: what a plain dictionary of the records gives, whatever was written and merged."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import borders, history
from support.listing_cases import COLUMNS, FILTERS, NAMESPACES, Model, made, step

import fanrank as fr
from fanrank.engine.listing import listing as listings
from fanrank.engine.listing.orders import ORDERS

SCOPES = (*NAMESPACES, None, "nobody")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[fr.Engine]:
    with fr.Engine.open(tmp_path / "memory", columns=COLUMNS) as opened:
        yield opened


def pages(engine: fr.Engine, limit: int, **options: Any) -> list[fr.Record]:
    """All records of a listing, page by page."""
    listed: list[fr.Record] = []
    cursor: str | None = None
    while True:
        page = engine.records(after=cursor, limit=limit, **options)
        listed += page
        cursor = page.cursor
        if cursor is None:
            return listed


def check(engine: fr.Engine, model: Model, rng: random.Random) -> None:
    for namespace in SCOPES:
        filter, passes = rng.choice(FILTERS)
        assert engine.count(filter, namespace=namespace) == len(model.passing(namespace, passes))
        for column in ("role", "time", "project", "priority"):
            counted = list(engine.distinct(column, filter, namespace=namespace).items())
            assert counted == model.distinct(namespace, passes, column)
        if namespace is not None:
            assert list(engine.ids(filter, namespace=namespace)) == [
                record.id for record in model.passing(namespace, passes)
            ]
        for order in ORDERS:
            reverse = rng.random() < 0.5
            options: Any = {"filter": filter, "namespace": namespace, "order": order, "reverse": reverse}
            expected = model.listed(namespace, passes, order, reverse)
            assert list(engine.records(**options)) == expected
            assert pages(engine, rng.randrange(1, 5), **options) == expected
            names = [(record.namespace, record.id) for record in engine.records(texts=False, **options)]
            assert names == [(record.namespace, record.id) for record in expected]


@pytest.mark.parametrize("seed", range(6))
def test_listings_are_those_of_a_dictionary(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    history.shrink(monkeypatch)
    borders.shrink(monkeypatch, PAGE=3, LEAST_ENTRIES=1, MOST_ENTRIES=2, PENDING_CHUNK=2)
    if seed % 2:
        borders.shrink(monkeypatch, PADDED_BYTES=0)
    rng, model = random.Random(seed), Model()
    for number in range(40):
        step(rng, engine, model)
        if number % 8 == 7:
            check(engine, model, rng)
            name = rng.choice([*model.ids("a"), "nobody"])
            assert engine.get(name, namespace="a") == model.kept.get(("a", name))
    assert engine.verify() == {"records": len(model.kept), "missing": 0, "extra": 0}
