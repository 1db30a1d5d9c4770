"""Phases of a device search: host time on the CPU, device time between CUDA events on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..engine.timing import Phases, annotate


class DevicePhases:
    """Marks phases for a profiler always; measures them only if `phases` is given, as that takes events."""

    def __init__(self, phases: Phases | None, device: torch.device) -> None:
        self._phases = phases
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] | None = (
            [] if phases is not None and device.type == "cuda" else None
        )

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self._phases is None:
            with annotate(name):
                yield
        elif self._events is None:
            with self._phases(name):
                yield
        else:
            start, end = _event(), _event()
            with annotate(name):
                start.record()
                yield
                end.record()
            self._events.append((name, start, end))

    def finish(self) -> None:
        """Wait for what was measured on the device, if anything was, and hand the times over."""
        if self._events and self._phases is not None:
            for name, start, end in self._events:
                end.synchronize()
                self._phases.add(name, start.elapsed_time(end))
            self._events.clear()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
