"""How the vectors of a document and of a query become one number (SPEC D001, D002, D020, X26).

With ``c_t`` the cosine of the query and the document's row t, over its n rows:

====== ============================================ ===========================================================
name   score                                        exact
====== ============================================ ===========================================================
early  cosine with the mean of the rows             yes: the mean is rounded to half precision once, when it is made
late   ``max_t c_t`` (max-sim)                      yes
top    mean of the min(m, n) largest                yes: summed from the largest on, one division
lse    ``log(sum_t exp(beta c_t)) / beta``          no: exp and log differ between libraries
lme    ``log(mean_t exp(beta c_t)) / beta``         no, likewise; the safe form, without lse's bonus ``log(n) / beta``
====== ============================================ ===========================================================

A document with one row scores the same under early, late, top and lme.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import ParameterError

Kind = Literal["early", "late", "top", "lse", "lme"]
KINDS: tuple[str, ...] = get_args(Kind)

TOP = 3
BETA = 10.0


@dataclass(frozen=True)
class Interaction:
    """`rows` is m of ``top``; `beta` counts for ``lse`` and ``lme``. Raises `ParameterError`."""

    kind: Kind = "late"
    rows: int = TOP
    beta: float = BETA

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ParameterError(f"unknown interaction {self.kind!r}; there are: {', '.join(KINDS)}")
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1:
            raise ParameterError(f"an interaction's rows must be 1 or more, not {self.rows!r}")
        if isinstance(self.beta, bool) or not isinstance(self.beta, (int, float)) or not 0.0 < self.beta < math.inf:
            raise ParameterError(f"an interaction's beta must be above 0, not {self.beta!r}")

    @property
    def exact(self) -> bool:
        """Whether every backend gives the same bits."""
        return self.kind not in ("lse", "lme")

    def __str__(self) -> str:
        if self.kind == "top":
            return f"top{self.rows}"
        return f"{self.kind}{self.beta:g}" if self.kind in ("lse", "lme") else self.kind
