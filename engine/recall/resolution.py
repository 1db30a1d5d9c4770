"""Entity resolution: finds names in a query's text and decides which entities they mean (SPEC B025).

A name's candidates are the entities that live records call by it. A single candidate has confidence 1. Of several
candidates, each is believed in proportion to ::

    prior * (1 + CONTEXT * context) * (1 + STRUCTURE * structure)

    prior      how often the name meant the candidate: in past queries, as far as the caller told
               (`Engine.resolved`), and in live records, by the share of those with the name that mean the candidate.
               That share counts as `RECORDS` past queries.
    context    a share of the query's other words: of those that are in the names of any candidate's neighbours, the
               share that is in the names of this candidate's neighbours
    structure  the same share of the other mentions and the asker: of those that are a neighbour of any candidate, the
               share that is a neighbour of this candidate

A signal that speaks for all candidates, or for none, changes nothing. A candidate's confidence is its share of the sum.
If a confidence reaches `COMMIT`, the mention means that candidate. Otherwise all candidates are roots, weighted by
their confidences.

The longest names are looked for first, so "Sarah Lee" comes before "Sarah"; of equally long names, the leftmost comes
first. A word belongs to one mention. Case and punctuation do not matter.

A name that is a common word too ("Will", "May", "Grace") counts where the query shows that it is one: "does Will know",
"about will", "Will's team" and "Will likes tea", but not "what will happen" and "may I ask" (`is_named`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Integers
from ..records.entities import words_of
from ..text.stopwords import NLTK_ENGLISH
from .common_names import is_named
from .entity_graph import EntityGraph

COMMIT = 0.7
"""From this confidence on, a mention means one candidate (B025)."""
CONTEXT = STRUCTURE = 4.0
"""A signal that speaks for one candidate alone multiplies its prior by 1 plus this.

Of two equally frequent candidates, that candidate then has a confidence of 5/6 and is committed to. If the other is r
times as frequent, one signal suffices up to r = 2.1, and both signals up to r = 10.7. Beyond that both candidates are
roots.
"""

RECORDS = 2
"""How many past queries the records of a name count as. A name that meant one of two equally frequent candidates in two
past queries is believed to mean it again (3/4); after one query both are still followed (2/3)."""

_WHO = r"\b(?:who|whom|whose)\b"
# At most the length of a question. Without a bound a long text that repeats "who" takes quadratic time.
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
"""Patterns of queries that ask for a chain of relations and not for a single one (B021)."""

_MANY_HOPS = re.compile("|".join(MANY_HOPS_PATTERNS))


@dataclass(frozen=True)
class Mention:
    """A name in a query and its candidates, by confidence descending, then by id ascending."""

    name: str
    candidates: tuple[str, ...]
    confidences: tuple[float, ...]  # their sum is 1

    @property
    def committed(self) -> str | None:
        """The candidate that the mention means, or None if no confidence reaches `COMMIT`."""
        return self.candidates[0] if self.confidences[0] >= COMMIT else None

    @property
    def roots(self) -> dict[str, float]:
        """The entities from which walks start, with their weights.

        The weight is 1 for the candidate that is committed to; otherwise it is each candidate's confidence.
        """
        if self.committed is not None:
            return {self.committed: 1.0}
        return dict(zip(self.candidates, self.confidences, strict=True))


def roots_of(mentions: Sequence[Mention]) -> dict[str, float]:
    """The roots of a query's walks, each with the largest weight of any mention, as `EntityGraph.expand` takes them."""
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
    meant: Callable[[str], Mapping[str, int]] | None = None,
) -> list[tuple[Mention, ...]]:
    """The mentions of each query, in the order of its words.

    `given` may hold, for each query, the ids of the entities that it is about. They take the place of the mentions in
    its text; None means that the text is read. Ids that no live record mentions are left out. `askers` holds the id of
    the entity that asks each query, or None. `meant` takes the words of a name, joined by spaces, and gives how often
    it meant each entity in past queries.
    """
    mentions = []
    near = _Neighbourhoods(graph)
    for row, text in enumerate(texts):
        ids = None if given is None else given[row]
        if ids is not None:
            mentions.append(
                tuple(Mention(entity, (entity,), (1.0,)) for entity in ids if graph.number_of(entity) is not None)
            )
            continue
        asker = None if askers is None else askers[row]
        number = None if asker is None else graph.number_of(asker)
        mentions.append(_mentions(graph, near, text, number, meant))
    return mentions


# Sources: B021.
def asks_many_hops(text: str) -> bool:
    """Whether a query asks for a chain of relations, so that a third hop pays. Case does not matter."""
    return _MANY_HOPS.search(" ".join(text.casefold().split())) is not None


class _Neighbourhoods:
    """The neighbours of entities. Each entity is looked up once for a batch."""

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
    graph: EntityGraph,
    near: _Neighbourhoods,
    text: str,
    asker: int | None,
    meant: Callable[[str], Mapping[str, int]] | None,
) -> tuple[Mention, ...]:
    words = words_of(text)
    spans = _spans(graph, text, words)
    taken = {position for start, end, _ in spans for position in range(start, end)}
    others = {word for position, word in enumerate(words) if position not in taken} - NLTK_ENGLISH
    context = _sets([{graph.statements.words[word]} for word in sorted(others) if word in graph.statements.words])
    # A name means the same wherever it stands, so each is weighed once: a long text may repeat it thousands of times.
    mentioned = Counter(frozenset(namesakes) for _, _, namesakes in spans)
    known: dict[str, Mention] = {}
    mentions = []
    for start, end, counts in spans:
        name = " ".join(words[start:end])
        if name not in known:
            if len(counts) == 1:
                known[name] = Mention(name, (graph.id_of(next(iter(counts))),), (1.0,))
            else:
                anchors = [set(namesakes) for namesakes in (mentioned - Counter([frozenset(counts)])).elements()]
                if asker is not None:
                    anchors.append({asker})
                priors = _priors(graph, counts, {} if meant is None else meant(name))
                known[name] = _weigh_mentions(graph, near, name, priors, context, _sets(anchors))
        mentions.append(known[name])
    return tuple(mentions)


def _spans(graph: EntityGraph, text: str, words: tuple[str, ...]) -> list[tuple[int, int, Mapping[int, int]]]:
    """(start, end, live records by candidate) of the names. The longest are chosen first; the result is by position."""
    longest = graph.statements.longest
    names = [
        (start, end, counts)
        for start, word in enumerate(words)
        for end in range(start + 1, min(start + longest.get(word, 0), len(words)) + 1)
        if (counts := graph.called(words[start:end])) and (end - start > 1 or is_named(text, words, start))
    ]
    free = [True] * len(words)
    chosen = []
    for start, end, counts in sorted(names, key=lambda span: (span[0] - span[1], span[0])):
        if all(free[start:end]):
            free[start:end] = [False] * (end - start)
            chosen.append((start, end, counts))
    return sorted(chosen, key=lambda span: span[0])


def _priors(graph: EntityGraph, counts: Mapping[int, int], past: Mapping[str, int]) -> dict[int, int]:
    """The prior of each candidate, up to a factor that all share: integers, so that no rounding comes in."""
    records = sum(counts.values())
    return {number: RECORDS * count + records * past.get(graph.id_of(number), 0) for number, count in counts.items()}


def _weigh_mentions(
    graph: EntityGraph,
    near: _Neighbourhoods,
    name: str,
    priors: Mapping[int, int],
    context: list[Integers],
    anchors: list[Integers],
) -> Mention:
    # Ordered by id, so that sums do not depend on the order in which records were added.
    candidates = sorted(priors, key=graph.id_of)
    around = [near.of(number) for number in candidates]
    contexts = _shares([[bool(np.isin(signal, words).any()) for signal in context] for _, words in around])
    structures = _shares([[bool(np.isin(signal, numbers).any()) for signal in anchors] for numbers, _ in around])
    beliefs = [
        priors[number] * (1.0 + CONTEXT * context_share) * (1.0 + STRUCTURE * structure_share)
        for number, context_share, structure_share in zip(candidates, contexts, structures, strict=True)
    ]
    total = math.fsum(beliefs)  # the same bits in every Python; `sum` compensates for rounding from 3.12 on
    # The sort is stable, so among equals the smaller id stays first.
    order = sorted(range(len(candidates)), key=lambda index: -beliefs[index])
    return Mention(
        name,
        tuple(graph.id_of(candidates[index]) for index in order),
        tuple(beliefs[index] / total for index in order),
    )


def _shares(hits: list[list[bool]]) -> list[float]:
    """[candidates] of the signals that speak for any candidate, the share that speaks for this one; 0 without any."""
    signals = sum(any(signal) for signal in zip(*hits, strict=True))
    return [sum(candidate_hits) / signals if signals else 0.0 for candidate_hits in hits]


def _sets(members: Sequence[set[int]]) -> list[Integers]:
    return [np.fromiter(items, np.int64, len(items)) for items in members]
