"""Runs the sources of `kernels/cuda` on a CPU, so that they are tested without a device."""

from .build import CompileError, Sanitized, build, run_sanitized
from .launcher import HostLauncher, KernelFault

__all__ = ["CompileError", "HostLauncher", "KernelFault", "Sanitized", "build", "run_sanitized"]
