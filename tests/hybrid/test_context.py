"""Channels that score what stands around a candidate, and strategies made of them, against plain loops."""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import borders
from support.answers import document, made, of, oracle, parameters, queries, records

import fanrank as fr
from fanrank.engine.backends import choose as backends
from fanrank.engine.check.oracle import Oracle
from fanrank.engine.hybrid import context
from fanrank.engine.hybrid.channels import CUES
from fanrank.engine.index.bm25 import SCALE
from fanrank.strategies import ContextVectors, ContextWords, Cue, Dense, Lexical, Linear

pytestmark = pytest.mark.usefixtures("small_borders")

Names = Sequence[str | None]

sessions = st.sampled_from(["s", "t", "u", None])
PLAIN = [["a", "b"]], [32, 16], None, {"query_tf": "count"}
lent = st.lists(st.sampled_from([1, 13, 32, 64]), min_size=1, max_size=4)

TALK = [
    ("Ana: Did you go to the lake in May?", "s"),
    ("Bo: Yes! It rained all day.", "s"),
    ("Which tool failed?", "t"),
    ("Ana: And the boat? ", "s"),
    ("", "t"),
    ("Bo: It is for sale now, the boat from the lake: 300 euros", "s"),
    ("the lake is blue", None),
    ('He said: "why?"', "t"),
    ("Ana Lopez: nothing more about the lake", "u"),
    ("the lake, and then?", "u"),
    ("a lake " * 45, "v"),
    ("the boat", "v"),
    ("more of the lake " * 20, "v"),
]
ROLES: dict[int, str] = {7: "user", 8: "assistant", 9: "tool"}
TOLD = {"the lake you told me of": 1.0, "a lake? summarise": 1.0, "can you tell which lake I told you of": 0.0}


def alone(channel: Any, *others: Any, near: fr.Neighbours | None = None) -> fr.Strategy:
    """One channel's scores over all records that BM25 and vectors bring. With `near` one compiled call answers."""
    channels, depth = (Lexical(neighbours=near), *others, channel), None if near is None else 100
    return fr.Strategy("alone", channels, Linear({channel.name: 1.0}, ()), depth=depth)


def around(
    number: int, names: Names, weights: Sequence[int], terms: Sequence[int] = (), roles: Names = ()
) -> list[tuple[int, int]]:
    """(document, weight in 64ths) of a document and its neighbours: the one before, the one after, two before, ...

    Where an assistant writes at length by these numbers of terms, only the other turn of the exchange lends.
    """
    if names[number] is None:
        return [(number, 64)]
    members = [other for other, name in enumerate(names) if name == names[number]]
    place = members.index(number)
    at = {0: 64, **{sign * distance: weight for distance, weight in enumerate(weights, 1) for sign in (-1, 1)}}
    if terms:
        long, answers = wordy(number, members, terms, roles[number])
        at = {step: weight for step, weight in at.items() if not long or step in (0, -1 if answers else 1)}
    return [(members[place + step], weight) for step, weight in at.items() if 0 <= place + step < len(members)]


def wordy(number: int, members: list[int], terms: Sequence[int], role: str | None) -> tuple[bool, bool]:
    """Whether an assistant writes at length around a member of a session, and whether the assistant says that one."""
    away = {other: abs(place - members.index(number)) for place, other in enumerate(members)}
    own, others = ([terms[n] for n in members if away[n] in side] for side in ((0, 2, 4), (1, 3)))
    long = [bool(side) and np.mean(side) >= context.WORDY for side in (own, others)]
    if role is not None:
        return long[role != "assistant"], role == "assistant"
    first, second = (float(np.mean(side or [0])) for side in (own, others))
    answers = long[0] and (not others or first >= context.TIMES * second)
    return answers or (long[1] and second >= context.TIMES * first), answers


def best_words(judge: Oracle, query: Sequence[str], number: int, near: Sequence[tuple[int, int]], once: bool) -> int:
    total = 0
    for term in dict.fromkeys(query):
        given_by = [
            weight * judge.quanta(term, other)
            for other, weight in near
            if any(term in counts for counts in judge.counts[other])
        ]
        total += max(given_by, default=0) * (1 if once else list(query).count(term))
    return total


def ranked(scores: dict[int, float], k: int) -> list[tuple[str, float]]:
    return [(f"r{n}", score) for n, score in sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(document, sessions), max_size=30),
    queries,
    lent,
    st.none() | st.integers(0, 1 << 16),
    parameters(),
    st.booleans(),
    st.sampled_from([2, 40]),
)
@example([(["a"], "s"), (["a"], "s"), (["b"], "s"), (["a"], None), (["b"], None)], *PLAIN, False, 1)
def test_words_around_count_once_where_they_count_most(
    documents: list[tuple[list[str], str | None]],
    batch: list[list[str]],
    weights: list[int],
    history: int | None,
    options: dict[str, object],
    filtered: bool,
    length: int,
) -> None:
    texts, names = [text for text, _ in documents], [name for _, name in documents]
    roles: Names = [("x", "assistant", None)[n % 3] for n in range(len(texts))]
    wanted = [
        replace(record, session=name, role=roles[n])
        for n, (record, name) in enumerate(zip(records(texts), names, strict=True))
    ]
    engine = made(wanted, history, **options)
    judge = oracle(texts, **options)
    how: dict[str, Any] = {"filter": {"role": ["assistant", None]}, "statistics": "filtered"} if filtered else {}
    asked = [fr.Query(" ".join(words), **how) for words in batch]
    passing = [n for n in range(len(texts)) if not filtered or n % 3 > 0]
    if filtered:
        judge = oracle([texts[n] for n in passing], **options)
        names, roles = [names[n] for n in passing], [roles[n] for n in passing]
    terms = [len(texts[n]) for n in passing]
    backend_names = [status.name for status in backends.statuses() if status.usable and not status.by_name]
    with patch.object(context, "WORDY", length):
        surroundings = [around(n, names, weights, terms, roles) for n in range(len(passing))]
        for near, once in ((near, options["query_tf"] == "unique") for near in (None, of(weights))):
            wholes = []
            for words in batch:
                found = {
                    passing[n]: best_words(judge, words, n, surroundings[n], once) / 64 / SCALE
                    for n in range(len(passing))
                    if any(judge.score(words, m) is not None for m, _ in around(n, names, weights if near else []))
                }
                wholes.append(ranked(found, 30))
            for name in backend_names:
                engine.backend, strategy = backends.choose(name), alone(ContextWords(of(weights)), near=near)
                assert [list(row) for row in engine.search(asked, 30, strategy=strategy)] == wholes
                assert [list(engine.search([one], 30, strategy=strategy)[0]) for one in asked] == wholes


def test_a_half_life_fades_words_around_by_the_age_of_the_record() -> None:
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record("r0", "a b", session="s", time=0.0), fr.Record("r1", "a", session="s", time=100.0)])
    strategy = alone(ContextWords(of([32])))
    plain = dict(engine.search(["a b"], strategy=strategy)[0])
    faded = dict(engine.search([fr.Query("a b", half_life=100.0, now=100.0)], strategy=strategy)[0])
    assert faded == {"r1": plain["r1"], "r0": plain["r0"] / 2}
    assert plain["r1"] > dict(engine.search(["a b"])[0])["r1"], "it has the half of b"


def vectors_of(count: int, seed: int) -> np.ndarray:
    made_up = np.random.default_rng(seed).standard_normal((count, 5))
    return made_up / np.linalg.norm(made_up, axis=1, keepdims=True)


def halves(vector: Any) -> list[float]:
    """As the engine keeps it."""
    whole = np.asarray(vector, dtype=np.float64)
    return [float(x) for x in (whole / np.sqrt((whole * whole).sum())).astype(np.float16)]


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_vectors_around_are_summed_and_brought_to_length_one(seed: int) -> None:
    draw = random.Random(seed)
    names = [draw.choice(["s", "t", None]) for _ in range(25)]
    held = [n for n in range(25) if draw.random() < 0.8]
    vectors = vectors_of(25, seed)
    engine = fr.Engine(encoder=fr.OwnVectors(5))
    for start in range(0, 25, 7):
        part = [fr.Record(f"r{n}", f"word {n}", session=names[n]) for n in range(25)[start : start + 7]]
        engine.add(part, vectors={f"r{n}": vectors[n] for n in held if start <= n < start + 7})
    engine.delete(["r3", "r11"])
    live = [n for n in range(25) if n not in (3, 11)]
    weights = [32, 19]
    asked = [fr.Query("word", vector=row) for row in vectors_of(3, 100 + seed)]
    strategy = alone(ContextVectors(of(weights)), Dense())
    found = engine.search(asked, 25, strategy=strategy)
    alive = [names[n] for n in live]
    for query, row in zip(asked, found, strict=True):
        own = halves(query.vector[0])
        scores = {}
        for place, number in enumerate(live):
            if number not in held:
                continue
            near = [(live[at], weight / 64) for at, weight in around(place, alive, weights) if live[at] in held]
            total, squared = 0.0, 0.0
            for first, weight in near:
                total += weight * dot(own, halves(vectors[first]))
                for second, other in near:
                    squared += weight * other * dot(halves(vectors[first]), halves(vectors[second]))
            scores[number] = total / math.sqrt(squared)
        lowest = min(scores.values())
        # BM25 lists the records without a vector too: they get the lowest score.
        scores |= {number: lowest for number in live if number not in held}
        assert list(row) == ranked(scores, 25)
    assert [list(engine.search([one], 25, strategy=strategy)[0]) for one in asked] == [list(row) for row in found]


def plain_cue(cue: str, number: int, texts: list[str], names: Names, query: str, terms: list[int]) -> float:
    near = around(number, names, [64])[1:]
    if not near:
        return 0.0
    asks = [bool(re.search(r"[?？؟][\s\"'”’)*_]*\Z", text)) for text in texts]
    if cue == "asks":
        return float(asks[number])
    if cue == "answers":
        before = [other for other, _ in near if other < number]
        return float(bool(before) and asks[before[0]])
    members = [other for other, name in enumerate(names) if name == names[number]]
    assistant = wordy(number, members, terms, ROLES.get(number))[1]
    if cue == "told":
        return assistant * TOLD.get(query, 0.0)
    if "length" in cue:
        return terms[number] / (terms[number] + 16.0) if assistant or cue == "length" else 0.0
    match = re.match(r"([^\W\d_][^:\n]*):\s", texts[number])
    spoken = {word for word in re.findall(r"\w+", query.lower()) if len(word) > 1}
    return float(match is not None and bool(spoken & set(re.findall(r"\w+", match[1].lower()))))


@pytest.mark.parametrize("cue", CUES)
@pytest.mark.parametrize("pieces", [1, 3])
def test_cues_are_what_the_texts_show(cue: str, pieces: int, tmp_path: Path) -> None:
    texts, names = [text for text, _ in TALK], [name for _, name in TALK]
    with fr.Engine.open(tmp_path / "memory") as engine:
        for start in range(0, len(TALK), -(-len(TALK) // pieces)):
            rows = list(enumerate(TALK))[start : start + -(-len(TALK) // pieces)]
            engine.add([fr.Record(f"r{n}", text, session=name, role=ROLES.get(n)) for n, (text, name) in rows])
        terms = [sum(engine.explain("lake", f"r{n}").length.values()) for n in range(len(TALK))]
        asked = ["what did Ana say about the lake", "the boat of BO", "lopez's tool", "said why", *TOLD]
        for near in (fr.Neighbours(1, 0.5), None, fr.Neighbours(5, 0.5)):  # what was read is kept
            found = engine.search(asked, 20, strategy=alone(Cue(cue), near=near))
            for query, row in zip(asked, found, strict=True):
                matched = {int(name[1:]) for name, _ in engine.search([query], 20, neighbours=near)[0]}
                scores = {n: plain_cue(cue, n, texts, names, query, terms) for n in matched}
                assert list(row) == ranked(scores, 20)


def chat(count: int = 60, seed: int = 0) -> tuple[fr.Engine, list[fr.Query]]:
    draw = random.Random(seed)
    words = ["lake", "boat", "rain", "sale", "tool", "blue", "euro", "plan", "trip", "tea"]
    texts = [
        f"{draw.choice(['Ana', 'Bo'])}: {' '.join(draw.choices(words, k=draw.randrange(1, 9)))}" for _ in range(count)
    ]
    engine = fr.Engine(encoder=fr.OwnVectors(5))
    said = [fr.Record(f"r{n}", text + "?" * (n % 3 == 0), session=f"s{n % 4}") for n, text in enumerate(texts)]
    engine.add(said, vectors=vectors_of(count, seed))
    asked = [f"What did Ana say of {' '.join(draw.sample(words, 2))}?" for _ in range(12)]
    return engine, [fr.Query(text, vector=own) for text, own in zip(asked, vectors_of(12, seed + 1), strict=True)]


def test_a_recall_channel_and_a_cue_go_together() -> None:
    engine, asked = chat()
    base, fusion = fr.Strategy.of("recall"), Linear({"bm25": 1.0, "asks": -5.0})
    mixed = replace(base, name="mixed", channels=(*base.channels, Cue("asks")), fusion=fusion)
    asks = {f"r{n}" for n in range(0, 60, 3)}
    for row in engine.search(asked, 10, strategy=mixed):
        found = [name in asks for name, _ in row]
        assert found == sorted(found), "records that ask come last"
    assert not engine.search(asked, 10, strategy=mixed).decisions[0].skipped.get("asks")


def test_what_is_asked_wrongly_is_refused_by_name() -> None:
    cases: list[tuple[Any, str]] = [
        (lambda: Cue("loud"), "unknown cue 'loud'"),
        (lambda: ContextWords(None), "must be a Neighbours"),  # type: ignore[arg-type]
        (lambda: fr.Strategy("x", (Cue("asks"),)), "a Cue channel finds nothing"),
        (lambda: fr.Strategy("x", (Lexical(), ContextVectors()), Linear({"bm25": 1.0})), "needs a Dense channel"),
        (lambda: Linear({}), "weights must be a mapping"),
        (lambda: Linear({"bm25": math.nan}), "weights['bm25'] must be a finite number"),
        (lambda: Linear({"bm25": 1.0}, ("dense",)), "relative names the channel 'dense', which has no weight"),
        (lambda: Linear({"bm25": 1.0}, "bm25"), "relative must be a list"),  # type: ignore[arg-type]
        (lambda: fr.Strategy("x", (Lexical(),), Linear({"other": 1.0}, ())), "names the channel 'other'"),
    ]
    for make, said in cases:
        with pytest.raises(fr.errors.ParameterError, match=re.escape(said)):
            make()
    engine = fr.Engine(keep_texts=False)
    engine.add([fr.Record("r0", "the lake", session="s"), fr.Record("r1", "the lake", session="s")])
    with pytest.raises(fr.errors.QueryError, match="keeps no texts"):
        engine.search(["lake"], strategy="dialogue-words")


@pytest.mark.parametrize("searched_again", [False, True])
def test_feedback_moves_the_vector_that_surroundings_are_compared_with(searched_again: bool) -> None:
    engine, asked = chat()
    # Alike but for the channel whose scores are read. Without neighbours the two differ in rounding alone.
    channels = Lexical(), Dense(), ContextVectors(fr.Neighbours(0))
    how: dict[str, Any] = {"feedback": fr.strategies.feedback_of("rocchio"), "search_again": searched_again}
    weights = [{"dense": weight, "context_vectors": 1.0 - weight} for weight in (1.0, 0.0)]
    moved = [fr.Strategy("moved", channels, Linear(own, ()), depth=None, **how) for own in weights]
    first, second = (engine.search(asked, 10, strategy=each) for each in moved)
    plain = engine.search(asked, 10, strategy=replace(moved[1], feedback=None, search_again=False))
    assert np.abs(second.scores - plain.scores).max() > 0.01
    assert np.allclose(first.scores, second.scores, atol=0.005)


def test_vectors_around_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, asked = chat()
    whole = engine.search(asked, 15, strategy="dialogue").scores.tobytes()
    read: list[int] = []
    read_vectors = context.document_vectors
    monkeypatch.setattr(
        context,
        "document_vectors",
        lambda stretches, numbers: read.append(len(numbers)) or read_vectors(stretches, numbers),
    )
    borders.shrink(monkeypatch, {"vectors.BLOCK_VALUES": 75})  # three candidates of 5 vectors of 5 numbers
    assert engine.search(asked, 15, strategy="dialogue").scores.tobytes() == whole
    assert len(read) > len(asked)
    assert max(read) <= 15
