"""The sections of the report, and what a command shows of the rows that it took."""

import subprocess
from collections.abc import Callable, Mapping, Sequence

from ..harness.code import BENCHES
from ..harness.paths import ROOT
from . import fanout, growth, neighbours, quality, serve, shards, store, strategies
from .format import Fields
from .readme import BLOCKS
from .rows import STALE, Recorded, again, is_stale

SECTIONS: Mapping[str, Callable[[Recorded], list[str]]] = {
    "Fan-outs beside the peers": fanout.fanout,
    "Builds": store.building,
    "A memory that grows": growth.growth,
    "A session that writes and asks": growth.session,
    "On a GPU": store.gpu,
    "Through the server": serve.serve,
    "Over shards": shards.shards,
    "Writes": store.writes,
    "Crashes": store.crash,
    "Dense": quality.dense,
    "Several kinds of evidence": quality.hybrid,
    "Quality": quality.quality,
    "Languages": quality.languages,
    "Named strategies": strategies.strategies,
    "Neighbours in a session": neighbours.neighbours,
}


def show(kind: str, rows: Sequence[Fields]) -> str:
    """What the report says of these rows alone, and their errors."""
    recorded = Recorded({kind: rows})
    own = [part for section in SECTIONS.values() for part in section(recorded)]
    none = {part for section in SECTIONS.values() for part in section(Recorded({}))}
    errors = [
        f"{', '.join(str(value) for name, value in row.items() if name in NAMING)}: {row['error']}"
        for row in rows
        if row.get("error")
    ]
    return "\n\n".join([*(part for part in own if part and part not in none), *errors]) or "No rows."


NAMING = ("case", "corpus", "dataset", "part", "records", "system", "method", "threads")
"""The fields that name a row."""


def stale(recorded: Recorded) -> list[str]:
    """The benches whose quoted rows are older than the code or not there.

    Rows of a GPU come from a machine with one, and are no fault where there are none.
    """
    return [kind for kind, rows in recorded.rows.items() if STALE in show(kind, rows) or (not rows and kind != "gpu")]


MOST_COMMITS = 200
"""Quoted rows may be older than so many commits of the code that they time, some busy day."""


def faults(recorded: Recorded) -> list[str]:
    """What no commit may have, in words: a quoted figure without a row, and quoted rows of code that is long gone."""
    told = [f"{kind}: no row; {again(kind)}" for kind, rows in recorded.rows.items() if not rows and kind != "gpu"]
    told += [f"block {name}: no row for one of its figures" for name in BLOCKS if "o row" in BLOCKS[name](recorded)]
    for kind in stale(recorded):
        oldest = min((row["date"] for row in recorded.rows[kind] if is_stale(row)), default="")
        if oldest and (count := commits_since(oldest, BENCHES[kind].files)) > MOST_COMMITS:
            told.append(f"{kind}: {count} commits of its code since {oldest[:10]}; {again(kind)}")
    return told


def commits_since(date: str, patterns: Sequence[str]) -> int:
    """How many commits since then changed these files; 0 where git does not know."""
    paths = [f":(exclude,glob){each[1:]}" if each[0] == "!" else f":(glob){each}" for each in patterns]
    try:
        command = ["git", "rev-list", "--count", f"--since={date}", "HEAD", "--", *paths]
        return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout or 0)
    except OSError:
        return 0
