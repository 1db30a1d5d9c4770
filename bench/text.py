"""Tokens per second from text to term ids, beside bm25s's tokenizer, on real text, in one interleaved run.

    PYTHONPATH=bench/.peers/bm25s/lib/python3.11/site-packages python -m bench.text \\
        [--json rows.jsonl] [--repeats 5] [--texts 100000] [--threads 1 2] [--systems nltk bm25s]

Reads SGD utterances and SciFact documents from FANRANK_DATA (default ../shared/data). The bm25s rows need bm25s and
PyStemmer; the bench beside the peers keeps them in the environment that the first line puts on the path. Its numpy must
have the version of ours, or ours must come first. The systems, which all read the same list of texts:

    fanrank NAME            `Analyzer.encode`, token by token, with a dict from raw token to term id; one thread
    fanrank NAME encoder    `TermIndexer.encode_documents`, as `Engine.add` calls it: lower case, runs of letters and
                            digits, stop words, stems, ids in alphabetical order, and each token's text; `--threads`
    fanrank NAME queries    `TermIndexer.encode_queries` of the same texts; warm
    bm25s                   `bm25s.tokenize`: lower case, runs of two or more word characters, its 33 English stop
                            words, lists of ids in order of first sight; with PyStemmer distinct words are stemmed

*cold* starts with an empty vocabulary and no cached token (the analyzer's own cache is emptied too). *warm* repeats the
same texts with the caches of the first time. bm25s keeps nothing, so it has cold rows only. Loading and compiling loops
is not timed. Systems take turns within a repeat; the median counts, and the spread is (max - min) / median. `least` is
the fastest repeat. Tokens are counted by one rule for all, before stop words: runs of letters and digits.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from fanrank.engine.text.analyzers import ANALYZERS, DROPPED, Analyzer, get_analyzer, word_recipe
from fanrank.engine.text.vocabulary import TermIndexer, Vocabulary

from .harness.code import code_of
from .harness.machine import commit, machine, now
from .harness.paths import data_folder


class TermIds(dict[str, int]):
    """Raw token -> term id, filled as tokens come."""

    def __init__(self, normalize: Callable[[str], str | None]) -> None:
        self.normalize = normalize
        self.terms: dict[str, int] = {}

    def __missing__(self, token: str) -> int:
        term = self.normalize(token)
        self[token] = DROPPED if term is None else self.terms.setdefault(term, len(self.terms))
        return self[token]


def sgd() -> Iterator[str]:
    for part in ("train", "dev", "test"):
        with gzip.open(data_folder() / "sgd" / f"{part}.turns.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["utterance"]


def scifact() -> Iterator[str]:
    with (data_folder() / "scifact" / "corpus.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            yield f"{document['title']} {document['text']}"


class System(NamedTuple):
    """One line of the table. `run` takes the result of `prepare`, which is not timed."""

    name: str
    caches: str
    threads: int
    prepare: Callable[[], object]
    run: Callable[[Any], object]


def fanrank_systems(texts: list[str], threads: Sequence[int]) -> Iterator[System]:
    def token_by_token(name: str, analyzer: Analyzer) -> Iterator[System]:
        def run(ids: TermIds) -> object:
            return analyzer.encode(texts, ids)

        known = TermIds(analyzer.normalize)
        analyzer.encode(texts, known)
        yield System(name, "cold", 1, lambda: TermIds(analyzer.normalize), run)
        yield System(name, "warm", 1, lambda: known, run)

    def by_encoder(name: str, analyzer: Analyzer) -> Iterator[System]:
        def fresh() -> TermIndexer:
            analyzer.forget()
            return TermIndexer(analyzer, Vocabulary())

        known = fresh()
        known.encode_documents(texts)
        for count in threads:
            run = partial(lambda count, encoder: encoder.encode_documents(texts, threads=count), count)
            yield System(f"{name} encoder", "cold", count, fresh, run)
            yield System(f"{name} encoder", "warm", count, lambda: known, run)
        yield System(f"{name} queries", "warm", 1, lambda: known, lambda encoder: encoder.encode_queries(texts))

    for name in ANALYZERS:
        yield from token_by_token(f"fanrank {name}", get_analyzer(name))
        if word_recipe(get_analyzer(name)):
            yield from by_encoder(f"fanrank {name}", get_analyzer(name))


def bm25s_systems(texts: list[str]) -> Iterator[System]:
    try:
        import bm25s
    except ImportError:
        print("bm25s is not installed: no rows of it", file=sys.stderr)
        return
    version = bm25s.__version__
    english = partial(bm25s.tokenize, stopwords="en", show_progress=False)
    yield System(f"bm25s {version}", "cold", 1, lambda: None, lambda _: english(texts))
    try:
        import Stemmer
    except ImportError:
        print("PyStemmer is not installed: no row of bm25s with it", file=sys.stderr)
        return
    stemmer = Stemmer.Stemmer("english")
    yield System(f"bm25s {version} + PyStemmer", "cold", 1, lambda: None, lambda _: english(texts, stemmer=stemmer))


def measure(
    case: str, texts: list[str], repeats: int, threads: Sequence[int], wanted: Sequence[str]
) -> list[dict[str, object]]:
    tokens = sum(len(re.findall(r"[^\W_]+", text)) for text in texts)
    every = chain(fanrank_systems(texts, threads), bm25s_systems(texts))
    systems = [system for system in every if not wanted or set(wanted) & set(system.name.split())]
    seconds: dict[int, list[float]] = {number: [] for number in range(len(systems))}
    for _ in range(repeats):
        for number, system in enumerate(systems):
            prepared = system.prepare()
            gc.collect()
            begin = time.perf_counter()
            system.run(prepared)
            seconds[number].append(time.perf_counter() - begin)
    rows = []
    for number, system in enumerate(systems):
        median = statistics.median(seconds[number])
        rows.append(
            {
                "bench": "text",
                "case": case,
                "system": system.name,
                "caches": system.caches,
                "texts": len(texts),
                "tokens": tokens,
                "tokens_per_s": round(tokens / median),
                "ns_per_token": round(median / tokens * 1e9, 1),
                "least_ns_per_token": round(min(seconds[number]) / tokens * 1e9, 1),
                "spread": round((max(seconds[number]) - min(seconds[number])) / median, 3),
                "repeats": repeats,
                "threads": system.threads,
                "machine": machine(),
                "commit": commit(),
                "code": code_of("text"),
                "date": now(),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="append the rows to this JSON lines file")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--texts", type=int, default=100_000, help="at most this many texts of each corpus")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of the encoder's rows")
    parser.add_argument("--systems", nargs="*", default=[], help="only rows with one of these words in their name")
    options = parser.parse_args()
    get_analyzer("nltk")("running")  # the import of nltk is not tokenizing
    print(f"{'case':8} {'system':28} {'caches':6} threads M tokens/s  ns/token   least  spread")
    for case, read in (("sgd", sgd), ("scifact", scifact)):
        if not (data_folder() / case).is_dir():
            print(f"{case:8} skipped: no folder {data_folder() / case}; set FANRANK_DATA")
            continue
        texts = [text for text, _ in zip(read(), range(options.texts), strict=False)]
        for row in measure(case, texts, options.repeats, options.threads, options.systems):
            print(
                f"{case:8} {row['system']:28} {row['caches']:6} {row['threads']:7} "
                f"{row['tokens_per_s'] / 1e6:10.2f} "  # type: ignore[operator]
                f"{row['ns_per_token']:9} {row['least_ns_per_token']:7} {row['spread']:7.0%}",
                flush=True,
            )
            if options.json:
                with options.json.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
