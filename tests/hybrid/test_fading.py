"""The strategy `decay` ranks all records by ``BM25 * exp(-rate * age)``, whatever BM25 alone lists first (C001)."""

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import borders

import fanrank as fr
from fanrank.engine.fuse.age import HOUR, exponential
from fanrank.engine.fuse.decay import Decay
from fanrank.engine.hybrid import fading
from fanrank.engine.hybrid.strategy import NAMED, Lexical, Strategy

NOW = 1_000_000 * HOUR
WORDS = ("tea", "river", "invoice", "deploy")


def engine_on(backend: str, **options: Any) -> fr.Engine:
    try:
        return fr.Engine(backend=backend, analyzer="minimal", **options)
    except fr.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


def made(seed: int, size: int) -> tuple[list[fr.Record], list[str]]:
    """Records whose scores tie often, or nearly: ages differ by less than a tick of the search, or not at all."""
    draw = random.Random(seed)
    ages = [0.0, 0.5, 0.5 + 1e-7, 30.0, 30.0 + 1e-6, 30.0 + 1e-4, 31.0, 900.0, 1e5, -5.0]
    records = [
        fr.Record(
            f"r{n}",
            " ".join(draw.choices(WORDS, k=draw.choice([0, 1, 1, 2, 3, 4]))),
            session=draw.choice("ab"),
            time=None if draw.random() < 0.05 else NOW - draw.choice(ages) * HOUR,
        )
        for n in range(size)
    ]
    return records, [record.id for record in records[: size // 2] if draw.random() < 0.1]


def plain(engine: fr.Engine, records: dict[str, fr.Record], query: fr.Query, decay: Decay) -> list[tuple[str, float]]:
    """All hits of BM25, each times the formula, sorted."""
    everything = replace(query, k=len(records), offset=0, min_score=None)
    found = []
    for place, (name, score) in enumerate(engine.search([everything])[0]):
        time = records[name].time
        hours = 0.0 if time is None else max(NOW - time, 0.0) / HOUR
        hours = math.floor(hours) if decay.whole_hours else hours
        found.append((name, score * float(exponential(np.array([-(decay.rate * hours)]))[0]), place))
    number = {name: n for n, name in enumerate(records)}
    found.sort(key=lambda hit: (-hit[1], number[hit[0]]))
    ranked = [(name, score) for name, score, _ in found]
    if query.min_score is not None:
        ranked = [hit for hit in ranked if hit[1] >= query.min_score]
    return ranked[query.offset :]


QUERIES = (
    fr.Query("tea", now=NOW),
    fr.Query("tea river", now=NOW, k=40),
    fr.Query("invoice", now=NOW, filter={"session": "a"}),
    fr.Query("deploy tea", now=NOW, half_life=20 * HOUR),
    fr.Query("river", now=NOW, since=NOW - 40 * HOUR, k=2),
    fr.Query("tea deploy", now=NOW, filter={"session": "b"}, statistics="filtered"),
    fr.Query("tea", now=NOW, offset=7, k=9),
    fr.Query("tea", now=NOW, min_score=0.2, k=60),
    fr.Query("nothing", now=NOW),
)


@pytest.mark.parametrize(("backend", "spare"), [("numpy", 0), ("numpy", 1), ("native", 16)])
def test_the_ranking_is_that_of_the_formula(backend: str, spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, SPARE=spare)
    records, deleted = made(spare, 150)
    engine = engine_on(backend)
    for start in range(0, 150, 60):
        engine.add(records[start : start + 60])
    engine.delete(deleted)
    live = {record.id: record for record in records if record.id not in deleted}
    for decay in (Decay(), Decay(rate=0.0), Decay(rate=0.05, whole_hours=True)):
        for depth in (1, 4, None):
            strategy = Strategy("decay", (Lexical(),), decay, depth=depth)
            hits = engine.search(QUERIES, k=5, strategy=strategy)
            for position, query in enumerate(QUERIES):
                wanted = plain(engine, live, query, decay)[: query.k or 5]
                assert list(hits[position]) == wanted, (decay, depth, query)


def test_a_list_goes_deeper_where_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of one score and one age tie with what was not brought, so all of them are needed."""
    borders.shrink(monkeypatch, SPARE=1)
    depths: list[list[int]] = []
    search = fading.search_lists
    monkeypatch.setattr(fading, "search_lists", lambda *own: depths.append([*own[2].values()]) or search(*own))
    alike = [fr.Record(f"r{n}", "tea", time=NOW - HOUR) for n in range(100)]
    engine = fr.Engine.from_records(
        [*alike, *(fr.Record(f"s{n}", f"river w{n}", time=NOW - n * HOUR) for n in range(9))]
    )
    strategy = replace(NAMED["decay"], depth=3)
    hits = engine.search([fr.Query("tea", now=NOW), fr.Query("river", now=NOW)], k=3, strategy=strategy)
    assert hits.ids.tolist() == [["r0", "r1", "r2"], ["s0", "s1", "s2"]]
    # Only the row that ties is searched again.
    assert depths == [[4, 4], [16], [64], [109]]


def test_a_query_without_its_time_is_refused() -> None:
    engine = fr.Engine.from_records([fr.Record("a", "tea", time=NOW)])
    with pytest.raises(fr.errors.QueryError, match=r"query 1: the fusion 'decay' counts ages"):
        engine.search([fr.Query("tea", now=NOW), fr.Query("tea")], strategy="decay")
    signed = fr.Engine.from_records([fr.Record(f"r{n}", "tea", time=NOW) for n in range(3)], method="robertson")
    with pytest.raises(fr.errors.QueryError, match=r"a score below 0 would rise with age"):
        signed.search([fr.Query("tea", now=NOW)], strategy="decay")


@pytest.mark.parametrize("rate", [1e-310, 5e-324])
def test_the_least_rates_fade_nothing(rate: float) -> None:
    engine = fr.Engine.from_records([fr.Record(f"r{n}", "tea", time=n * 1e6) for n in range(3)])
    query = fr.Query("tea", now=1e9)
    faded = engine.search([query], strategy=Strategy("faded", (Lexical(),), Decay(rate=rate)))
    assert faded[0] == engine.search([query])[0]
