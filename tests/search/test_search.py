"""The engine as a user holds it: one batch in, hits out, records that grow meanwhile."""

from __future__ import annotations

import doctest
import itertools
import math
import random
import sys
import threading
from typing import Any

import numpy as np
import pytest
from support import borders

import fanrank as fr
from fanrank.engine import engine as engine_module
from fanrank.engine.backends import choose as backend
from fanrank.engine.check.oracle import Oracle
from fanrank.engine.storage import memory


def tea(count: int, start: int = 0, **more: Any) -> list[fr.Record]:
    return [fr.Record(f"r{number}", "tea", **more) for number in range(start, start + count)]


def test_a_small_example_by_hand() -> None:
    engine = fr.Engine.from_records([fr.Record("1", "error 4711 was fixed by a restart"), fr.Record("2", "lunch")])
    # error, 4711, fix: each idf ln 2, tf 1, length 4 at a mean of 2.5
    quanta = 3 * round(math.log(2) * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 4 / 2.5)) * 2**18)
    assert engine.search(["fix for error 4711"], k=1)[0] == [("1", quanta / 2**18)]


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


def test_batches_may_be_any_iterable() -> None:
    engine = fr.Engine.from_records(tea(3))
    expected = list(engine.search(["tea", "milk"], 2))
    assert list(engine.search(("tea", "milk"), 2)) == expected
    assert list(engine.search(iter(["tea", "milk"]), 2)) == expected  # type: ignore[arg-type]


def test_mappings_are_records_too() -> None:
    engine = fr.Engine()
    assert engine.add([{"_id": "1", "text": "tea", "role": "user"}, fr.Record("2", "tea")]) == 2
    assert [i for i, _ in engine.search([fr.Query("tea", filter={"role": "user"})])[0]] == ["1"]
    assert engine.add([]) == 0
    assert engine.add(record for record in tea(2)) == 2
    assert len(engine) == 4


def test_query_tf() -> None:
    documents = ["a b", "a", "b b c", "c"]
    for query_tf, query in (("count", ["a", "b", "b"]), ("unique", ["a", "b"])):
        engine = fr.Engine.from_records(
            [fr.Record(str(n), text) for n, text in enumerate(documents)], analyzer="minimal", query_tf=query_tf
        )
        plain = Oracle([[text.split()] for text in documents])
        expected = [(str(document), quanta / 2**18) for document, quanta in plain.search(query, 4)]
        assert engine.search(["a b b"], 4)[0] == expected


def test_k_of_each_query() -> None:
    engine = fr.Engine.from_records(tea(20))
    hits = engine.search([fr.Query("tea", k=3), "tea", fr.Query("tea", k=0), fr.Query("tea", k=12)], k=5)
    assert hits.scores.shape == (4, 12)
    assert hits.counts.tolist() == [3, 5, 0, 12]
    assert [[i for i, _ in row] for row in hits] == [[f"r{n}" for n in range(count)] for count in (3, 5, 0, 12)]
    assert engine.search([fr.Query("tea", k=2)], k=5).scores.shape == (1, 2)
    assert engine.search(["tea"]).scores.shape == (1, 10)
    assert engine.search([], k=5).scores.shape == (0, 5)


def test_repeated_queries_answer_as_if_asked_alone() -> None:
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record(f"r{n}", f"tea w{n % 5}", role="user" if n % 2 else None) for n in range(30)])
    engine.add([fr.Record(f"r{n}", f"tea w{n % 3}", namespace="b") for n in range(20)])
    kinds = [
        fr.Query("tea w1"),
        fr.Query("tea w1", k=3),
        fr.Query("tea w1", namespace="b"),
        fr.Query("tea w1", namespace="nowhere"),
        fr.Query("tea w1", filter={"role": "user"}),
        fr.Query("tea w1", filter={"role": None}),
        fr.Query("tea w1", terms=["w2"]),
        fr.Query(terms=("tea", "w1")),
        fr.Query("w1 tea"),
        fr.Query("tea w1 w1"),
        fr.Query(""),
    ]
    batch = random.Random(2).choices(kinds, k=60)
    hits = engine.search(batch, 6)
    rows = list(hits)
    for position, query in enumerate(batch):
        alone = engine.search([query], 6)
        assert rows[position] == alone[0]
        if rows[position]:
            name = rows[position][-1][0]
            found, expected = hits.explain(position, name), alone.explain(0, name)
            assert (found.query, expected.query) == (position, 0)
            assert (found.score, found.terms, found.passed) == (expected.score, expected.terms, expected.passed)
    # Of the eleven kinds three are one question, and two match nothing.
    assert len({str(row) for row in rows}) == 8
    assert hits.queries == tuple(batch)


def test_older_documents_win_ties_across_segments() -> None:
    engine = fr.Engine(analyzer="minimal")
    for start, end in ((0, 32), (32, 40), (40, 41)):
        engine.add(tea(end - start, start))
    assert engine.stats()["segments"] == 3
    for k in (1, 32, 33, 41, 50):
        assert [i for i, _ in engine.search(["tea"], k)[0]] == [f"r{n}" for n in range(min(k, 41))]


@pytest.mark.parametrize("execution", ["exhaustive", "pruned"])
def test_a_younger_document_wins_by_one_quantum(execution: str) -> None:
    """A term in more than half of the documents is worth one quantum each; ties stay with the older segment."""
    engine = fr.Engine(analyzer="minimal", method="robertson_floor0")
    engine.add([fr.Record(f"r{n}", "t" if n % 2 else "u") for n in range(40)])
    engine.add([fr.Record("r40", "u"), fr.Record("r41", "t u"), fr.Record("r42", "t")])
    assert engine.stats()["segments"] == 2
    for k, expected in (
        (1, ["r41"]),
        (3, ["r41", "r0", "r1"]),
        (43, ["r41", *(f"r{n}" for n in range(43) if n != 41)]),
    ):
        hits = engine.search(["t u"], k, execution=execution)
        assert [name for name, _ in hits[0]] == expected
        assert (hits.scores[0] * 2**18).tolist() == [2.0] + [1.0] * (k - 1)


def test_namespaces_have_their_own_statistics() -> None:
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record("1", "tea"), fr.Record("2", "milk")])
    alone = engine.search(["tea"])[0]
    engine.add(tea(50, namespace="other"))
    assert engine.search(["tea"])[0] == alone
    assert engine.namespaces == ("", "other")
    assert len(engine) == 52
    hits = engine.search(["tea", fr.Query("tea", namespace="other"), fr.Query("milk", namespace="other")], 3)
    assert hits.counts.tolist() == [1, 3, 0]
    assert hits[0][0][0] == "1"
    # Ids are unique within a namespace only.
    engine.add([fr.Record("1", "coffee", namespace="other")])
    found = engine.search([fr.Query("coffee", namespace="other"), "coffee"])
    assert [[i for i, _ in row] for row in found] == [["1"], []]


def test_stats() -> None:
    engine = fr.Engine(analyzer="minimal")
    assert (engine.stats()["documents"], engine.stats()["bytes_per_posting"]) == (0, 0.0)
    engine.add([fr.Record("1", "a b b"), fr.Record("2", "b c"), fr.Record("3", "b", namespace="n")])
    stats = engine.stats()
    assert (stats["documents"], stats["namespaces"], stats["segments"]) == (3, 2, 2)
    assert (stats["vocabulary"], stats["postings"], stats["backend"]) == (3, 5, backend.choose().name)
    # 4 terms, 4 + 2 offsets, 5 postings of 4 + 2 bytes, 3 + 1 kinds of 4 + 4, 3 lengths
    assert stats["posting_bytes"] == 4 * 4 + 6 * 8 + 5 * 6 + 4 * 8 + 3 * 4
    assert stats["bytes_per_posting"] == stats["posting_bytes"] / 5
    parts = ("posting", "evidence", "vector", "id", "column", "deleted", "vocabulary")
    assert stats["index_bytes"] == sum(stats[f"{part}_bytes"] for part in parts)


def test_to() -> None:
    engine = fr.Engine.from_records(tea(2))
    before = list(engine.search(["tea"]))
    assert engine.to("cpu") is engine
    assert list(engine.search(["tea"])) == before
    with pytest.raises(fr.errors.ParameterError, match="unknown device 'tpu'; there are: cpu, cuda"):
        engine.to("tpu")


def test_to_cuda_says_why_not() -> None:
    if any(status.usable and not status.by_name for status in backend.statuses() if status.name in backend.DEVICES):
        pytest.skip("this machine has a GPU backend")
    engine = fr.Engine.from_records(tea(2))
    with pytest.raises(
        fr.errors.BackendUnavailableError, match=r"cannot serve from cuda: .+ not cuda: .+; not triton: .+"
    ):
        engine.to("cuda")
    assert engine.backend.name in backend.CPU
    assert engine.search(["tea"]).counts.tolist() == [2]


def test_a_long_build_is_compact(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, BUILD_CHUNK=10)
    engine = fr.Engine.from_records(tea(95))
    sizes = [segment.size for segment in engine.index.memory.snapshots[""].segments]
    assert (len(engine), sum(sizes)) == (95, 95)
    assert all(older >= 2 * newer for older, newer in itertools.pairwise(sizes))
    assert engine.stats()["merges"] == 0  # nothing is left to the background
    assert [i for i, _ in engine.search(["tea"], 95)[0]] == [f"r{n}" for n in range(95)]


def test_records_are_read_as_they_are_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, BUILD_CHUNK=10)
    alive: list[int] = []
    held = 0

    class Counted(fr.Record):
        def __del__(self) -> None:
            alive[0] -= 1

    def source() -> Any:
        nonlocal held
        alive.append(0)
        for number in range(200):
            alive[0] += 1
            held = max(held, alive[0])
            yield Counted(f"r{number}", "tea")

    fr.Engine.from_records(source(), keep_texts=False)
    assert held <= 22  # a chunk, the one before it, and the record on its way


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


def test_hits_of_an_older_epoch_stay_what_they_were() -> None:
    engine = fr.Engine.from_records([fr.Record("1", "tea milk"), fr.Record("2", "tea")], analyzer="minimal")
    hits = engine.search(["tea milk"])
    rows, scores = list(hits), hits.scores.copy()
    before = {name: hits.explain(0, name) for name in "12"}
    engine.add(tea(500))
    assert engine.search(["tea milk"])[0][0][1] != scores[0, 0]
    assert {name: hits.explain(0, name) for name in "12"} == before
    assert list(hits) == rows
    with pytest.raises(fr.errors.UnknownIdError):
        hits.explain(0, "r3")


def test_an_add_is_seen_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches from within the source of the records, and whenever the engine publishes a state."""
    borders.shrink(monkeypatch, BUILD_CHUNK=3)
    seen: list[list[int]] = []

    class Watched(memory.Memory):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "state" and value.snapshots:
                seen.append(look())

    monkeypatch.setattr(engine_module, "Memory", Watched)
    engine = fr.Engine(analyzer="minimal")

    def look() -> list[int]:
        return engine.search(["tea", fr.Query("tea", namespace="b")], 50).counts.tolist()  # type: ignore[no-any-return]

    def source(first: int) -> Any:
        for number in range(first, first + 10):
            seen.append(look())
            yield fr.Record(str(number), f"tea w{number}", namespace="b" if number % 2 else "")

    engine.add(source(0))
    assert seen == [[0, 0]] * 10 + [[5, 5]]
    seen.clear()
    engine.add(source(10))
    assert seen == [[5, 5]] * 10 + [[10, 10]]


def test_searching_while_records_are_added() -> None:
    """Every answer is that of a whole number of `add` calls, whatever happens meanwhile."""
    rng = random.Random(8)
    words = [f"w{n}" for n in range(60)]
    batches = []
    for number in range(60):
        size = rng.randrange(1, 40)
        batches.append(
            [
                fr.Record(
                    f"{number}-{n}", " ".join(["all", f"b{number}", *rng.choices(words, k=5)]), session=f"s{number % 7}"
                )
                for n in range(size)
            ]
            + [fr.Record(f"{number}", "all", namespace="other")]
        )
    sizes = np.cumsum([0, *(len(batch) - 1 for batch in batches)]).tolist()
    engine = fr.Engine(analyzer="minimal")
    failures: list[object] = []
    seen: set[int] = set()
    done, searched = threading.Event(), threading.Event()

    def search(seed: int) -> None:
        own = random.Random(seed)
        last = 0
        try:
            while not done.is_set():
                number = own.randrange(60)
                queries = [
                    "all",
                    f"b{number}",
                    fr.Query("all", filter={"session": "s3"}),
                    fr.Query("all", namespace="other"),
                ]
                hits = engine.search(queries, k=sizes[-1])
                count = int(hits.counts[0])
                if count not in sizes or count < last:
                    failures.append(("part of a batch", count, last))
                published = sizes.index(count)
                if int(hits.counts[3]) != published:
                    failures.append(("namespaces apart", published, int(hits.counts[3])))
                expected = len(batches[number]) - 1 if number < published else 0
                if int(hits.counts[1]) != expected:
                    failures.append(("another epoch in one answer", number, published))
                filtered = sum(len(batch) - 1 for n, batch in enumerate(batches[:published]) if n % 7 == 3)
                if int(hits.counts[2]) != filtered:
                    failures.append(("filter", published, int(hits.counts[2])))
                if (
                    hits.ids[0, :count].tolist() != [hits.ids[0, n] for n in range(count)]
                    or None in hits.ids[0, :count]
                ):
                    failures.append("ids")
                last = count
                seen.add(count)
                searched.set()
        except Exception as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=search, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number, batch in enumerate(batches):
            engine.add(batch)
            if number % 4 == 0:  # a failed add in between must not show either
                with pytest.raises(fr.errors.DuplicateIdError):
                    engine.add([fr.Record(f"x{number}", "all fresh"), batch[0]])
            # A search ends between any two writes: three threads' searches then see a third of the states at least.
            searched.clear()
            assert searched.wait(60), failures
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not failures
    assert len(seen) > 3  # searches did run in between
    at_once = fr.Engine.from_records([r for batch in batches for r in batch], analyzer="minimal")
    asked = ["all w1 w2", "w3 b7", "fresh", fr.Query("all", namespace="other")]
    assert list(engine.search(asked, 50)) == list(at_once.search(asked, 50))
