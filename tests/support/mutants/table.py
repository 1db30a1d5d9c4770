"""All faults. Each names a promise that the tests of the product keep."""

from __future__ import annotations

from . import cpu, drivers, filters, kernels, native, page, replicas, server, shards, triton
from .fault import Fault

FAULTS: tuple[Fault, ...] = (
    *native.FAULTS,
    *cpu.FAULTS,
    *filters.FAULTS,
    *kernels.FAULTS,
    *triton.FAULTS,
    *drivers.FAULTS,
    *server.FAULTS,
    *page.FAULTS,
    *shards.FAULTS,
    *replicas.FAULTS,
)
