"""docs/sources.md lists each id that the repository cites, once; public texts name the idea, not an id.

Its last table, of what is built and what is not, may hold further ids (`tests/docs/test_sources_table.py`)."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fanrank

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file())
LIST = ROOT / "docs" / "sources.md"

# Ids with three digits begin with 0 or 1, which leaves out linter codes such as E402. P50, P90, P95 and P99 are
# percentiles. An A100 with its memory is a GPU.
_ONE = r"(?:[A-ET][01]\d\d|X[0-3]\d|R[1-4]\d|P(?!(?:50|9[059])\b)\d{1,3})"
ID = re.compile(rf"(?<![\w@.#+])(?!A100(?:-| GPU|,? \d+ GB)){_ONE}(?!\w|%|:\d)")
RANGE = re.compile(rf"\b({_ONE}) to ({_ONE})\b")
TABLE = "## What is built of these, and what is not"
ROW = re.compile(rf"^\| ({_ONE}) \|", re.MULTILINE)
NOQA = re.compile(r"#\s*noqa:.*")

FOLDERS = (
    "engine",
    "integrations",
    "kernels",
    "cpu_fallback",
    "server",
    "client",
    "shards",
    "src",
    "tests",
    "bench",
    "docs",
)
OWN = (Path(__file__).resolve(), ROOT / "tests" / "docs" / "test_sources_table.py")
SUFFIXES = (".py", ".md", ".cu", ".cuh", ".h")
CODE = ("engine", "integrations", "kernels", "cpu_fallback", "server", "client", "shards", "src")


def files() -> Iterator[Path]:
    """The repository's texts, but the list of sources and this file: git's where it knows them, else by folder."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        paths = [ROOT / name for name in listed.split("\0") if name]
    else:
        paths = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    for path in paths:
        if path.suffix in SUFFIXES and path.is_file() and path not in (LIST, *OWN):
            yield path


def ids_in(text: str) -> set[str]:
    """The ids that a text cites one by one, and both ends of its ranges."""
    return set(ID.findall(NOQA.sub("", text)))


def ranges_in(text: str) -> set[str]:
    """Every id that lies within a range such as A061 to A064."""
    within = set()
    for first, last in RANGE.findall(text):
        if first[0] == last[0]:
            width = len(first) - 1
            within |= {f"{first[0]}{number:0{width}d}" for number in range(int(first[1:]), int(last[1:]) + 1)}
    return within


def rows(text: str) -> list[str]:
    """The ids that have a row in the list of sources, in its order."""
    return ROW.findall(text.split(TABLE)[0])


def listed_in(text: str) -> set[str]:
    """The ids that have a row in the list or in the table behind it."""
    return {*rows(text), *ids_in(text.partition(TABLE)[2])}


def test_each_cited_id_is_listed():
    listed = listed_in(LIST.read_text(encoding="utf-8"))
    unknown = {}
    for path in files():
        missing = ids_in(path.read_text(encoding="utf-8")) - listed
        if missing:
            unknown[str(path.relative_to(ROOT))] = sorted(missing)
    assert not unknown, "give each of these a row in docs/sources.md"


def test_no_id_is_listed_twice():
    counts = Counter(rows(LIST.read_text(encoding="utf-8")))
    assert len(counts) > 200
    assert [name for name, count in counts.items() if count > 1] == []


def test_each_listed_id_is_cited():
    cited = set()
    for path in files():
        text = path.read_text(encoding="utf-8")
        cited |= ids_in(text) | ranges_in(text)
    unused = [name for name in rows(LIST.read_text(encoding="utf-8")) if name not in cited]
    assert not unused, "nothing cites these: take their rows out of docs/sources.md"


def test_each_id_that_the_list_refers_to_is_listed():
    text = LIST.read_text(encoding="utf-8")
    assert ids_in(text) <= listed_in(text)


def test_an_unknown_id_is_caught():
    listed = set(rows(LIST.read_text(encoding="utf-8")))
    cited = ids_in('"""Sums (SPEC A199, X39); see T150 and P999, and A010 to B199."""\n')
    assert cited - listed == {"A199", "X39", "T150", "P999", "B199"}
    assert "A010" in cited
    assert ranges_in("D008 to D010") == {"D008", "D009", "D010"}


def test_what_is_no_id_is_not_taken_for_one():
    others = (
        "import x  # noqa: E402, B023\n0xA001 R@10 P95 99 ms F64 int8 session T10:00 D10:1 A100-SXM4-40GB, A100, 40 GB"
    )
    assert ids_in(others) == set()


def names_and_texts() -> Iterator[tuple[str, str]]:
    """The docstring of each public object of the package: modules, classes, their public members, functions."""
    # Packages below are links to engine, integrations, kernels and cpu_fallback: the inside.
    themes = [module.name for module in pkgutil.iter_modules(fanrank.__path__) if not module.ispkg]
    modules = [fanrank, *(importlib.import_module(f"fanrank.{name}") for name in themes if not name.startswith("_"))]
    for module in modules:
        yield module.__name__, module.__doc__ or ""
        for name in dir(module):
            value = getattr(module, name)
            if name.startswith("_") or not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            if not value.__module__.startswith("fanrank"):
                continue
            yield f"{module.__name__}.{name}", value.__doc__ or ""
            if inspect.isclass(value):
                yield from members(f"{module.__name__}.{name}", value)


def members(place: str, kind: type) -> Iterator[tuple[str, str]]:
    """The docstring of each public method and property, inherited ones of the package included."""
    for base in kind.__mro__:
        if not base.__module__.startswith("fanrank"):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") and name not in ("__init__", "__call__"):
                continue
            if isinstance(value, property):
                value = value.fget
            elif isinstance(value, (classmethod, staticmethod)):
                value = value.__func__
            if callable(value):
                yield f"{place}.{name}", getattr(value, "__doc__", None) or ""


def cited_in(texts: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    """The ids of each text that cites any, by its name."""
    return {name: sorted(found) for name, text in texts if (found := ids_in(text) | set(re.findall(r"\bSPEC\b", text)))}


def test_public_docstrings_name_ideas():
    texts = list(names_and_texts())
    assert len(texts) > 150
    assert cited_in(iter(texts)) == {}


def test_an_id_in_a_public_docstring_is_caught():
    class Planted:
        """A class."""

        @property
        def rate(self) -> float:
            """By the rule (A032)."""
            return 0.0

        @classmethod
        def of(cls) -> None:
            """As SPEC says."""

    Planted.__module__ = "fanrank.planted"
    assert cited_in(members("P", Planted)) == {"P.rate": ["A032"], "P.of": ["SPEC"]}


def messages(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The string literals of raise statements and of calls that make an error or a warning, with their lines."""
    for node in ast.walk(tree):
        called = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Raise) or called.endswith(("Error", "Warning", "warn")):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield f"line {part.lineno}", part.value


def test_messages_name_ideas():
    found: dict[str, Any] = {}
    count = 0
    for path in files():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in CODE:
            texts = list(messages(ast.parse(path.read_text(encoding="utf-8"))))
            count += len(texts)
            cited = cited_in(iter(texts))
            if cited:
                found[str(path.relative_to(ROOT))] = cited
    assert count > 500
    assert found == {}


@pytest.mark.parametrize("code", ["raise ValueError(f'{x} (X03)')", "error = ParameterError('no (X03)')"])
def test_an_id_in_a_message_is_caught(code: str):
    assert cited_in(messages(ast.parse(code))) == {"line 1": ["X03"]}


def helps(name: str, command: Any) -> Iterator[tuple[str, str]]:
    """The help of a command and of its options, and those of the commands below it."""
    yield name, f"{command.help or ''}\n{command.short_help or ''}\n{command.epilog or ''}"
    for option in command.params:
        yield f"{name} {option.name}", getattr(option, "help", None) or ""
    for below, inner in getattr(command, "commands", {}).items():
        yield from helps(f"{name} {below}", inner)


def test_command_help_names_ideas():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    script = re.search(r'^fanrank = "([\w.]+):(\w+)"', project, re.MULTILINE)
    assert script is not None
    # The script's function imports the commands when it is called.
    assert hasattr(importlib.import_module(script[1]), script[2])
    texts = list(helps("fanrank", importlib.import_module("fanrank.engine.cli.main").main))
    assert len(texts) > 50
    assert cited_in(iter(texts)) == {}


def test_the_readme_names_ideas():
    assert cited_in(iter([("README.md", (ROOT / "README.md").read_text(encoding="utf-8"))])) == {}
