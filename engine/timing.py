"""Named phases of a search: NVTX ranges for a profiler (where the package nvtx is installed), and milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Annotate = Callable[[str], AbstractContextManager[object]]

NO_RANGE = nullcontext()


def _annotate() -> Annotate:
    try:
        import nvtx
    except ImportError:
        return lambda name: NO_RANGE
    return lambda name: nvtx.annotate(f"fanrank.{name}")


annotate = _annotate()


class Phases:
    """Collects the time of each phase of one search, in the order in which phases first ended, and what it counted.

    Phases nest: what an inner one took is not the outer one's, so that all of them add up to the time in which any ran
    (but for times by a device's clock, which runs beside the host's).
    For one thread.
    """

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self._inner = 0.0
        """Milliseconds of the phases that ended inside the one that runs."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Time a phase by the host's clock; the same name again adds up."""
        return _Phase(self, name)

    def add(self, name: str, milliseconds: float) -> None:
        """Count time that passed within the phase that runs as another's."""
        self.milliseconds[name] = self.milliseconds.get(name, 0.0) + milliseconds
        self._inner += milliseconds

    def count(self, name: str, number: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + number


class _Phase:
    """One run of a phase: a class of its own, as a generator's context takes three times as long to enter and leave."""

    def __init__(self, phases: Phases, name: str) -> None:
        self._phases, self._name = phases, name

    def __enter__(self) -> None:
        phases = self._phases
        self._range = annotate(self._name)
        self._range.__enter__()
        self._outer, phases._inner = phases._inner, 0.0
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        phases = self._phases
        spent = (time.perf_counter() - self._start) * 1e3
        # A device's own clock may say more than the host's.
        phases.add(self._name, max(spent - phases._inner, 0.0))
        phases._inner = self._outer + spent
        self._range.__exit__(None, None, None)
