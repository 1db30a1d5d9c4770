"""The stamp of a row depends on the code that the row times, and on nothing beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.benches import load
from support.source import ROOT

import fanrank as fr

code, dense = load("harness.code", "dense")
RECORDS = [fr.Record(str(n), f"w{n % 7} w{n % 11} w{n} is", session=f"s{n % 5}", time=float(n)) for n in range(60)]
PRODUCT = [ROOT / room for room in ("engine", "cpu_fallback", "native")]


def searched(backend: str | None, **asked: Any) -> Callable[[], object]:
    engine = fr.Engine.from_records(RECORDS, analyzer="nltk", backend=backend)
    texts = ["w1 w2", "w3"]
    return lambda: engine.search([fr.Query(text, **asked) for text in texts] if asked else texts, 10, threads=1).ids


def written() -> Callable[[], object]:
    engine, numbers = fr.Engine.from_records(RECORDS), count(100)
    return lambda: (engine.add([fr.Record(str(next(numbers)), "w1 more")]), engine.search(["w1"], 10).ids)


def ranked() -> Callable[[], object]:
    engine = fr.Engine(encoder=fr.OwnVectors(2))
    engine.add(fr.Record(str(n), f"w{n % 7} w{n}", embedding=[1.0, n]) for n in range(60))
    return lambda: engine.search([fr.Query("w1", vector=[1.0, 2.0])], 10, strategy="fused").ids


def compared() -> Callable[[], object]:
    rows, queries = dense.make_clusters(1, 60, 4, 8)
    (exact,) = dense.systems_of(rows, ["exact"])
    return lambda: exact.answer(queries, queries.astype("f4"), 3)


TIMED: dict[str, Callable[[], list[Callable[[], object]]]] = {
    "fanout": lambda: [searched("numpy"), searched(None)],
    "growth": lambda: [searched(None, half_life=9.0, now=90.0), searched("numpy", windows=2, now=90.0)],
    "session": lambda: [written()],
    "build": lambda: [lambda: fr.Engine.from_records(RECORDS, keep_texts=False).flush()],
    "hybrid": lambda: [ranked()],
    "dense": lambda: [compared()],
    "neighbours": lambda: [searched("numpy", neighbours=fr.Neighbours(2, 0.25))],
}
"""What rows of a bench time, in small."""
BESIDE = {
    "fanout": ("server/", "shards/", "kernels/", "engine/records/dialects/", "engine/storage/writes.py", "engine/cli/"),
    "growth": ("server/", "shards/", "kernels/", "engine/vectors/", "engine/records/dialects/"),
    "hybrid": ("server/", "shards/", "kernels/", "engine/records/dialects/", "engine/serve/"),
    "serve": ("shards/", "kernels/", "engine/vectors/"),
    "dense": ("native/", "engine/index/", "engine/text/"),
}


def ran(work: Callable[[], object]) -> set[Path]:
    """The product's files whose functions this calls, in this thread. Once before, for what is imported then."""
    work()
    names: set[str] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: names.add(frame.f_code.co_filename))
    try:
        work()
    finally:
        sys.setprofile(before)
    paths = {Path(name).resolve() for name in names if not name.startswith("<")}
    return {path for path in paths if any(room in path.parents for room in PRODUCT)}


@pytest.mark.parametrize("bench", TIMED)
def test_a_stamp_depends_on_what_is_timed(bench: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patterns, read, before = code.BENCHES[bench].files, code.read_code, code.code_of(bench)
    files = set().union(*map(ran, TIMED[bench]()))
    assert len(files) > 2
    missing = sorted(path.relative_to(ROOT).as_posix() for path in files - code.paths_of(patterns, ROOT))
    assert missing == [], "add these to bench/harness/code.py"
    changed = max(files)
    monkeypatch.setattr(code, "read_code", lambda path: read(path) + "x" * (path == changed))
    assert code.hash_of.__wrapped__(patterns, ROOT) != before


def test_a_stamp_depends_on_nothing_beside_it() -> None:
    for name, bench in code.BENCHES.items():
        hashed = [path.relative_to(ROOT).as_posix() for path in code.paths_of(bench.files, ROOT)]
        beside = ("bench/", "tests/", "docs/", *BESIDE.get(name, ()))
        assert [path for path in hashed if path.startswith(beside)] == [], name
        # Each pattern holds a file, so none outlives what it named.
        assert all(any(ROOT.glob(pattern.lstrip("!"))) for pattern in bench.files), name
