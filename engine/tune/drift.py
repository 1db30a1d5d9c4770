"""Checks whether the questions have changed since a policy was tuned (SPEC A093: tune again on drift).

The policy's file keeps a *reference* from tuning: how many questions were escalated, their types, their confidences,
and the values of their answers. The same is measured on present questions, and each of the four is compared by a test
of its own. Escalations, types and confidences need no labels; the values of answers do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import Floats
from ..errors import ParameterError, PolicyFileError
from ..metrics.bootstrap import TIE
from ..records.query import Query
from ..route.policy import Answerer
from .measure import Judge, Labelled, PolicyRun, Questions

if TYPE_CHECKING:
    from ..memory import Memory


LEVEL = 0.05
"""The probability that a check reports drift if nothing has changed; shared among its tests (Bonferroni)."""
RESAMPLES = 10_000
KEPT = 1_000
"""The largest number of questions in a reference.

Each question takes two numbers in the policy's file, and a share of 1,000 questions is known to 3 %.
"""
_CHUNK = 1 << 21
_GREATEST = 1e300


@dataclass(frozen=True)
class Test:
    """One comparison: the value at tuning and now, and the probability `p` of such a difference without any change."""

    name: str
    then: float
    now: float
    p: float


@dataclass(frozen=True)
class PolicyDrift:
    """The result of a check.

    `tests` are in the order skip, types, confidence, accuracy; a test without data is left out. `drifted` is true if
    one of them has p below `level` / number of tests, or if the engine's vectors are of another model than at tuning.
    """

    n: int
    reference: int
    tests: tuple[Test, ...]
    level: float
    model_changed: bool

    @property
    def bound(self) -> float:
        """The p below which a test reports drift."""
        return self.level / max(len(self.tests), 1)

    @property
    def drifted(self) -> bool:
        return self.model_changed or any(test.p < self.bound for test in self.tests)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "drifted": self.drifted,
            "n": self.n,
            "reference": self.reference,
            "level": self.level,
            "bound": self.bound,
            "model_changed": self.model_changed,
            "tests": [asdict(test) for test in self.tests],
        }


def reference_of(run: PolicyRun, of: str, seed: int = 0) -> dict[str, Any]:
    """What a policy's file keeps of `run`, as plain JSON values. `of` says which questions they were.

    If there are more than `KEPT` questions, that many are drawn by `seed`. The first ones alone would all be of a
    dataset's first conversations. A confidence of None means that the question has none.
    """
    positions = np.sort(np.random.default_rng(seed).permutation(len(run.values))[:KEPT])
    decisions = [run.decisions[position] for position in positions] if run.decisions else []
    flags = [decision.escalated for decision in decisions if decision.escalated is not None]
    types = Counter(name for position in positions if (name := run.types[position]) is not None)
    return {
        "of": of,
        "n": len(positions),
        "decided": len(flags),
        "escalated": sum(flags),
        "types": dict(sorted(types.items())),
        "confidences": [decision.confidence for decision in decisions] if flags else [],
        "values": run.values[positions].tolist(),
    }


def check(
    policy: Answerer,
    about: Mapping[str, Any],
    engine: Memory,
    questions: Sequence[Labelled | Query],
    *,
    judge: Judge | None = None,
    level: float = LEVEL,
    seed: int = 0,
) -> PolicyDrift:
    """Compare the policy on `questions` now with the reference in `about`, which its file holds from tuning.

    All tests are two-sided:

    - escalated share: Fisher's exact test
    - types: Fisher's exact test for each type against all others; the smallest p times the number of types
    - confidences: two-sample Kolmogorov-Smirnov (asymptotic); a question without a confidence ranks below all others
    - accuracy, if every question has a relevant record or there is a `judge`: a bootstrap of the difference of the two
      means, with both samples resampled by `seed`

    `level` over the number of tests is the p below which a test counts as drift.

    Raises `ParameterError` if `about` has no reference, if there are no questions, or if only one of the file and this
    call uses a judge. Raises `PolicyFileError` if the contents of `about` are impossible.
    """
    then = _reference(about)
    labelled = [question if isinstance(question, Labelled) else Labelled(question, {}) for question in questions]
    judged = judge is not None or all(any(grade > 0 for grade in question.relevant.values()) for question in labelled)
    if judged and judge is None and about.get("judged"):
        raise ParameterError("the policy was tuned with a judge; give it, or leave the labels out")
    if judge is not None and not about.get("judged"):
        raise ParameterError(
            f"the policy was tuned on {about.get('metric', 'hit@5')}, which a judge's values are no match for"
        )
    metric = str(about.get("metric", "hit@5"))
    run = Questions(
        engine,
        labelled,
        metric,
        judge=judge if judged else lambda _, __: 0.0,
        k=about.get("k"),
    ).answer(policy)
    now = reference_of(run, "now", seed)
    tests = []
    if then["decided"] and now["decided"]:
        p = fisher(then["escalated"], then["decided"], now["escalated"], now["decided"])
        tests.append(
            Test("skip", 1.0 - then["escalated"] / then["decided"], 1.0 - now["escalated"] / now["decided"], p)
        )
    if then["types"] and now["types"]:
        tests.append(_compare_types(then["types"], now["types"]))
    if then["confidences"] and now["confidences"]:
        first, second = _confidence_array(then["confidences"]), _confidence_array(now["confidences"])
        tests.append(
            Test("confidence", float(np.median(first)), float(np.median(second)), kolmogorov_smirnov(first, second)[1])
        )
    if judged:
        first, second = np.array(then["values"], dtype=np.float64), run.values
        tests.append(Test("accuracy", float(first.mean()), run.accuracy, two_means(first, second, seed=seed)))
    pins = about.get("model"), None if engine.pin is None else _model(engine.pin)
    changed = None not in pins and pins[0] != pins[1]
    return PolicyDrift(len(labelled), int(then["n"]), tuple(tests), level, changed)


def _reference(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """The reference of a policy's file, checked, together with the other entries of `about` that `check` reads."""
    then = about.get("reference")
    if then is None:
        raise ParameterError("the policy's file says nothing of the questions it was tuned on; tune it again")
    if not isinstance(then, Mapping):
        raise PolicyFileError(f"damaged: its reference is {then!r:.80}; tune it again")

    def is_count(value: Any, low: int, high: float) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    def is_numbers(value: Any, length: int, none: bool = False) -> bool:
        return (
            isinstance(value, list)
            and len(value) == length
            and all((none and number is None) or _is_number(number) for number in value)
        )

    values, types, decided = then.get("values"), then.get("types"), then.get("decided")
    n = len(values) if isinstance(values, list) else 0
    right = {
        "n": n > 0 and then.get("n") == n,
        "values": is_numbers(values, n),
        "decided": is_count(decided, 0, n),
        "escalated": isinstance(decided, int) and is_count(then.get("escalated"), 0, decided),
        "types": isinstance(types, Mapping)
        and all(is_count(count, 1, n) for count in types.values())
        and sum(types.values()) <= n,
        "confidences": is_numbers(then.get("confidences"), n if decided else 0, none=True),
    }
    wrong = [name for name, sound in right.items() if not sound]
    if wrong:
        raise PolicyFileError(
            f"damaged: the {wrong[0]!r} of its reference cannot be those of {n} questions; tune it again"
        )
    if not isinstance(about.get("metric", ""), str) or not (
        about.get("k") is None or is_count(about["k"], 1, math.inf)
    ):
        raise PolicyFileError("damaged: its metric must be a name and its k a number of hits; tune it again")
    return then


def _is_number(value: Any) -> bool:
    # The bound excludes NaN, and integers that are too large for a float.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _GREATEST


def _model(pin: Mapping[str, Any]) -> dict[str, Any]:
    return {name: pin[name] for name in ("name", "version", "dimension") if name in pin}


def _compare_types(then: Mapping[str, int], now: Mapping[str, int]) -> Test:
    """The test of the type whose share has the smallest p, corrected for the number of types."""
    totals = sum(then.values()), sum(now.values())
    names = sorted({*then, *now})
    p, name = min((fisher(then.get(kind, 0), totals[0], now.get(kind, 0), totals[1]), kind) for kind in names)
    return Test(
        f"share of {name}", then.get(name, 0) / totals[0], now.get(name, 0) / totals[1], min(1.0, p * len(names))
    )


def _confidence_array(confidences: Sequence[float | None]) -> Floats:
    return np.array([-1.0 if value is None else value for value in confidences], dtype=np.float64)


def fisher(first: int, n: int, second: int, m: int) -> float:
    """Fisher's exact test: the two-sided p of `first` of n against `second` of m, if the true shares are equal.

    It is the sum of the probabilities of all tables with these margins that are no likelier than this one.
    """
    total = first + second
    whole = [math.comb(n, k) * math.comb(m, total - k) for k in range(max(0, total - m), min(n, total) + 1)]
    observed = math.comb(n, first) * math.comb(m, second)
    return sum(table for table in whole if table <= observed) / sum(whole)


def kolmogorov_smirnov(first: Floats, second: Floats) -> tuple[float, float]:
    """(D, p): the largest distance of two samples' distribution functions, and the two-sided p by Kolmogorov's limit.

    With ties, p is too large rather than too small.
    """
    every = np.concatenate([first, second])
    first_share = np.searchsorted(np.sort(first), every, side="right") / len(first)
    other = np.searchsorted(np.sort(second), every, side="right") / len(second)
    distance = float(np.abs(first_share - other).max())
    scaled = distance * math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    if scaled < 0.2:
        # The series converges slowly here, and its limit is 1 within 1e-12.
        return distance, 1.0
    terms = ((-1) ** (k - 1) * math.exp(-2.0 * (k * scaled) ** 2) for k in range(1, 101))
    return distance, min(1.0, max(0.0, 2.0 * math.fsum(terms)))


def two_means(first: Floats, second: Floats, *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Two-sided bootstrap p of equal means of two independent samples: ``min(1, 2 min(P(D <= 0), P(D >= 0)))``.

    A sample whose values are all equal resamples to itself. Two such samples would have p 1 if they agree and 0 if they
    differ. So two values are added to each sample, the smallest and the largest of both (Laplace): p is then not 0
    without reason.
    """
    low, high = min(first.min(), second.min()), max(first.max(), second.max())
    if low == high:
        return 1.0
    random = np.random.default_rng(seed)
    means = []
    for sample in (first, second):
        padded = np.concatenate([sample, [low, high]])
        size = max(1, _CHUNK // len(padded))
        counts = [min(size, resamples - start) for start in range(0, resamples, size)]
        means.append(
            np.concatenate([padded[random.integers(0, len(padded), (c, len(padded)))].mean(axis=1) for c in counts])
        )
    differences = means[0] - means[1]
    return min(1.0, 2.0 * min(float(np.mean(differences <= TIE)), float(np.mean(differences >= -TIE))))
