"""Which code a recorded row speaks of: a hash of the product's files that its bench runs.

The hash is taken over content without comments, docstrings and layout, so it changes when the code does and not when
its words do. It is the same under every version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .paths import ROOT

# What texts in and hits out run through. `setup.py` holds the flags of the compiler.
_SEARCH = (
    *("setup.py", "native/**/*", "cpu_fallback/**/*", "engine/arrays.py", "engine/timing.py", "engine/engine.py"),
    *("engine/searcher.py", "engine/text/*.py", "engine/index/**/*", "engine/plan/**/*", "engine/records/**/*"),
    *("engine/search/**/*", "engine/backends/**/*"),
)
ANALYSIS = ("setup.py", "native/**/*", "engine/text/*.py")
"""The code that makes tokens of texts."""
_STORE = (*_SEARCH, "engine/storage/**/*", "engine/opening.py")
_VECTORS = ("engine/vectors/**/*", "engine/encoders/**/*")
_HYBRID = (
    *_SEARCH,
    *_VECTORS,
    *(f"engine/{room}/**/*" for room in ("hybrid", "fuse", "feedback", "rerank", "recall", "evaluate", "metrics")),
    "engine/text/time_expressions/**/*",
)


@dataclass(frozen=True)
class Bench:
    """The command that takes its rows again, and patterns of the files that they depend on."""

    command: str
    files: tuple[str, ...]


_GROWING = (*_SEARCH, "engine/storage/storage.py", "engine/monitor/**/*")
_ROUTED = (*_HYBRID, "engine/route/**/*")
_SELECTION = tuple(f"cpu_fallback/{name}.py" for name in ("dense", "select", "quickselect"))
BENCHES: Mapping[str, Bench] = {
    "fanout": Bench("make fanout", _SEARCH),
    "instructions": Bench("python -m bench.instructions --record", _SEARCH),
    "build": Bench("make building", (*_SEARCH, "engine/storage/storage.py")),
    "growth": Bench("make growth", _GROWING),
    "session": Bench("make session", _GROWING),
    "serve": Bench("make serve", (*_SEARCH, "engine/serve/**/*", "server/**/*", "client/**/*")),
    "shards": Bench("make shards", (*_ROUTED, "engine/storage/**/*", "engine/serve/**/*", "shards/**/*")),
    "shardkills": Bench("make shardkills", (*_STORE, "shards/**/*")),
    "writes": Bench("make writes ARGS='--base 1000000'", _STORE),
    "crash": Bench("make crash", _STORE),
    "dense": Bench("make dense", (*_VECTORS, *_SELECTION)),
    "hybrid": Bench("make hybrid", _HYBRID),
    "quality": Bench("make quality", _ROUTED),
    "neighbours": Bench("python -m bench.neighbours", (*_HYBRID, "engine/tune/weights.py")),
    "gpu": Bench("python -m bench.gpu.run", (*_SEARCH, "kernels/**/*")),
    "gpu_counted": Bench("python -m bench.gpu.counted", (*_SEARCH, "kernels/**/*")),
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
def hash_of(patterns: tuple[str, ...], root: Path) -> str:
    """The hash of the files of these patterns below `root`, with their paths."""
    paths = {path for pattern in patterns for path in root.glob(pattern) if path.suffix in SUFFIXES}
    total = hashlib.sha256()
    for path in sorted(paths):
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
