"""Runs one launch: its slots described or planned, then order, score and select."""

from __future__ import annotations

from .runtime import Runtime
from .sort import select_sorted
from .timing import DevicePhases
from .work import MAX_SELECTED, Buffers, KernelAnswer, TermBatch, Verbs, Work


def run(
    verbs: Verbs,
    runtime: Runtime,
    work: Work,
    buffers: Buffers,
    answer: KernelAnswer,
    clock: DevicePhases,
    batch: TermBatch | None = None,
) -> None:
    """Give one launch to the current stream, without waiting for it: of a plan of the host, or of a batch of terms."""
    with clock("describe"):
        if batch is None:
            verbs.describe(work, buffers)
        else:
            verbs.plan(batch, work, buffers)
    with clock("order"):
        verbs.order(work, buffers)
    with clock("score"):
        verbs.score(work, buffers)
    with clock("select"):
        if work.width > MAX_SELECTED:
            runtime.call(select_sorted, work, buffers, answer)
        else:
            verbs.select(work, buffers, answer)
