"""The sections of the report, and what a command shows of the rows that it took."""

from collections.abc import Callable, Mapping, Sequence

from ..harness.code import BENCHES
from . import fanout, growth, neighbours, quality, serve, shards, store, strategies
from .format import Fields
from .rows import NAMES, STALE, Recorded

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


def stale(recorded: Recorded) -> dict[str, str]:
    """The benches whose quoted rows are older than the code or not there, each with the command that takes them again.

    Rows of a GPU come from a machine with one, and are no fault where there are none.
    """
    found = {}
    for kind, rows in recorded.rows.items():
        if STALE in show(kind, rows) or (not rows and kind != "gpu"):
            found[kind] = BENCHES[NAMES.get(kind, kind)].command
    return found
