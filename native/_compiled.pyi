"""What the extension module offers, by the file that binds it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# postings_binding.cpp

def sort_tokens(
    empty: Callable[..., npt.NDArray[Any]],
    fields: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]],
    size: int,
    flags: int,
    /,
) -> tuple[npt.NDArray[Any], ...]: ...
def join_postings(
    empty: Callable[..., npt.NDArray[Any]],
    parts: Sequence[tuple[object, ...]],
    fields: int,
    block: int,
    flags: int,
    /,
) -> tuple[npt.NDArray[Any], ...]: ...
