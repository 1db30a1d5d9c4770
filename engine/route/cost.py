"""Computes a cascade's mean cost for a query from measured parts (SPEC A085, A091, X11).

A policy that can be run should be run and measured. These functions are for points of a sweep that are not run, and for
the figures of AgentIR, which are all computed like this.
"""

from __future__ import annotations

import math

from ..errors import ParameterError
from ..fuse.fusion import check_number

BM25_MS = 0.4
"""Milliseconds of a query that BM25 answers (A085)."""
ESCALATED_MS = 53.2
"""Milliseconds of an escalated query, BM25 included (A085). The stages that AgentIR prints add up to 52.81: .40 for
BM25, 51.98 for the encoder, .05 for RRF and .38 for recency. AgentIR's 53.21 counts BM25 twice (A122, X11)."""
CLASSIFIER_MS = 0.5
"""Milliseconds of predicting a query's type, whether or not the query then escalates (A085)."""
ENCODER_MS = 52.0
"""Milliseconds for which the encoder occupies one core, for `capacity` (A091)."""


def amortised(
    skip: float, bm25_ms: float = BM25_MS, escalated_ms: float = ESCALATED_MS, classifier_ms: float = 0.0
) -> float:
    """``classifier_ms + skip * bm25_ms + (1 - skip) * escalated_ms``, mean milliseconds a query.

    `skip` in [0, 1] is the share of queries that BM25 alone answers. `escalated_ms` includes BM25: for a strategy that
    runs after BM25 and takes s by itself, it is ``bm25_ms + s``. If every query's type is predicted, `classifier_ms` is
    `CLASSIFIER_MS` or the measured time. Raises `ParameterError`.
    """
    check_number("skip, a share,", skip, 0.0, 1.0)
    for what, value in (("bm25_ms", bm25_ms), ("escalated_ms", escalated_ms), ("classifier_ms", classifier_ms)):
        check_number(what, value, 0.0)
    return classifier_ms + skip * bm25_ms + (1.0 - skip) * escalated_ms


def capacity(cores: int, skip: float, encoder_ms: float = ENCODER_MS) -> float:
    """The queries a second for which `cores` can encode, if the share `skip` needs no encoding.

    An encoding occupies one core for `encoder_ms`. The result is infinite if no query needs encoding. It is an upper
    bound of what a machine serves, because no other work is counted. Raises `ParameterError`.
    """
    check_number("skip, a share,", skip, 0.0, 1.0)
    check_number("encoder_ms", encoder_ms, 0.0)
    if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
        raise ParameterError(f"cores must be an integer of 1 or more, not {cores!r}")
    milliseconds = (1.0 - skip) * encoder_ms
    return cores * 1000.0 / milliseconds if milliseconds > 0.0 else math.inf
