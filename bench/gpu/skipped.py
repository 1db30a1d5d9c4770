"""What a launch leaves out and what is left to do, counted without a device. ``python -m bench.gpu.skipped``.

========  ============================================================================================================
tables    lists that have cuts and maxima by tile, by the postings a tile from which on they do; what is streamed
turns     tiles scored, by the order of turns, the turns of a look and first thresholds; bytes; how uneven tiles are
inside    in scored tiles: documents at the threshold, and the postings, look-ups and time of MaxScore
blocks    in scored tiles: bytes and postings that a filter of 8-bit maxima a block of documents would leave
========  ============================================================================================================

The counts follow from corpora and BM25 alone. The times are what `Rates` make of them: assumed, and only there to
compare orders with each other.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fanrank.kernels.work import DESCRIPTOR_BYTES, ENTRY_BYTES, TABLED_POSTINGS

from ..harness import machine, rows
from ..harness.code import code_of
from ..harness.options import names, numbers
from ..harness.paths import CACHE, RESULTS
from . import corpora as gpu_corpora
from .filtered import filter_blocks
from .inside import look_inside
from .schedule import Outcome, Rates, Scheme, simulate
from .tiles import KS, Integers, Lists, Pairs, kth_sums

PARTS = ("tables", "turns", "inside", "blocks")
BLOCK_BITS = (6, 7)
RUN, WARPS = 128, 16
"""Postings of a warp's run and warps of a block (`RUN`, `WARPS` in score_tile.cuh)."""
USUAL_BITS, USUAL_K = 14, 100
LEAST_POSTINGS = (16, 32, 64)
SCHEMES = (
    Scheme("every pair a block", best_first=False, looks=1, look_loads=9),
    Scheme("tile by tile", best_first=False),
    Scheme("best first"),
    Scheme("best first, 32 turns a look", looks=32),
    Scheme("best first, first thresholds", first=True),
)
MOST_BATCHES = 4
"""Batches of one size that counts are the mean of."""


@dataclass(frozen=True)
class SkippedRow:
    """Counts of one part over one corpus. `found` has them by variant: a scheme, a first threshold, a limit.

    ``turns``: means of a batch; `entries` are left when scoring begins, `us` is the time by `Rates`, `busy` the share
    of it in which blocks work, and ``longest`` over ``mean`` says how uneven tiles are. ``inside``: means of a query.
    """

    bench: str
    run: str
    part: str
    corpus: str
    tile_bits: int
    batch: int = 0
    k: int = 0
    batches: int = 0
    pairs: int = 0
    found: dict[str, dict[str, float]] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    documents: int = 0
    postings: int = 0
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""


class Counts:
    """The counts of one corpus."""

    def __init__(self, name: str, smoke: bool, queries: int, common: dict[str, Any]) -> None:
        problem = gpu_corpora.problem(name, smoke)
        self.problem = gpu_corpora.first_queries(problem, queries or problem.queries)
        self.lists = Lists(self.problem)
        self.common = {
            **common,
            "corpus": name,
            "documents": problem.snapshot.size,
            "postings": problem.postings,
        }
        self._cuts: dict[int, tuple[Integers, Integers]] = {}
        self._kth: dict[tuple[int, int], Integers] = {}

    def row(self, part: str, bits: int, **more: Any) -> SkippedRow:
        return SkippedRow(bench="skipped", part=part, tile_bits=bits, **self.common, **more)

    def cut(self, bits: int) -> tuple[Integers, Integers]:
        if bits not in self._cuts:
            self._cuts[bits] = self.lists.cut(bits)
        return self._cuts[bits]

    def pairs(self, bits: int) -> Pairs:
        return self.lists.pairs(bits, self.cut(bits), RUN, WARPS)

    def kth(self, sizes: Sequence[int], ks: Sequence[int]) -> dict[tuple[int, int], Integers]:
        missing = [(bits, k) for bits in sizes for k in ks if (bits, k) not in self._kth]
        if missing:
            self._kth |= kth_sums(self.lists, {bits for bits, _ in missing}, {k for _, k in missing})
        return self._kth

    def firsts(self, pairs: Pairs, k: int) -> Integers:
        """[queries] the first thresholds that tables and descriptors give."""
        return np.maximum(self.lists.first_thresholds(k, TABLED_POSTINGS, pairs.bits), pairs.first_thresholds(k))

    def tables(self, bits: int) -> SkippedRow:
        """The tables of an epoch, and what `plan` and `describe` stream beside them."""
        found = {}
        for least in LEAST_POSTINGS:
            count, held, streamed, longest = 0, 0, 0, 0
            for segment in self.problem.snapshot.segments:
                tiles = -(-segment.size >> bits)
                lengths = np.diff(segment.offsets)
                own = int((lengths >= least * tiles).sum())
                count += own
                held += own * (4 * (tiles + 1) + 8 * tiles)
                positions = segment.locate(self.problem.terms.astype(np.int32))
                asked = lengths[positions[positions >= 0]]
                short = asked[asked < least * tiles]
                streamed += int(short.sum())
                longest = max(longest, int(short.max(initial=0)))
            found[str(least)] = {
                "rows": count,
                "bytes": held,
                "streamed": round(streamed / self.problem.queries, 1),
                "longest": longest,
            }
        return self.row("tables", bits, found=found)

    def turns(self, bits: int, batch: int, k: int, rates: Rates) -> SkippedRow | None:
        """What every scheme scores of batches of this size (0: all queries); None if there are too few queries."""
        size = batch or self.problem.queries
        starts = range(0, self.problem.queries - size + 1, size)[:MOST_BATCHES]
        if not starts:
            return None
        pairs, kth = self.pairs(bits), self.kth((bits,), (k,))[bits, k]
        firsts = self.firsts(pairs, k)
        found = {}
        for scheme in SCHEMES:
            outcomes = [simulate(pairs, kth, np.arange(start, start + size), firsts, scheme, rates) for start in starts]
            found[scheme.name] = _mean_of(outcomes)
        asked = slice(0, size * len(starts))
        postings = pairs.postings[asked]
        held = postings[postings > 0]
        slots = int(pairs.slots[asked].sum()) // len(starts)
        sizes = {"longest": int(held.max()), "mean": round(float(held.mean()), 1)}
        left = found[SCHEMES[-1].name]
        return self.row(
            "turns", bits, batch=size, k=k, batches=len(starts), pairs=size * pairs.tiles,
            found={**found, "postings of a tile": sizes},
            bytes={
                "descriptors": DESCRIPTOR_BYTES * slots * pairs.tiles,
                "entries": int(ENTRY_BYTES * left["entries"]),
                "postings": int(8 * left["postings"]),
            },
            rates=asdict(rates),
        )  # fmt: skip

    def inside(self, bits: int, k: int, sample: int, rates: Rates) -> SkippedRow:
        """What happens in the scored tiles of some queries, all of them one batch."""
        total = self.problem.queries
        queries = np.unique(np.linspace(0, total - 1, min(sample, total)).astype(np.int64))
        pairs, kth = self.pairs(bits), self.kth((bits,), (k,))[bits, k]
        ones = np.ones(total, dtype=np.int64)
        variants = {
            "none": ones,
            "of tiles": pairs.first_thresholds(k),
            "of tabled lists": self.lists.first_thresholds(k, TABLED_POSTINGS, bits),
            "of both": self.firsts(pairs, k),
            "the k-th score": self.lists.kth_scores(queries, k),
        }
        found = {}
        for name, firsts in variants.items():
            outcome = simulate(pairs, kth, queries, firsts, SCHEMES[-1], rates)
            inside = look_inside(self.lists, pairs, self.cut(bits), outcome.thresholds, queries, k, rates)
            share = float(np.mean(firsts[queries] / variants["the k-th score"][queries]))
            found[name] = {"of the k-th score": round(share, 2), **inside.per_query()}
        return self.row("inside", bits, batch=len(queries), k=k, batches=1, pairs=len(queries) * pairs.tiles,
                        found=found, rates=asdict(rates))  # fmt: skip

    def blocks(self, bits: int, k: int, sample: int, rates: Rates) -> SkippedRow:
        """What a filter of blocks would read in the scored tiles of some queries, all of them one batch.

        By the thresholds that turns see, and by the k-th score as if it were known at once.
        """
        total = self.problem.queries
        queries = np.unique(np.linspace(0, total - 1, min(sample, total)).astype(np.int64))
        pairs, kth = self.pairs(bits), self.kth((bits,), (k,))[bits, k]
        firsts = {"as turns go": self.firsts(pairs, k), "at the k-th score": self.lists.kth_scores(queries, k)}
        found = {}
        for name, first in firsts.items():
            outcome = simulate(pairs, kth, queries, first, SCHEMES[-1], rates)
            for block_bits in BLOCK_BITS:
                filtered = filter_blocks(self.lists, pairs, outcome.thresholds, queries, block_bits)
                found[f"{1 << block_bits} documents, {name}"] = filtered.per_query()
        return self.row("blocks", bits, batch=len(queries), k=k, batches=1, pairs=len(queries) * pairs.tiles,
                        found=found, rates=asdict(rates))  # fmt: skip


def _mean_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    return {
        name: round(float(np.mean([getattr(outcome, kept) for outcome in outcomes])), 3)
        for name, kept in (
            ("entries", "entries"),
            ("scored", "scored"),
            ("postings", "postings"),
            ("us", "microseconds"),
            ("busy", "busy"),
        )
    }


def count(
    counts: Counts, parts: Sequence[str], sizes: Sequence[int], batches: Sequence[int], ks: Sequence[int], sample: int
) -> Iterator[SkippedRow]:
    """The rows of one corpus: every tile size at the usual k, every k at the usual tile size."""
    rates = Rates()
    cells = [(bits, k) for bits in sizes for k in ks if bits == USUAL_BITS or k == USUAL_K]
    if {"turns", "inside", "blocks"} & set(parts):
        counts.kth(sizes, ks)
    if "tables" in parts:
        yield from (counts.tables(bits) for bits in sizes)
    if "turns" in parts:
        for bits, k in cells:
            made = (counts.turns(bits, batch, k, rates) for batch in batches)
            yield from (row for row in made if row is not None)
    if "inside" in parts:
        yield from (counts.inside(bits, k, sample, rates) for bits, k in cells)
    if "blocks" in parts:
        yield from (counts.blocks(bits, k, sample, rates) for bits, k in cells)


def markdown(found: Sequence[SkippedRow]) -> str:
    """A table a part and corpus; a line a variant."""
    lines = []
    for row in found:
        cell = f"{row.corpus}, tiles of 2^{row.tile_bits}" + (f", batch {row.batch}, k {row.k}" if row.k else "")
        columns = list(dict.fromkeys(name for own in row.found.values() for name in own))
        body = [[variant, *(f"{own.get(name, ''):,}" if name in own else "" for name in columns)]
                for variant, own in row.found.items()]  # fmt: skip
        lines += [f"\n{row.part}: {cell}; {row.pairs:,} pairs\n", *_table(["", *columns], body)]
    return "\n".join(lines)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] + ["---:"] * (len(head) - 1), *body)]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.gpu.skipped", description=(__doc__ or "").split("\n")[0])
    made.add_argument("--corpora", type=names, default=gpu_corpora.CORPORA, help=",".join(gpu_corpora.CORPORA))
    made.add_argument("--parts", type=names, default=PARTS, help=",".join(PARTS))
    made.add_argument("--tile-bits", type=numbers, default=(13, 14, 15), help="default 13,14,15")
    made.add_argument("--batches", type=names, default=("1", "20", "256", "all"), help="default 1,20,256,all")
    made.add_argument("--ks", type=numbers, default=KS, help="of 10,100,1000; default all")
    made.add_argument("--queries", type=int, default=0, help="the first queries of a corpus; default all")
    made.add_argument("--sample", type=int, default=100, help="queries that are looked inside (default 100)")
    made.add_argument("--out", type=Path, help="folder of skipped.jsonl (default bench/results; smoke: bench/.cache)")
    made.add_argument("--commit", help="where the checkout has no git: the commit that it is")
    made.add_argument("--smoke", action="store_true", help="tiny corpora")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, append the rows, print them."""
    made = parser()
    options = made.parse_args(arguments)
    for what, given, known in (
        ("part", options.parts, PARTS),
        ("corpus", options.corpora, gpu_corpora.CORPORA),
        ("k", options.ks, KS),
    ):
        unknown = [str(name) for name in given if name not in known]
        if unknown:
            made.error(f"no {what} {', '.join(unknown)}; there are: {', '.join(map(str, known))}")
    date = machine.now()
    common = {
        "run": date,
        "machine": machine.machine(),
        "commit": options.commit or machine.commit(),
        "code": code_of("skipped"),
        "date": date,
    }
    out = options.out or (CACHE / "smoke" if options.smoke else RESULTS)
    batches = [0 if text == "all" else int(text) for text in options.batches]
    corpora = [name for name in options.corpora if not options.smoke or name in gpu_corpora.SMOKE]
    begin = time.monotonic()
    for name in corpora:
        counts = Counts(name, options.smoke, options.queries, common)
        found = list(count(counts, options.parts, options.tile_bits, batches, options.ks, options.sample))
        rows.append(out / "skipped.jsonl", found)
        print(markdown(found), flush=True)
        print(f"\n{name}: {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
