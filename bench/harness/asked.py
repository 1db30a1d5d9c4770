"""Data sets made by rule for questions that the published sets lack; bench/README.md states the rules.

``tool-traces`` is generated, as no set at hand has errors and files. ``notes`` and the three sets of LoCoMo take texts,
dates, speakers and evidence from its file.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from fanrank.engine.evaluate import load_locomo
from fanrank.engine.evaluate.dataset import Dataset
from fanrank.engine.records.query import Query
from fanrank.engine.records.record import Record

DAY = 86_400.0
SEED = 20
MEMORIES, TASKS, QUESTIONS = 5, 40, 8
"""Traces: memories, tasks of each, and questions of each kind and memory."""
MOST_ANSWERS = 3
ASKED = 40
"""Questions of each set of LoCoMo's."""

MODULES = (
    "billing", "cart", "catalog", "checkout", "coupons", "emails", "exports", "inventory", "invoices",
    "ledger", "login", "metrics", "orders", "payouts", "pricing", "profiles", "refunds", "reports",
    "search", "sessions", "shipping", "stock", "taxes", "uploads",
)  # fmt: skip
VERBS = (
    "apply", "build", "check", "close", "fetch", "load", "merge", "parse", "rank",
    "read", "round", "send", "split", "store", "sum", "write",
)  # fmt: skip
NOUNS = (
    "address", "batch", "cache", "discount", "entry", "header", "limit", "page", "price",
    "row", "status", "token", "total", "user",
)  # fmt: skip
ERRORS = (
    ("KeyError", "'{noun}' is missing in the {noun} table"),
    ("TimeoutError", "no answer from {other} within {number} s"),
    ("ValueError", "a {noun} of {number} is out of range"),
    ("AssertionError", "{number} != {more} for the {noun}"),
    ("PermissionError", "{other} may not write the {noun}"),
)
TASK = ("The {module} page is wrong since this morning, can you look?", "Please add a {noun} to {module}.",
        "Why is {module} so slow?", "Find out what {module} does with a {noun}.")  # fmt: skip
CALLS = ("{call}", "I will look. {call}", "Next: {call}")
ASKS = {
    "result": ("what did {module} answer for {key}?", "the {noun} that the {module} service gave for {key}"),
    "error": ("which error did the tests of {module} end with?", "why did the {module} tests fail?"),
    "file": ("in which file is {function} defined?", "where does {function} live?"),
}


def tool_traces(_: Path) -> Dataset:
    """What an agent did for its user: tasks of calls and their results, and questions about one of them."""
    random = np.random.default_rng(SEED)
    records: list[Record] = []
    queries: list[Query] = []
    relevant: dict[str, dict[str, int]] = {}
    categories: dict[str, str] = {}
    clusters: dict[str, str] = {}
    for space in (f"agent-{number}" for number in range(MEMORIES)):
        known: dict[tuple[str, str], dict[str, Any]] = {}
        for task in range(TASKS):
            for step, (role, text, about) in enumerate(_task(random)):
                name = f"t{task}-{step}"
                time = DAY * task + 60.0 * step
                records.append(Record(name, text, namespace=space, session=f"t{task}", role=role, time=time))
                for kind, key, values in about:
                    known.setdefault((kind, key), {**values, "gold": []})["gold"].append(name)
        for kind, forms in ASKS.items():
            few = sorted(key for key in known if key[0] == kind and len(known[key]["gold"]) <= MOST_ANSWERS)
            for number, place in enumerate(random.permutation(len(few))[:QUESTIONS].tolist()):
                values, query = known[few[place]], f"{space}:{kind}:{number}"
                queries.append(Query(forms[number % len(forms)].format(**values), namespace=space, id=query))
                relevant[query] = dict.fromkeys(values["gold"], 1)
                categories[query], clusters[query] = kind, space
    return Dataset("tool-traces", records, queries, relevant, categories, clusters)


def _task(random: np.random.Generator) -> Iterator[tuple[str, str, list[tuple[str, str, dict[str, Any]]]]]:
    """(role, text, what may be asked of it: kind, key, values) of each turn of a task."""

    def one(of: tuple[str, ...]) -> str:
        return of[random.integers(len(of))]

    module = one(MODULES)
    yield "user", one(TASK).format(module=module, noun=one(NOUNS)), []
    for _ in range(random.integers(4, 9)):
        kind = one(("read", "find", "test", "ask"))
        near = module if random.random() < 0.6 else one(MODULES)
        path, noun, number = f"src/{near}/{one(NOUNS)}.py", one(NOUNS), int(random.integers(2, 900))
        functions = [f"{one(VERBS)}_{one(NOUNS)}" for _ in range(4)]
        about: list[tuple[str, str, dict[str, Any]]] = []
        if kind == "read":
            call, lines = f"read_file(path={path!r})", [f"# {near}: every {noun} of a {one(NOUNS)}"]
            for name in functions:
                lines += [
                    f"def {name}({one(NOUNS)}, {one(NOUNS)}):",
                    f"    return {one(functions_of(functions))}({noun})",
                ]
                about.append(("file", name, {"function": name}))
            result = "\n".join(lines)
        elif kind == "find":
            name = functions[0]
            call, result = f"search(pattern='def {name}')", f"{path}:{number}: def {name}({noun}):"
            about.append(("file", name, {"function": name}))
        elif kind == "test":
            call = f"run(command='pytest tests/{near}')"
            if random.random() < 0.5:
                error, said = ERRORS[random.integers(len(ERRORS))]
                said = said.format(noun=noun, other=one(MODULES), number=number, more=number + 1)
                where = f"{path}:{number}: in {functions[1]}"
                result = f"tests/{near}/test_{noun}.py F.\n{where}\nE   {error}: {said}\n1 failed, {number} passed"
                about.append(("error", near, {"module": near}))
            else:
                result = f"tests/{near}/test_{noun}.py ...\n{number} passed"
        else:
            key = f"{noun[:2].upper()}-{number}"
            call = f"http_get(url='https://{near}.internal/{noun}/{key}')"
            found = {
                one(NOUNS): int(random.integers(10_000)),
                "state": one(("open", "closed", "late")),
                "by": one(MODULES),
            }
            result = json.dumps({"code": 200, **found})
            about.append(("result", f"{near} {key}", {"module": near, "key": key, "noun": next(iter(found))}))
        yield "assistant", one(CALLS).format(call=call), []
        yield "tool", result, about


def functions_of(names: list[str]) -> tuple[str, ...]:
    """The built-in functions, and these."""
    return ("len", "sorted", "sum", *names)


def notes(folder: Path) -> Dataset:
    """What LoCoMo's file notes of its conversations: a record a note, by one author and in no session."""
    asked = load_locomo(folder / "locomo" / "locomo10.json", unit="turn")
    times = {(record.namespace, str(record.session)): record.time for record in asked.records}
    records: list[Record] = []
    made_of: dict[tuple[str, str], list[str]] = {}
    for entry in _conversations(folder):
        space = entry["sample_id"]
        for key, told in entry["observation"].items():
            session = f"D{re.findall(r'[0-9]+', key)[0]}"
            for text, turns in (note for own in told.values() for note in own):
                name = f"n{len(records)}"
                records.append(Record(name, text, namespace=space, time=times[space, session]))
                for turn in re.findall(r"D\d+:\d+", str(turns)):
                    made_of.setdefault((space, turn), []).append(name)
    relevant = {
        name: dict.fromkeys((note for turn in gold for note in made_of.get((asked.clusters[name], turn), ())), 1)
        for name, gold in asked.relevant.items()
    }
    return _among(replace(asked, name="notes", records=records, relevant=relevant, answers={}), lambda query: True)


def of_time(folder: Path) -> Dataset:
    """LoCoMo's questions of one turn, with when it was said as one would name it then."""
    turns = load_locomo(folder / "locomo" / "locomo10.json", unit="turn")
    held = _held_out(turns)
    times = {(record.namespace, record.id): float(record.time or 0.0) for record in turns.records}
    one = [query for query in held.queries if len(held.relevant[str(query.id)]) == 1]
    asked = []
    for number, query in enumerate(_drawn(one)):
        (gold,) = held.relevant[str(query.id)]
        said = times[query.namespace, gold]
        later = [time for (space, _), time in times.items() if space == query.namespace and time > said]
        phrase, now = (
            ("yesterday", said + DAY),
            ("last week", said + 7 * DAY),
            (_dated(said, "in %B %Y"), max([said, *later]) + DAY),
            (_dated(min(later, default=said + 7 * DAY), "before %d %B %Y"), max([said, *later]) + DAY),
        )[number % 4]
        asked.append(replace(query, text=f"{query.text.rstrip('? ')} {phrase}?", now=now, until=now))
    return _asking(held, "locomo-time", asked)


def of_speakers(folder: Path) -> Dataset:
    """Who said it: two rare words of a turn, of which the other speaker has one, and the speaker's name."""
    held = _held_out(load_locomo(folder / "locomo" / "locomo10.json", unit="turn"))
    words = {(record.namespace, record.id): _words(record.text) for record in held.records}
    by_space: dict[str, list[tuple[str, str, set[str]]]] = {}
    for record in held.records:
        speaker = record.text.partition(":")[0]
        by_space.setdefault(record.namespace, []).append((record.id, speaker, words[record.namespace, record.id]))
    possible = []
    for space, turns in sorted(by_space.items()):
        held_by: dict[str, Counter[str]] = {}
        for _, speaker, own in turns:
            for word in own:
                held_by.setdefault(word, Counter())[speaker] += 1
        for name, speaker, own in turns:
            rare = sorted(word for word in own if len(word) > 4 and held_by[word][speaker] <= 3)
            shared = [word for word in rare if 0 < held_by[word].total() - held_by[word][speaker] <= 3]
            others = [word for word in rare if word not in shared[:1]]
            if shared and others:
                possible.append((space, name, f"what did {speaker} say about {shared[0]} and {others[0]}?"))
    asked = []
    relevant: dict[str, dict[str, int]] = {}
    for number, (space, name, text) in enumerate(_drawn(possible)):
        asked.append(Query(text, namespace=space, id=f"who:{number}"))
        relevant[f"who:{number}"] = {name: 1}
    clusters = {str(query.id): query.namespace for query in asked}
    return Dataset("locomo-who", held.records, asked, relevant, clusters=clusters)


def of_two(folder: Path) -> Dataset:
    """LoCoMo's questions whose evidence is two turns of two sessions."""
    held = _held_out(load_locomo(folder / "locomo" / "locomo10.json", unit="turn"))
    gold = {name: [turn.partition(":")[0] for turn in turns] for name, turns in held.relevant.items()}
    two = [query for query in held.queries if len(gold[str(query.id)]) == len({*gold[str(query.id)]}) == 2]
    return _asking(held, "locomo-two", _drawn(two))


def _held_out(dataset: Dataset) -> Dataset:
    """The conversations that fit no weight: every second one by name, from the second on."""
    spaces = {*sorted({*dataset.clusters.values()})[1::2]}
    records = [record for record in dataset.records if record.namespace in spaces]
    return _among(replace(dataset, records=records, answers={}), lambda query: query.namespace in spaces)


def _among(dataset: Dataset, wanted: Callable[[Query], bool]) -> Dataset:
    """The dataset with the wanted queries that have a relevant record."""
    return _asking(dataset, dataset.name, [q for q in dataset.queries if wanted(q) and dataset.relevant[str(q.id)]])


def _asking(dataset: Dataset, name: str, queries: list[Query]) -> Dataset:
    """The dataset under another name, with these of its queries."""
    ids = [str(query.id) for query in queries]
    relevant, categories, clusters = (
        {id: known[id] for id in ids if id in known}
        for known in (dataset.relevant, dataset.categories, dataset.clusters)
    )
    return Dataset(name, dataset.records, queries, relevant, categories, clusters)


def _drawn(values: list[Any]) -> list[Any]:
    """`ASKED` of the values, drawn by the seed."""
    return [values[place] for place in np.random.default_rng(SEED).permutation(len(values))[:ASKED].tolist()]


def _words(text: str) -> set[str]:
    return {*re.findall(r"[a-z]+", text.partition(":")[2].lower())}


def _dated(moment: float, form: str) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime(form)


def _conversations(folder: Path) -> Any:
    return json.loads((folder / "locomo" / "locomo10.json").read_text(encoding="utf-8"))


SETS: dict[str, Callable[[Path], Dataset]] = {
    "tool-traces": tool_traces,
    "notes": notes,
    "locomo-time": of_time,
    "locomo-who": of_speakers,
    "locomo-two": of_two,
}
"""The data sets, by name; each takes the folder of the data."""
