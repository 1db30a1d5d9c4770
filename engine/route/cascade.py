"""The cascade: BM25 answers every query, and a costlier strategy only those of low confidence (A075 to A084, X04)."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..arrays import Flags, Floats, Integers
from ..errors import ParameterError, choices
from ..fuse.fusion import check_name
from ..hybrid.strategy import NAMED, Strategy
from ..locks import once
from .classifier import Classifier
from .confidence import CONFIDENCES
from .router import Router, policy_fields

TAU = 0.10
"""The threshold on the margin (SPEC A076). With it BM25 alone answers 63 % of LongMemEval's queries and 68 % of
LoCoMo's (A086, A087)."""
LONGMEMEVAL_THRESHOLDS: dict[str, float] = {
    "knowledge-update": 0.12,
    "multi-session": 0.02,
    "single-session-assistant": 0.28,
    "single-session-preference": 0.0,
    "single-session-user": 0.0,
    "temporal-reasoning": 0.0,
}
"""AgentIR's thresholds on the margin for LongMemEval's types (SPEC A079, Table 22). A threshold of 0 skips all queries,
but the skip shares that the table prints beside it are lower (X09). The thresholds are fitted to these questions; tune
your own for others."""
DEPTH = 100
"""How many hits a confidence reads."""
DIALOGUES = "dialogue", "dialogue_words", "exchanges"
"""The fields of a cascade with strategies for queries that search a dialogue."""
AUTO_TAU = 0.90
"""The threshold of ``auto``, of records outside dialogues: the least at which notes, on the half that tunes, fall below
the better of BM25 and ``fused`` by no more than chance in Hit@1, Hit@5 and nDCG@10 (`bench/strategies.py`)."""


# Sources: A075, X04, A092, A078, A081, A083.
@dataclass(frozen=True)
class Cascade:
    """BM25 answers every query whose confidence reaches the threshold. `escalate` answers the others.

    A query that does not escalate is said to skip. With a threshold of 0 every query that has a confidence skips; with
    a threshold above 1, or infinity, none does. A query without a confidence (fewer than two records matched) always
    escalates. Beware of 0: BM25 may be sure of a first hit that is wrong.

    tau             the threshold
    taus            thresholds by type; all other types have `tau`
    lexical_types   types for which BM25 is best; their threshold is 0
    escalate        a strategy (what `Strategy.of` takes), or a router; ``agent_rrf`` needs queries with a time,
                    `Query.now`
    confidence      one of `CONFIDENCES`, ``margin``, ``fraction`` or ``entropy``: the number that is compared with
                    the threshold
    depth           how many hits ``fraction`` and ``entropy`` read, at least 2
    classifier      predicts the type of a query that has none; without a classifier such a query has threshold `tau`
    needs_vectors   whether a query that cannot be compared by vectors is refused, as `escalate` would. Otherwise BM25
                    answers it: where the searched records have no vectors, or the query has none and nothing makes one
    dialogue        a strategy for queries that search a dialogue: more than half of the records stand beside others in
                    a session (`is_dialogue`), and the engine keeps texts. It answers them whatever BM25's confidence
    dialogue_words  that for such queries that cannot be compared by vectors
    exchanges       that in place of `dialogue` for queries whose hits are exchanges (`Query.unit`), where an assistant
                    writes at length: 40 terms a record on average

    Raises `ParameterError`.
    """

    tau: float = TAU
    taus: Mapping[str, float] | None = field(default=None, hash=False)
    lexical_types: tuple[str, ...] = ()
    escalate: Strategy | Router = NAMED["agent_rrf"]
    confidence: str = "margin"
    depth: int = DEPTH
    classifier: Classifier | None = None
    needs_vectors: bool = True
    dialogue: Strategy | None = None
    dialogue_words: Strategy | None = None
    exchanges: Strategy | None = None
    name: str = "cascade"

    def __post_init__(self) -> None:
        check_name("a cascade's name", self.name)
        object.__setattr__(self, "tau", _check_threshold("tau", self.tau))
        if self.taus is not None:
            if not isinstance(self.taus, Mapping):
                raise ParameterError(f"taus must be a mapping of types to thresholds, not {self.taus!r}")
            for type in self.taus:
                check_name("a type in taus", type)
            thresholds = {type: _check_threshold(f"taus[{type!r}]", value) for type, value in self.taus.items()}
            object.__setattr__(self, "taus", thresholds)
        if isinstance(self.lexical_types, str) or not isinstance(self.lexical_types, (list, tuple, set, frozenset)):
            raise ParameterError(f"lexical_types must be a list of types, not {self.lexical_types!r}")
        for type in self.lexical_types:
            check_name("a lexical type", type)
        object.__setattr__(self, "lexical_types", tuple(sorted(set(self.lexical_types))))
        object.__setattr__(self, "escalate", _parse_escalation(self.escalate))
        for name in DIALOGUES:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Strategy.of(getattr(self, name)))
        if self.dialogue_words is not None and self.dialogue_words.dense:
            raise ParameterError(
                f"a cascade's dialogue_words is for want of vectors, and {self.dialogue_words.name!r} compares vectors"
            )
        if not isinstance(self.confidence, str) or self.confidence not in CONFIDENCES:
            raise ParameterError(f"unknown confidence {self.confidence!r}{choices(self.confidence, CONFIDENCES)}")
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 2:
            raise ParameterError(f"a cascade's depth must be 2 or more, not {self.depth!r}")
        if self.classifier is not None:
            object.__setattr__(self, "classifier", Classifier.of(self.classifier))
        if not isinstance(self.needs_vectors, bool):
            raise ParameterError(f"a cascade's needs_vectors must be true or false, not {self.needs_vectors!r}")
        if not self.needs_vectors and self.classifier is not None and self.classifier.dimension:
            raise ParameterError("a cascade whose classifier reads vectors needs vectors: leave needs_vectors true")

    def decide(self, scores: Floats, counts: Integers, types: Sequence[str | None]) -> tuple[Floats, Floats, Flags]:
        """Decide for each query: ([B] confidence or NaN, [B] threshold, [B] whether the query skips).

        `scores` float64 [B, n] are BM25's, descending. `counts` int64 [B] is how many of a row matched; scores behind
        them are ignored. n must be at least 2. ``fraction`` and ``entropy`` read `depth` scores only if n is at least
        `depth`. `types` [B] are the queries' own or predicted types, or None. A row of the result depends on the same
        row of the arguments alone.
        """
        confidence = CONFIDENCES[self.confidence](scores[:, : self.depth], counts)
        thresholds = np.array([self.threshold(type) for type in types], dtype=np.float64)
        return confidence, thresholds, confidence >= thresholds

    @property
    def looks_at(self) -> int:
        """How many hits the confidence reads."""
        return 2 if self.confidence == "margin" else self.depth

    def threshold(self, type: str | None) -> float:
        """The threshold of queries of this type."""
        if type is None:
            return self.tau
        return 0.0 if type in self.lexical_types else (self.taus or {}).get(type, self.tau)

    @once
    def costly(self) -> tuple[Strategy | Router, ...]:
        """All that may answer in place of BM25."""
        return (self.escalate, *(own for name in DIALOGUES if (own := getattr(self, name)) is not None))

    @property
    def dense(self) -> bool:
        """Whether queries need vectors, for a strategy or for the classifier."""
        compared = any(each.dense for each in self.costly)
        return compared or (self.classifier is not None and self.classifier.dimension > 0)

    @property
    def learned(self) -> bool:
        """Whether some queries compare learned term weights."""
        return any(each.learned for each in self.costly)

    @property
    def aged(self) -> bool:
        """Whether some answers depend on the query's own time."""
        return any(each.aged for each in self.costly)

    def needs_now(self, type: str | None) -> bool:
        """Whether a query of this type (None: of unknown type) may need its own time, `Query.now`."""
        labels = [None] if self.classifier is None else self.classifier.labels
        types = labels if type is None else [type]
        return any(each.needs_now(label) for each in self.costly for label in types)

    @once
    def words_alone(self) -> Strategy | None:
        """What answers queries that search dialogues and have no vectors, whatever else they ask; None: it depends."""
        decides = self.classifier is not None or self.needs_vectors or not isinstance(self.escalate, Strategy)
        return None if decides or self.needs_now(None) else self.dialogue_words

    def deep(self, *, complete: bool = False) -> Cascade:
        """The same cascade with all but confident queries answered over all records that pass their filters."""
        return replace(
            self,
            escalate=self.escalate.deep(complete=complete),
            **{name: own.deep(complete=complete) for name in DIALOGUES if (own := getattr(self, name)) is not None},
        )

    @classmethod
    def of(cls, value: Cascade | Mapping[str, Any]) -> Cascade:
        """A cascade from a mapping with ``"kind": "cascade"`` and its fields; a cascade is returned as it is.

        Raises `ParameterError`.
        """
        return value if isinstance(value, Cascade) else cls(**policy_fields(cls, "cascade", value))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, which `of` takes. JSON has no infinity, so it is written as "inf"."""
        return {
            "kind": "cascade",
            "name": self.name,
            "tau": _json_threshold(self.tau),
            "taus": None
            if self.taus is None
            else {type: _json_threshold(threshold) for type, threshold in self.taus.items()},
            "lexical_types": list(self.lexical_types),
            "escalate": self.escalate.to_dict(),
            "confidence": self.confidence,
            "depth": self.depth,
            "classifier": None if self.classifier is None else self.classifier.to_dict(),
            "needs_vectors": self.needs_vectors,
            **{name: (own := getattr(self, name)) and own.to_dict() for name in DIALOGUES},
        }

    def __str__(self) -> str:
        thresholds = {**(self.taus or {}), **dict.fromkeys(self.lexical_types, 0.0)}
        by_type = "".join(f", {type} {value:g}" for type, value in thresholds.items())
        prediction = "" if self.classifier is None else f" (types predicted: {self.classifier})"
        bound = f"{self.confidence} of {self.tau:g}{by_type}{prediction}"
        without = "" if self.needs_vectors else ", and bm25 where there are no vectors"
        talk = "" if self.dialogue is None else f"; of dialogues {self.dialogue}"
        return f"{self.name}: bm25 from a {bound} on, else {self.escalate}{without}{talk}"


def _parse_escalation(value: Any) -> Strategy | Router:
    if isinstance(value, Router) or (isinstance(value, Mapping) and value.get("kind") == "router"):
        return Router.of(value)
    return Strategy.of(value)


def _check_threshold(what: str, value: object) -> float:
    number = math.inf if value == "inf" else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 0.0:
        raise ParameterError(f"{what} must be a number of at least 0, or infinity, not {value!r}")
    return math.inf if number > sys.float_info.max else float(number)


def _json_threshold(threshold: float) -> float | str:
    return threshold if threshold < math.inf else "inf"


AUTO = Cascade(
    AUTO_TAU,
    escalate=NAMED["recall"],
    needs_vectors=False,
    dialogue=NAMED["dialogue"],
    dialogue_words=NAMED["dialogue-words"],
    exchanges=NAMED["dialogue-exchanges"],
    name="auto",
)
"""The strategy for who does not want to choose one.

Of dialogues ``dialogue``, by words alone where there are no vectors; of other records BM25 where it is far ahead or
alone, else ``recall``.
"""
