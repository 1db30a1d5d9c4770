"""`ShardedOperations`: the verbs of `ShardedEngine` that change its shards, and what they tell of themselves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..engine.carrying import shown_progress
from ..engine.errors import FanrankError, ParameterError
from ..engine.records.hits import join_names
from ..engine.records.record import Record
from .moves.balancing import Step, plan_steps, together
from .opening.opening import OPENING, check_versions
from .processes.links import Link, call_all, close_all, deadline_at
from .protocol.messages import Description
from .replicas.replicas import replicas_of
from .verbs import ShardedVerbs

logger = logging.getLogger("fanrank")


class ShardedOperations(ShardedVerbs):
    """A part of `ShardedEngine`, which says what it is."""

    def __init__(self) -> None:
        self._balancing = threading.Lock()
        self._splitter: threading.Thread | None = None

    def add_shards(self, count: int) -> int:
        """Add so many shards, which are empty, while searches and writes go on; returns how many there are then.

        Nothing moves yet: `rebalance` brings them their share. Raises `ShardError`, and as `Engine.open`.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ParameterError(f"add_shards takes a number of 1 or more, not {count!r}")
        coordinator = self.coordinator
        with self._balancing, coordinator.paused() as view:
            first = view.placement.shards
            links: list[Link] = []
            try:
                links.extend(self._opened.begin(number) for number in range(first, first + count))
                described: dict[int, Description] = call_all(links, deadline_at(OPENING), "describe")
                check_versions(described)
                coordinator.extend(links, [described[link.number].store for link in links])
            except BaseException:
                close_all(links)
                raise
        logger.info("%d shards were added; there are %d", count, first + count)
        return first + count

    def rebalance(self, *, progress: bool = False) -> dict[str, Any]:
        """Move and split namespaces until the shards hold about as many bytes, while searches and writes go on.

        No shard is to hold more than a tenth above the mean, as far as whole namespaces and parts allow it;
        `plan_steps` says by which policy. Returns ``moves``, one object for each namespace that went to other shards,
        and the bytes of the shards ``before`` and ``after``. Moves that are done stay done if a later one fails.
        `progress` shows a bar on a terminal. Raises `ShardError`.
        """
        with self._balancing:
            holdings = self.holdings()
            steps = plan_steps(holdings, self.coordinator.placement)
            self._carry_out(steps, progress)
            return {
                "moves": [asdict(step) for step in steps],
                "before": _bytes_of(holdings),
                "after": _bytes_of(self.holdings()),
            }

    def holdings(self) -> dict[int, dict[str, tuple[int, int]]]:
        """(records, bytes) of each namespace in each shard."""
        return self.coordinator.holdings()

    def _carry_out(self, steps: list[Step], progress: bool) -> None:
        done, total = 0, sum(step.records for step in steps)
        with shown_progress(progress and bool(steps)) as show:

            def watch(copied: int) -> None:
                nonlocal done
                done += copied
                if show is not None:
                    show("moving", done, total)

            for group in together(steps, self.coordinator.page):
                self.coordinator.place_all({step.namespace: step.after for step in group}, watch)
                for step in group:
                    logger.info("%d records went from shards %s to %s", step.records, step.before, step.after)

    def _write(
        self,
        *,
        removed: Mapping[str, Sequence[str]] | None = None,
        added: Iterable[Record] = (),
        missing_ok: bool = False,
        threads: int | None = None,
    ) -> int:
        """Write a batch to all its shards or to none. Each analyses its part with one thread."""
        schema = self.template.index.memory.schema
        written = self.coordinator.write(schema, removed=removed, added=list(added), missing_ok=missing_ok)
        if self.coordinator.outgrown and (self._splitter is None or not self._splitter.is_alive()):
            self._splitter = threading.Thread(target=self._split, name="fanrank-split", daemon=True)
            self._splitter.start()
        return written

    def _split(self) -> None:
        """Split the namespaces that outgrew their shards."""
        while self.coordinator.outgrown:
            try:
                with self._balancing:
                    self.coordinator.outgrown.clear()
                    steps = plan_steps(self.holdings(), self.coordinator.placement)
                    self._carry_out([step for step in steps if step.why == "split"], False)
            except FanrankError as error:  # noqa: PERF203
                if not self._closed:
                    logger.warning("a namespace was not split, and is tried again with its next write: %s", error)
                return

    def finish_splits(self) -> None:
        """Wait until the namespaces that outgrew their shards are split."""
        if self._splitter is not None:
            self._splitter.join()

    def stats(self, *, namespace: str | None = None) -> dict[str, Any]:
        """As `Engine.stats`, added up over the shards, and ``shards``: the statistics of each.

        Each has its ``shard`` number, ``queries`` and ``messages`` since it was started, ``p50_ms`` and ``p99_ms`` of
        its last 1,024 answers in milliseconds, ``bytes`` of its records in memory, and ``lag``: writes that were sent
        to it and that it has not acknowledged. ``replicas`` says of each replica, the leader first, its ``state``
        (``leading``, ``away``; ``following``, ``filling``, ``lost``), the ``messages`` that it was sent, its ``lag``
        behind the leader in writes, and by which ``failure`` it was lost; it is empty with ``replicas=1``.
        """
        if namespace is not None:
            return super().stats(namespace=namespace)
        self.coordinator.check_open()
        own = call_all(self.coordinator.links, self.coordinator.until(), "stats")
        view = self.coordinator.view
        total: dict[str, Any] = {}
        for each in own.values():
            for name, value in each.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "bytes_per_posting":
                    total[name] = total.get(name, 0) + value
        postings = total["postings"]
        total["bytes_per_posting"] = total["posting_bytes"] / postings if postings else 0.0
        total["backend"] = join_names(sorted(each["backend"] for each in own.values()))
        total["merging"] = any(each["merging"] for each in own.values())
        errors = (each["background_error"] for each in own.values())
        total["background_error"] = next((error for error in errors if error is not None), None)
        opened = dict.fromkeys(each["opened"] for each in own.values() if "opened" in each)
        total |= {"opened": "; ".join(opened)} if opened else {}
        total["namespaces"] = len(self.sizes())
        total["epoch"] = view.epoch
        total["split"] = {name: list(parts) for name, parts in view.placement.split.items()}
        total["generation"] = view.placement.generation
        total["moving"] = self.coordinator.moving()
        lags = self.coordinator.lags()
        for number, each in own.items():
            each |= {"shard": number, **each.pop("metrics"), "lag": lags[number]}
            each["replicas"] = replicas_of(self.coordinator.links[number])
        total["shards"] = [own[number] for number in sorted(own)]
        return total


def _bytes_of(holdings: dict[int, dict[str, tuple[int, int]]]) -> list[int]:
    return [sum(size for _, size in holdings[shard].values()) for shard in sorted(holdings)]
