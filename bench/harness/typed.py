"""Typed memories, made of LoCoMo and SGD by fixed rules, with questions whose answers are known.

The question is what a type hint, an entity or a time in a query is worth where records have types. Types come from the
data by rule, never from the questions:

- LoCoMo: a turn is a record. It is a ``Preference`` if its speaker says what they like or want, an ``Event`` if it
  tells of something past or planned, else a ``Fact``. Its entities are the people it names.
- SGD: a memory is 40 dialogues of one day each, about 1,100 records. A user's turn is a ``Preference`` if it says what
  they like or want; other turns are ``Fact``. A call of a tool is an ``Event``, the first result of a call an
  ``Entity`` that bears its name.

LoCoMo's questions are the published ones. SGD's are made from templates around a name that at most five records of the
asked kind hold. A template's hint agrees with the answer, misleads, or is absent; its category says which.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fanrank.engine.evaluate import load_locomo
from fanrank.engine.evaluate.dataset import Dataset
from fanrank.engine.records.query import Query
from fanrank.engine.records.record import Record

DAY = 86_400.0
SEED = 20
MEMORIES, DIALOGUES, QUESTIONS = 5, 40, 20
"""SGD: memories, dialogues of each, and questions of each kind and memory at most."""
MOST_ANSWERS = 5

LIKES = re.compile(
    r"\b(?:i|we)(?:'d| would| really| just| also| always)* (?:love|like|prefer|enjoy|hate|want|need)\b|"
    r"\b(?:my|our) favou?rite\b",
    re.IGNORECASE,
)
HAPPENS = re.compile(
    r"\b(?:yesterday|tomorrow|ago|last (?:night|week|weekend|month|year|summer|\w+day)|next (?:week|month|year)|"
    r"(?:i|we|he|she|they) (?:just )?(?:went|visited|bought|met|made|started|joined|took|had|saw|got|won|signed))\b",
    re.IGNORECASE,
)

# (kind of the answer, hint, text). The hint is what the source's trigger words read in the text.
TEMPLATES: tuple[tuple[str, str, str], ...] = (
    ("call", "agrees", "when did I ask for {}?"),
    ("call", "agrees", "what happened with {}?"),
    ("call", "none", "the booking of {}"),
    ("result", "agrees", "what is {}?"),
    ("result", "agrees", "tell me about {}"),
    ("result", "none", "the details of {}"),
    ("preference", "agrees", "do I want {}?"),
    ("preference", "agrees", "which of {} do I prefer?"),
    ("preference", "none", "my opinion on {}"),
    ("fact", "misleads", "what did I hear of {}?"),
    ("fact", "misleads", "what was it that you told me of {}?"),
    ("fact", "none", "you mentioned {}"),
    ("call", "misleads", "my setting for {}"),
    ("result", "misleads", "is there anything like {}?"),
    ("result", "misleads", "did I get the address of {}?"),
    ("preference", "misleads", "what did I say about {}?"),
)


def locomo_turns(folder: Path) -> Dataset:
    """LoCoMo with a record for each turn."""
    return load_locomo(folder / "locomo" / "locomo10.json", unit="turn")


def typed_turns(folder: Path, kinds: str) -> Dataset:
    """The same with types. `kinds`: ``rule``, or ``random`` (one of the types, seeded)."""
    random, dataset = np.random.default_rng(SEED), locomo_turns(folder)
    people: dict[str, set[str]] = {}
    last: dict[str, float] = {}
    for record in dataset.records:
        last[record.namespace] = max(record.time or 0.0, last.get(record.namespace, 0.0))
        people.setdefault(record.namespace, set()).add(record.text.partition(":")[0])
    records = []
    for record in dataset.records:
        kind = "Preference" if LIKES.search(record.text) else "Event" if HAPPENS.search(record.text) else "Fact"
        if kinds == "random":
            kind = ("Preference", "Event", "Entity", "Fact")[random.integers(4)]
        names = sorted(people[record.namespace])
        named = {name: name.lower() for name in names if re.search(rf"\b{re.escape(name)}\b", record.text)}
        records.append(replace(record, type=kind, entities=named))
    asked = [replace(query, now=last[query.namespace] + DAY) for query in dataset.queries]
    return replace(dataset, name=f"locomo-turns-{kinds}", records=records, queries=asked)


def sgd_memories(path: Path, name: str) -> Dataset:
    """Memories of an agent with tools, and questions about names that appear in its calls."""
    random = np.random.default_rng(SEED)
    dialogues: dict[str, list[dict[str, Any]]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            turn = json.loads(line)
            dialogues.setdefault(turn["dialogue_id"], []).append(turn)
    # Longer dialogues are of several services, so they call several tools.
    long = [name for name, turns in dialogues.items() if len(turns) > 12]
    chosen = random.permutation(len(long))[: MEMORIES * DIALOGUES].reshape(MEMORIES, DIALOGUES)
    records: list[Record] = []
    queries: list[Query] = []
    relevant: dict[str, dict[str, int]] = {}
    categories: dict[str, str] = {}
    clusters: dict[str, str] = {}
    for memory, own in enumerate(chosen.tolist()):
        space = f"memory-{memory}"
        texts: dict[str, list[tuple[str, str]]] = {"call": [], "result": [], "preference": [], "fact": []}
        values: set[str] = set()
        for day, number in enumerate(own):
            for record, kind, found in _records_of(dialogues[long[number]], space, day * DAY):
                records.append(record)
                texts[kind].append((record.id, f" {' '.join(_words(record.text))} "))
                values |= found
        counts = dict.fromkeys(range(len(TEMPLATES)), 0)
        for value in random.permutation(sorted(values)).tolist():
            run = f" {' '.join(_words(value))} "
            answers = {kind: [name for name, text in lines if run in text] for kind, lines in texts.items()}
            possible = [
                place
                for place, (kind, _, _) in enumerate(TEMPLATES)
                if 0 < len(answers[kind]) <= MOST_ANSWERS and counts[place] < QUESTIONS
            ]
            if not possible:
                continue
            place = min(possible, key=lambda place: counts[place])
            counts[place] += 1
            kind, hint, text = TEMPLATES[place]
            query = f"{space}:{len(queries)}"
            queries.append(Query(text.format(value), namespace=space, id=query, now=(DIALOGUES + 1) * DAY))
            relevant[query] = dict.fromkeys(answers[kind], 1)
            categories[query], clusters[query] = f"{kind}, hint {hint}", space
    return Dataset(name, records, queries, relevant, categories, clusters)


def _records_of(turns: list[dict[str, Any]], space: str, start: float) -> Iterator[tuple[Record, str, set[str]]]:
    """(record, kind, names that it holds) of a dialogue, in order."""
    for turn in turns:
        own, moment = f"{turn['dialogue_id']}:{turn['turn']}", start + 60.0 * turn["turn"]

        def made(
            suffix: str, text: str, role: str, type: str, own: str = own, moment: float = moment, **more: Any
        ) -> Record:
            return Record(
                f"{own}{suffix}",
                text,
                namespace=space,
                session=own.split(":")[0],
                role=role,
                type=type,
                time=moment,
                **more,
            )

        if call := turn.get("service_call"):
            found = {value for key, value in call["parameters"].items() if _names(key, value)}
            yield made(":call", f"{call['method']} {_listed(call['parameters'])}", "tool", "Event"), "call", found
        for result in turn.get("service_results", ())[:1]:
            names = {value for key, value in result.items() if _names(key, value)}
            entities = {name: name.lower() for name in sorted(names)}
            yield made(":result", _listed(result), "tool", "Entity", entities=entities or None), "result", names
        user = turn["speaker"] == "USER"
        likes = user and LIKES.search(turn["utterance"]) is not None
        speaker, kind = ("user", "Preference" if likes else "Fact") if user else ("assistant", "Fact")
        yield made("", turn["utterance"], speaker, kind), "preference" if likes else "fact", set()


def _names(key: str, value: str) -> bool:
    """Whether a parameter names something that one may ask about."""
    return key.endswith("name") or key in ("location", "city", "destination", "artist", "album", "cuisine", "genre")


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in values.items())


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


SETS: dict[str, Callable[[Path], Dataset]] = {
    "locomo-turns-rule": lambda data: typed_turns(data, "rule"),
    "locomo-turns-random": lambda data: typed_turns(data, "random"),
    "sgd-typed": lambda data: sgd_memories(data / "sgd" / "test.turns.jsonl.gz", "sgd-typed"),
    # No weight was chosen by these.
    "sgd-held-out": lambda data: sgd_memories(data / "sgd" / "dev.turns.jsonl.gz", "sgd-held-out"),
}
"""The data sets, by name; each takes the folder of the data."""
