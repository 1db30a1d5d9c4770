"""A batch is answered as its queries alone; what they share is decided once, and only the recorded work is done."""

import doctest
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest
from support import borders
from support.benches import load
from support.source import ROOT

import fanrank as fr
from fanrank.engine.records.hits import Hits
from fanrank.engine.search import batch as batches
from fanrank.engine.search import direct
from fanrank.engine.search.alike import read_alike
from fanrank.engine.search.given import as_queries
from fanrank.engine.storage.storage import Storage

WORDS = ["tea", "milk", "jam", "bread", "salt"]


def make_engine() -> fr.Engine:
    engine = fr.Engine(analyzer="minimal")
    for first in (0, 25):
        engine.add(
            fr.Record(
                f"{space}{n}é" if n % 5 == 0 else f"{space}{n}",
                " ".join(WORDS[(n + shift) % 5] for shift in range(1 + n % 4)),
                time=float(n),
                session=f"s{n % 3}",
                namespace=space,
            )
            for space in ("", "other")
            for n in range(first, first + 25)
        )
    engine.delete(["3"])
    return engine


ENGINE = make_engine()


def check_alone(batch: list[Any], k: int = 4) -> None:
    """Each query's row is its answer alone, whatever stands beside it."""
    hits = ENGINE.search(batch, k)
    assert hits.queries == as_queries(batch, "search")
    for row, own in enumerate(batch):
        alone = ENGINE.search([own], k)
        assert hits[row] == alone[0]
        width = alone.scores.shape[1]
        assert hits.documents[row, :width].tolist() == alone.documents[0].tolist()
        for name, _ in hits[row][:1]:
            assert {**hits.explain(row, name).to_dict(), "query": 0} == alone.explain(0, name).to_dict()
            assert hits.explain(row - len(hits), name) == hits.explain(row, name)
    start = len(batch) // 2
    part = hits.slice(start, len(batch), hits.scores.shape[1], hits.queries[start:])
    assert list(part) == list(hits)[start:]
    for row, found in enumerate(part):
        for name, _ in found[:1]:
            assert part.explain(row, name) == hits.explain(start + row, name).at(row)


DIFFERENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"k": 3}),
    ({}, {"namespace": "other"}),
    ({}, {"filter": {"session": "s1"}}),
    ({"filter": {"session": "s1"}}, {"filter": {"session": "s2"}}),
    ({}, {"scope": fr.SearchScope.session("s1")}),
    ({}, {"statistics": "filtered"}),
    ({"since": 1.0}, {"since": 2.0}),
    ({}, {"until": 2.0}),
    ({"windows": 1}, {"windows": 2}),
    ({"windows": 1, "now": 1.0}, {"windows": 1, "now": 2.0}),
    ({"half_life": 5.0, "now": 1.0}, {"half_life": 5.0, "now": 2.0}),
    ({"half_life": 5.0, "now": 1.0}, {"half_life": 6.0, "now": 1.0}),
    ({}, {"terms": ["tea"]}),
    ({}, {}),
    ({"filter": {"session": "s1"}, "since": 0.0}, {"filter": {"session": "s1"}, "since": 0.0}),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_queries_with_different_settings_are_answered_as_alone(one: dict[str, Any], other: dict[str, Any]) -> None:
    check_alone([fr.Query("tea", **one), fr.Query("jam", **other)])
    check_alone([fr.Query("tea", **other), fr.Query("jam", **one)])


def test_an_answer_does_not_change_with_the_batch_that_asked() -> None:
    for batch in (["tea", "jam"], [["tea", "jam"], ("milk",), []]):
        hits, wanted = ENGINE.search(batch), as_queries([*batch], "search")
        batch[0] = "salt"
        assert hits.queries == wanted
    assert len(ENGINE.search(iter(["tea", "jam"]))) == 2  # type: ignore[arg-type]


def test_the_error_is_of_the_first_query_that_has_one() -> None:
    with pytest.raises(fr.errors.QueryError, match="no column 'first'"):
        ENGINE.search(["tea", fr.Query(filter={"first": 1}), fr.Query(filter={"second": 1})])


def test_a_filter_is_compiled_once_for_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    compiled = Mock(wraps=batches.compile_filter)
    monkeypatch.setattr(batches, "compile_filter", compiled)
    query = fr.Query("tea", filter={"session": "new"}, scope=fr.SearchScope.user("u", None))
    for _ in range(3):
        assert engine.search([query])[0] == []
    assert compiled.call_count == 1
    # Another scope with the same filter object, the same scope without it, and an equal filter that is another object.
    engine.search([replace(query, scope=None)])
    engine.search([replace(query, filter=None)])
    engine.search([replace(query, filter={"session": "new"})])
    assert compiled.call_count == 4
    # The value is known only after this write.
    engine.add([fr.Record("n", "tea", session="new", user="u")])
    assert [name for name, _ in engine.search([query])[0]] == ["n"]
    assert compiled.call_count == 5


def test_compiled_filters_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    borders.shrink(monkeypatch, COMPILED=3)
    batch = [fr.Query("tea", filter={"time": {">": n}}) for n in range(8)]
    for query in batch:
        assert engine.search([query])[0] == engine.search([replace(query)])[0]
        assert len(engine.index.memory.snapshot("").compiled) <= 3
    assert list(engine.search(batch)) == [engine.search([query])[0] for query in batch]


def count_calls(run: Callable[[], object]) -> int:
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # what ends here of other tests is no call of a search
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls


def kept_answer(engine: fr.Engine, batch: list[Any]) -> Callable[..., Hits | None]:
    """Stands in for the compiled call: it has the answer already."""
    found = engine.search(batch)
    arrays = found.scores, found.documents, found.counts

    def answer(memory: Storage, queries: Any, k: int, windows: Any, *rest: Any) -> Hits | None:
        alike = read_alike(memory, queries, k, windows)
        return Hits.of(*arrays, alike, "direct", alike.snapshot.record_ids)

    return answer


FILTER = fr.Query(filter={"session": "s1"}).filter


@pytest.mark.parametrize(
    ("ask", "limit"),
    [
        (str, 45),
        (fr.Query, 45),
        (lambda text: fr.Query(text, filter=FILTER, since=3.0), 60),
        (lambda text: fr.Query(text, now=60.0, half_life=9.0), 60),
    ],
    ids=["text", "query", "filter", "decay"],
)
@pytest.mark.parametrize("options", [{}, {"k": 10, "strategy": "bm25", "timing": True}])
def test_the_calls_around_the_compiled_one_do_not_grow_with_the_batch(
    ask: Callable[[str], Any], limit: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fr.Engine.from_records([fr.Record(f"r{n}", WORDS[n % 5], time=float(n)) for n in range(50)])
    counts = []
    for size in (1, 5, 20):
        batch = [ask(WORDS[n % 5]) for n in range(size)]
        monkeypatch.undo()
        monkeypatch.setattr(direct, "answer", kept_answer(engine, batch))

        def run(batch: list[Any] = batch) -> object:
            hits = engine.search(batch, **options)
            return hits.ids, hits.scores

        run()
        counts.append(count_calls(run))
    assert max(counts) <= limit
    # The ids of more than `LISTED` hits are gathered by arrays.
    assert counts[1] - counts[0] <= 2
    assert counts[2] - counts[1] <= 9


(work,) = load("work")


@pytest.mark.extended
def test_no_search_does_more_work_than_is_recorded() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    # The baseline is that of the shipped profile.
    environment.pop("FANRANK_PROFILE", None)
    command = [sys.executable, "-m", "bench.work"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_more_work_than_recorded_is_growth() -> None:
    counts = {"postings": 1_000, "lookups": 10, "bytes": 8_000, "calls": 500, "peak_kib": 300}
    under = {"python": "3.x.y"}
    kept = work.update({}, {"numpy auto": counts}, under)

    def grown(under: dict[str, str] = under, **changed: int) -> list[str]:
        found = work.changes(kept, {"numpy auto": {**counts, **changed}}, under)
        return [line.split(", ")[1].split(":")[0] for line, grew in found.items() if grew]

    assert grown() == grown(calls=510, peak_kib=329) == grown(postings=999) == []
    assert all(grown(**{name: counts[name] + 1}) == [name] for name in work.COUNTED)
    assert grown(calls=600) == ["calls"]
    # Calls and memory are those of one version of Python and numpy.
    assert grown({"python": "4"}, calls=600) == []
    too_many = {**counts, "calls": work.MOST_CALLS["native one"] + 1}
    assert True in work.changes({}, {"native one": too_many}, under).values()


def tea(count: int, start: int = 0, **more: Any) -> list[fr.Record]:
    return [fr.Record(f"r{number}", "tea", **more) for number in range(start, start + count)]


def test_the_facades_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    # It shows what its reader gets.
    monkeypatch.delenv("FANRANK_PROFILE", raising=False)
    failed, tried = doctest.testmod(fr)
    assert (failed, tried) == (0, 3)


def test_all_forms_of_a_query_are_one() -> None:
    engine = fr.Engine.from_records(
        [fr.Record("1", "two cats running"), fr.Record("2", "a cat"), fr.Record("3", "dogs")]
    )
    batch = ["the Cats run", fr.Query("cats run"), ["cat", "run"], ("run", "cat"), fr.Query(terms=["cat", "run"])]
    rows = list(engine.search(batch, 5))
    assert rows == [rows[0]] * 5
    assert [name for name, _ in rows[0]] == ["1", "2"]
    # Pre-analysed terms are used as they stand.
    assert engine.search([["cats", "running"]], 5).counts.tolist() == [0]


def test_to() -> None:
    engine = fr.Engine.from_records(tea(2))
    before = list(engine.search(["tea"]))
    assert engine.to("cpu") is engine
    assert list(engine.search(["tea"])) == before
    with pytest.raises(fr.errors.ParameterError, match=r"device 'tpu'; did you mean 'cpu'. There are: cpu, cuda"):
        engine.to("tpu")


def test_a_progress_bar_only_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fr.Engine.from_records(tea(3), progress=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fr.Engine.from_records(tea(3), progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "3/3" in shown.err
    fr.Engine.from_records(tea(3))
    assert capsys.readouterr() == ("", "")
