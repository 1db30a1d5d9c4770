"""Runs one launch: the verbs cut, score and select, in order."""

from __future__ import annotations

from .sort import select_sorted
from .timing import DevicePhases
from .work import MAX_SELECTED, Buffers, KernelAnswer, Verbs, Work


def run(verbs: Verbs, work: Work, buffers: Buffers, answer: KernelAnswer, clock: DevicePhases) -> None:
    """Cut, score and select one launch, on the caller's stream, without waiting for it."""
    with clock("cut"):
        verbs.cut(work, buffers)
    widths = [wide for wide, any_of_it in ((False, work.any_narrow), (True, work.any_wide)) if any_of_it]
    with clock("score"):
        for wide in widths:
            verbs.score(work, buffers, wide=wide)
    with clock("select"):
        for wide in widths:
            if work.width > MAX_SELECTED:
                select_sorted(work, buffers, answer, wide=wide)
            else:
                verbs.select(work, buffers, answer, wide=wide)
