"""How well analyzers find identifiers among an agent's records: ``python -m bench.traces``.

    python -m bench.traces [--json rows.jsonl] [--analyzers nltk agent] [--records 130000] [--asked 300]

The records are mixed: utterances of SGD and turns of LoCoMo from FANRANK_DATA (default ../shared/data), and lines that
a seeded generator writes as tools do, for three of eight records. Its names are made of few words, so that many share
their parts, and the same words come as snake_case, camelCase and file names. A path holds four to seven components. One
line in ten is coloured. An identifier that is asked for stands in one to three records.

What is asked, of each kind `--asked` identifiers:

    exact      the identifier alone, as it is written
    question   the same in a sentence
    parts      the words of a camelCase name in small letters, with spaces
    base       the last component of a path

A row holds the share of identifiers with a record that holds them among the first ten. `low` and `high` bound it with
95 % (Wilson). SGD's and LoCoMo's records hold hardly any identifiers, but all their words.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import fanrank as fr
from fanrank.engine.text.analyzers import ANALYZERS

from .harness.code import code_of
from .harness.machine import commit, machine, now
from .harness.paths import data_folder

SEED = 19
SHARE = 3 / 8
VERBS = """
    get set load save parse build fetch update delete create list read write send merge check retry open close apply
    reset sync render index encode decode validate resolve queue flush mount cancel
"""
ADJECTIVES = """
    user order payment session cache http json local remote default pending active invalid raw next last max min total
    shared public private nested async token config billing search vector graph memory
"""
NOUNS = """
    name id list count status header body path error event query result index client server handler manager request
    response timeout limit batch record entry state context node message item value key page driver worker pool chunk
    report policy schema field segment report buffer stream lock agent
"""
SUFFIXES = """
    py ts go rs java json yaml toml md log sql sh tsx cpp lock csv
"""
PACKAGES = """
    numpy requests fastapi react lodash tokio serde torch pandas redis celery boto3 grpc zlib openssl
"""
FOLDERS = """
    src lib app api core tests utils services models handlers internal pkg cmd docs web packages infra
"""
SYSTEMS = """
    ERR ORA TS E HTTP SQL NET AUTH IO CFG DB K8S
"""
PEOPLE = """
    ana bo chen dara eli fay gus hana ivo june kai lena milo nora omar pia quin rosa sam tess uma vik wen
"""
PROJECTS = """
    E JIRA OPS BILL PLAT WEB DATA SEC
"""
PROSE = """
    The call failed after the retry and was fixed by a rollback of the last deploy. Please check whether the tests pass,
    the build was slow on main again. Looks like we forgot to close it, the logs show a timeout while reading. It works
    now that the limit is higher, see the notes of the review. We should rename this and update the docs as well.
"""
TEMPLATES = (
    "Tool result: {} is defined in {} near line {number}",
    "ERROR [{}] {}: {prose}",
    'Traceback (most recent call last): File "{}", line {number}, in {} {prose}',
    "$ grep -rn {} {}\n{prose}",
    "Decision: keep {} until {} is released. {prose}",
    '{{"tool": "run", "args": ["{}", "{}"], "status": {number}}}',
    "WARN {} -> {} ({number} ms) {prose}",
    "user: {prose} what about {}? assistant: see {}.",
    "commit: {} replaced by {} ({number} files changed)",
)
QUESTIONS = ("where is {} used", "what did we decide about {}?", "the error with {} last time", "show me {}")
KINDS = ("snake", "camel", "file", "path", "version", "dotted", "code", "mail", "hex", "ticket")


class Names:
    """Makes identifiers of every kind."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.verbs, self.adjectives, self.nouns = VERBS.split(), ADJECTIVES.split(), NOUNS.split()

    def words(self) -> list[str]:
        pick = self.random.choice
        words = [pick(self.verbs), pick(self.adjectives), pick(self.nouns)]
        return words if self.random.random() < 0.6 else [*words, pick(self.nouns)]

    def snake(self) -> str:
        return "_".join(self.words())

    def camel(self) -> str:
        first, *rest = self.words()
        return first + "".join(map(str.title, rest))

    def file(self) -> str:
        words = self.words()[1:]
        kind = self.random.randrange(3)
        stem = "_".join(words) if kind == 0 else "-".join(words) if kind == 1 else "".join(map(str.title, words))
        return f"{stem}{self.random.randrange(100)}.{self.random.choice(SUFFIXES.split())}"

    def path(self) -> str:
        folders = [self.random.choice(FOLDERS.split()) for _ in range(self.random.randrange(2, 5))]
        parts = [*folders, self.random.choice(self.nouns) + str(self.random.randrange(30)), self.file()]
        return self.random.choice(["", "/", "./", "/home/agent/"]) + "/".join(parts)

    def version(self) -> str:
        number = ".".join(str(self.random.randrange(limit)) for limit in (12, 60, 200))
        tail = self.random.choice(["", "", "", "-rc.1", "-beta", "+cpu"])
        return self.random.choice(["", "v", self.random.choice(PACKAGES.split()) + "=="]) + number + tail

    def dotted(self) -> str:
        return ".".join([self.random.choice(PACKAGES.split()), self.random.choice(self.nouns), self.snake()])

    def code(self) -> str:
        kind, number = self.random.randrange(3), self.random.randrange(100_000)
        if kind == 0:
            return f"{self.random.choice(SYSTEMS.split())}-{number:05}"
        if kind == 1:
            return f"{self.random.choice(SYSTEMS.split())}{number:05}"
        return "ERR_" + "_".join(map(str.upper, self.words()[1:])) + f"_{number % 100}"

    def mail(self) -> str:
        pick = self.random.choice
        first, last, number = pick(["mail", "corp", "dev"]), pick(["com", "org", "io"]), self.random.randrange(40)
        host = f"{first}.{pick(self.nouns)}{number}.{last}"
        return f"{pick(PEOPLE.split())}.{pick(PEOPLE.split())}{pick(['', '+ci', '+ops'])}@{host}"

    def hex(self) -> str:
        text = f"{self.random.getrandbits(128):032x}"
        whole = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        return self.random.choice([whole, text[:12], "0x" + text[:8], text])

    def ticket(self) -> str:
        return f"{self.random.choice(PROJECTS.split())}-{self.random.randrange(1, 100_000)}"


def utterances() -> Iterator[str]:
    """The texts of LoCoMo's turns and SGD's utterances."""
    for sample in json.loads((data_folder() / "locomo" / "locomo10.json").read_text(encoding="utf-8")):
        for turns in sample["conversation"].values():
            if isinstance(turns, list):
                yield from (f"{turn['speaker']}: {turn['text']}" for turn in turns)
    for part in ("train", "dev", "test"):
        with gzip.open(data_folder() / "sgd" / f"{part}.turns.jsonl.gz", "rt", encoding="utf-8") as lines:
            yield from (f"{line['speaker']}: {line['utterance']}" for line in map(json.loads, lines))


def make_traces(size: int, seed: int = SEED) -> tuple[list[str], dict[str, dict[str, list[int]]]]:
    """The texts of so many records, and of each kind the identifiers with the records that hold them."""
    choose = random.Random(seed)
    names = Names(choose)
    make: dict[str, Callable[[], str]] = {kind: getattr(names, kind) for kind in KINDS}
    prose = [sentence.strip() for sentence in re.split(r"(?<=[.,])\s", " ".join(PROSE.split()))]
    texts: list[str] = []
    where: dict[str, dict[str, list[int]]] = {kind: {} for kind in KINDS}
    written = round(size * SHARE)
    recent: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for number in range(written):
        held = []
        for kind in choose.sample(KINDS, 2):
            again = recent[kind] and choose.random() < 0.25
            name = recent[kind].pop(choose.randrange(len(recent[kind]))) if again else make[kind]()
            if not again and len(recent[kind]) < 50:
                recent[kind].append(name)
            where[kind].setdefault(name, []).append(number)
            held.append(f"\x1b[1;3{choose.randrange(8)}m{name}\x1b[0m" if choose.random() < 0.1 else name)
        template = choose.choice(TEMPLATES)
        said = " ".join(choose.sample(prose, choose.randrange(1, 4)))
        texts.append(template.format(*held, number=choose.randrange(1000), prose=said))
    texts += islice(utterances(), size - written)
    order = list(range(len(texts)))
    choose.shuffle(order)
    places = {old: new for new, old in enumerate(order)}
    moved = {kind: {name: [places[n] for n in held] for name, held in of.items()} for kind, of in where.items()}
    return [texts[old] for old in order], moved


def make_questions(
    where: dict[str, dict[str, list[int]]], asked: int, seed: int = SEED
) -> dict[tuple[str, str], list[tuple[str, list[int]]]]:
    """By (form, kind): questions, each with the records that answer it."""
    choose = random.Random(seed + 1)
    questions: dict[tuple[str, str], list[tuple[str, list[int]]]] = {}
    for kind, names in where.items():
        rare = sorted(name for name, records in names.items() if len(set(records)) <= 3)
        chosen = choose.sample(rare, min(asked, len(rare)))
        questions["exact", kind] = [(name, names[name]) for name in chosen]
        questions["question", kind] = [(choose.choice(QUESTIONS).format(name), names[name]) for name in chosen]
        if kind == "camel":
            spaced = [re.sub(r"(?=[A-Z])", " ", name).lower() for name in chosen]
            questions["parts", kind] = [(words, names[name]) for words, name in zip(spaced, chosen, strict=True)]
        if kind == "path":
            held: dict[str, list[int]] = {}
            for name, records in names.items():
                held.setdefault(name.rsplit("/", 1)[1], []).extend(records)
            bases = [name.rsplit("/", 1)[1] for name in chosen]
            questions["base", kind] = [(base, held[base]) for base in bases]
    return questions


def interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's interval of a share, 95 %."""
    z = 1.96
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return middle - half, middle + half


def measure(analyzer: str, records: int, asked: int) -> list[dict[str, object]]:
    """One row for each form and kind."""
    texts, where = make_traces(records)
    questions = make_questions(where, asked)
    engine = fr.Engine(analyzer=analyzer)
    started = time.perf_counter()
    engine.add(fr.Record(str(number), text) for number, text in enumerate(texts))
    seconds = time.perf_counter() - started
    rows = []
    for (form, kind), pairs in questions.items():
        hits = engine.search([question for question, _ in pairs], k=10)
        found = [
            bool({int(name) for name, _ in row} & set(wanted)) for row, (_, wanted) in zip(hits, pairs, strict=True)
        ]
        share = sum(found) / len(found)
        low, high = interval(share, len(found))
        row = {"bench": "traces", "analyzer": analyzer, "form": form, "kind": kind, "n": len(found)}
        row |= {"found@10": round(share, 4), "low": round(low, 4), "high": round(high, 4)}
        rows.append({**row, "records": len(texts), "add_s": round(seconds, 2)})
    return rows


def main() -> None:
    """Measure the analyzers and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="append the rows to this JSON lines file")
    parser.add_argument("--analyzers", nargs="+", default=list(ANALYZERS))
    parser.add_argument("--records", type=int, default=130_000)
    parser.add_argument("--asked", type=int, default=300, help="identifiers of each kind")
    options = parser.parse_args()
    shared = {"machine": machine(), "commit": commit(), "code": code_of("traces"), "date": now()}
    table: dict[tuple[object, object], list[object]] = {}
    for analyzer in options.analyzers:
        for row in measure(analyzer, options.records, options.asked):
            table.setdefault((row["form"], row["kind"]), []).append(row["found@10"])
            if options.json:
                with options.json.open("a", encoding="utf-8") as out:
                    out.write(json.dumps({**row, **shared}) + "\n")
    print(f"{'form':9} {'kind':8} " + " ".join(f"{name:>9}" for name in options.analyzers))
    for (form, kind), values in table.items():
        print(f"{form:9} {kind:8} " + " ".join(f"{value:9.3f}" for value in values))


if __name__ == "__main__":
    main()
