"""How the vectors of a document and of a query become one number (SPEC D001, D002, D020, X26).

``c_t`` is the cosine of the query and the document's row t; the document has n rows:

====== ============================================ ===========================================================
name   score                                        exact
====== ============================================ ===========================================================
early  cosine with the mean of the rows             yes: the mean is rounded to half precision once, when it is made
late   ``max_t c_t`` (max-sim)                      yes
top    mean of the min(m, n) largest                yes: summed from the largest on, one division
lse    ``log(sum_t exp(beta c_t)) / beta``          no: exp and log differ between libraries
lme    ``log(mean_t exp(beta c_t)) / beta``         no, likewise; the safe form, without lse's bonus ``log(n) / beta``
====== ============================================ ===========================================================

The score of a document with one row is its cosine under each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import ParameterError, choices

Kind = Literal["early", "late", "top", "lse", "lme"]
KINDS: tuple[str, ...] = get_args(Kind)

TOP = 3
BETA = 10.0
LEAST_BETA, LARGEST_BETA = 1e-6, 1e6


@dataclass(frozen=True)
class Interaction:
    """How the cosines of a document's rows become its score.

    `rows` is the m of ``top``; `beta` is used by ``lse`` and ``lme`` alone. Raises `ParameterError`.
    """

    kind: Kind = "late"
    rows: int = TOP
    beta: float = BETA

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ParameterError(f"unknown interaction {self.kind!r}{choices(self.kind, KINDS)}")
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
        """The most that a computed score can differ from the true one, for documents of at most `rows` rows.

        ``top`` adds at most min(m, rows) numbers below 1.01 and divides once. Each addition is off by at most half a
        unit in the last place of a sum.

        For ``lse`` and ``lme`` let u be 2**-53 and n the number of rows. The shift ``c - max`` is exact (multiples of
        2**-48). So a term ``exp(a)`` is off by at most ``4u exp(a)`` from the library (2 units in the last place) and
        by ``u |a| exp(a) <= u / e`` from rounding a. The sum is at least 1 and at most n. So adding n terms and
        dividing leaves it off by ``(1.4 n + 5) u`` of itself. The logarithm is off by that and by ``4u log(n)``. All of
        this is divided by beta. A result is rounded twice more. Together these stay below ``8 (n + 1) u / beta + 2u``.

        Two backends differ by at most twice this.
        """
        if self.kind == "top":
            return min(self.rows, rows) * 2.0**-52
        return 0.0 if self.exact else (rows + 1) * 2.0**-50 / self.beta + 2.0**-52

    def __str__(self) -> str:
        if self.kind == "top":
            return f"top{self.rows}"
        return f"{self.kind}{self.beta:g}" if self.kind in ("lse", "lme") else self.kind
