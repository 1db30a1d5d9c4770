"""The newest of each key, carried from write to write: the choice of plain loops after any history."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.borders import SMALL, shrink

import fanrank as fr

COLUMNS = {"key": "category", "other": "json", "amount": "number"}


def newest(held: Sequence[fr.Record], names: Sequence[str]) -> list[str]:
    """The ids of those that no newer one hides; `held` in the order of their writes."""
    last: dict[Any, fr.Record] = {}
    for record in held:
        key: Any = tuple(record.extra.get(name) for name in names)
        if None in key:
            key = record.id
        known = last.get(key)
        if known is None or (known.time or 0) <= (record.time or 0):
            last[key] = record
    return sorted(record.id for record in last.values())


@pytest.mark.parametrize("seed", range(2))
def test_what_is_carried_over_writes_is_what_plain_loops_choose(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, SMALL)
    chance = random.Random(seed)
    engine, held = fr.Engine(columns=COLUMNS, backend="numpy"), {}

    def record(name: str) -> fr.Record:
        extra = {
            "key": chance.choice([None, "a", "b", "c"]),
            "other": chance.choice([None, 1, 1.0, True, "1", [1]]),
            "amount": chance.choice([None, 0.0, -0.0, 2.5]),
        }
        given = {column: value for column, value in extra.items() if value is not None}
        return fr.Record(name, "tea", time=chance.choice([None, 1.0, 2.0, 3.0]), extra=given)

    def plain(names: Sequence[str]) -> list[str]:
        return newest([_hashable(one) for one in held.values()], names)

    for step in range(40):
        gone = chance.sample([*held], min(len(held), chance.choice([0, 1, 3])))
        engine.delete(gone)
        held = {name: one for name, one in held.items() if name not in gone}
        batch = [record(f"r{chance.randrange(60)}") for _ in range(chance.choice([0, 1, 5, 12]))]
        batch = [*{one.id: one for one in batch}.values()]
        engine.upsert(batch)
        for one in batch:
            held.pop(one.id, None)
            held[one.id] = one
        if step % 3 == 0:
            continue  # a search may see several writes at once
        for names in (["key"], ["other"], ["amount"], ["key", "other"], ["amount", "key"]):
            hits = engine.search("tea", 100, latest=names)
            assert sorted(hit.id for hit in hits[0]) == plain(names), (step, names)
            assert sorted(hit.id for hit in engine.search("tea", 100, latest=names, until=9.0)[0]) == sorted(
                newest([_hashable(one) for one in held.values() if one.time is not None], names)
            )
    engine.close()


def _hashable(record: fr.Record) -> fr.Record:
    extra = {name: tuple(value) if isinstance(value, list) else value for name, value in record.extra.items()}
    return fr.Record(record.id, record.text, time=record.time, extra=extra)
