"""Tokens per second of every analyzer beside bm25s's tokenizer, on real text, in one interleaved run.

    python -m bench.text [--json rows.jsonl] [--repeats 5] [--texts 100000]

Reads SGD utterances and SciFact documents from FANRANK_DATA (default ../shared/data). Each system turns the same
texts into integer ids on one thread: `Analyzer.encode` with a dict from raw token to term id, and `bm25s.tokenize` (its
own pattern and English stop words, with and without PyStemmer) where bm25s is installed. *cold* starts with an empty
vocabulary, *warm* repeats the same texts with the vocabulary kept; bm25s keeps none, so it has cold rows only. Systems
take turns within a repeat; the median counts, and the spread is (max - min) / median. Tokens are counted by one rule
for all, before stop words: runs of letters and digits.
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
from collections.abc import Callable, Iterator
from pathlib import Path

from fanrank.engine.text import ANALYZERS, DROPPED, Analyzer, get_analyzer

from .machine import commit, machine, now
from .paths import data_folder


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


def fanrank_systems(texts: list[str]) -> Iterator[tuple[str, str, Callable[[], object]]]:
    def cold(analyzer: Analyzer) -> Callable[[], object]:
        return lambda: analyzer.encode(texts, TermIds(analyzer.normalize))

    def warm(analyzer: Analyzer) -> Callable[[], object]:
        ids = TermIds(analyzer.normalize)
        analyzer.encode(texts, ids)
        return lambda: analyzer.encode(texts, ids)

    for name in ANALYZERS:
        yield f"fanrank {name}", "cold", cold(get_analyzer(name))
        yield f"fanrank {name}", "warm", warm(get_analyzer(name))


def bm25s_systems(texts: list[str]) -> Iterator[tuple[str, str, Callable[[], object]]]:
    try:
        import bm25s
    except ImportError:
        print("bm25s is not installed: no rows of it", file=sys.stderr)
        return
    version = bm25s.__version__
    yield f"bm25s {version}", "cold", lambda: bm25s.tokenize(texts, stopwords="en", show_progress=False)
    try:
        import Stemmer
    except ImportError:
        print("PyStemmer is not installed: no row of bm25s with it", file=sys.stderr)
        return
    stemmer = Stemmer.Stemmer("english")
    yield (
        f"bm25s {version} + PyStemmer",
        "cold",
        lambda: bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False),
    )


def measure(case: str, texts: list[str], repeats: int) -> list[dict[str, object]]:
    tokens = sum(len(re.findall(r"[^\W_]+", text)) for text in texts)
    systems = [*fanrank_systems(texts), *bm25s_systems(texts)]
    seconds: dict[int, list[float]] = {number: [] for number in range(len(systems))}
    for _ in range(repeats):
        for number, (_, _, run) in enumerate(systems):
            gc.collect()
            begin = time.perf_counter()
            run()
            seconds[number].append(time.perf_counter() - begin)
    rows = []
    for number, (system, caches, _) in enumerate(systems):
        median = statistics.median(seconds[number])
        rows.append(
            {
                "bench": "text",
                "case": case,
                "system": system,
                "caches": caches,
                "texts": len(texts),
                "tokens": tokens,
                "tokens_per_s": round(tokens / median),
                "ns_per_token": round(median / tokens * 1e9, 1),
                "spread": round((max(seconds[number]) - min(seconds[number])) / median, 3),
                "repeats": repeats,
                "threads": 1,
                "machine": machine(),
                "commit": commit(),
                "date": now(),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="append the rows to this JSON lines file")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--texts", type=int, default=100_000, help="at most this many texts of each corpus")
    options = parser.parse_args()
    get_analyzer("nltk")("running")  # the import of nltk is not tokenizing
    print(f"{'case':8} {'system':28} {'caches':6} {'M tokens/s':>10} {'ns/token':>9} {'spread':>7}")
    for case, read in (("sgd", sgd), ("scifact", scifact)):
        if not (data_folder() / case).is_dir():
            print(f"{case:8} skipped: no folder {data_folder() / case}; set FANRANK_DATA")
            continue
        texts = [text for text, _ in zip(read(), range(options.texts), strict=False)]
        for row in measure(case, texts, options.repeats):
            print(
                f"{case:8} {row['system']:28} {row['caches']:6} {row['tokens_per_s'] / 1e6:10.2f} "  # type: ignore[operator]
                f"{row['ns_per_token']:9} {row['spread']:7.0%}",
                flush=True,
            )
            if options.json:
                with options.json.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
