"""What a cascade's queries cost on average, made up of measured parts (SPEC A085, A091, X11).

Where a policy can be run, run it and measure: these are for the points of a sweep that nobody runs, and for the figures
of AgentIR, all of which are made up so.
"""

from __future__ import annotations

import math

from ..errors import ParameterError
from ..fuse.fusion import check_number

BM25_MS = 0.4
"""Milliseconds of a query that BM25 answers (A085)."""
ESCALATED_MS = 53.2
"""Milliseconds of an escalated query, BM25's included (A085). The stages that AgentIR prints, .40 for BM25, 51.98
for the encoder, .05 for RRF and .38 for recency, are 52.81 in sum; its 53.21 has BM25 twice (A122, X11)."""
CLASSIFIER_MS = 0.5
"""Milliseconds of predicting a query's type, whichever way the query goes then (A085)."""
ENCODER_MS = 52.0
"""Milliseconds that the encoder keeps one core, for `capacity` (A091)."""


def amortised(
    skip: float, bm25_ms: float = BM25_MS, escalated_ms: float = ESCALATED_MS, classifier_ms: float = 0.0
) -> float:
    """``classifier_ms + skip * bm25_ms + (1 - skip) * escalated_ms``, mean milliseconds a query.

    `skip` is the share that skips, in [0, 1]. `escalated_ms` includes BM25: a strategy that runs after BM25, and
    takes s alone, has ``bm25_ms + s``. `classifier_ms` is `CLASSIFIER_MS`, or what was measured, where every query's
    type is predicted. Raises `ParameterError`.
    """
    check_number("skip, a share,", skip, 0.0, 1.0)
    for what, value in (("bm25_ms", bm25_ms), ("escalated_ms", escalated_ms), ("classifier_ms", classifier_ms)):
        check_number(what, value, 0.0)
    return classifier_ms + skip * bm25_ms + (1.0 - skip) * escalated_ms


def capacity(cores: int, skip: float, encoder_ms: float = ENCODER_MS) -> float:
    """Queries a second that `cores` can encode for, each encoding taking one of them `encoder_ms`, if the share `skip`
    needs no encoding; infinite where none does.

    It bounds what a machine serves, as nothing else is counted. Raises `ParameterError`.
    """
    check_number("skip, a share,", skip, 0.0, 1.0)
    check_number("encoder_ms", encoder_ms, 0.0)
    if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
        raise ParameterError(f"cores must be an integer of 1 or more, not {cores!r}")
    milliseconds = (1.0 - skip) * encoder_ms
    return cores * 1000.0 / milliseconds if milliseconds > 0.0 else math.inf
