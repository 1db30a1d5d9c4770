"""Tunes a policy on about fifty labelled questions (SPEC A093, A080, X10).

1. Every system (a single strategy, such as BM25) answers every question.
2. Thresholds are fitted. If BM25's confidence is high enough, its answer is as good as another system's, which then
   need not run. For each system to escalate to there is one threshold on BM25's confidence, and for the best of them
   also thresholds by type. Each is the smallest threshold whose accuracy stays within a margin of always escalating.
3. A classifier learns the types of questions from their words, and if asked from their vectors (A096), for routers and
   for thresholds by type.
4. All of these policies are run and timed as they would be used. The chosen one is the cheapest whose accuracy is
   within the margin of the best single system.

For each system only its one fitted threshold may be chosen, not every threshold. Accuracy is cross-validated only for
policies with a classifier. Over 100 draws of 50 questions of LoCoMo (Hit@5 with MiniLM, 13 ms to encode a query), the
chosen policy then loses .012 on the other questions against the best system there and takes 3.7 ms. A choice among all
thresholds loses .015 at 3.4 ms. A choice by cross-validated accuracy loses .010 at 7.6 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from ..arrays import Floats, Integers
from ..encoders.encoder import check_rows
from ..errors import ParameterError, choices
from ..evaluate.protocol import TAUS_A087
from ..hybrid.strategy import BM25, AnyStrategy, Strategy
from ..metrics.bootstrap import Comparison, paired_bootstrap
from ..records.query import Query
from ..route.cascade import DEPTH, Cascade
from ..route.classifier import Classifier
from ..route.confidence import CONFIDENCES
from ..route.policy import Answerer, AnyPolicy, Policy, strategy_of
from ..route.router import Router
from ..vectors.vectors import unit_rows
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
    from ..memory import Memory

SYSTEMS = ("bm25", "dense", "rrf", "agent_rrf", "fused")
"""AgentIR's four systems (A093), and z-normalised fusion."""
SLACK = 0.02
"""Costs that differ by less than this share of the dearest system's cost count as equal.

Of policies that do the same work, runs on a shared machine differed by that much.
"""

ROUTER = "router"
SOFT = "soft router"

Types = list["str | None"]


def tune(
    engine: Memory,
    labelled: Sequence[Labelled],
    *,
    systems: Sequence[AnyStrategy | AnyPolicy] | None = None,
    metric: str = "hit@5",
    held_out: Sequence[Labelled] = (),
    folds: int = 5,
    margin: float = MARGIN,
    seed: int = 0,
    judge: Judge | None = None,
    confidence: str = "margin",
    k: int | None = None,
    repeats: int = REPEATS,
    vectors: bool = False,
    progress: bool = False,
) -> Tuned:
    """A policy for `engine`, fitted to `labelled` and confirmed on `held_out`.

    - `systems`: BM25 and at least one other. A policy, such as ``auto``, may be chosen as it is; the strategies that it
      is made of are systems too. None means `SYSTEMS`; if no question has a time, systems that need the
      age of records are left out, and `about["left_out"]` names them.
    - `metric`, `judge`, `k`: as in `Questions`.
    - `confidence`: one of `CONFIDENCES`.
    - `seed`: the same seed gives the same folds and resamples. Times differ from run to run, so the choice among points
      of nearly equal cost may differ too.
    - `vectors`: the classifier of types reads the vectors of queries too, not their words alone. Then a policy that
      predicts types encodes every query, also those that BM25 answers.
    - `progress`: show a bar on a terminal.

    The type of a question is `Labelled.type`, or else that of its query. If there are two types or more, thresholds and
    routers by type are tried as well. This needs scikit-learn, unless every query has a type itself.

    After a warm-up, all policies and systems take turns, and a time is that of the shortest of `repeats` runs. On the
    held-out questions they take turns once, in batches as large as `labelled`. The engine should have nothing else to
    do.

    If one system is best for all queries, the policy is that `Strategy`. The chosen point may lie off the front
    (`Tuned.beaten_by`), because thresholds that were not fitted are not chosen and costs within `SLACK` count as equal.

    Raises `ParameterError` (also if a named system needs the age of records and a question has no time, and for
    `vectors` where the engine has none or no classifier is fitted), `MissingExtraError`, and what the engine raises.
    """
    chosen, own_policies, left_out = _systems(systems, [*labelled, *held_out])
    with tqdm(desc="tuning", total=0, unit=" runs", disable=not (progress and sys.stderr.isatty())) as bar:
        questions = Questions(engine, labelled, metric, judge=judge, k=k)
        tuner = _Tuner(
            questions, chosen, own_policies, left_out, folds, margin, seed, confidence, repeats, vectors, bar
        )
        return tuner.tune(held_out)


def _systems(
    given: Sequence[AnyStrategy | AnyPolicy] | None, questions: Sequence[Labelled]
) -> tuple[list[Strategy], list[Policy], dict[str, str]]:
    """(the systems to run, the policies to run as they are, the reason why each other system is left out)."""
    answerers = [strategy_of(system) for system in (SYSTEMS if given is None else given)]
    systems = [each for each in answerers if isinstance(each, Strategy)]
    own_policies = [each for each in answerers if not isinstance(each, Strategy)]
    for part in chain.from_iterable(map(_strategies_in, own_policies)):
        if part.name not in [system.name for system in systems]:
            systems.append(part)
    left_out: dict[str, str] = {}
    for system in systems:
        without = [
            question.query
            for question in questions
            if question.query.now is None and system.needs_now(question.query.type)
        ]
        if without and given is None and all(question.query.now is None for question in questions):
            left_out[system.name] = "it counts ages, and no question has a time of its own ('now')"
        elif without:
            raise ParameterError(
                f"the system {system.name!r} counts ages from a question's own time, and {len(without)} of "
                f"{len(questions)} have none, such as {without[0].text[:60]!r}: give them a 'now', or name the other "
                "systems alone (`systems`, --system)"
            )
    return [system for system in systems if system.name not in left_out], own_policies, left_out


def _strategies_in(policy: Policy) -> Iterator[Strategy]:
    for part in policy.strategies.values() if isinstance(policy, Router) else policy.costly:
        if isinstance(part, Strategy):
            yield part
        else:
            yield from _strategies_in(part)


@dataclass(frozen=True)
class _Candidate:
    """A strategy or policy that may be chosen, or that (`swept`) can only be a point of the front."""

    name: str
    how: Answerer
    cross_validated: float | None = None
    learned: bool = False
    swept: bool = False


@dataclass
class _Tuner:
    """One run of `tune`. The fields are its parameters, with the labelled questions and the progress bar."""

    questions: Questions
    systems: list[Strategy]
    policies: list[Policy]
    left_out: dict[str, str]
    folds: int
    margin: float
    seed: int
    confidence: str
    repeats: int
    vectors: bool
    bar: tqdm[Any]

    def __post_init__(self) -> None:
        names = [each.name for each in (*self.systems, *self.policies)]
        labelled = self.questions.labelled
        if len(set(names)) < len(names) or BM25 not in names or len(names) < 2:
            raise ParameterError(f"tuning needs bm25 and another system, each once, not {names}")
        if not next(system for system in self.systems if system.name == BM25).plain:
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
            raise ParameterError(f"unknown confidence {self.confidence!r}{choices(self.confidence, CONFIDENCES)}")
        self.engine = self.questions.engine
        self.fold = folds_of(len(labelled), self.folds, self.seed)
        self.types: Types = [question.query.type if question.type is None else question.type for question in labelled]
        self.texts = [question.query.text for question in labelled]
        self.query_types: Types = [question.query.type for question in labelled]
        self.typed = len({name for name in self.types if name is not None}) > 1
        if self.vectors and not (self.typed and None in self.query_types):
            raise ParameterError(
                "vectors are for a classifier, and none is fitted: that takes questions of two types or more, whose "
                "queries do not tell their type themselves"
            )
        self.rows = _vectors_of(self.engine, [question.query for question in labelled]) if self.vectors else None

    def tune(self, held_out: Sequence[Labelled]) -> Tuned:
        batches = -(-len(held_out) // len(self.texts))
        self._expect(len(self.systems) + (int(self.fold.max()) + 1 if self.typed else 0))
        self._expect(batches * (len(self.systems) + 1))
        if self.typed and None in self.query_types:
            # A missing scikit-learn should show before the long runs.
            self._classifier(np.arange(len(self.texts)))
        statics = [_Candidate(system.name, system) for system in self.systems]
        # The values of the systems, and rough times that break ties. The times of the points are measured below,
        # together with those of all candidates.
        first = self.questions.compare({static.name: static.how for static in statics}, progress=self.bar.update)
        values = np.stack([first[static.name].values for static in statics])
        ms = np.array([first[static.name].milliseconds for static in statics])
        lexical = values[[static.name for static in statics].index(BM25)]
        others = [row for row, static in enumerate(statics) if static.name != BM25]
        escalation = self.systems[others[best(values[others], ms[others])]]
        sure = self._confidence()

        candidates = [*statics, *(_Candidate(policy.name, policy) for policy in self.policies)]
        folds: dict[str, tuple[Fold, ...]] = {}
        for row in others:
            candidate, single_folds = self._single(self.systems[row], sure, lexical, values[row])
            candidates.append(candidate)
            if self.systems[row] == escalation:
                folds["one threshold"] = single_folds
        escalated = first[escalation.name].values
        table: dict[str, dict[str, Any]] = {}
        classified = None
        if self.typed:
            typed, typed_folds, table, classified = self._typed(escalation, sure, lexical, escalated, values, ms)
            candidates += typed
            folds |= typed_folds
        fitted = {
            candidate.how.tau
            for candidate in candidates
            if isinstance(candidate.how, Cascade) and candidate.how.escalate == escalation
        }
        candidates += [
            _Candidate(_cascade_name(escalation.name, tau), self._cascade(escalation, tau), swept=True)
            for tau in TAUS_A087
            if tau not in fitted
        ]

        self._expect(len(candidates) * self.repeats)
        runs = self.questions.compare(
            {candidate.name: candidate.how for candidate in candidates},
            repeats=self.repeats,
            progress=self.bar.update,
        )
        points = [
            Point(
                candidate.name, run.accuracy, run.milliseconds, run.skip, candidate.cross_validated, candidate.learned
            )
            for candidate in candidates
            for run in [runs[candidate.name]]
        ]
        systems = points[: len(statics)]
        target = max(point.accuracy for point in systems) - self.margin
        slack = SLACK * max(point.milliseconds for point in systems)
        # The simplest come first: single systems, then one threshold, then policies by type.
        eligible = [point for point, candidate in zip(points, candidates, strict=True) if not candidate.swept]
        chosen = cheapest(eligible, target, slack)
        policy = next(candidate.how for candidate in candidates if candidate.name == chosen.name)
        confirmation, reference = self._confirm(policy, chosen, held_out, runs[chosen.name])
        return Tuned(
            policy,
            chosen,
            tuple(points),
            tuple(systems),
            escalation.name,
            tuple(sweep(sure, lexical, escalated)),
            table,
            {name: measured for name, measured in folds.items() if measured},
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
                "vectors": self.vectors,
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

    def _classifier(self, positions: Integers) -> Classifier | None:
        """A classifier fitted to the questions at these positions.

        None if every query has its type itself, or if no type is known.
        """
        known = [position for position in positions.tolist() if self.types[position] is not None]
        if None not in self.query_types or not known:
            return None
        texts, types = self._texts(known), [str(self.types[position]) for position in known]
        pin = self.engine.pin
        model = None if self.rows is None or pin is None else f"{pin['name']}@{pin['version']}"
        return Classifier.fit(texts, types, self._rows(known), seed=self.seed, model=model)

    def _texts(self, positions: Sequence[int]) -> list[str]:
        return [self.texts[position] for position in positions]

    def _rows(self, positions: Sequence[int]) -> Floats | None:
        """The vectors of these questions, for a classifier that reads vectors."""
        return None if self.rows is None else self.rows[positions]

    def _single(
        self, escalate: Strategy | Router, sure: Floats, lexical: Floats, escalated: Floats
    ) -> tuple[_Candidate, tuple[Fold, ...]]:
        def fit(train: Integers) -> Callable[[Integers], Floats]:
            tau = smallest_tau(sure[train], lexical[train], escalated[train], self.margin)
            return lambda test: np.full(len(test), tau)

        tau = smallest_tau(sure, lexical, escalated, self.margin)
        folds, unseen = cross_validate(sure, lexical, escalated, self.fold, fit)
        candidate = _Candidate(
            _cascade_name(escalate.name, tau),
            self._cascade(escalate, tau),
            float(unseen.mean()),
            learned=isinstance(escalate, Router),
        )
        return candidate, tuple(folds)

    # Sources: A078, A081, A095, A097.
    def _typed(
        self, escalation: Strategy, sure: Floats, lexical: Floats, escalated: Floats, values: Floats, ms: Floats
    ) -> tuple[list[_Candidate], dict[str, tuple[Fold, ...]], dict[str, dict[str, Any]], float | None]:
        """(the policies by type, their folds, what is known of each type, the classifier's accuracy).

        The policies are thresholds by type, the trigger and the routers. Each is cross-validated with a classifier that
        has not seen the questions.
        """
        everything = np.arange(len(self.texts))
        by_type = f"cascade {escalation.name} by type"

        def fit_policies(train: Integers, model: Classifier | None) -> dict[str, Policy]:
            types = [self.types[position] for position in train.tolist()]
            columns = values[:, train]
            winners, default = best_by_type(columns, ms, types), best(columns, ms)
            tau = smallest_tau(sure[train], lexical[train], escalated[train], self.margin)
            taus = taus_by_type(sure[train], lexical[train], escalated[train], types, self.margin)
            plain = tuple(name for name, row in winners.items() if self.systems[row].name == BM25)
            table = {name: self.systems[row] for name, row in winners.items()}
            return {
                by_type: self._cascade(escalation, tau, taus=taus, classifier=model),
                f"trigger {escalation.name}": self._cascade(escalation, ALWAYS, lexical_types=plain, classifier=model),
                ROUTER: Router(table, self.systems[default], model, name=ROUTER),
                SOFT: Router(table, self.systems[default], model, soft=True, name=SOFT),
            }

        unseen: dict[str, Floats] = {}
        folds: list[Fold] = []
        right = []
        for fold in range(int(self.fold.max()) + 1):
            train, test = np.flatnonzero(self.fold != fold), np.flatnonzero(self.fold == fold)
            positions = test.tolist()
            model = self._classifier(train)
            if model is not None:
                predicted = model.predict(self._texts(positions), self._rows(positions))
                known = [(name, self.types[position]) for name, position in zip(predicted, positions, strict=True)]
                right += [name == true for name, true in known if true is not None]
            for name, policy in fit_policies(train, model).items():
                run = self.questions.select(positions).answer(policy)
                unseen.setdefault(name, np.empty(len(self.texts)))[test] = run.values
                if name == by_type:
                    folds.append(Fold(len(positions), run.skip or 0.0, run.accuracy))
            self.bar.update()

        def fit_by_true_type(train: Integers) -> Callable[[Integers], Floats]:
            types = [self.types[position] for position in train.tolist()]
            tau = smallest_tau(sure[train], lexical[train], escalated[train], self.margin)
            taus = taus_by_type(sure[train], lexical[train], escalated[train], types, self.margin)
            return lambda test: thresholds([self.types[position] for position in test.tolist()], tau, taus)

        oracle, _ = cross_validate(sure, lexical, escalated, self.fold, fit_by_true_type)
        whole = fit_policies(everything, self._classifier(everything))
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
            {"by type, predicted": tuple(folds), "by type, oracle": tuple(oracle)},
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

    def _confirm(
        self, policy: Answerer, chosen: Point, held_out: Sequence[Labelled], tuned: PolicyRun
    ) -> tuple[Confirmation | None, dict[str, Any]]:
        if not held_out:
            return None, reference_of(tuned, "labelled", self.seed)
        labelled = self.questions
        unseen = Questions(self.engine, held_out, labelled.metric, judge=labelled.judge, k=labelled.k)
        # If the chosen policy is one of the systems, it has the same name and is timed once.
        ways: dict[str, Answerer] = {**{system.name: system for system in self.systems}, chosen.name: policy}
        runs = unseen.compare(ways, size=len(labelled), progress=self.bar.update)
        run = runs[chosen.name]
        confirmation = Confirmation(
            len(held_out),
            replace(chosen, accuracy=run.accuracy, milliseconds=run.milliseconds, skip=run.skip, cross_validated=None),
            tuple(
                Point(system.name, runs[system.name].accuracy, runs[system.name].milliseconds)
                for system in self.systems
            ),
            self._differences(run, runs),
        )
        return confirmation, reference_of(run, "held_out", self.seed)

    def _differences(self, run: PolicyRun, runs: dict[str, PolicyRun]) -> dict[str, Comparison]:
        return {
            system.name: paired_bootstrap(run.values, runs[system.name].values, seed=self.seed)
            for system in self.systems
        }


def _vectors_of(engine: Memory, queries: Sequence[Query]) -> Floats:
    """[queries, dimension] the vectors that a search would compare; zeros for a query without a text and a vector."""
    encoder, pin = engine.encoder, engine.pin
    texts = [query.text for query in queries if query.vector is None and query.text]
    if pin is None or (encoder is None and texts):
        raise ParameterError("vectors=True needs an engine with an encoder (--encoder), or queries that bring vectors")
    encoded = iter(
        unit_rows(check_rows(encoder.queries(texts), texts, encoder)) if encoder is not None and texts else ()
    )
    rows = np.zeros((len(queries), int(pin["dimension"])))
    for row, query in enumerate(queries):
        if query.vector is not None:
            rows[row] = query.vector[0]
        elif query.text:
            rows[row] = next(encoded)
    return rows


def _cascade_name(escalate: str, tau: float) -> str:
    return f"cascade {escalate} {'always' if tau >= ALWAYS else format(tau, '.2f')}"
