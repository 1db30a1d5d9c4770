"""Times the named phases of a search, and marks them as NVTX ranges for a profiler if the package nvtx is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Annotate = Callable[[str], AbstractContextManager[object]]

NO_RANGE = nullcontext()


def _choose_annotate() -> Annotate | None:
    try:
        import nvtx
    except ImportError:
        return None
    return lambda name: nvtx.annotate(f"fanrank.{name}")


_annotate = _choose_annotate()


def annotate(name: str) -> AbstractContextManager[object]:
    """A range for a profiler; one that does nothing where the package nvtx is not installed."""
    return NO_RANGE if _annotate is None else _annotate(name)


class Phases:
    """The times of the phases of one search, in the order in which phases first ended, and its counts.

    Phases nest. The time of an inner phase is not counted for the outer one, so all times add up to the time in which
    any phase ran. Times by a device's clock are an exception: that clock runs beside the host's.
    Not safe for use by several threads.

    Where not `timed`, phases are marked for a profiler and take no time of their own.
    """

    def __init__(self, timed: bool = True) -> None:
        self.timed = timed
        self.milliseconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self._inner = 0.0
        """Milliseconds of the phases that ended inside the phase that runs now."""

    def __call__(self, name: str) -> AbstractContextManager[object]:
        """Times a phase by the host's clock. Times under the same name add up."""
        return _Phase(self, name) if self.timed else annotate(name)

    def add(self, name: str, milliseconds: float) -> None:
        """Adds time to the phase `name`, and takes it from the phase that runs now."""
        self.milliseconds[name] = self.milliseconds.get(name, 0.0) + milliseconds
        self._inner += milliseconds

    def count(self, name: str, number: int) -> None:
        """Adds `number` to the count `name`."""
        self.counts[name] = self.counts.get(name, 0) + number


class _Phase:
    """One run of a phase. A class, because a generator's context takes three times as long to enter and leave."""

    def __init__(self, phases: Phases, name: str) -> None:
        self._phases, self._name = phases, name

    def __enter__(self) -> None:
        phases = self._phases
        self._range = None if _annotate is None else _annotate(self._name)
        if self._range is not None:
            self._range.__enter__()
        self._outer, phases._inner = phases._inner, 0.0
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        phases = self._phases
        spent = (time.perf_counter() - self._start) * 1e3
        # The inner phases may have more time than the host counted, if a device's clock timed them.
        phases.add(self._name, max(spent - phases._inner, 0.0))
        phases._inner = self._outer + spent
        if self._range is not None:
            self._range.__exit__(None, None, None)
