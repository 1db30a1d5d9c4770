"""The Triton family behind `Verbs`, and its block sizes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..frame import block_bytes
from ..work import Buffers, DevicePostings, Extent, Formula, KernelAnswer, Tables, TermBatch, Work
from . import derive, order, plan, score, select, tabulate


@dataclass(frozen=True)
class Tuning:
    """Block sizes and warps of every kernel on one device."""

    narrow_tile_bits: int = 11
    wide_tile_bits: int = 10
    derive: derive.Settings = field(default_factory=derive.Settings)
    tabulate: tabulate.Settings = field(default_factory=tabulate.Settings)
    plan: plan.Settings = field(default_factory=plan.Settings)
    order: order.Settings = field(default_factory=order.Settings)
    score: score.Settings = field(default_factory=score.Settings)
    select: select.Settings = field(default_factory=select.Settings)


DEFAULT = Tuning()

TUNING: dict[str, Tuning] = {
    # A program costs milliseconds in the interpreter; blocks this small still run every loop more than once.
    "cpu": Tuning(
        narrow_tile_bits=6,
        wide_tile_bits=5,
        derive=derive.Settings(block=128),
        tabulate=tabulate.Settings(borders=4, tiles=4, postings=32),
        plan=plan.Settings(tiles=16, postings=64, ways=4, begun=4, terms=4),
        order=order.Settings(tiles=8, slots=4, words=1, classes=4),
        score=score.Settings(slots=4, postings=32, warps=1, programs=1),
        select=select.Settings(block=256, ranked=16, stripe=64, stripes=3),
    ),
}
"""By device name, as `torch.cuda.get_device_name` gives it; "cpu" is the interpreter. Others take `DEFAULT`."""

WHOLE_CORPUS = Tuning(
    narrow_tile_bits=13,
    wide_tile_bits=12,
    derive=derive.Settings(block=1 << 14),
    tabulate=tabulate.Settings(borders=128, tiles=16, postings=512),
    plan=plan.Settings(tiles=256, postings=4096, ways=1024, begun=1024, terms=64),
    order=order.Settings(slots=16, words=64),
    score=score.Settings(slots=16, postings=512, programs=1),
    select=select.Settings(block=1024, ranked=64, stripe=1 << 14, stripes=1),
)
"""For the interpreter over real corpora, where few large blocks take a thirtieth of the time of many small ones."""

INTERPRETED_PROCESSORS = 3


def tuning(device: torch.device) -> Tuning:
    """The block sizes for a device."""
    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return TUNING.get(name, DEFAULT)


class TritonVerbs:
    """`kernels.work.Verbs` in Triton. Takes CPU tensors where triton was imported with TRITON_INTERPRET=1."""

    name = "triton"
    posting_bytes = (8,)

    def __init__(self, device: torch.device | str = "cuda", settings: Tuning | None = None) -> None:
        self._device = torch.device(device)
        self._settings = tuning(self._device) if settings is None else settings
        self._processors = INTERPRETED_PROCESSORS
        if self._device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(self._device).multi_processor_count

    def tile_bits(self, wide: bool) -> int:
        return self._settings.wide_tile_bits if wide else self._settings.narrow_tile_bits

    def scratch_bytes(self, extent: Extent) -> int:
        settings, processors = self._settings, self._processors
        return max(
            block_bytes(order.scratch(extent, settings.order)),
            block_bytes(score.scratch(extent, settings.score, processors)),
            block_bytes(select.scratch(extent, settings.select, processors)),
        )

    def derive(self, postings: DevicePostings, formula: Formula, idf: torch.Tensor, quanta: torch.Tensor) -> None:
        derive.launch(postings, formula, idf, quanta, self._settings.derive)

    def tabulate(self, tables: Tables) -> None:
        tabulate.launch(tables, self._settings.tabulate)

    def describe(self, work: Work, buffers: Buffers) -> None:
        plan.launch_describe(work, buffers, self._settings.plan)

    def plan(self, batch: TermBatch, work: Work, buffers: Buffers) -> None:
        plan.launch_plan(batch, work, buffers, self._settings.plan)

    def order(self, work: Work, buffers: Buffers) -> None:
        order.launch(work, buffers, self._settings.order)

    def score(self, work: Work, buffers: Buffers) -> None:
        score.launch(work, buffers, self._settings.score, self._processors)

    def select(self, work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
        select.launch(work, buffers, answer, self._settings.select, self._processors)
