"""All faults. Each names a promise that the tests of the product keep."""

from __future__ import annotations

from . import cpu, drivers, kernels, native, triton
from .fault import Fault

FAULTS: tuple[Fault, ...] = (*native.FAULTS, *cpu.FAULTS, *kernels.FAULTS, *triton.FAULTS, *drivers.FAULTS)
