"""The names of hits that came without the snapshots they were found in: out of a pickle, a shard or a server."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class TravelledIds:
    """As `Resolver`."""

    documents: npt.NDArray[np.int64]  # [B, k]
    ids: npt.NDArray[np.object_]  # [B, k]
    spaces: npt.NDArray[np.object_]  # [B, k] namespaces
    own_exchanges: npt.NDArray[np.object_] | None = None  # [B, k] as `Hits.exchanges`
    own_copies: npt.NDArray[np.object_] | None = None  # [B, k] as `Hits.copies`

    def __call__(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        return self._look_up(self.ids, documents)

    def namespaces(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        return self._look_up(self.spaces, documents)

    def exchanges(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_] | None:
        return None if self.own_exchanges is None else self._look_up(self.own_exchanges, documents)

    def copies(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_] | None:
        return None if self.own_copies is None else self._look_up(self.own_copies, documents)

    def slice(self, start: int, stop: int) -> TravelledIds:
        rows = slice(start, stop)
        own = None if self.own_exchanges is None else self.own_exchanges[rows]
        copies = None if self.own_copies is None else self.own_copies[rows]
        return TravelledIds(self.documents[rows], self.ids[rows], self.spaces[rows], own, copies)

    def _look_up(self, values: npt.NDArray[np.object_], documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        found = np.full(documents.shape, None, dtype=object)
        for row, (own, row_values) in enumerate(zip(self.documents.tolist(), values.tolist(), strict=True)):
            known = dict(zip(own, row_values, strict=True))
            # One by one: numpy would make a list of tuples an array of its own.
            for place, document in enumerate(documents[row].tolist()):
                found[row, place] = known.get(document)
        return found
