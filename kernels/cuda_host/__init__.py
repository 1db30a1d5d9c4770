"""Runs the sources of `kernels/cuda` on a CPU: the backend ``cuda-host``, and what tests them without a device."""

from .build import CompileError, build
from .launcher import HostLauncher, KernelFault

__all__ = ["CompileError", "HostLauncher", "KernelFault", "build"]
