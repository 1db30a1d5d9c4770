"""From some fifty labelled questions to a policy (SPEC A093, A080, X10).

Every system answers every question. Where BM25's answer is as good as another's, the other need not run:
one threshold on BM25's confidence for each system to escalate to, and thresholds by type, are the smallest whose
accuracy stays within a margin of always escalating. From the types and words of the questions a classifier learns what
routers go by. All of these are then run and timed as they would be used; the chosen one is the cheapest whose accuracy
is within the margin of the best single system.

The choice is among one fitted threshold for each system, not among all thresholds, and does not ask for cross-validated
accuracy except of what learned a classifier. Over 100 draws of 50 questions of LoCoMo (Hit@5 with MiniLM, a query to
encode taken as 13 ms), the policy then loses .012 on the other questions against the best system there and takes
3.7 ms; chosen among all thresholds it loses .015 at 3.4 ms, chosen by cross-validated accuracy .010 at 7.6 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from ..arrays import Floats, Integers
from ..errors import ParameterError
from ..evaluate.protocol import TAUS_A087
from ..hybrid.strategy import BM25, AnyStrategy, Strategy
from ..metrics.bootstrap import Comparison, paired_bootstrap
from ..route.cascade import DEPTH, Cascade
from ..route.classifier import Classifier
from ..route.confidence import CONFIDENCES
from ..route.policy import Answerer, Policy
from ..route.router import Router
from .drift import reference_of
from .front import Point, cheapest
from .measure import REPEATS, Judge, Labelled, PolicyRun, Questions
from .thresholds import (
    ALWAYS,
    MARGIN,
    Fold,
    best,
    best_by_type,
    cross_validate,
    folds_of,
    members,
    smallest_tau,
    sweep,
    taus_by_type,
    thresholds,
)
from .tuned import Confirmation, Tuned, point_to_dict

if TYPE_CHECKING:
    from ..engine import Engine

SYSTEMS = ("bm25", "dense", "rrf", "agent_rrf", "fused")
"""AgentIR's four systems (A093), and z-normalised fusion."""
SLACK = 0.02
"""Costs that differ by less than this share of the dearest system's count as equal, and the simplest way is chosen: of
ways that do the same, runs on a shared machine differed by that much."""

ROUTER = "router"
SOFT = "soft router"

Types = list["str | None"]


def tune(
    engine: Engine,
    labelled: Sequence[Labelled],
    *,
    systems: Sequence[AnyStrategy] | None = None,
    metric: str = "hit@5",
    held_out: Sequence[Labelled] = (),
    folds: int = 5,
    margin: float = MARGIN,
    seed: int = 0,
    judge: Judge | None = None,
    confidence: str = "margin",
    k: int | None = None,
    repeats: int = REPEATS,
    progress: bool = False,
) -> Tuned:
    """A policy for `engine`, fitted to `labelled` and confirmed on `held_out`.

    `systems` need BM25 among them and another; None are `SYSTEMS`, without those that count ages where no question has
    a time (`about["left_out"]` says so). `metric`, `judge` and k are as in `Questions`, `confidence` is one of
    `CONFIDENCES`. Types come from `Labelled.type`, or the query's own; where two or more are there, thresholds and
    routers by type are tried as well, which takes scikit-learn unless every query says its type itself.

    All ways to answer take turns, and a time is the least of `repeats` runs of the batch, after a warm-up; on the
    held-out questions it is one run's, in batches as large as `labelled`, in turns as well. The engine should have
    nothing else to do. The same `seed` gives the same folds and resamples; times differ from run to run, and with them
    a choice among points of nearly equal cost. `progress` shows a bar on a terminal.

    Where one system is best for all queries, the policy is that `Strategy`. The chosen point may lie off the front
    (`Tuned.beaten_by`): thresholds that were not fitted are not chosen, and costs within `SLACK` count as equal.

    Raises `ParameterError`, also where a system counts ages and a question has no time, `MissingExtraError` and what
    the engine raises.
    """
    chosen, left_out = _systems(systems, [*labelled, *held_out])
    with tqdm(desc="tuning", total=0, unit=" runs", disable=not (progress and sys.stderr.isatty())) as bar:
        questions = Questions(engine, labelled, metric, judge=judge, k=k)
        return _Tuner(questions, chosen, left_out, folds, margin, seed, confidence, repeats, bar).tuned(held_out)


def _systems(given: Sequence[AnyStrategy] | None, asked: Sequence[Labelled]) -> tuple[list[Strategy], dict[str, str]]:
    """The systems to run, and why others are left out."""
    found = [Strategy.of(one) for one in (SYSTEMS if given is None else given)]
    left_out: dict[str, str] = {}
    for system in found:
        without = [one.query for one in asked if one.query.now is None and system.needs_now(one.query.type)]
        if without and given is None and all(one.query.now is None for one in asked):
            left_out[system.name] = "it counts ages, and no question has a time of its own ('now')"
        elif without:
            raise ParameterError(
                f"the system {system.name!r} counts ages from a question's own time, and {len(without)} of "
                f"{len(asked)} have none, such as {without[0].text[:60]!r}: give them a 'now', or name the other "
                "systems alone (`systems`, --system)"
            )
    return [one for one in found if one.name not in left_out], left_out


@dataclass(frozen=True)
class _Candidate:
    """A way to answer that may be chosen, or (`swept`) only stands on the front."""

    name: str
    how: Answerer
    cross_validated: float | None = None
    learned: bool = False
    swept: bool = False


@dataclass
class _Tuner:
    """One tuning; the fields are `tune`'s, but for the questions and the progress bar."""

    questions: Questions
    systems: list[Strategy]
    left_out: dict[str, str]
    folds: int
    margin: float
    seed: int
    confidence: str
    repeats: int
    bar: tqdm[Any]

    def __post_init__(self) -> None:
        names = [one.name for one in self.systems]
        labelled = self.questions.labelled
        if len(set(names)) < len(names) or BM25 not in names or len(names) < 2:
            raise ParameterError(f"tuning needs bm25 and another system, each once, not {names}")
        if not next(one for one in self.systems if one.name == BM25).plain:
            raise ParameterError("the system 'bm25' must be plain BM25, which a cascade falls back on")
        if len(labelled) < 2:
            raise ParameterError(
                f"tuning needs 2 labelled questions at least, some 50 to be of use, not {len(labelled)}"
            )
        margin, repeats = self.margin, self.repeats
        if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0.0 <= margin <= 1.0:
            raise ParameterError(f"margin must lie between 0 and 1, not {margin!r}")
        if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
            raise ParameterError(f"repeats must be 1 or more, not {repeats!r}")
        if self.confidence not in CONFIDENCES:
            raise ParameterError(f"unknown confidence {self.confidence!r}; there are: {', '.join(CONFIDENCES)}")
        self.engine = self.questions.engine
        self.fold = folds_of(len(labelled), self.folds, self.seed)
        self.types: Types = [one.query.type if one.type is None else one.type for one in labelled]
        self.texts = [one.query.text for one in labelled]
        self.given: Types = [one.query.type for one in labelled]
        self.typed = len({name for name in self.types if name is not None}) > 1

    def tuned(self, held_out: Sequence[Labelled]) -> Tuned:
        batches = -(-len(held_out) // len(self.texts))
        self._expect(len(self.systems) + (int(self.fold.max()) + 1 if self.typed else 0))
        self._expect(batches * (len(self.systems) + 1))
        if self.typed and None in self.given:
            # A missing scikit-learn should not cost the runs first.
            self._classifier(np.arange(len(self.texts)))
        statics = [_Candidate(one.name, one) for one in self.systems]
        # What the systems are worth, and their rough cost, which breaks ties; the points' times come with the others'.
        first = self.questions.compare({own.name: own.how for own in statics}, progress=self.bar.update)
        values = np.stack([first[own.name].values for own in statics])
        ms = np.array([first[own.name].milliseconds for own in statics])
        lexical = values[[own.name for own in statics].index(BM25)]
        others = [place for place, own in enumerate(statics) if own.name != BM25]
        escalation = self.systems[others[best(values[others], ms[others])]]
        sure = self._confidence()

        candidates = [*statics]
        found: dict[str, tuple[Fold, ...]] = {}
        for place in others:
            candidate, own_folds = self._single(self.systems[place], sure, lexical, values[place])
            candidates.append(candidate)
            if self.systems[place] == escalation:
                found["one threshold"] = own_folds
        escalated = first[escalation.name].values
        table: dict[str, dict[str, Any]] = {}
        classified = None
        if self.typed:
            typed, typed_folds, table, classified = self._typed(escalation, sure, lexical, escalated, values, ms)
            candidates += typed
            found |= typed_folds
        there = {own.how.tau for own in candidates if isinstance(own.how, Cascade) and own.how.escalate == escalation}
        candidates += [
            _Candidate(_named(escalation.name, tau), self._cascade(escalation, tau), swept=True)
            for tau in TAUS_A087
            if tau not in there
        ]

        self._expect(len(candidates) * self.repeats)
        runs = self.questions.compare(
            {own.name: own.how for own in candidates}, repeats=self.repeats, progress=self.bar.update
        )
        points = [
            Point(own.name, run.accuracy, run.milliseconds, run.skip, own.cross_validated, own.learned)
            for own in candidates
            for run in [runs[own.name]]
        ]
        systems = points[: len(statics)]
        target = max(point.accuracy for point in systems) - self.margin
        slack = SLACK * max(point.milliseconds for point in systems)
        # From the simplest on: single systems, one threshold, then what goes by type.
        chosen = cheapest([p for p, own in zip(points, candidates, strict=True) if not own.swept], target, slack)
        policy = next(own.how for own in candidates if own.name == chosen.name)
        confirmation, reference = self._confirmed(policy, chosen, held_out, runs[chosen.name])
        return Tuned(
            policy,
            chosen,
            tuple(points),
            tuple(systems),
            escalation.name,
            tuple(sweep(sure, lexical, escalated)),
            table,
            {name: own_folds for name, own_folds in found.items() if own_folds},
            classified,
            self._differences(runs[chosen.name], runs),
            confirmation,
            {
                "metric": "judge" if self.questions.judge is not None else self.questions.metric,
                "judged": self.questions.judge is not None,
                "k": self.questions.k,
                "labelled": len(self.texts),
                "held_out": len(held_out),
                "seed": self.seed,
                "margin": float(self.margin),
                "confidence": self.confidence,
                "left_out": self.left_out,
                "backend": self.engine.backend.name,
                "model": None
                if self.engine.pin is None
                else {name: self.engine.pin[name] for name in ("name", "version", "dimension")},
                "systems": {point.name: point_to_dict(point) for point in systems},
                "chosen": {"name": chosen.name, **point_to_dict(chosen)},
                "reference": reference,
            },
        )

    def _expect(self, runs: int) -> None:
        self.bar.total = (self.bar.total or 0) + runs
        self.bar.refresh()

    def _confidence(self) -> Floats:
        hits = self.engine.search(self.questions.batch, DEPTH)
        return CONFIDENCES[self.confidence](hits.scores, hits.counts.astype(np.int64))

    def _cascade(self, escalate: Strategy | Router, tau: float, **how: Any) -> Cascade:
        return Cascade(tau, escalate=escalate, confidence=self.confidence, **how)

    def _classifier(self, places: Integers) -> Classifier | None:
        """Fitted to the questions at these places; None where it is not needed, or no type is known."""
        known = [(self.texts[place], name) for place in places.tolist() if (name := self.types[place]) is not None]
        if None not in self.given or not known:
            return None
        texts, types = zip(*known, strict=True)
        return Classifier.fit(texts, types, seed=self.seed)

    def _single(
        self, escalate: Strategy | Router, sure: Floats, lexical: Floats, escalated: Floats
    ) -> tuple[_Candidate, tuple[Fold, ...]]:
        def fit(train: Integers) -> Callable[[Integers], Floats]:
            tau = smallest_tau(sure[train], lexical[train], escalated[train], self.margin)
            return lambda test: np.full(len(test), tau)

        tau = smallest_tau(sure, lexical, escalated, self.margin)
        own_folds, unseen = cross_validate(sure, lexical, escalated, self.fold, fit)
        candidate = _Candidate(
            _named(escalate.name, tau),
            self._cascade(escalate, tau),
            float(unseen.mean()),
            learned=isinstance(escalate, Router),
        )
        return candidate, tuple(own_folds)

    # Sources: A078, A081, A095, A097.
    def _typed(
        self, escalation: Strategy, sure: Floats, lexical: Floats, escalated: Floats, values: Floats, ms: Floats
    ) -> tuple[list[_Candidate], dict[str, tuple[Fold, ...]], dict[str, dict[str, Any]], float | None]:
        """What goes by types: thresholds, the trigger, the routers, each cross-validated
        with a classifier that has not seen the questions."""
        everything = np.arange(len(self.texts))
        by_type = f"cascade {escalation.name} by type"

        def fitted(train: Integers, model: Classifier | None) -> dict[str, Policy]:
            own = [self.types[place] for place in train.tolist()]
            columns = values[:, train]
            winners, rest = best_by_type(columns, ms, own), best(columns, ms)
            tau = smallest_tau(sure[train], lexical[train], escalated[train], self.margin)
            taus = taus_by_type(sure[train], lexical[train], escalated[train], own, self.margin)
            plain = tuple(name for name, row in winners.items() if self.systems[row].name == BM25)
            table = {name: self.systems[row] for name, row in winners.items()}
            return {
                by_type: self._cascade(escalation, tau, taus=taus, classifier=model),
                f"trigger {escalation.name}": self._cascade(escalation, ALWAYS, lexical_types=plain, classifier=model),
                ROUTER: Router(table, self.systems[rest], model, name=ROUTER),
                SOFT: Router(table, self.systems[rest], model, soft=True, name=SOFT),
            }

        unseen: dict[str, Floats] = {}
        found: list[Fold] = []
        right = []
        for fold in range(int(self.fold.max()) + 1):
            train, test = np.flatnonzero(self.fold != fold), np.flatnonzero(self.fold == fold)
            places = test.tolist()
            model = self._classifier(train)
            if model is not None:
                told = model.predict([self.texts[place] for place in places])
                known = [(name, self.types[place]) for name, place in zip(told, places, strict=True)]
                right += [name == true for name, true in known if true is not None]
            for name, policy in fitted(train, model).items():
                run = self.questions.select(places).answer(policy)
                unseen.setdefault(name, np.empty(len(self.texts)))[test] = run.values
                if name == by_type:
                    found.append(Fold(len(places), run.skip or 0.0, run.accuracy))
            self.bar.update()

        def by_truth(train: Integers) -> Callable[[Integers], Floats]:
            own = [self.types[place] for place in train.tolist()]
            tau = smallest_tau(sure[train], lexical[train], escalated[train], self.margin)
            taus = taus_by_type(sure[train], lexical[train], escalated[train], own, self.margin)
            return lambda test: thresholds([self.types[place] for place in test.tolist()], tau, taus)

        oracle, _ = cross_validate(sure, lexical, escalated, self.fold, by_truth)
        whole = fitted(everything, self._classifier(everything))
        candidates = [
            _Candidate(name, policy, float(unseen[name].mean()), learned=True) for name, policy in whole.items()
        ]
        soft = whole[SOFT]
        assert isinstance(soft, Router)
        candidates.append(self._single(soft, sure, lexical, unseen[SOFT])[0])
        winners = best_by_type(values, ms, self.types)
        taus = taus_by_type(sure, lexical, escalated, self.types, self.margin)
        table = {name: self._type(name, of, winners, taus, sure) for name, of in members(self.types).items()}
        return (
            candidates,
            {"by type, predicted": tuple(found), "by type, oracle": tuple(oracle)},
            table,
            sum(right) / len(right) if right else None,
        )

    def _type(
        self, name: str, of: Integers, winners: dict[str, int], taus: dict[str, float], sure: Floats
    ) -> dict[str, Any]:
        known = sure[of][~np.isnan(sure[of])]
        tau = taus.get(name)
        return {
            "n": len(of),
            "best": self.systems[winners[name]].name if name in winners else None,
            "tau": tau,
            "skip": None if tau is None else float(np.mean(sure[of] >= tau)),
            "median_confidence": float(np.median(known)) if len(known) else None,
        }

    def _confirmed(
        self, policy: Answerer, chosen: Point, held_out: Sequence[Labelled], tuned: PolicyRun
    ) -> tuple[Confirmation | None, dict[str, Any]]:
        if not held_out:
            return None, reference_of(tuned, "labelled", self.seed)
        own = self.questions
        unseen = Questions(self.engine, held_out, own.metric, judge=own.judge, k=own.k)
        # A chosen system is its own policy, and not timed twice.
        ways: dict[str, Answerer] = {**{one.name: one for one in self.systems}, chosen.name: policy}
        runs = unseen.compare(ways, size=len(own), progress=self.bar.update)
        run = runs[chosen.name]
        confirmation = Confirmation(
            len(held_out),
            replace(chosen, accuracy=run.accuracy, milliseconds=run.milliseconds, skip=run.skip, cross_validated=None),
            tuple(Point(one.name, runs[one.name].accuracy, runs[one.name].milliseconds) for one in self.systems),
            self._differences(run, runs),
        )
        return confirmation, reference_of(run, "held_out", self.seed)

    def _differences(self, run: PolicyRun, runs: dict[str, PolicyRun]) -> dict[str, Comparison]:
        return {one.name: paired_bootstrap(run.values, runs[one.name].values, seed=self.seed) for one in self.systems}


def _named(escalate: str, tau: float) -> str:
    return f"cascade {escalate} {'always' if tau >= ALWAYS else format(tau, '.2f')}"
