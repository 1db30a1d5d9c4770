"""The counts of skipped tiles, against plain loops over tiny corpora."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
# Only while importing: the root holds folders named like other people's packages.
sys.path.append(str(ROOT))
try:
    from bench.gpu import corpora as gpu_corpora
    from bench.gpu import inside, schedule, skipped, tiles
finally:
    sys.path.remove(str(ROOT))

from fanrank.engine.plan.plan import Request, make_plan  # noqa: E402

TINY = gpu_corpora.Shape("tiny", documents=90, vocabulary=40, tokens=8, queries=9, terms=4, segment_documents=50)
BITS = 4


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_corpora, "CACHE", tmp_path / "cache")


@pytest.fixture
def problem(monkeypatch: pytest.MonkeyPatch) -> gpu_corpora.Problem:
    monkeypatch.setattr(tiles, "ALIGNED_BITS", 6)
    return gpu_corpora.load_shaped(TINY)


def contributions(problem: gpu_corpora.Problem, query: int) -> list[dict[int, dict[int, int]]]:
    """By segment, then document, then term: what the query's terms contribute."""
    plan = make_plan(problem.snapshot, [Request(0, problem.query(query), 5)])
    found = []
    for segment in problem.snapshot.segments:
        part = plan.plan_segment(len(found))
        own: dict[int, dict[int, int]] = {}
        assert part is not None
        for term, (start, end, idf) in enumerate(
            zip(part.starts.tolist(), part.ends.tolist(), plan.idf.tolist(), strict=True)
        ):
            where = np.arange(start, end)
            quanta = part.contributions.at(where, np.full(len(where), idf))
            for document, value in zip(segment.documents[where].tolist(), quanta.tolist(), strict=True):
                own.setdefault(document, {})[term] = value
        found.append(own)
    return found


def by_tile(problem: gpu_corpora.Problem, query: int, bits: int) -> list[list[dict[int, int]]]:
    """The matching documents of each tile, as what each term contributes."""
    found = []
    for segment, own in zip(problem.snapshot.segments, contributions(problem, query), strict=True):
        found += [
            [terms for document, terms in own.items() if first <= document < first + (1 << bits)]
            for first in range(0, segment.size, 1 << bits)
        ]
    return found


def test_pairs_are_what_loops_find(problem: gpu_corpora.Problem) -> None:
    lists = tiles.Lists(problem)
    for bits in (3, BITS, 5):
        pairs = lists.pairs(bits, lists.cut(bits), run=4, warps=2)
        kth = tiles.kth_sums(lists, (bits,), (1, 3))
        for query in range(problem.queries):
            expected = by_tile(problem, query, bits)
            assert pairs.tiles == len(expected)
            for tile, documents in enumerate(expected):
                terms = {term for document in documents for term in document}
                maxima = [max(document.get(term, 0) for document in documents) for term in terms]
                counts = [sum(term in document for document in documents) for term in terms]
                assert pairs.postings[query, tile] == sum(counts)
                assert pairs.bounds[query, tile] == sum(maxima)
                assert pairs.best[query, tile] == max(maxima, default=0)
                assert pairs.rounds[query, tile] == -(-sum(-(-count // 4) for count in counts) // 2)
                sums = sorted((sum(document.values()) for document in documents), reverse=True)
                for k in (1, 3):
                    assert kth[bits, k][query, tile] == (sums[k - 1] if len(sums) >= k else 0)


def test_tile_sizes_counted_together_are_those_counted_alone(problem: gpu_corpora.Problem) -> None:
    lists = tiles.Lists(problem)
    together = tiles.kth_sums(lists, (3, 4, 6), (1, 2, 9))
    for (bits, k), found in together.items():
        assert (tiles.kth_sums(lists, (bits,), (k,))[bits, k] == found).all()


def test_first_thresholds_are_reached_by_k_documents(
    problem: gpu_corpora.Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "KS", (2, 5))
    lists = tiles.Lists(problem)
    everything = np.arange(problem.queries)
    raised = 0
    for k in (2, 5):
        firsts, last = lists.first_thresholds(k), lists.kth_scores(everything, k)
        assert (lists.first_thresholds(k, 3, BITS) <= firsts).all()
        assert (lists.first_thresholds(k, 1_000, BITS) == 1).all()
        for query in range(problem.queries):
            own = contributions(problem, query)
            sums = sorted((sum(terms.values()) for part in own for terms in part.values()), reverse=True)
            assert last[query] == (sums[k - 1] if len(sums) >= k else 1)
            assert firsts[query] <= last[query]
            raised += firsts[query] > 1
            best = [
                sorted((terms[term] for terms in part.values() if term in terms), reverse=True)[k - 1 : k]
                for part in own
                for term in range(len(problem.query(query)))
            ]
            assert firsts[query] == max([1, *(value for one in best for value in one)])
    assert raised


def test_first_thresholds_of_tiles_are_reached_in_k_tiles(problem: gpu_corpora.Problem) -> None:
    lists, pairs, kth = prepared(problem, 1)
    for k in (1, 3, pairs.tiles, pairs.tiles + 1):
        firsts = pairs.first_thresholds(k)
        for query in range(problem.queries):
            best = sorted(pairs.best[query].tolist(), reverse=True)
            assert firsts[query] == (max(1, best[k - 1]) if k <= pairs.tiles else 1)
            # Each tile's best document scores at least as much.
            assert k > pairs.tiles or firsts[query] == 1 or (kth[query] >= firsts[query]).sum() >= k
    assert (lists.kth_scores(np.arange(problem.queries), 3) >= pairs.first_thresholds(3)).all()


def schemes(**changed: object) -> schedule.Scheme:
    return dataclasses.replace(schedule.Scheme("s", looks=1), **changed)  # type: ignore[arg-type]


def prepared(problem: gpu_corpora.Problem, k: int) -> tuple[tiles.Lists, tiles.Pairs, tiles.Integers]:
    lists = tiles.Lists(problem)
    return lists, lists.pairs(BITS, lists.cut(BITS), 4, 2), tiles.kth_sums(lists, (BITS,), (k,))[BITS, k]


def test_one_block_skips_what_a_loop_skips(problem: gpu_corpora.Problem) -> None:
    _, pairs, kth = prepared(problem, 2)
    everything = np.arange(problem.queries)
    ones = np.ones(problem.queries, dtype=np.int64)
    # A block tests the threshold again before each turn, so it skips the same however many it looks at.
    for best_first, looks in ((False, 1), (True, 1), (True, 1_000)):
        scheme = schemes(best_first=best_first, looks=looks)
        outcome = schedule.simulate(pairs, kth, everything, ones, scheme, workers=1)
        thresholds = ones.copy()
        expected = np.full(pairs.bounds.shape, -1)
        for query, tile in zip(*schedule.turns(pairs, everything, ones, best_first), strict=True):
            if pairs.bounds[query, tile] >= thresholds[query]:
                expected[query, tile] = thresholds[query]
                thresholds[query] = max(thresholds[query], kth[query, tile])
        assert (outcome.thresholds == expected).all()
        assert outcome.scored == (expected >= 0).sum() < outcome.entries == (pairs.postings > 0).sum()
        assert outcome.postings == pairs.postings[expected >= 0].sum()
        assert outcome.busy > 0.5


def test_blocks_at_work_do_not_know_each_others_thresholds(problem: gpu_corpora.Problem) -> None:
    _, pairs, kth = prepared(problem, 1)
    everything = np.arange(problem.queries)
    ones = np.ones(problem.queries, dtype=np.int64)
    scored = [
        schedule.simulate(pairs, kth, everything, ones, schemes(), workers=workers).scored for workers in (1, 4, 1_000)
    ]
    assert scored[0] < scored[2] == (pairs.postings > 0).sum()
    assert scored[0] <= scored[1] <= scored[2]
    still = schedule.simulate(pairs, kth, everything, ones, schemes(raises=False), workers=1)
    assert still.scored == still.entries


def test_best_tiles_come_first_and_ranks_before_queries(problem: gpu_corpora.Problem) -> None:
    _, pairs, _ = prepared(problem, 1)
    everything = np.arange(problem.queries)
    firsts = np.median(pairs.bounds, axis=1).astype(np.int64)
    query, tile = schedule.turns(pairs, everything, firsts, True)
    assert (pairs.bounds[query, tile] >= firsts[query]).all()
    assert len(query) == ((pairs.bounds >= firsts[:, None]) & (pairs.postings > 0)).sum()
    assert query[: problem.queries].tolist() == list(range(problem.queries))
    for each in range(problem.queries):
        own = pairs.bounds[each, tile[query == each]].astype(np.int64)
        # Within a class of bounds tiles ascend.
        assert (np.diff(own * 255 // own.max()) <= 0).all()
    query, tile = schedule.turns(pairs, everything, firsts, False)
    assert (np.diff(tile) >= 0).all()


def test_32_turns_a_look_starve_the_other_blocks() -> None:
    shape = (20, 29)
    pairs = tiles.Pairs(
        14, np.full(shape, 9), np.full(shape, 9), np.full(shape, 100), np.ones(shape, dtype=int), np.full(20, 3), 29
    )
    kth = np.zeros(shape, dtype=np.int64)
    ones = np.ones(20, dtype=np.int64)
    asked, one, many = (
        schedule.simulate(pairs, kth, np.arange(20), ones, schemes(looks=looks)).microseconds for looks in (0, 1, 32)
    )
    assert many > 8 * one
    assert asked == one


def test_essential_lists_are_those_that_can_bring_a_document_to_the_threshold() -> None:
    maxima = np.array([[5, 3, 0], [2, 9, 4], [4, 1, 0]])
    essential, rest = inside.essential_lists(maxima, np.array([7, 14, 4]))
    # 2 + 4 stay below 7; 1 + 3 + 9 stay below 14; 4 reaches 4.
    assert essential.tolist() == [[True, False, False], [False, False, True], [False, False, False]]
    assert rest.tolist() == [6, 13, 0]


@pytest.mark.parametrize("at", ["the turn", "the bound", "the best sum"])
def test_what_is_inside_scored_tiles_is_what_loops_find(problem: gpu_corpora.Problem, at: str) -> None:
    k = 2
    lists, pairs, kth = prepared(problem, k)
    queries = np.arange(0, problem.queries, 2)
    firsts = np.ones(problem.queries, dtype=np.int64)
    thresholds = schedule.simulate(pairs, kth, queries, firsts, schemes(), workers=3).thresholds
    if at == "the bound":
        thresholds = pairs.bounds[queries].astype(np.int64)
    elif at == "the best sum":
        thresholds = prepared(problem, 1)[2][queries].astype(np.int64)
    # Nothing matches in tiles without postings, which are left out.
    thresholds[pairs.postings[queries] == 0] = -1
    found = inside.look_inside(lists, pairs, lists.cut(BITS), thresholds, queries, k)
    expected = inside.Inside()
    for row, query in enumerate(queries.tolist()):
        expected.queries += 1
        for tile, documents in enumerate(by_tile(problem, query, BITS)):
            threshold = int(thresholds[row, tile])
            if threshold < 0:
                continue
            terms = {term for document in documents for term in document}
            maxima = {term: max(document.get(term, 0) for document in documents) for term in terms}
            rest: set[int] = set()
            # Equal maxima are told apart by the numbers of their lists, which ascend with the terms.
            for term in sorted(terms, key=lambda term: (maxima[term], term)):
                if sum(maxima[other] for other in rest) + maxima[term] >= threshold:
                    break
                rest.add(term)
            parts = [sum(value for term, value in one.items() if term not in rest) for one in documents]
            hopeful = sum(part > 0 and part + sum(maxima[term] for term in rest) >= threshold for part in parts)
            reached = sum(sum(one.values()) >= threshold for one in documents)
            essential = sum(term not in rest for one in documents for term in one)
            total = sum(map(len, documents))
            expected.tiles += 1
            expected.postings += total
            expected.reached += reached
            expected.candidates += min(k, reached)
            expected.selecting += reached >= k
            expected.essential += essential
            expected.partial += sum(part > 0 for part in parts)
            expected.hopeful += hopeful
            expected.lookups += hopeful * len(rest)
            # The document with the largest contribution of the smallest essential list.
            assert hopeful or threshold > sum(maxima.values())
    names = [item.name for item in dataclasses.fields(inside.Inside) if not item.name.endswith("_us")]
    names.remove("steps")
    assert {name: getattr(found, name) for name in names} == {name: getattr(expected, name) for name in names}
    assert found.steps >= found.lookups
    assert found.lookups > 0
    assert 0 < found.essential < found.postings
    assert found.plain_us > found.chosen_us > 0


def test_a_smoke_run_leaves_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--smoke", "--out", str(tmp_path), "--tile-bits", "5,14", "--batches", "1,all", "--sample", "4"]
    assert skipped.main([*common, "--corpora", "fiqa-shaped,sgd", "--ks", "10,100"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    assert {row["part"] for row in rows} == set(skipped.PARTS)
    assert {(row["tile_bits"], row["k"]) for row in rows if row["k"]} == {(5, 100), (14, 10), (14, 100)}
    assert all(row["corpus"] == "fiqa-shaped" and row["code"] and row["commit"] for row in rows)
    turns = [row for row in rows if row["part"] == "turns"]
    assert all(set(row["found"]) >= {scheme.name for scheme in skipped.SCHEMES} for row in turns)
    assert "best first" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        skipped.main([*common, "--ks", "7"])
