"""Time windows: stretches of equal length, numbered from 1970 on."""

from __future__ import annotations

import math

WINDOWED_RECORDS = 100_000
"""From so many records on, ``windows="auto"`` searches the newest windows alone. Of fewer it searches all: a query
takes 47 us beside the windows' 49 over 40,081, 84 beside 56 over 239,799, and windows find four of five asked records.
"""


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
