"""Which entities a query is about: names found in its text, weighed where several entities bear one (SPEC B025).

A name's candidates are the entities that live records call so. One is the easy case. Of several, each is believed in
proportion to ::

    prior * (1 + CONTEXT * context) * (1 + STRUCTURE * structure)

    prior      live records that call it so
    context    of the query's other words that are in the names of any candidate's neighbours, the share in its own
    structure  of the other mentions and the asker that are a neighbour of any candidate, the share of its own

Signals that speak for all candidates, or for none, change nothing. A confidence is its share of the sum. From `COMMIT`
on, the mention is that candidate; below, all of them are roots, weighted by their confidences.

"Sarah Lee" is looked for as a whole before "Sarah": the longest names first, and of equally long ones the leftmost; a
word belongs to one mention. Case and punctuation do not matter. Words that are also names ("will", "May") count as the
name, as a record said so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Integers
from ..records.entities import words_of
from ..text.stopwords import NLTK_ENGLISH
from .entity_graph import EntityGraph

COMMIT = 0.7
"""The confidence from which a mention is taken for one candidate (B025)."""
CONTEXT = STRUCTURE = 4.0
"""What a signal that speaks for one candidate alone multiplies its prior by, less 1.

Of two equally frequent candidates, that one has 5/6 of the belief and is committed to. Against a namesake r times as
frequent, one signal still commits up to r = 2.1, and both up to r = 10.7; beyond that both candidates are roots.
"""

_WHO = r"\b(?:who|whom|whose)\b"
# A question's length: without a bound a long text that repeats "who" takes time quadratic in it.
_GAP = r".{0,200}?"
MANY_HOPS_PATTERNS = (
    rf"{_WHO}{_GAP}(?<!\band )(?<!\bor ){_WHO}",  # who does Ana work with who also knows Bob
    rf"{_WHO}{_GAP}\b(?:that|which) also\b",
    rf"\b(?:people|person|someone|anyone|everyone|everybody|somebody|anybody|those) (?:who|that) {_GAP}\balso\b",
    r"\bin common\b",
    r"\bmutual\b",
    r"\b(?:friends?|contacts?|colleagues?) of (?:\w+ )?(?:friends?|contacts?|colleagues?)\b",
    r"\w[’']s (?!(?:and|or)\b)(?:\w+ )?\w+[’']s\b",  # Ana's manager's team
)
"""What asks for a chain of relations rather than for one (B021)."""

_MANY_HOPS = re.compile("|".join(MANY_HOPS_PATTERNS))


@dataclass(frozen=True)
class Mention:
    """A name in a query, and whom it may mean, most believed first (of equals, the smaller id)."""

    name: str
    candidates: tuple[str, ...]
    confidences: tuple[float, ...]  # their sum is 1

    @property
    def committed(self) -> str | None:
        """The candidate that it is taken for, None where none is believed enough."""
        return self.candidates[0] if self.confidences[0] >= COMMIT else None

    @property
    def roots(self) -> dict[str, float]:
        """Where to start, and with which weight: 1 for the one committed to, else each candidate's confidence."""
        if self.committed is not None:
            return {self.committed: 1.0}
        return dict(zip(self.candidates, self.confidences, strict=True))


def roots_of(mentions: Sequence[Mention]) -> dict[str, float]:
    """Where a query's walks start, with the largest weight that a mention gives; as `EntityGraph.expand` takes them."""
    roots: dict[str, float] = {}
    for mention in mentions:
        for entity, weight in mention.roots.items():
            roots[entity] = max(weight, roots.get(entity, 0.0))
    return roots


def resolve(
    graph: EntityGraph,
    texts: Sequence[str],
    given: Sequence[Sequence[str] | None] | None = None,
    askers: Sequence[str | None] | None = None,
) -> list[tuple[Mention, ...]]:
    """What each query mentions, in the order of its words.

    `given` holds ids that a query is about, in place of what its text mentions (None: look there); ids that no live
    record mentions are left out. `askers` holds the entity that asks, where it is known.
    """
    found = []
    near = _Neighbourhoods(graph)
    for row, text in enumerate(texts):
        ids = None if given is None else given[row]
        if ids is not None:
            found.append(tuple(Mention(own, (own,), (1.0,)) for own in ids if graph.number_of(own) is not None))
            continue
        asker = None if askers is None else askers[row]
        found.append(_mentions(graph, near, words_of(text), None if asker is None else graph.number_of(asker)))
    return found


# Sources: B021.
def asks_many_hops(text: str) -> bool:
    """Whether a query asks for a chain of relations, for which a third hop pays; case does not matter."""
    return _MANY_HOPS.search(" ".join(text.casefold().split())) is not None


class _Neighbourhoods:
    """What is next to an entity, looked up once a batch."""

    def __init__(self, graph: EntityGraph) -> None:
        self._graph = graph
        self._known: dict[int, tuple[Integers, Integers]] = {}

    def of(self, number: int) -> tuple[Integers, Integers]:
        """(its neighbours, the words of their names)."""
        known = self._known.get(number)
        if known is None:
            neighbours = self._graph.neighbours(number)
            known = self._known[number] = neighbours, self._graph.words_of(neighbours)
        return known


def _mentions(
    graph: EntityGraph, near: _Neighbourhoods, words: tuple[str, ...], asker: int | None
) -> tuple[Mention, ...]:
    spans = _spans(graph, words)
    taken = {place for start, end, _ in spans for place in range(start, end)}
    others = {word for place, word in enumerate(words) if place not in taken} - NLTK_ENGLISH
    context = _sets([{graph.statements.words[word]} for word in sorted(others) if word in graph.statements.words])
    mentions = []
    for start, end, counts in spans:
        name = " ".join(words[start:end])
        if len(counts) == 1:
            mentions.append(Mention(name, (graph.id_of(next(iter(counts))),), (1.0,)))
            continue
        anchors = [set(own) for first, _, own in spans if first != start]
        if asker is not None:
            anchors.append({asker})
        mentions.append(_weigh_mentions(graph, near, name, counts, context, _sets(anchors)))
    return tuple(mentions)


def _spans(graph: EntityGraph, words: tuple[str, ...]) -> list[tuple[int, int, Mapping[int, int]]]:
    """(start, end, live records by candidate) of the names, longest first chosen, then in order of place."""
    longest = graph.statements.longest
    found = [
        (start, end, counts)
        for start, word in enumerate(words)
        for end in range(start + 1, min(start + longest.get(word, 0), len(words)) + 1)
        if (counts := graph.called(words[start:end]))
    ]
    free = [True] * len(words)
    chosen = []
    for start, end, counts in sorted(found, key=lambda span: (span[0] - span[1], span[0])):
        if all(free[start:end]):
            free[start:end] = [False] * (end - start)
            chosen.append((start, end, counts))
    return sorted(chosen, key=lambda span: span[0])


def _weigh_mentions(
    graph: EntityGraph,
    near: _Neighbourhoods,
    name: str,
    counts: Mapping[int, int],
    context: list[Integers],
    anchors: list[Integers],
) -> Mention:
    # By id, so that sums do not depend on the order in which records came.
    candidates = sorted(counts, key=graph.id_of)
    around = [near.of(number) for number in candidates]
    contexts = _shares([[bool(np.isin(one, words).any()) for one in context] for _, words in around])
    structures = _shares([[bool(np.isin(one, numbers).any()) for one in anchors] for numbers, _ in around])
    beliefs = [
        counts[number] * (1.0 + CONTEXT * own) * (1.0 + STRUCTURE * other)
        for number, own, other in zip(candidates, contexts, structures, strict=True)
    ]
    total = math.fsum(beliefs)  # the same bits in every version of Python, whose sum began to compensate with 3.12
    # Stable: of equals, the smaller id stays first.
    order = sorted(range(len(candidates)), key=lambda place: -beliefs[place])
    return Mention(
        name,
        tuple(graph.id_of(candidates[place]) for place in order),
        tuple(beliefs[place] / total for place in order),
    )


def _shares(hits: list[list[bool]]) -> list[float]:
    """By candidate, the share of the signals that speak for any candidate that speak for it; 0 where none does."""
    heard = sum(any(signal) for signal in zip(*hits, strict=True))
    return [sum(own) / heard if heard else 0.0 for own in hits]


def _sets(members: Sequence[set[int]]) -> list[Integers]:
    return [np.fromiter(own, np.int64, len(own)) for own in members]
