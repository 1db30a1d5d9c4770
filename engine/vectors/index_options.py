"""`Approximate`: the options of approximate search."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..errors import ParameterError

# Stretches of fewer rows, and filters that leave fewer, are searched exactly. At 20,000 rows a batch of 20 queries took
# 4.4 ms with the index and 8.2 ms without, a batch of 300 took 68 ms both ways, and building took 10 s. At 5,183 rows
# (SciFact) the two batches took 3.5 and 33 ms with the index, 3.1 and 23 ms without.
LEAST_ROWS = 20_000
# Rows fetched from the index for each hit.
OVER_FETCH = 2
# cuVS keeps 32 rows and the neighbours of one more in a block's buffer of 256.
MOST_GRAPH_DEGREE = 224
# FAISS holds these numbers in 32 bits, and takes memory or starts threads for as many as it is told.
MOST = {"neighbours": 1_024, "threads": 1_024, "least_rows": None, "over_fetch": None}
MOST_ROWS = 65_536


@dataclass(frozen=True)
class Approximate:
    """How an index is built and searched. Scores are exact whatever these say. Raises `ParameterError`.

    - HNSW, on the CPU: `neighbours` of a row in the graph (M, 2 to 1,024), `ef_construction` and `ef_search` rows (at
      most 65,536) kept in mind while building and searching
    - CAGRA, on a GPU: `graph_degree` neighbours of a row (2 to 224), chosen among `intermediate_degree` (at least as
      many); a search keeps `itopk_size` rows in mind, and goes on from `search_width` of them at once
    - both: segments of fewer than `least_rows` rows are searched exactly, as are those of which a filter leaves fewer.
      `over_fetch` rows are fetched for each hit. HNSW is built by `threads` threads, at most 1,024; by more than one
      the graph differs from run to run.
    """

    neighbours: int = 32
    ef_construction: int = 200
    ef_search: int = 64
    graph_degree: int = 64
    intermediate_degree: int = 128
    itopk_size: int = 64
    search_width: int = 1
    least_rows: int = LEAST_ROWS
    over_fetch: int = OVER_FETCH
    threads: int = 1

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value, least = getattr(self, name), 2 if name in ("neighbours", "graph_degree") else 1
            most = MOST.get(name, MOST_ROWS)
            wrong = isinstance(value, bool) or not isinstance(value, int) or value < least
            if wrong or (most is not None and value > most):
                bounds = f"{least} or more" if most is None else f"{least} to {most:,}"
                raise ParameterError(f"{name} of approximate search must be {bounds}, not {value!r}")
        if not self.graph_degree <= min(MOST_GRAPH_DEGREE, self.intermediate_degree):
            raise ParameterError(
                f"graph_degree of approximate search must be at most {MOST_GRAPH_DEGREE} and at most "
                f"intermediate_degree ({self.intermediate_degree}), not {self.graph_degree}"
            )

    def __str__(self) -> str:
        """The options that are not the defaults."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name} {value}" for name, value in values.items() if value != vars(DEFAULT)[name])


DEFAULT = Approximate()
