"""The peers with their environments, and the systems (a system is a peer in one mode). They are declared here alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Formula = Literal["lucene", "robertson_floor"]
Lengths = Literal["exact", "byte4"]


@dataclass(frozen=True)
class Peer:
    """One program, run as one worker process.

    `installs` are the argument lists of successive ``pip install`` calls into an environment of its own; empty
    means the bench's own interpreter. `formula`, `scale` and `lengths` say which BM25 it computes, so that it can
    be verified against exactly that: its score is `scale` times the formula, on document lengths kept `exact` or
    rounded to one byte. `tolerance` is the relative score error allowed (float32 sums).
    """

    name: str
    installs: tuple[tuple[str, ...], ...] = ()
    formula: Formula = "lucene"
    scale: float = 1.0
    lengths: Lengths = "exact"
    tolerance: float = 2e-5
    note: str = ""


PEERS = {
    peer.name: peer
    for peer in (
        # A quantum is 2**-18 of a score, so six terms may be off by 1e-5: 1e-4 of the smallest scores.
        Peer("fanrank", scale=2.2, tolerance=1e-4),
        Peer("bm25s", (("bm25s==0.3.16", "numba", "PyStemmer", "scipy"),)),
        Peer(
            "pisa",
            (("--no-deps", "pyterrier-pisa==0.4.9"), ("numpy", "tbb<=2020.3.254")),
            formula="robertson_floor",
            scale=2.2,
            tolerance=1e-4,
            note="IDF without the 1 inside the logarithm, floored",
        ),
        Peer(
            "tantivy",
            (("tantivy==0.27.0", "numpy"),),
            scale=2.2,
            lengths="byte4",
            note="k1, b fixed; lengths kept in one byte",
        ),
    )
}


@dataclass(frozen=True)
class System:
    """A peer in one mode; `options` go to the constructor of its adapter."""

    name: str
    peer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    default: bool = True


FAN_OUT_BASELINES = ("bm25s", "bm25s-tokenizer")
"""The baselines of fan-outs: bm25s by its function `tokenize`, and by its object that remembers the stems of words."""

SYSTEMS = {
    system.name: system
    for system in (
        System("fanrank", "fanrank"),
        System("fanrank-numpy", "fanrank", environment={"FANRANK_BACKEND": "numpy"}, default=False),
        System("bm25s", "bm25s", {"tokenizer": "function"}),
        System("bm25s-tokenizer", "bm25s", {"tokenizer": "object"}),
        System("tantivy", "tantivy"),
        System("pisa", "pisa"),
    )
}
