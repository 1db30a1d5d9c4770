"""Which code a recorded row speaks of: a hash of the product's files that its bench runs.

The hash is taken over content without comments, docstrings and layout, so it changes when the code does and not when
its words do. It is the same under every version of Python.
"""

import ast
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .paths import ROOT

ANALYSIS = ("setup.py", "native/**/*", "engine/text/*.py")
"""The code that makes tokens of texts. `setup.py` holds the flags of the compiler."""
# What texts in and hits out run through. A pattern after "!" takes files out again: what only reads and explains.
_SEARCH = (
    *(*ANALYSIS, "cpu_fallback/**/*", "!cpu_fallback/dense.py"),
    *(f"engine/{name}.py" for name in ("arrays", "engine", "locks", "memory", "searcher", "settings", "signatures")),
    *(f"engine/{room}/**/*" for room in ("backends", "index", "monitor", "plan", "records", "search")),
    *(f"!engine/records/{name}.py" for name in ("explanation", "query_json", "travelled")),
    *("engine/timing.py", "engine/storage/state.py", "engine/storage/storage.py", "engine/route/parts.py"),
    *("!engine/records/dialects/**/*", "!engine/index/learned.py"),
)
# Texts alone, on a CPU: no options, no records that come.
_TEXTS = (
    *(*_SEARCH, "!engine/records/jsonl.py", "!cpu_fallback/neighbours.py", "!cpu_fallback/newest.py"),
    *(f"!engine/search/{name}.py" for name in ("events", "keyword_scan", "newest")),
    *(f"!engine/index/{name}.py" for name in ("decay", "neighbours", "time_order", "windows")),
)
# What adds records, in memory.
_WRITE = (
    *(f"engine/{name}.py" for name in ("errors", "moments", "opening", "writing")),
    *("engine/encoders/embed.py", "engine/encoders/pins.py", "engine/recall/graphs.py", "engine/storage/**/*"),
)
_STORE = (*_SEARCH, *_WRITE)
_VECTORS = ("engine/vectors/**/*", "engine/encoders/**/*", "cpu_fallback/dense.py")
_ROOMS = ("hybrid", "fuse", "feedback", "rerank", "recall", "route", "evaluate", "metrics")
_HYBRID = (
    *(name for name in _SEARCH if name != "!cpu_fallback/dense.py"),
    *(*_VECTORS, "engine/text/time_expressions/**/*"),
    *(f"engine/{room}/**/*" for room in _ROOMS),
)


@dataclass(frozen=True)
class Bench:
    """The modules, with arguments, that take its rows again, and patterns of the files that they depend on.

    `alone`: its rows are times, for which nothing else may run.
    """

    runs: tuple[str, ...]
    files: tuple[str, ...]
    alone: bool = True


FAN_OUTS = ("scifact", "synthetic-50k", "synthetic-300k", "sgd", "nq-shaped")
"""The corpora whose fan-outs are quoted. Each is taken by a command of its own, so that a broken run goes on."""
_GROWING = (*_STORE, "engine/hybrid/channels.py", "engine/hybrid/strategy.py", "engine/route/parts.py")
BENCHES: Mapping[str, Bench] = {
    "fanout": Bench(tuple(f"bench.fanout --corpora {corpus}" for corpus in FAN_OUTS), _TEXTS),
    "instructions": Bench(("bench.instructions --record",), _TEXTS, alone=False),
    "building": Bench(
        (
            "bench.building --corpora synthetic-300k,sgd --reps 2",
            "bench.building --corpora nq-shaped --systems fanrank --threads 2 --reps 1",
            "bench.building --store",
        ),
        _STORE,
    ),
    "growth": Bench(("bench.growth",), _GROWING),
    "session": Bench(("bench.session",), _GROWING),
    "serve": Bench(("bench.serve",), (*_SEARCH, "engine/serve/**/*", "server/**/*", "client/**/*")),
    "shards": Bench(("bench.shards",), (*_HYBRID, *_WRITE, "engine/serve/**/*", "shards/**/*")),
    "shardkills": Bench(("bench.shard_kills --rounds 20 --owners 5",), (*_STORE, "shards/**/*"), alone=False),
    "writes": Bench(("bench.writes --base 1000000",), _STORE),
    "crash": Bench(
        ("tests.extended.histories.kills --rounds 30 --results bench/results/crash.jsonl",), _STORE, alone=False
    ),
    "dense": Bench(("bench.dense",), (*_VECTORS, "cpu_fallback/select.py", "engine/arrays.py", "engine/locks.py")),
    "hybrid": Bench(("bench.hybrid",), _HYBRID),
    "quality": Bench(("bench.quality", "bench.strategies"), _HYBRID, alone=False),
    "languages": Bench(("bench.languages",), ("native/text*", "engine/text/*.py"), alone=False),
    "neighbours": Bench(("bench.neighbours",), _HYBRID),
    "gpu": Bench(("bench.gpu.run",), (*_SEARCH, "kernels/**/*")),
    "gpu_counted": Bench(("bench.gpu.counted",), (*_SEARCH, "kernels/**/*")),
}
"""By the name that rows have. Files that are not there do not count."""

SUFFIXES = (".py", ".cpp", ".hpp", ".h", ".cu", ".cuh")
# A string or a character, or a comment. Strings come first, as they may hold what looks like a comment; a quote after
# a digit separates digits.
_C = re.compile(
    r"""R"(?P<end>[^(\s]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'"""
    r"""|//[^\n]*|/\*.*?\*/""",
    re.DOTALL,
)
# Fields that differ between versions of Python, or that say how a constant was written.
_LAYOUT = ("kind", "type_comment", "type_ignores")
# Strings that stand alone in their bodies are docstrings, and those below a field.
_WITH_TEXTS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_of(bench: str, root: Path = ROOT) -> str:
    """The hash of the code that rows of this bench speak of."""
    return hash_of(BENCHES[bench].files, root)


@lru_cache(maxsize=64)
def paths_of(patterns: tuple[str, ...], root: Path) -> frozenset[Path]:
    """The files of these patterns below `root`."""
    wanted = {path for pattern in patterns if pattern[0] != "!" for path in root.glob(pattern)}
    left_out = {path for pattern in patterns if pattern[0] == "!" for path in root.glob(pattern[1:])}
    return frozenset(path for path in wanted - left_out if path.suffix in SUFFIXES)


@lru_cache(maxsize=64)
def hash_of(patterns: tuple[str, ...], root: Path) -> str:
    """The hash of the files of these patterns below `root`, with their paths."""
    total = hashlib.sha256()
    for path in sorted(paths_of(patterns, root)):
        total.update(f"{path.relative_to(root).as_posix()}\0{read_code(path)}\0".encode())
    return total.hexdigest()[:12]


@lru_cache(maxsize=1024)
def read_code(path: Path) -> str:
    """What a file says, without comments, docstrings and layout."""
    text = path.read_text(encoding="utf-8")
    return python_code(text) if path.suffix == ".py" else c_code(text)


def python_code(text: str) -> str:
    """What a Python file says, without comments, docstrings and layout."""
    return _dump(ast.parse(text))


def _dump(node: Any) -> str:
    if isinstance(node, list):
        return f"[{','.join([_dump(one) for one in node])}]"
    if not isinstance(node, ast.AST):
        return ascii(node)
    values, kept = vars(node), []
    for name in node._fields:
        value = values.get(name)
        if name == "body" and isinstance(node, _WITH_TEXTS):
            value = [one for one in value if not _is_text(one)]
        # Empty fields are left out: newer versions of Python add fields.
        if value is not None and value != [] and name not in _LAYOUT:
            kept.append(f"{name}={_dump(value)}")
    return f"{type(node).__name__}({','.join(kept)})"


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def c_code(text: str) -> str:
    """What a C++ or CUDA file says, without comments and layout."""
    kept = _C.sub(lambda match: " " if match[0].startswith("/") else match[0], text)
    return " ".join(kept.split())
