"""What a shard counts of the searches that it answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...engine.locks import make_short_lock
from ..protocol.messages import Forward, Item, Spread

KEPT = 1_024
"""Messages whose times are kept for the percentiles."""


class Metrics:
    """Queries, messages, and the times of the last messages."""

    def __init__(self) -> None:
        self._queries = self._messages = 0
        self._seconds: deque[float] = deque(maxlen=KEPT)
        self._lock = make_short_lock()

    def count(self, items: Iterable[Item], seconds: float) -> None:
        """Count a message that was answered in this time."""
        queries = sum(len(item.queries) for item in items if isinstance(item, (Forward, Spread)))
        with self._lock:
            self._queries += queries
            self._messages += 1
            self._seconds.append(seconds)

    def report(self) -> dict[str, Any]:
        """``queries`` and ``messages`` since the shard was started, and ``p50_ms`` and ``p99_ms`` of the last messages
        in milliseconds, None before the first one.
        """
        with self._lock:
            queries, messages, seconds = self._queries, self._messages, list(self._seconds)
        p50, p99 = (float(1e3 * np.quantile(seconds, share)) if seconds else None for share in (0.5, 0.99))
        return {"queries": queries, "messages": messages, "p50_ms": p50, "p99_ms": p99}
