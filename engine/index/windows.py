"""Time windows: stretches of equal length, numbered from 1970 on."""

from __future__ import annotations

import math


def window_start(number: float, window: float) -> float:
    """The earliest time in window `number`: ``number * window``, corrected for the rounding of this product and of
    ``time / window``.
    """
    time = number * window
    for _ in range(4):
        earlier = math.nextafter(time, -math.inf)
        if math.floor(time / window) < number:
            time = math.nextafter(time, math.inf)
        elif math.floor(earlier / window) >= number:
            time = earlier
    return time
