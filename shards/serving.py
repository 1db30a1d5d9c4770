"""`ShardedServing`: what a server asks of a memory beside its verbs."""

from __future__ import annotations

from typing import Any

from .operations import ShardedOperations


class ShardedServing(ShardedOperations):
    """A part of `ShardedEngine`, which says what it is."""

    @property
    def opening(self) -> bool:
        """As `Engine.opening`: False, as `open` waits for the indexes of all shards."""
        return False

    @property
    def opening_error(self) -> None:
        """As `Engine.opening_error`: None, as `open` raises it."""
        return None

    @property
    def keeps_texts(self) -> bool:
        """As `Engine.keeps_texts`: shards always keep the records."""
        return True

    def keep_columns(self) -> None:
        """As `Engine.keep_columns`."""
        self.template.keep_columns()

    def refresh(self) -> None:
        """As `Engine.refresh`: the owner sees all writes at once."""
        self._check_open()

    def stats(self) -> dict[str, Any]:
        """As `Engine.stats`, added up over the shards, and ``shards``: the statistics of each.

        Each has its ``shard`` number, ``queries`` and ``messages`` since it was started, ``p50_ms`` and ``p99_ms`` of
        its last 1,024 answers in milliseconds, ``bytes`` of its records in memory, and ``lag``: writes that were sent
        to it and that it has not acknowledged.
        """
        found = super().stats()
        shards = found["shards"]
        failures = (own["background_error"] for own in shards)
        return {
            **found,
            "backend": ", ".join(sorted({own["backend"] for own in shards})),
            "merging": any(own["merging"] for own in shards),
            "background_error": next((error for error in failures if error is not None), None),
            "bytes_per_posting": found["posting_bytes"] / max(found["postings"], 1),
        }
