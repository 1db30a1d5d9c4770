"""The world of the tests: one vocabulary, one strategy each for records, writes and queries, and one plain model.

The model is a dictionary. Its BM25, vectors and learned weights are those of the oracle (engine/check/oracle.py), and
nothing here reads an engine's arrays. Words, ids and values are few, so ties, empty texts, terms of every record and
refused writes are common.

Long because the model, the vocabulary and the strategies are one: a word, a column or a verb that is added to one of
them is added to all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.check.oracle import Oracle, VectorOracle, WeightOracle, reciprocal_ranks

WORDS = ("a1", "b2", "c3", "d4", "e5", "f6")
RARE = tuple(f"x{number}" for number in range(40))
"""Words that few records have at a time, so that they die and come back."""
NAMESPACES = ("", "n", "team/a", "team/b")
IDS = tuple(f"r{number}" for number in range(30))
WINDOW = 4.0
"""Seconds of a time window; records have times from 0 to 12."""
EXPIRY = 4e9
"""In 2096: a query's own clock can be before or after it, and that of the machine expires nothing."""
COLUMNS = {"project": "category", "priority": "number"}
LATE_COLUMNS = {"mood": "category", "other": "json"}
"""Columns that are declared and dropped while a memory lives."""
DIMENSION = 2
NOW = 3e9
"""In 2065: all records are of before."""

Passes = Callable[[fr.Record], bool]
FILTERS: dict[str, tuple[Any, Passes]] = {
    "none": (None, lambda record: True),
    "session": ({"session": "s"}, lambda record: record.session == "s"),
    "no session": ({"session": None}, lambda record: record.session is None),
    "nobody": ({"session": "nobody"}, lambda record: False),
    "late": ({"time": {">=": 6.0}}, lambda record: record.time is not None and record.time >= 6.0),
    "project": ({"not": {"project": "x"}}, lambda record: record.extra.get("project") != "x"),
    "either": (
        {"or": [{"project": ["x", "y"]}, {"priority": {"<": 2}}]},
        lambda record: record.extra.get("project") in ("x", "y") or record.extra.get("priority", 9) < 2,
    ),
}
"""Filters in their JSON, and what they mean. The last names both columns."""
LATE_FILTERS: dict[str, tuple[Any, Passes]] = {
    "mood": ({"mood": ["glad", None]}, lambda record: record.extra.get("mood") in ("glad", None)),
    "other": ({"other": {"!=": None}}, lambda record: record.extra.get("other") is not None),
}
"""A filter for each of `LATE_COLUMNS`."""

# Strategies.

words = st.sampled_from(WORDS) | st.sampled_from(RARE)
texts = st.lists(words, max_size=6).map(" ".join)
ids = st.sampled_from(IDS)
namespaces = st.sampled_from(NAMESPACES)
filters = st.sampled_from(sorted(FILTERS))
times = st.none() | st.integers(0, 12).map(float)
sessions = st.sampled_from(["s", "t", None])
vectors = st.lists(st.integers(-2, 2), min_size=DIMENSION, max_size=DIMENSION).filter(any)
# Among them weights that round to 0, and one that stands between two steps.
weights = st.dictionaries(
    st.sampled_from(WORDS), st.sampled_from([0.0, 2.0**-12, 1.5 * 2.0**-10, 0.75, 2.0]), max_size=3
)
extras = st.fixed_dictionaries(
    {},
    optional={
        "project": st.sampled_from("xyz"),
        "priority": st.sampled_from([0, 1.5, 2]),
        "other": st.sampled_from([[1, "é"], {"k": 2}, "x"]),
        "mood": st.sampled_from(["glad", "calm"]),
    },
)
records = st.builds(
    fr.Record,
    ids,
    texts,
    namespace=namespaces,
    session=sessions,
    role=st.sampled_from([None, "user", "assistant"]),
    time=times,
    extra=extras,
    expires=st.sampled_from([None, None, None, EXPIRY]),
    payload=st.sampled_from([None, {"n": 1}]),
)
PEOPLE = ("ana", "ben", "cy")
entities = st.dictionaries(st.sampled_from(["Ana", "Ben"]), st.sampled_from(PEOPLE), max_size=2)
relations = st.lists(
    st.builds(fr.Relation, st.sampled_from(PEOPLE), st.sampled_from(PEOPLE), st.just("knows")), max_size=2
)
evident_records = st.builds(
    replace,
    records,
    embedding=st.none() | vectors,
    weights=st.none() | weights,
    entities=st.none() | entities,
    relations=st.none() | relations,
)
"""Records that may have vectors, learned weights, and statements of entities too."""


def batches(of: st.SearchStrategy[fr.Record] = records, size: int = 8) -> st.SearchStrategy[list[fr.Record]]:
    """Up to so many records, each id once."""
    return st.lists(of, max_size=size, unique_by=lambda record: (record.namespace, record.id))


SCOPES = (None, fr.SearchScope.session("s"), fr.SearchScope.session("t", None), fr.SearchScope.everything(3))
_places = st.one_of(
    st.fixed_dictionaries({"namespace": st.sampled_from([*NAMESPACES, "nobody"])}),
    st.fixed_dictionaries({"namespace": namespaces}),
    st.fixed_dictionaries({"namespaces": st.lists(namespaces, min_size=1, max_size=3)}),
    st.just({"under": "team"}),
)
_answers = st.fixed_dictionaries(
    {},
    optional={
        "k": st.integers(0, 60),
        "offset": st.integers(0, 5),
        "min_score": st.sampled_from([0.0, 0.3, 1.0]),
        "collapse": st.sampled_from(["text", "text", "session", "time"]),
        "unit": st.just("exchange"),
        "latest": st.sampled_from(["session", "project", "priority", ("session", "project")]),
    },
)
_times = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"since": times, "until": times}),
    st.fixed_dictionaries({"now": st.just(9.0), "half_life": st.sampled_from([0.01, 3.0]), "since": times}),
    st.fixed_dictionaries({"now": st.sampled_from([EXPIRY - 1, EXPIRY])}),
    st.fixed_dictionaries({"windows": st.integers(1, 3), "now": st.sampled_from([None, 9.0])}),
)
_passing = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "filter": filters.map(lambda name: FILTERS[name][0]),
            "scope": st.sampled_from(SCOPES),
            "statistics": st.sampled_from(["namespace", "filtered"]),
        }
    ),
)


@st.composite
def queries(draw: st.DrawFn, evident: bool = False, plain: bool = False) -> fr.Query:
    """A query by words, or by the other evidence too where records are `evident`. A `plain` one has no options."""
    spoken = draw(st.lists(words | st.just("unknown"), max_size=5))
    asked: dict[str, Any] = draw(_places) | {"text": " ".join(spoken)}
    if draw(st.booleans()):
        asked |= {"text": "", "terms": spoken}
    if plain:
        return fr.Query(**asked)
    if evident and draw(st.booleans()):
        asked |= {"strategy": draw(st.sampled_from(["dense", "sparse", "rrf"]))}
        asked |= {"vector": draw(vectors), "weights": draw(weights), "k": draw(st.integers(0, 30))}
        return fr.Query(**asked, filter=FILTERS[draw(filters)][0])
    if draw(st.integers(0, 7)) == 0:
        asked |= draw(st.fixed_dictionaries({"newest": st.just(True), "since": times, "k": st.integers(0, 20)}))
        return fr.Query(**asked, filter=FILTERS[draw(filters)][0])
    return fr.Query(**asked, **draw(_answers), **draw(_times), **draw(_passing))


PLAIN_QUERIES = [
    fr.Query("a1 b2", k=60),
    fr.Query("a1 x3 unknown"),
    fr.Query("unknown"),
    fr.Query(""),
    fr.Query("a1 b2 c3", k=0),
    fr.Query(terms=["c3", "c3", "b2"], namespace="n"),
    fr.Query("a1 c3", namespaces=["team/b", "", "nobody"], k=60),
    fr.Query("b2 a1", under="team", k=60),
]
OPTION_QUERIES = [
    *(
        fr.Query("a1 b2", filter=given, statistics=over)
        for given, _ in FILTERS.values()
        for over in ("namespace", "filtered")
    ),
    fr.Query("a1 b2 c3", since=2.0, until=9.0, k=60),
    fr.Query("a1 b2 c3", windows=2, under="team"),
    fr.Query("a1 b2 c3", windows=1, now=9.0),
    fr.Query("a1 b2 c3", now=9.0, half_life=3.0, k=60),
    *(fr.Query("a1 b2", now=now, k=60) for now in (EXPIRY - 1, EXPIRY)),
    fr.Query("a1 b2", now=EXPIRY, statistics="filtered", filter=FILTERS["session"][0], namespaces=["n", ""]),
    fr.Query("a1 b2", scope=SCOPES[1]),
    fr.Query("a1 b2", offset=3, k=5),
    fr.Query("a1 b2", min_score=0.3, k=60),
    *(fr.Query("a1 b2 c3", collapse=column, k=9) for column in ("text", "session", "time")),
    fr.Query("a1 b2", collapse="text", filter=FILTERS["late"][0], namespaces=["n", "team/a", ""]),
    fr.Query("b2", collapse="text", since=3.0, until=9.0, scope=SCOPES[1]),
    fr.Query("a1 b2 c3", unit="exchange", namespaces=["n", "team/b", ""], k=60),
    *(fr.Query("a1 b2", latest=names, k=60) for names in ("session", "priority", ("project", "session"))),
    fr.Query("a1 b2 c3", latest="session", now=6.0, namespaces=["n", "team/b", ""], filter=FILTERS["project"][0]),
    fr.Query("a1", latest="project", until=9.0, statistics="filtered", filter=FILTERS["late"][0], k=60),
    fr.Query("a1", newest=True, k=9, until=11.0),
    fr.Query(newest=True, k=60, namespaces=["n", "team/a"], filter=FILTERS["late"][0]),
    *(
        fr.Query("a1 c3", strategy=name, vector=[1, 2], weights={"b2": 0.75}, k=60)
        for name in ("dense", "sparse", "rrf")
    ),
    fr.Query("a1", strategy="rrf", vector=[1, 0], filter=FILTERS["session"][0], namespaces=["n", ""]),
]
"""A query of each kind: those that any method of BM25 answers, and those with the options that need scores above 0."""

# Writes.


@dataclass(frozen=True)
class Write:
    """One call of a verb that changes records."""

    verb: str
    records: tuple[fr.Record, ...] = ()
    ids: tuple[str, ...] = ()
    namespace: str | None = ""
    filter: str = "none"
    missing_ok: bool = False

    def run(self, memory: Any) -> int | None:
        """Make the call; returns what it returns."""
        place: dict[str, Any] = {"namespace": self.namespace}
        if self.verb in ID_VERBS[:2]:
            place |= {"missing_ok": self.missing_ok}
        given = FILTERS[self.filter][0]
        calls: dict[str, Callable[[], int | None]] = {
            "insert": lambda: memory.upsert(list(self.records)),
            "delete": lambda: memory.delete(list(self.ids), **place),
            "patch": lambda: memory.patch(list(self.ids), PATCH, session="p", **place),
            # In the order of their ids: the function's answer says the order.
            "rewrite": lambda: memory.rewrite(
                {str(self.namespace): list(self.ids)}, lambda held: [rewritten(held[key]) for key in sorted(held)]
            ),
            "update_where": lambda: memory.update_where(given, PATCH, session="p", **place),
            "delete_where": lambda: memory.delete_where(given, **place),
            "drop": lambda: memory.drop(self.namespace),
        }
        return calls[self.verb]() if self.verb in calls else getattr(memory, self.verb)(list(self.records))


PATCH = {"project": "z"}
RECORD_VERBS = ("add", "update", "upsert", "insert")
ID_VERBS = ("delete", "patch", "rewrite")
FILTER_VERBS = ("update_where", "delete_where")
VERBS = (*RECORD_VERBS, *ID_VERBS, *FILTER_VERBS, "drop")


def patched(record: fr.Record) -> fr.Record:
    """What a patch or a change by filter makes of a record."""
    return replace(record, session="p", extra={**record.extra, **PATCH})


def rewritten(record: fr.Record) -> fr.Record:
    """What a rewrite makes of a record."""
    return replace(record, text=f"{record.text} a1".strip(), time=1.0)


@st.composite
def writes(draw: st.DrawFn, of: st.SearchStrategy[fr.Record] = records, verbs: Sequence[str] = VERBS) -> Write:
    """A call of one of the verbs."""
    verb = draw(st.sampled_from(verbs))
    if verb in RECORD_VERBS:
        return Write(verb, tuple(draw(batches(of))))
    if verb in ID_VERBS:
        chosen = draw(st.lists(ids, max_size=6, unique=True))
        return Write(verb, ids=tuple(chosen), namespace=draw(namespaces), missing_ok=draw(st.booleans()))
    if verb in FILTER_VERBS:
        name = draw(st.sampled_from([name for name in sorted(FILTERS) if name != "none"]))
        return Write(verb, namespace=draw(namespaces | st.none()), filter=name)
    return Write(verb, namespace=draw(namespaces))


Held = dict[str, dict[str, fr.Record]]
"""Namespace -> id -> record, in order of last write."""
Answer = list[tuple[str, str, float, tuple[str, ...] | None, tuple[str, ...] | None]]
"""(namespace, id, score, exchange, copies), best first."""


@dataclass
class Model:
    """What a memory holds, and what it must answer."""

    method: str = "lucene"
    held: Held = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=lambda: dict(COLUMNS))
    """Those that are declared."""

    def __len__(self) -> int:
        return sum(map(len, self.held.values()))

    def copy(self) -> Model:
        """Another model with the same records."""
        return replace(self, held={name: dict(own) for name, own in self.held.items()})

    @property
    def namespaces(self) -> list[str]:
        """Those that hold records, in the order of their names."""
        return sorted(name for name, own in self.held.items() if own)

    def live(self, namespace: str, name: str) -> bool:
        """Whether there is such a record."""
        return name in self.held.get(namespace, ())

    def all(self, namespace: str | None, passes: Passes = FILTERS["none"][1]) -> list[fr.Record]:
        """The records of a namespace or (None) of all that pass, in order of last write."""
        names = self.namespaces if namespace is None else [namespace]
        return [record for name in names for record in self.held.get(name, {}).values() if passes(record)]

    def refusal(self, write: Write) -> tuple[type[Exception], ...]:
        """By which errors the memory may refuse a write; none where it must carry it out."""
        names = [(record.namespace, record.id) for record in write.records]
        twice = len({*names}) < len(names)
        missing = not all(self.live(*name) for name in names)
        if write.verb in ID_VERBS:
            missing = not write.missing_ok and not all(self.live(str(write.namespace), name) for name in write.ids)
        duplicate = (fr.errors.DuplicateIdError,)
        if write.verb == "add":
            return duplicate if twice or any(self.live(*name) for name in names) else ()
        if write.verb in RECORD_VERBS:
            unknown = missing and write.verb == "update"
            return (duplicate if twice else ()) + ((fr.errors.UnknownIdError,) if unknown else ())
        return (fr.errors.UnknownIdError,) if missing and write.verb in ("delete", "patch") else ()

    def fit(self, write: Write) -> Write:
        """The write without what would be refused."""
        if write.verb in ("add", "update"):
            wanted = write.verb == "update"
            kept = [r for r in write.records if self.live(r.namespace, r.id) == wanted]
            return replace(write, records=tuple(kept))
        if write.verb in ID_VERBS and not write.missing_ok:
            return replace(write, ids=tuple(name for name in write.ids if self.live(str(write.namespace), name)))
        return write

    def apply(self, write: Write) -> int | None:
        """Change the records as the write says; returns what its call must return."""
        if write.verb in RECORD_VERBS:
            return self._put(write.records)
        if write.verb == "drop":
            self.held.pop(str(write.namespace), None)
            return None
        if write.verb in FILTER_VERBS:
            chosen = self.all(write.namespace, FILTERS[write.filter][1])
        else:
            own = self.held.get(str(write.namespace), {})
            chosen = [
                own[name] for name in (sorted(write.ids) if write.verb == "rewrite" else write.ids) if name in own
            ]
        if write.verb in ("delete", "delete_where"):
            for record in chosen:
                del self.held[record.namespace][record.id]
            return len(chosen)
        return self._put([(rewritten if write.verb == "rewrite" else patched)(record) for record in chosen])

    def _put(self, batch: Sequence[fr.Record]) -> int:
        """Write records, which become the youngest of their namespaces."""
        for record in batch:
            own = self.held.setdefault(record.namespace, {})
            own.pop(record.id, None)
            own[record.id] = record
        return len(batch)

    def listed(self, namespace: str | None, filter: str, order: str, reverse: bool) -> list[fr.Record]:
        """As `Engine.records`; in the order ``written`` of all namespaces, one namespace after another."""
        chosen = self.all(namespace, FILTERS[filter][1])
        if order == "written":
            return chosen[::-1] if reverse else chosen
        chosen.sort(key=lambda record: (record.id, record.namespace), reverse=reverse)
        if order == "id":
            return chosen
        timed = [record for record in chosen if record.time is not None]
        timed.sort(key=lambda record: (record.time, record.id, record.namespace), reverse=reverse)
        return timed + [record for record in chosen if record.time is None]

    def distinct(self, column: str, namespace: str | None, filter: str) -> list[tuple[Any, int]]:
        """As `Engine.distinct`, in its order."""
        counts = Counter(value_of(record, column) for record in self.all(namespace, FILTERS[filter][1]))
        return sorted(counts.items(), key=lambda item: (-item[1], item[0] is None, 0 if item[0] is None else item[0]))

    def statistics(self, namespace: str) -> tuple[int, int, dict[str, int]]:
        """(N, total length, document frequencies)."""
        oracle = self._oracle(self.all(namespace))
        return len(oracle.counts), oracle.totals[0], dict(oracle.df)

    def score(self, query: fr.Query, record: fr.Record) -> int | None:
        """The quanta of one record for a query without options, or None."""
        own = self.all(record.namespace)
        return self._oracle(own).score(terms_of(query), own.index(record))

    def search(self, query: fr.Query, k: int = 10) -> Answer:
        """The hits of a query."""
        if query.k is not None:
            k = query.k
        elif query.scope is not None and query.scope.limit is not None:
            k = query.scope.limit
        ranked = self._newest(query) if query.newest else self._ranked(query)
        if query.min_score is not None:
            ranked = [pair for pair in ranked if pair[1] >= query.min_score]
        exchanges = self._exchanges(query) if query.unit == "exchange" else {}
        if exchanges:
            firsts = {exchanges[r.namespace, r.id]: place for place, (r, _) in reversed([*enumerate(ranked)])}
            ranked = [ranked[place] for place in sorted(firsts.values())]
        if query.collapse is not None:
            seen: dict[Any, int] = {}
            for place, (record, _) in enumerate(ranked):
                value = value_of(record, query.collapse)
                seen.setdefault(("alone", place) if value is None else ("value", value), place)
            ranked = [ranked[place] for place in sorted(seen.values())]
        ranked = ranked[query.offset : query.offset + k]
        named = {key: tuple(name for _, name in own) for key, own in exchanges.items()}
        return [
            (r.namespace, r.id, score, named.get((r.namespace, r.id)), self._copies(query, r)) for r, score in ranked
        ]

    def _copies(self, query: fr.Query, hit: fr.Record) -> tuple[str, ...] | None:
        """The ids of the other records that agree with a hit and could be one, in their order."""
        if query.collapse is None:
            return None
        held, value = self._searched(query), value_of(hit, query.collapse)
        passes, within = self._passes(query, held)
        agreeing = [r for r in held if value is not None and value_of(r, query.collapse) == value and r is not hit]
        return tuple(r.id for r in agreeing if passes(r) and within(r))

    def _exchanges(self, query: fr.Query) -> dict[tuple[str, str], tuple[tuple[str, str], ...]]:
        """For each searched record (its namespace and id) the user's turn and all behind it, up to the next one."""
        parts: list[list[fr.Record]] = []
        last: dict[tuple[str, str], list[fr.Record]] = {}
        for record in self._searched(query):
            own = None if record.session is None else last.get((record.namespace, record.session))
            if own is None or record.role == "user" != own[-1].role:
                parts.append(own := [])
                if record.session is not None and record.role == "user":
                    last[record.namespace, record.session] = own
            own.append(record)
        return {(r.namespace, r.id): tuple((o.namespace, o.id) for o in own) for own in parts for r in own}

    def _oracle(self, held: Sequence[fr.Record]) -> Oracle:
        delta = fr.BM25(method=self.method).delta
        assert delta is not None
        return Oracle([[record.text.split()] for record in held], method=self.method, delta=delta)

    def _searched(self, query: fr.Query) -> list[fr.Record]:
        """The records of the query's namespaces that have not expired, in their order."""
        names = [query.namespace]
        if query.namespaces is not None:
            names = [name for name in self.namespaces if name in query.namespaces]
        elif query.under is not None:
            names = [n for n in self.namespaces if n == query.under or n.startswith(query.under + "/")]
        now = -math.inf if query.now is None else query.now
        return [r for name in names for r in self.all(name) if r.expires is None or r.expires > now]

    def _passes(self, query: fr.Query, held: Sequence[fr.Record]) -> tuple[Passes, Passes]:
        """Whether a record passes filter and scope, and whether it lies in the time range and windows."""
        stated = next(passes for given, passes in FILTERS.values() if fr.Query(filter=given).filter == query.filter)
        scope = query.scope
        since = -math.inf if query.since is None else query.since
        until = math.inf if query.until is None else query.until
        windows = {math.floor(record.time / WINDOW) for record in held if record.time is not None}
        if query.now is not None:
            windows = {number for number in windows if number <= math.floor(query.now / WINDOW)}
        chosen = sorted(windows)[-int(query.windows) :] if query.windows else None
        ranged = query.since is not None or query.until is not None or chosen is not None

        def within(record: fr.Record) -> bool:
            if not ranged:
                return True
            if record.time is None or not since <= record.time <= until:
                return False
            return chosen is None or math.floor(record.time / WINDOW) in chosen

        def passes(record: fr.Record) -> bool:
            return stated(record) and (
                scope is None or scope.column is None or getattr(record, scope.column) == scope.id
            )

        if query.latest is None:
            return passes, within
        shown: dict[Any, fr.Record] = {}
        for number, record in enumerate(held):
            key: Any = [value_of(record, name) for name in query.latest]
            key = ("alone", number) if None in key else repr(key)
            moment = -math.inf if record.time is None else record.time
            if passes(record) and within(record) and (type(key) is tuple or not moment > (query.now or NOW)):
                before = shown.get(key)
                if before is None or moment >= (-math.inf if before.time is None else before.time):
                    shown[key] = record
        kept = {id(record) for record in shown.values()}
        # One outside the time range is not hidden.
        return lambda record: passes(record) and (id(record) in kept or not within(record)), within

    def _newest(self, query: fr.Query) -> list[tuple[fr.Record, float]]:
        held = self._searched(query)
        passes, within = self._passes(query, held)
        chosen = [record for record in held if passes(record) and within(record)][::-1]
        chosen.sort(key=lambda record: -math.inf if record.time is None else record.time, reverse=True)
        return [(record, record.time or 0.0) for record in chosen]

    def _ranked(self, query: fr.Query) -> list[tuple[fr.Record, float]]:
        held = self._searched(query)
        passes, within = self._passes(query, held)
        if query.statistics == "filtered":
            held = [record for record in held if passes(record)]
        scores = self._scores(query, held)
        found = []
        for number, record in enumerate(held):
            score = scores.get(number)
            if score is not None and passes(record) and within(record):
                if query.half_life is not None:
                    score = faded(round(score * 2.0**18), record.time, query.now or 0.0, query.half_life)
                found.append((-score, number))
        if query.strategy == "rrf":
            lists = [[n for n, _ in _by_rank(own)] for own in self._lists(query, held, passes)]
            return [(held[number], score) for number, score in reciprocal_ranks(lists, len(held))]
        return [(held[number], -score) for score, number in sorted(found)]

    def _scores(self, query: fr.Query, held: Sequence[fr.Record]) -> dict[int, float]:
        """Of each record that matches: the score by words, vectors or learned weights."""
        every = range(len(held))
        if query.strategy == "dense":
            vector = query.vector[0].tolist()
            near = VectorOracle([[] if r.embedding is None else r.embedding.tolist() for r in held])
            return {n: score for n in every if (score := near.score(vector, n)) is not None}
        if query.strategy == "sparse":
            learned = WeightOracle([record.weights or {} for record in held])
            return {n: score for n in every if (score := learned.score(query.weights or {}, n)) is not None}
        oracle, terms = self._oracle(held), terms_of(query)
        return {n: quanta / 2.0**18 for n in every if (quanta := oracle.score(terms, n)) is not None}

    def _lists(self, query: fr.Query, held: Sequence[fr.Record], passes: Passes) -> list[dict[int, float]]:
        """The scores by words and by vectors of the records that pass."""
        found = [self._scores(replace(query, strategy=name), held) for name in (None, "dense")]
        return [{n: score for n, score in own.items() if passes(held[n])} for own in found]


def _by_rank(scores: Mapping[int, float]) -> list[tuple[int, float]]:
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def terms_of(query: fr.Query) -> list[str]:
    """The terms that a query searches."""
    return list(query.text.split() if query.terms is None else query.terms)


def value_of(record: fr.Record, column: str) -> Any:
    """What a record says in a column."""
    return getattr(record, column) if hasattr(record, column) else record.extra.get(column)


def faded(quanta: int, time: float | None, now: float, half_life: float) -> float:
    """The score that is left of these quanta: the definition of engine/index/decay.py, the product exact before it
    rounds."""
    age = -math.inf if time is None else (now - time) * (65536.0 / half_life)
    ticks = math.floor(min(age, 900.0 * 65536.0)) if age > 0.0 else 0
    whole, part = divmod(ticks, 65536)
    factor = round(2.0**30 * math.pow(2.0, -part / 65536))
    return math.ldexp(float(Fraction(float(quanta)) * factor), -(whole + 30)) / 2.0**18
