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

A document with one row scores its cosine under each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import ParameterError

Kind = Literal["early", "late", "top", "lse", "lme"]
KINDS: tuple[str, ...] = get_args(Kind)

TOP = 3
BETA = 10.0
LEAST_BETA, LARGEST_BETA = 1e-6, 1e6


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
        number = isinstance(self.beta, (int, float)) and not isinstance(self.beta, bool)
        if not number or not LEAST_BETA <= self.beta <= LARGEST_BETA:
            raise ParameterError(
                f"an interaction's beta must be from {LEAST_BETA:g} to {LARGEST_BETA:g}, not {self.beta!r}"
            )

    @property
    def exact(self) -> bool:
        """Whether every backend gives the same bits."""
        return self.kind not in ("lse", "lme")

    def rounding(self, rows: int) -> float:
        """The most that a computed score can differ from the true one, for documents of at most so many rows.

        ``top`` adds at most min(m, rows) numbers below 1.01, each addition being off by half a unit in the last place
        of a sum, and divides once. For ``lse`` and ``lme`` let u be 2**-53. The shift ``c - max`` is exact (multiples
        of 2**-48), so a term ``exp(a)`` is off by at most ``4u exp(a)`` from the library (2 units in the last place)
        and by ``u |a| exp(a) <= u / e`` from rounding a; as the sum is at least 1 and at most n, adding n terms and
        dividing leaves it off by ``(1.4 n + 5) u`` of itself, the logarithm by that and ``4u log(n)``, all divided by
        beta; and two more roundings of a result. All of it is below ``8 (n + 1) u / beta + 2u``. Two backends differ
        by at most twice this.
        """
        if self.kind == "top":
            return min(self.rows, rows) * 2.0**-52
        return 0.0 if self.exact else (rows + 1) * 2.0**-50 / self.beta + 2.0**-52

    def __str__(self) -> str:
        if self.kind == "top":
            return f"top{self.rows}"
        return f"{self.kind}{self.beta:g}" if self.kind in ("lse", "lme") else self.kind
