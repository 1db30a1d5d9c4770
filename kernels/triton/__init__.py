"""The Triton kernels, one operation a file; `TritonVerbs` offers them as `kernels.work.Verbs`."""

from .verbs import TritonVerbs

__all__ = ["TritonVerbs"]
