"""What the host lets go while launches may still read it, and what all of an engine takes on a device.

A segment dies when a merge replaces it; a launch that was begun before may be waiting on another stream. So its arrays
are not freed but retired, with the events of all streams that launched since, and let go once these are done. The
other way, `Tensor.record_stream`, costs a call for each tensor of each segment in each launch, some 10 a segment;
this costs one event a launch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch

from ..engine.errors import DeviceMemoryError
from .runtime import Event, Runtime


class Lifetimes:
    """The launches that may still read, and the blocks that wait for them.

    `retire` may be called by any thread at any time, a garbage collection included. All else is called under the lock
    of the search.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._launches: dict[int, Event] = {}
        self._dying: deque[Sequence[torch.Tensor]] = deque()
        self._retired: list[tuple[list[Event], Sequence[torch.Tensor]]] = []
        self._ready: Event | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the retired blocks."""
        waiting = [tensors for _, tensors in list(self._retired)] + list(self._dying)
        return sum(tensor.nbytes for tensors in waiting for tensor in tensors)

    def launched(self) -> None:
        """What the current stream was given so far may read everything. Not while a caller captures it.

        A captured launch is replayed unseen; `Engine.search_tensors` says what its owner has to mind.
        """
        if not self._runtime.capturing():
            self._launches[self._runtime.current()] = self._runtime.record()

    def wait_for_launches(self) -> None:
        """Have the current stream wait for all launches: it will write what they read."""
        for event in self._pending():
            self._runtime.wait_for(event)

    def written(self) -> None:
        """The current stream has written what launches will read."""
        if not self._runtime.capturing():
            self._ready = self._runtime.record()

    def wait_for_writes(self) -> None:
        """Have the current stream wait until what was written last is there. Once it is, nothing waits any more."""
        if self._ready is None or self._runtime.capturing():
            return
        if self._ready.done():
            self._ready = None
        else:
            self._runtime.wait_for(self._ready)

    def retire(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep these until no launch reads them."""
        self._dying.append(tensors)

    def sweep(self) -> None:
        """Let go what no launch reads any more. Waits for nothing."""
        if self._runtime.capturing():
            return
        while self._dying:
            # A launch begun later cannot name what is dying already.
            self._retired.append((self._pending(), self._dying.popleft()))
        if self._retired:
            self._retired = [kept for kept in self._retired if not all(event.done() for event in kept[0])]

    def reclaim(self) -> bool:
        """Where memory is short: wait for the launches that hold retired blocks. False if there are none."""
        if self._runtime.capturing() or not (self._retired or self._dying):
            return False
        self.sweep()
        for events, _ in self._retired:
            for event in events:
                event.wait()
        self._retired = []
        return True

    def drain(self) -> None:
        """Wait for all launches; for the end of an engine."""
        for event in list(self._launches.values()):
            event.wait()

    def _pending(self) -> list[Event]:
        for stream, event in list(self._launches.items()):
            if event.done():
                del self._launches[stream]
        return list(self._launches.values())


class Account:
    """The bytes that one engine may take on a device, whichever part of it takes them. A `limit` of None is none."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._counts: list[Callable[[], int]] = []
        self._releases: list[Callable[[], bool]] = []
        self.lock = threading.RLock()
        """Of the search: a release may be asked for by another part of the engine, in a thread of its own."""

    def add(self, count: Callable[[], int], release: Callable[[], bool] | None = None) -> None:
        """Count what this says; `release` lets go what it can spare, and says whether that was anything."""
        with self.lock:
            self._counts.append(count)
            if release is not None:
                self._releases.append(release)

    @property
    def taken(self) -> int:
        """Bytes taken by all."""
        return sum(count() for count in list(self._counts))

    def free(self, runtime: Runtime, *, now: bool = False) -> int | None:
        """Bytes that may still be allocated, or None where neither the limit nor the device tells.

        Those of the device are asked for if they are wanted as of `now`, else once in a while.
        """
        bounds = [] if self.limit is None else [self.limit - self.taken]
        device = runtime.free_bytes(now=now)
        if device is not None:
            bounds.append(device)
        return min(bounds) if bounds else None

    def reserve(self, need: int, runtime: Runtime) -> None:
        """Raise `DeviceMemoryError` if so many more bytes cannot be had, not even when others let go what they can."""
        free = self.free(runtime)
        if free is not None and need > free:
            free = self.free(runtime, now=True)
        if free is not None and need > free and self.release():
            free = self.free(runtime, now=True)
        if free is not None and need > free:
            raise DeviceMemoryError(
                f"{need:,} bytes are needed on {runtime.device}, where {max(free, 0):,} are free and {self.taken:,} "
                "are held; raise max_device_bytes, ask in smaller batches, or serve from the CPU"
            )

    def release(self) -> bool:
        """Have all let go what they can spare. False if that was nothing."""
        with self.lock:
            released = [release() for release in list(self._releases)]
        return any(released)
