"""Has the work changed since a policy was tuned? (SPEC A093: tune again on drift.)

What a policy did when it was tuned is kept in its file as a *reference*: how many questions it escalated, of which
types they were, their confidences, the worth of their answers. The same is taken of questions of today, and each part
is compared by a test of its own. Types and escalations of unlabelled questions count as well; the worth of answers
needs labels.
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
    from ..engine import Engine


LEVEL = 0.05
"""How often a check of unchanged work may say that it has drifted; shared among its tests (Bonferroni)."""
RESAMPLES = 10_000
KEPT = 1_000
"""Questions of a reference at most: each is two numbers in the policy's file, and a share of 1,000 is known to 3 %."""
_CHUNK = 1 << 21
_GREATEST = 1e300


@dataclass(frozen=True)
class Test:
    """One comparison: what it was then and is now, and how likely so large a difference is if nothing has changed."""

    name: str
    then: float
    now: float
    p: float


@dataclass(frozen=True)
class PolicyDrift:
    """`tests` in the order skip, types, confidence, accuracy, as far as there is something to compare.

    `drifted`: one of them has p below `level` / tests, or the engine's vectors are of another model than at tuning.
    """

    n: int
    reference: int
    tests: tuple[Test, ...]
    level: float
    model_changed: bool

    @property
    def bound(self) -> float:
        """The p below which a test says drift."""
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
    """What a policy's file keeps of `run`, plain JSON values; `of` says which questions they were.

    Of more than `KEPT` questions, so many drawn by `seed`: the first would be those of a dataset's first
    conversations. A confidence of None is none.
    """
    places = np.sort(np.random.default_rng(seed).permutation(len(run.values))[:KEPT])
    decisions = [run.decisions[place] for place in places] if run.decisions else []
    flags = [one.escalated for one in decisions if one.escalated is not None]
    types = Counter(name for place in places if (name := run.types[place]) is not None)
    return {
        "of": of,
        "n": len(places),
        "decided": len(flags),
        "escalated": sum(flags),
        "types": dict(sorted(types.items())),
        "confidences": [one.confidence for one in decisions] if flags else [],
        "values": run.values[places].tolist(),
    }


def check(
    policy: Answerer,
    about: Mapping[str, Any],
    engine: Engine,
    questions: Sequence[Labelled | Query],
    *,
    judge: Judge | None = None,
    level: float = LEVEL,
    seed: int = 0,
) -> PolicyDrift:
    """The policy on `questions` now against what its file says `about` the time when it was tuned.

    Escalated share: Fisher's exact test. Types: the same for each type against all others, the smallest p times the
    number of types. Confidences: two-sample Kolmogorov-Smirnov (asymptotic), a question without one standing below all.
    Accuracy, where every question has a relevant record or there is a `judge`: bootstrap of the difference of the two
    means, both resampled. All are two-sided. Raises `ParameterError` where `about` holds no reference, there are no
    questions, or one of file and call has a judge and the other labels, `PolicyFileError` where what it holds
    cannot be.
    """
    then = _reference(about)
    asked = [one if isinstance(one, Labelled) else Labelled(one, {}) for one in questions]
    judged = judge is not None or all(any(grade > 0 for grade in one.relevant.values()) for one in asked)
    if judged and judge is None and about.get("judged"):
        raise ParameterError("the policy was tuned with a judge; give it, or leave the labels out")
    if judge is not None and not about.get("judged"):
        raise ParameterError(
            f"the policy was tuned on {about.get('metric', 'hit@5')}, which a judge's values are no match for"
        )
    metric = str(about.get("metric", "hit@5"))
    run = Questions(
        engine,
        asked,
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
        tests.append(_types(then["types"], now["types"]))
    if then["confidences"] and now["confidences"]:
        first, second = _ranked(then["confidences"]), _ranked(now["confidences"])
        tests.append(
            Test("confidence", float(np.median(first)), float(np.median(second)), kolmogorov_smirnov(first, second)[1])
        )
    if judged:
        first, second = np.array(then["values"], dtype=np.float64), run.values
        tests.append(Test("accuracy", float(first.mean()), run.accuracy, two_means(first, second, seed=seed)))
    pins = about.get("model"), None if engine.pin is None else _model(engine.pin)
    changed = None not in pins and pins[0] != pins[1]
    return PolicyDrift(len(asked), int(then["n"]), tuple(tests), level, changed)


def _reference(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """The reference that a file holds, as `reference_of` made it, and what else `check` reads there."""
    then = about.get("reference")
    if then is None:
        raise ParameterError("the policy's file says nothing of the questions it was tuned on; tune it again")
    if not isinstance(then, Mapping):
        raise PolicyFileError(f"damaged: its reference is {then!r:.80}; tune it again")

    def counted(value: Any, low: int, high: float) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    def numbers(value: Any, length: int, none: bool = False) -> bool:
        return (
            isinstance(value, list)
            and len(value) == length
            and all((none and one is None) or _is_number(one) for one in value)
        )

    values, types, decided = then.get("values"), then.get("types"), then.get("decided")
    n = len(values) if isinstance(values, list) else 0
    right = {
        "n": n > 0 and then.get("n") == n,
        "values": numbers(values, n),
        "decided": counted(decided, 0, n),
        "escalated": isinstance(decided, int) and counted(then.get("escalated"), 0, decided),
        "types": isinstance(types, Mapping)
        and all(counted(one, 1, n) for one in types.values())
        and sum(types.values()) <= n,
        "confidences": numbers(then.get("confidences"), n if decided else 0, none=True),
    }
    wrong = [name for name, sound in right.items() if not sound]
    if wrong:
        raise PolicyFileError(
            f"damaged: the {wrong[0]!r} of its reference cannot be those of {n} questions; tune it again"
        )
    if not isinstance(about.get("metric", ""), str) or not (about.get("k") is None or counted(about["k"], 1, math.inf)):
        raise PolicyFileError("damaged: its metric must be a name and its k a number of hits; tune it again")
    return then


def _is_number(value: Any) -> bool:
    # The bound leaves out NaN and integers that no float holds.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _GREATEST


def _model(pin: Mapping[str, Any]) -> dict[str, Any]:
    return {name: pin[name] for name in ("name", "version", "dimension") if name in pin}


def _types(then: Mapping[str, int], now: Mapping[str, int]) -> Test:
    """The type whose share has changed most surely."""
    totals = sum(then.values()), sum(now.values())
    names = sorted({*then, *now})
    p, name = min((fisher(then.get(one, 0), totals[0], now.get(one, 0), totals[1]), one) for one in names)
    return Test(
        f"share of {name}", then.get(name, 0) / totals[0], now.get(name, 0) / totals[1], min(1.0, p * len(names))
    )


def _ranked(confidences: Sequence[float | None]) -> Floats:
    return np.array([-1.0 if one is None else one for one in confidences], dtype=np.float64)


def fisher(first: int, n: int, second: int, m: int) -> float:
    """Fisher's exact test: two-sided p of `first` of n against `second` of m, equal shares presumed.

    The sum over all tables with these margins that are no likelier than this one.
    """
    total = first + second
    whole = [math.comb(n, k) * math.comb(m, total - k) for k in range(max(0, total - m), min(n, total) + 1)]
    own = math.comb(n, first) * math.comb(m, second)
    return sum(one for one in whole if one <= own) / sum(whole)


def kolmogorov_smirnov(first: Floats, second: Floats) -> tuple[float, float]:
    """(D, p): the greatest distance of two samples' distributions, and p by Kolmogorov's limit, two-sided.

    With ties p is too large rather than too small.
    """
    every = np.concatenate([first, second])
    one = np.searchsorted(np.sort(first), every, side="right") / len(first)
    other = np.searchsorted(np.sort(second), every, side="right") / len(second)
    distance = float(np.abs(one - other).max())
    scaled = distance * math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    if scaled < 0.2:
        # The series converges slowly there, to 1 within 1e-12.
        return distance, 1.0
    terms = ((-1) ** (k - 1) * math.exp(-2.0 * (k * scaled) ** 2) for k in range(1, 101))
    return distance, min(1.0, max(0.0, 2.0 * math.fsum(terms)))


def two_means(first: Floats, second: Floats, *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Two-sided bootstrap p of equal means of two independent samples: ``min(1, 2 min(P(D <= 0), P(D >= 0)))``.

    A sample of one value throughout resamples to itself; such a pair has p 1 where they agree and 0 where they differ,
    so both get one made-up question each of the two extreme values seen (Laplace), which keeps p honest.
    """
    low, high = min(first.min(), second.min()), max(first.max(), second.max())
    if low == high:
        return 1.0
    random = np.random.default_rng(seed)
    means = []
    for sample in (first, second):
        own = np.concatenate([sample, [low, high]])
        size = max(1, _CHUNK // len(own))
        counts = [min(size, resamples - start) for start in range(0, resamples, size)]
        means.append(np.concatenate([own[random.integers(0, len(own), (c, len(own)))].mean(axis=1) for c in counts]))
    differences = means[0] - means[1]
    return min(1.0, 2.0 * min(float(np.mean(differences <= TIE)), float(np.mean(differences >= -TIE))))
