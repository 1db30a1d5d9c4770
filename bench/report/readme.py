"""The blocks of measurements in README.md and docs/figures.md, which stand between comments and are written from
rows."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from typing import Any

from . import fanout, sources, strategies
from .format import number, percent, sentence, table
from .growth import corpora, curves, growth_of
from .quality import batches, quality_rows, studies, study_score
from .rows import Fields, Recorded, machine, note_stale, stamp
from .store import crash_sentence, last_crash, parts_of_writes, write_lines

BLOCK = re.compile(r"<!-- rows: (?P<name>[a-z-]+) -->\n(?P<text>.*?)<!-- /rows -->", re.DOTALL)
PAGES = ("README.md", "docs/figures.md")
"""The pages that hold blocks. The README has no links: they would lead nowhere on a package index."""
OWN = ("fanrank-native", "fanrank-numpy")


def growth(recorded: Recorded) -> str:
    rows = corpora(recorded).get("steady", [])
    if not rows:
        return "No row yet: `make growth`."
    of_method = curves(rows)
    wanted = [
        method
        for method in ("sequential", "vectorised", "temporal", "decay", "decay-exhaustive")
        if method in of_method
    ]
    at = {(row["records"], row["method"]): row for own in of_method.values() for row in own}
    body = [
        [f"{records:,}", *(_growth_cell(at.get((records, method))) for method in wanted)]
        for records in sorted({records for records, _ in at})
    ]
    checked = [row["verified"] for row in rows if row.get("verified") is not None]
    same = f"Answers that must be the same bits were, in {sum(checked)} of {len(checked)} comparisons."
    grown = growth_of(rows, "temporal")
    theirs = sources.GROWTH_US["temporal"]
    last = f"\n{same}\n"
    if grown:
        sizes = [row["records"] for row in of_method["temporal"]]
        last = (
            f"\n{same} From {min(sizes):,} to {max(sizes):,} records temporal search grows by {number(grown)}; the "
            f"AgentIR paper reports {sources.GROWTH_FACTORS['temporal']:g}, from {theirs[0]} to {theirs[-1]} us on 8 "
            "cores.\n"
        )
    return (
        f"Microseconds a query, median, one thread, with the share of the postings that was scored ({stamp(rows)}; "
        f"{machine(rows)}):\n\n{table(['records', *wanted], body)}\n{last}"
    )


def _growth_cell(row: Fields | None) -> str:
    if row is None:
        return ""
    share = row.get("searched_share")
    return number(row["p50_us"]) + (f" ({percent(share, 2)})" if share is not None and share < 1 else "")


def writes(recorded: Recorded) -> str:
    rows = list(parts_of_writes(recorded).values())
    if not rows:
        return "No row yet: `make writes`."
    lines = write_lines(recorded)
    kept = [(what, figure) for what, figure in lines if not what.startswith("one sync")]
    return f"{sentence(stamp(rows))}; {machine(rows)}.\n\n{table(['', 'measured'], kept)}\n"


def crash(recorded: Recorded) -> str:
    row = last_crash(recorded)
    return "No row yet: `make crash`.\n" if row is None else f"`make crash` ({stamp([row])}): {crash_sentence(row)}\n"


def quality(recorded: Recorded) -> str:
    rows = quality_rows(recorded)

    def score(metric: str, *key: str) -> str:
        row = rows.get(key)
        return f"{row['metrics'][metric]:.4f}" if row else "no row"

    def asked(*key: str) -> str:
        row = rows.get(key)
        return f"{row['n']:,} questions" if row else "no row"

    agentir, opsem = ("locomo", "agentir", "minimal"), ("locomo", "opsem", "opsem")
    told = (
        f"`quality.jsonl`: SciFact nDCG@10 {score('ndcg@10', 'scifact', 'default', 'agent')} and Recall@100 "
        f"{score('recall@100', 'scifact', 'default', 'agent')} with the default analyzer; LoCoMo Hit@1 "
        f"{score('hit@1', *agentir)} under `--preset agentir` ({asked(*agentir)}), {score('hit@1', *opsem)} under "
        f"`--preset opsem` ({asked(*opsem)}), {score('hit@1', 'locomo', 'default', 'agent')} with the defaults."
    )
    found = studies(recorded)
    if "locomo" in found:
        encoder = found["locomo"]["encoder"]["name"]
        told += (
            f"\nWith vectors of {encoder} (`hybrid.jsonl`): LoCoMo Hit@1 {_study(found, 'locomo', 'fused')} fused, "
            f"{_study(found, 'locomo', 'fused-stronger')} fused with the stronger words"
        )
        for dataset in ("scifact", "cranfield"):
            if dataset in found:
                lexical, ranks = (_study(found, dataset, system) for system in ("bm25", "rrf"))
                told += f"; {dataset} nDCG@10 {ranks} by reciprocal ranks, from {lexical} by words"
        told += "."
    ratios = [row["ratio"] for row in batches(recorded).values()]
    if ratios:
        most = max(row["queries"] for row in batches(recorded).values())
        told += (
            f"\nA batch of {most} lookups in one call costs {number(min(ratios), 2)} to {number(max(ratios), 2)} of "
            f"{most} calls ([hybrid.md](hybrid.md))."
        )
    note = note_stale([*rows.values(), *found.values(), *batches(recorded).values()])
    return "\n".join(filter(None, [told, note])) + "\n"


def _study(found: dict[str, Fields], dataset: str, system: str) -> str:
    value = study_score(found[dataset], system)
    return "no row" if value is None else f"{value:.4f}"


BLOCKS: dict[str, Callable[[Recorded], str]] = {
    "fanout": fanout.block,
    "growth": growth,
    "writes": writes,
    "crash": crash,
    "quality": quality,
    "strategies": strategies.block,
}


def fill_blocks(text: str, recorded: Recorded) -> str:
    """A page with every block as the rows give it. Raises `ValueError` for a block of an unknown name."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in BLOCKS:
            raise ValueError(f"no block {name!r}; there are: {', '.join(BLOCKS)}")
        return f"<!-- rows: {name} -->\n{_wrap_lines(BLOCKS[name](recorded).rstrip())}\n<!-- /rows -->"

    return BLOCK.sub(block, text)


def _wrap_lines(text: str) -> str:
    """Prose wrapped to the page's line length; lines of tables unchanged."""
    lines = [line if line.startswith("|") else textwrap.fill(line, 120, **_UNBROKEN) for line in text.split("\n")]
    return "\n".join(lines)


_UNBROKEN: Any = {"break_long_words": False, "break_on_hyphens": False}
