"""What every kernel family must give, verb by verb, over the launches of `support.launches`.

`check_family(verbs, case)` runs tabulate, describe, order, score and select and asserts everything that
`kernels/work.py` promises; `check_plan` has the launch planned on the device; `check_derive` and `check_select` look at
one verb.
"""

import mmap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from support.launches import (  # noqa: F401 - tests take them from here
    BORDERS,
    CASES,
    COLUMN,
    NOW,
    POISON,
    RANGES,
    SHAPES,
    Array,
    Case,
    Guarded,
    Placed,
    Ranked,
    SegmentCase,
    build,
    cases,
    formula_of,
    narrowed,
    of_classes,
    one_list,
    planned,
    tiles_within,
)
from support.plain_verbs import LOW, PLANNED, candidates_of, descriptors_of, entries_of, tables_of

from fanrank.engine.index.bm25 import BM25, Statistics
from fanrank.kernels.sort import select_sorted
from fanrank.kernels.work import (
    DOCUMENT_BITS,
    MAX_SELECTED,
    UNBOUNDED,
    Buffers,
    DevicePostings,
    KernelAnswer,
    Verbs,
    Work,
)

# Python has a name for it from 3.13 on.
NO_RESERVE = 0x4000

Check = Callable[[Case, Work, Buffers], None]
"""Something more that a family promises, checked after `order`."""


def descriptor_room(work: Work) -> int:
    """Descriptors that the units of a launch reach."""
    tiles = work.segments[:, COLUMN["tiles"]][work.unit_segment.long()]
    ends = work.unit_descriptors + work.unit_slots.diff() * tiles
    return int(ends.max()) if len(ends) else 0


def fresh(
    work: Work, device: str, verbs: Verbs | None = None, *, descriptors: int | None = None, slots: int | None = None
) -> tuple[Buffers, KernelAnswer, Guarded]:
    """Poisoned buffers, with the scratch of `verbs`, and a poisoned answer."""
    guarded = Guarded(device)
    candidates, entries = int(work.candidate_offset[-1]), int(work.entry_offset[-1])
    queries = len(work.query_k)
    slots = int(work.unit_slots[-1]) if slots is None else slots
    buffers = Buffers(
        descriptors=guarded.take((descriptor_room(work) if descriptors is None else descriptors, 3), torch.int64),
        entries=guarded.take((entries, 2), torch.int64),
        entry_counts=guarded.take((queries,), torch.int32),
        progress=guarded.take((2,), torch.int64),
        idf=guarded.take((slots if work.posting_bytes < 8 else 0,), torch.float64),
        thresholds=guarded.take((queries,), torch.int64),
        counts=guarded.take((queries,), torch.int32),
        keys=guarded.take((candidates,), torch.int64),
        documents=guarded.take((candidates if work.long_keys else 0,), torch.int32),
        scratch=guarded.take((0,), torch.uint8),
    )
    if verbs is not None:
        scratch = guarded.take((verbs.scratch_bytes(work.extent(buffers)),), torch.uint8)
        buffers = replace(buffers, scratch=scratch)
    shape = (queries, work.width)
    answer = KernelAnswer(
        guarded.take(shape, torch.int64), guarded.take(shape, torch.int64), guarded.take((queries,), torch.int32)
    )
    return buffers, answer, guarded


def check_derive(verbs: Verbs, case: Case) -> None:
    """`derive` gives `BM25.quanta`, bit for bit, for every segment."""
    for segment in case.segments:
        expected = segment.device_quanta
        guarded = Guarded(str(expected.device))
        quanta = guarded.take(tuple(expected.shape), expected.dtype)
        verbs.derive(segment.postings, case.formula, segment.idf, quanta)
        np.testing.assert_array_equal(quanta.cpu().numpy(), expected.cpu().numpy(), err_msg=case.name)
        guarded.check()


FREQUENCIES = (1, 2, 3, 7, 100, 4094, 4095, 4096, 65_535, (1 << 31) - 1)
LENGTHS = (1, 2, 3, 11, 12, 999, (1 << 20) + 1, (1 << 31) - 1)


def check_derive_grid(verbs: Verbs, model: BM25, device: str = "cpu") -> None:
    """`derive` over every (frequency, length) of a grid with its extremes gives the integers of `BM25.quanta`.

    A second field is empty and lacks every term: its norm is 0 where b is 1. Frequencies of one field that fit the
    postings' words are read from there as well.
    """
    fields, documents = len(model.fields), 463_284
    tf, length = (grid.reshape(-1) for grid in np.meshgrid(FREQUENCIES, LENGTHS))
    tfs = np.stack([np.roll(tf, 5 * field) * (field != 1) for field in range(fields)])
    lengths = np.stack([np.roll(length, 3 * field) * (field != 1) for field in range(fields)]).astype(np.int32)
    totals = tuple(0 if field == 1 else 12_345_677 + field for field in range(fields))
    df = np.array([1, 2, 50_000, documents // 2, documents - 1, documents])
    statistics = Statistics(documents, totals, df)
    idf = model.idf(df, statistics)
    averages = [statistics.average_length(field) if totals[field] else 1.0 for field in range(fields)]
    formula = formula_of(model, averages)
    for kept in (np.arange(len(tf)), np.flatnonzero(tf < 4096))[: 1 if fields > 1 else 2]:
        own, document = tfs[:, kept], np.tile(kept, len(idf))
        saturated = model.saturated(own.astype(np.uint32), model.norms(lengths[:, kept], statistics))
        expected = np.concatenate([model.quanta(saturated, np.full(len(kept), each)) for each in idf])
        stored = len(kept) == len(tf)
        words = document.astype(np.uint32)
        if not stored:
            words |= np.tile(own[0], len(idf)).astype(np.uint32) << np.uint32(DOCUMENT_BITS)
        postings = DevicePostings(
            torch.from_numpy(words.view(np.int32)).to(device),
            torch.from_numpy(np.tile(own, (1, len(idf))).astype(np.int32)).to(device) if stored else None,
            # Empty lists before, between and after the others.
            torch.from_numpy(np.repeat(np.arange(len(idf) + 1) * len(kept), 2)).to(device),
            torch.from_numpy(lengths).to(device),
        )
        padded = np.zeros(2 * len(idf) + 1)
        padded[1::2] = idf
        for dtype in [torch.int64] + [torch.int32] * bool(np.abs(expected).max() < 1 << 31):
            quanta = torch.full((len(expected),), -1, dtype=dtype, device=device)
            verbs.derive(postings, formula, torch.from_numpy(padded).to(device), quanta)
            np.testing.assert_array_equal(quanta.cpu().numpy(), expected, err_msg=str(model))


def check_family(verbs: Any, case: Case, also: Sequence[Check] = ()) -> None:
    """tabulate, describe, order, score and select on poisoned buffers, for the queries of each width; then order, score
    and select on what that left, the thresholds at their best."""
    tabulate(verbs, case)
    check_tables(case)
    for work in case.launches():
        buffers, answer, guarded = fresh(work, str(work.query_k.device), verbs)
        verbs.describe(work, buffers)
        check_begun(case, work, buffers)
        check_descriptors(case, work, buffers)
        _finish(verbs, case, work, buffers, answer, also)
        verbs.describe(work, buffers)
        for query, matches in enumerate(case.matches):
            best = case.expected(query)
            if best and len(best) < len(matches):
                buffers.thresholds[query] = best[-1][0]
        _finish(verbs, case, work, buffers, answer, also)
        guarded.check()
    case.guarded.check()


FAR: tuple[dict[str, Any], ...] = (
    {"sizes": (70, 33), "tile_bits": 5, "queries": 3, "ks": (3, 40)},
    {"sizes": (70,), "tile_bits": 5, "queries": 2, "ks": (3,), "wide": "all"},
)
"""Launches of narrow and of wide sums for `check_far`."""


def check_far(verbs: Any, case: Case) -> None:
    """The launches whose candidates, entries and descriptors lie behind 2**31 others of other launches."""
    far = (1 << 31) + 5
    tabulate(verbs, case)
    for near in case.launches():
        moved = ("candidate_offset", "entry_offset", "unit_descriptors")
        work = replace(near, **{name: getattr(near, name) + far for name in moved})
        buffers, answer, _ = fresh(near, "cpu", verbs)
        huge = {
            name: _untouched(far, getattr(buffers, name)) for name in ("descriptors", "entries", "keys", "documents")
        }
        buffers = replace(buffers, **huge)
        buffers = replace(buffers, scratch=_untouched(verbs.scratch_bytes(work.extent(buffers)), buffers.scratch))
        launch(verbs, work, buffers, answer)
        check_answer(case, work, answer)


def _untouched(more: int, like: torch.Tensor) -> torch.Tensor:
    """So many rows more, of memory that is there once it is written; none if there are none."""
    if not like.numel():
        return like
    rows = len(like) + more
    memory = mmap.mmap(-1, rows * like[:1].nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return torch.frombuffer(memory, dtype=like.dtype).view(rows, *like.shape[1:])


def check_plan(verbs: Any, case: Case, seed: int, *, k: int | None = None, also: Sequence[Check] = ()) -> None:
    """`plan` on poisoned arrays gives what a plan on the host gives; then order, score and select."""
    batch, made = planned(case, seed, k=k)
    tabulate(verbs, made)
    slots = int(made.work.unit_slots[-1])
    for work in made.launches():
        guarded = Guarded(str(work.query_k.device))
        empty = {name: guarded.take(tuple(getattr(work, name).shape), getattr(work, name).dtype) for name in PLANNED}
        room = len(batch.terms) * batch.tiles
        buffers, answer, own = fresh(work, str(work.query_k.device), verbs, descriptors=room, slots=slots)
        hollow = replace(work, **empty)
        verbs.plan(batch, hollow, buffers)
        for name in PLANNED:
            found, expected = getattr(hollow, name).cpu().numpy(), getattr(work, name).cpu().numpy()
            np.testing.assert_array_equal(found, expected, err_msg=f"{made.name}: {name}")
        check_begun(made, hollow, buffers)
        check_descriptors(made, hollow, buffers)
        _finish(verbs, made, hollow, buffers, answer, also)
        guarded.check()
        own.check()
    made.guarded.check()


def launch(verbs: Any, work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
    """describe, order, score and select; the tables are made."""
    verbs.describe(work, buffers)
    verbs.order(work, buffers)
    _rank(verbs, work, buffers, answer)


def tabulate(verbs: Any, case: Case) -> None:
    """Make the case's tables, which hold anything at first."""
    case.guarded.poison()
    for tables in case.tables:
        verbs.tabulate(tables)


def _rank(verbs: Any, work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
    verbs.score(work, buffers)
    if work.width > MAX_SELECTED:
        select_sorted(work, buffers, answer)
    else:
        verbs.select(work, buffers, answer)


def _finish(family: Any, case: Case, work: Work, buffers: Buffers, answer: KernelAnswer, also: Sequence[Check]) -> None:
    first = buffers.thresholds.cpu().numpy().copy()
    for tensor in (answer.scores, answer.documents, answer.counts):
        tensor.view(torch.uint8).fill_(POISON)
    family.order(work, buffers)
    check_entries(case, work, buffers, first)
    for check in also:
        check(case, work, buffers)
    _rank(family, work, buffers, answer)
    check_candidates(case, work, buffers)
    check_answer(case, work, answer)


def check_tables(case: Case) -> None:
    """What `tabulate` made of the long lists."""
    for number, (segment, tables) in enumerate(zip(case.segments, case.tables, strict=True)):
        cuts, maxima = tables_of(segment, tables.terms.cpu().numpy(), tables.tiles, tables.tile_bits)
        what = f"{case.name}: segment {number}"
        np.testing.assert_array_equal(tables.cuts.cpu().numpy(), cuts, err_msg=f"cuts of {what}")
        np.testing.assert_array_equal(tables.maxima.cpu().numpy(), maxima, err_msg=f"maxima of {what}")


def check_begun(case: Case, work: Work, buffers: Buffers) -> None:
    """The launch is begun."""
    assert buffers.progress.tolist() == [0, 0], case.name
    assert not buffers.counts.any(), case.name
    assert bool((buffers.thresholds == (UNBOUNDED if work.signed else 1)).all()), case.name


def _unpacked(buffers: Buffers) -> Array:
    """int64 [descriptors, 4] first, maximum, count, weight."""
    rows = buffers.descriptors.cpu().numpy()
    return np.stack([rows[:, 0], rows[:, 1], rows[:, 2] & LOW, rows[:, 2] >> 32], axis=1)


def check_descriptors(case: Case, work: Work, buffers: Buffers) -> None:
    """Every descriptor, and the idf of every slot whose term is there. What belongs to no slot is as it was."""
    found = _unpacked(buffers)
    expected, idf = descriptors_of(case, len(found))
    poison = int(np.full(1, POISON, dtype=np.uint8).repeat(8).view(np.int64)[0])
    free = expected[:, 3] < 0
    assert (buffers.descriptors.cpu().numpy()[free] == poison).all(), f"{case.name}: a descriptor of no slot is written"
    # Without postings, the first is none.
    expected = np.where((expected[:, 2] == 0)[:, None] & (np.arange(4) == 0), found, expected)
    for column, name in enumerate(("first", "maximum", "count", "weight")):
        what = f"{case.name}: {name} of the descriptors"
        np.testing.assert_array_equal(found[~free, column], expected[~free, column], err_msg=what)
    if work.posting_bytes < 8:
        present = [position >= 0 for unit in case.units for position, _ in unit.slots]
        np.testing.assert_array_equal(buffers.idf.cpu().numpy()[present], idf[present], err_msg=f"{case.name}: idf")


def _entries(work: Work, buffers: Buffers, query: int) -> list[tuple[int, int, int]]:
    """(bound, unit, tile) in the order that they have."""
    start, count = int(work.entry_offset[query]), int(buffers.entry_counts[query])
    room = int(work.entry_offset[query + 1]) - start
    assert 0 <= count <= room, f"query {query}: {count} entries, room for {room}"
    rows = buffers.entries[start : start + count].cpu().tolist()
    return [(bound, place & LOW, place >> 32) for bound, place in rows]


def check_entries(case: Case, work: Work, buffers: Buffers, thresholds: Array) -> None:
    """The tiles that can hold a hit, no other, none twice, with their bounds; `thresholds` as they were."""
    rows, _ = descriptors_of(case, len(buffers.descriptors))
    expected = entries_of(case, work, rows, thresholds)
    for query, own in enumerate(expected):
        found = _entries(work, buffers, query)
        what = f"{case.name}: query {query}"
        assert len({(unit, tile) for _, unit, tile in found}) == len(found), f"{what}: an entry twice"
        assert {(unit, tile): bound for bound, unit, tile in found} == own, f"{what}: its entries"
    most = max(map(len, expected), default=0)
    assert buffers.progress.tolist() == [most, 0], f"{case.name}: progress"


def check_best_first(case: Case, work: Work, buffers: Buffers, classes: int = 256) -> None:
    """Bounds fall, but for those that lie in one class of so many between the least and the best."""
    for query in range(len(case.matches)):
        bounds = [bound for bound, _, _ in _entries(work, buffers, query)]
        if bounds:
            slack = (max(bounds) - min(bounds)) / classes * 1.01 + 1
            least = np.minimum.accumulate(np.array(bounds, dtype=np.float64))
            assert (np.array(bounds[1:]) <= least[:-1] + slack).all(), f"{case.name}: query {query} is not best first"


def check_candidates(case: Case, work: Work, buffers: Buffers) -> None:
    """Only true matches, none twice, at most min(k, tile size) a tile, all of the k best; thresholds that are true.
    Queries of the other width have none."""
    tile = 1 << work.tile_bits
    for query, matches in enumerate(case.matches):
        what = f"{case.name}: query {query}"
        emitted = candidates_of(work, buffers, query)
        if case.is_wide(query) != work.wide:
            assert not emitted, f"{what}: of the other width, {len(emitted)} candidates"
            continue
        k = int(work.query_k[query])
        for score, document in emitted:
            assert matches.get(document) == score, (
                f"{what}: {document} emitted with {score}, not {matches.get(document)}"
            )
        assert len({document for _, document in emitted}) == len(emitted), f"{what}: a document twice"
        tiles: Counter[tuple[int, int]] = Counter()
        for _, document in emitted:
            owner = next(n for n, s in enumerate(case.segments) if s.first <= document < s.first + s.size)
            tiles[owner, (document - case.segments[owner].first) >> work.tile_bits] += 1
        assert max(tiles.values(), default=0) <= min(k, tile), f"{what}: too many of one tile"
        best = case.expected(query)
        missing = set(best) - set(emitted)
        assert not missing, f"{what}: {sorted(missing)[:5]} not emitted"
        if best:
            assert int(buffers.thresholds[query]) <= best[-1][0], f"{what}: the threshold is above a selected score"


def check_answer(case: Case, work: Work, answer: KernelAnswer) -> None:
    """The rows of this width's queries; `answer` was poisoned, and the other rows still are."""
    poisoned = np.full(4, POISON, dtype=np.uint8).view(np.int32)[0]
    for query in range(len(case.matches)):
        if case.is_wide(query) == work.wide:
            _check_row(answer, query, case.expected(query), f"{case.name}: query {query}")
        else:
            what = f"{case.name}: the row of query {query} belongs to the other width"
            assert int(answer.counts[query]) == poisoned, what
            for rows in (answer.scores, answer.documents):
                assert bool((rows[query].cpu().view(torch.int32) == int(poisoned)).all()), what


def _check_row(answer: KernelAnswer, query: int, expected: Ranked, what: str) -> None:
    width = answer.scores.shape[1]
    padding = width - len(expected)
    scores = [score for score, _ in expected] + [0] * padding
    documents = [document for _, document in expected] + [-1] * padding
    assert int(answer.counts[query]) == len(expected), what
    assert answer.scores[query].cpu().tolist() == scores, what
    assert answer.documents[query].cpu().tolist() == documents, what


def check_select(
    verbs: Verbs, seed: int, counts: Sequence[int], ks: Sequence[int], *, wide: bool, device: str = "cpu"
) -> None:
    """`select` alone, on made-up candidates: `counts` and `ks` of each query; a few queries are of the other width.

    Where `wide`, one launch in two is narrow and decays, so that its keys are long as well.
    """
    rng = np.random.default_rng(seed)
    template = build(0, device=device, sizes=(40,), queries=1, no_units=True).work
    queries = len(counts)
    room = np.array([count + int(rng.integers(0, 9)) for count in counts], dtype=np.int64)
    decays = wide and bool(rng.integers(2))
    own = wide and not decays
    is_wide = np.array([own ^ bool(rng.random() < 0.2) for _ in range(queries)])
    width = max(ks) + 1
    tensor = Placed(str(template.query_k.device)).tensor
    work = replace(
        template,
        width=width,
        wide=own,
        decays=decays,
        most_candidates=int(room.max(initial=0)),
        query_k=tensor(ks, np.int32),
        query_wide=tensor(is_wide, np.uint8),
        candidate_offset=tensor(np.concatenate([[0], np.cumsum(room)]), np.int64),
    )
    buffers, answer, guarded = fresh(work, device, verbs)
    expected: list[Ranked] = []
    for query, count in enumerate(counts):
        limit = 1 << int(rng.choice([1, 8, 31] + [40, 61] * wide))
        documents = (1 << 32) - 1 - rng.choice(max(1 << 16, 2 * count), size=count, replace=False)
        if rng.random() < 0.5:
            documents = documents ^ (1 << 31)
        scores = rng.integers(-limit, limit, size=count)
        order = np.lexsort((documents, -scores))[: ks[query]]
        if len(order):
            # The last hit comes last, when the best of all others have set a threshold.
            scores[[order[-1], -1]] = scores[[-1, order[-1]]]
            documents[[order[-1], -1]] = documents[[-1, order[-1]]]
        start = int(work.candidate_offset[query])
        keys = scores if wide else (scores << 32) | (LOW - documents)
        buffers.keys[start : start + count] = tensor(keys, np.int64)
        if wide:
            low = (LOW - documents).astype(np.uint32).view(np.int32)
            buffers.documents[start : start + count] = tensor(low, np.int32)
        buffers.counts[query] = count
        order = np.lexsort((documents, -scores))[: ks[query]]
        expected.append(list(zip(scores[order].tolist(), documents[order].tolist(), strict=True)))
    untouched = answer.scores.clone()
    verbs.select(work, buffers, answer)
    for query, best in enumerate(expected):
        if is_wide[query] == own:
            _check_row(answer, query, best, f"select seed {seed}: query {query} of {counts[query]} candidates")
        else:
            assert torch.equal(answer.scores[query], untouched[query]), (
                f"select seed {seed}: row {query} is not its own"
            )
    guarded.check()
