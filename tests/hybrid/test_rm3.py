"""RM3 against a plain version in fractions, on every backend (A132)."""

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

import fanrank as fr
from fanrank.engine.feedback.rm3 import RM3
from fanrank.engine.hybrid.strategy import Lexical, Strategy

WORDS = [f"w{n}" for n in range(30)]
FIELDS = {"text": 1.0, "title": 2.0}


def made(size: int, seed: int, fielded: bool = False) -> list[fr.Record]:
    draw = random.Random(seed)
    weights = [1.0 / (rank + 1) for rank in range(len(WORDS))]

    def words(most: int) -> str:
        return " ".join(draw.choices(WORDS, weights, k=draw.randrange(most)))

    return [
        fr.Record(
            f"r{n}",
            # Only a record that is deleted holds it.
            "unknown w25" if n == 3 else words(9),
            session=draw.choice("ab"),
            time=float(n),
            fields={"title": words(3)} if fielded else {},
        )
        for n in range(size)
    ]


def plain(
    engine: fr.Engine, records: dict[str, fr.Record], query: fr.Query, rm3: RM3, k: int
) -> list[tuple[str, float]]:
    """The definition in fractions: first hits, words, weights in steps; then BM25 term by term."""
    hits = list(engine.search([replace(query, k=rm3.documents)])[0])
    found: Counter[str] = Counter()
    for name, score in hits:
        record = records[name]
        words = [word for field in engine.bm25.fields for word in _words(record, field)]
        for word in words:
            found[word] += Fraction(score) / len(words)  # type: ignore[assignment]
    kept = sorted(found, key=lambda word: (-found[word], word))[: rm3.terms]
    mass = sum(found[word] for word in kept)
    known = {word for record in records.values() for field in engine.bm25.fields for word in _words(record, field)}
    own = [word for word in query.text.split() if word in known]
    weights: dict[str, Fraction] = {}
    alpha = Fraction(rm3.alpha) if kept else Fraction(1)
    for word in own:
        weights[word] = weights.get(word, Fraction(0)) + alpha / len(own)
    for word in kept:
        weights[word] = weights.get(word, Fraction(0)) + (1 - alpha) * found[word] / mass
    totals: dict[str, float] = {}
    for word, weight in weights.items():
        alone = replace(query, text="", terms=(word,), k=len(records))
        for name, score in engine.search([alone])[0]:
            totals[name] = totals.get(name, 0.0) + round(256 * weight) * score
    number = {name: n for n, name in enumerate(records)}
    ranked = [(name, total / 256) for name, total in totals.items() if total]
    return sorted(ranked, key=lambda hit: (-hit[1], number[hit[0]]))[:k]


def _words(record: fr.Record, field: str) -> list[str]:
    return (record.text if field == "text" else record.fields[field]).split()


QUERIES = (
    fr.Query("w7 w12"),
    fr.Query("w7 w7 w20 w1"),
    fr.Query("w3", filter={"session": "a"}),
    fr.Query("w5 w9", since=40.0),
    fr.Query("w25 unknown"),
    fr.Query("w2", filter={"session": "b"}, statistics="filtered"),
)


@pytest.mark.parametrize("backend", ["numpy", "native"])
@pytest.mark.parametrize("fields", [{"text": 1.0}, FIELDS], ids=["text", "fields"])
def test_it_is_the_plain_version(backend: str, fields: dict[str, float]) -> None:
    records = made(90, 4, len(fields) > 1)
    engines = []
    for name in (backend, "numpy"):
        try:
            engine = fr.Engine(backend=name, analyzer="minimal", fields=fields)
        except fr.errors.BackendUnavailableError as error:
            pytest.skip(str(error))
        for start in range(0, 90, 35):
            engine.add(records[start : start + 35])
        engine.delete(["r3", "r60"])
        engines.append(engine)
    live = {record.id: record for record in records if record.id not in ("r3", "r60")}
    for rm3 in (RM3(), RM3(documents=3, terms=4, alpha=0.25), RM3(alpha=1.0), RM3(alpha=0.0, terms=30)):
        hits = engines[0].search(QUERIES, k=20, strategy=Strategy("rm3", (Lexical(rm3=rm3),)))
        for position, query in enumerate(QUERIES):
            # A query whose own words no record holds has no first hits, so it finds nothing.
            assert list(hits[position]) == plain(engines[1], live, query, rm3, 20), (rm3, query)


def test_what_is_refused() -> None:
    for how in ({"documents": 0}, {"terms": True}, {"alpha": 1.5}, {"alpha": "half"}, {"terms": 1001}):
        with pytest.raises(fr.errors.ParameterError, match=f"rm3: {next(iter(how))} must be"):
            RM3(**how)  # type: ignore[arg-type]
    with pytest.raises(fr.errors.ParameterError, match="must be an RM3"):
        Lexical(rm3="yes")  # type: ignore[arg-type]
    engine = fr.Engine(keep_texts=False)
    engine.add([fr.Record("a", "tea")])
    with pytest.raises(fr.errors.QueryError, match="rm3 reads the words of the first hits"):
        engine.search(["tea"], strategy="rm3")
