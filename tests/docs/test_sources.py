"""docs/sources.md lists each id that the repository cites, once; public texts name the idea, not an id. Its last table,
of what is built and what is not, is complete, and each name in it leads somewhere."""

import ast
import inspect
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from support.source import FOLDERS, ROOT

import fanrank as fr
from fanrank.engine import signatures
from fanrank.engine.cli.main import main
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.route.policy import POLICIES

PAGE = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
LIST, _, TABLE = PAGE.partition("## What is built of these, and what is not")
# Ids with three digits begin with 0 or 1, which leaves out linter codes such as E402. P50, P90, P95 and P99 are
# percentiles. An A100 with its memory is a GPU.
_ONE = r"(?:[A-ET][01]\d\d|X[0-3]\d|R[1-4]\d|P(?!(?:50|9[059])\b)\d{1,3})"
ID = re.compile(rf"(?<![\w@.#+])(?!A100(?:-| GPU|,? \d+ GB)){_ONE}(?!\w|%|:\d)")
RANGE = re.compile(rf"\b({_ONE}) to ({_ONE})\b")
LISTED = re.findall(rf"^\| ({_ONE}) \|", LIST, re.MULTILINE)
THEMES = (fr, fr.evaluation, fr.routing, fr.scopes, fr.strategies, fr.published)
THEMES += (fr.text, fr.errors, fr.encoders, fr.reports)
_, *ROWS = ([cell.strip() for cell in row.strip("|").split(" | ")] for row in re.findall(r"(?m)^\| .*", TABLE))
PLACES = {token: row[2] for row in ROWS for token in re.findall(r"`([^`]+)`", row[2])}


@cache
def files() -> dict[str, str]:
    """The repository's texts, but the list of sources and this file: git's where it knows them, else by folder."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        paths = [ROOT / name for name in listed.split("\0") if name]
    else:
        folders = (*FOLDERS, "src", "tests", "bench", "docs")
        paths = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    known = (".py", ".md", ".cu", ".cuh", ".h")
    left_out = (Path(__file__).resolve(), ROOT / "docs" / "sources.md")
    paths = [path for path in paths if path.suffix in known and path.is_file() and path not in left_out]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def ids_in(text: str) -> set[str]:
    """The ids that a text cites one by one, and both ends of its ranges."""
    return set(ID.findall(re.sub(r"#\s*noqa:.*", "", text)))


def ranges_in(text: str) -> set[str]:
    """Every id that lies within a range such as A061 to A064."""
    return {
        f"{first[0]}{number:0{len(first) - 1}d}"
        for first, last in RANGE.findall(text)
        if first[0] == last[0]
        for number in range(int(first[1:]), int(last[1:]) + 1)
    }


def test_each_cited_id_is_listed_and_each_listed_one_is_cited() -> None:
    listed = {*LISTED, *ids_in(TABLE)}
    assert len(LISTED) == len(set(LISTED)) > 200
    unknown = {name: missing for name, text in files().items() if (missing := sorted(ids_in(text) - listed))}
    assert not unknown, "give each of these a row in docs/sources.md"
    assert ids_in(PAGE) <= listed
    cited = set().union(*(ids_in(text) | ranges_in(text) for text in files().values()))
    assert not [name for name in LISTED if name not in cited], "nothing cites these: take their rows out"


def public_texts() -> Iterator[tuple[str, str]]:
    """What users read: docstrings of public names and their members, messages, help, the README."""
    yield "README.md", (ROOT / "README.md").read_text(encoding="utf-8")
    for theme in THEMES:
        yield theme.__name__, theme.__doc__ or ""
        for name in theme.__all__:
            value = getattr(theme, name)
            bases = [base for base in getattr(value, "__mro__", ()) if base.__module__.startswith("fanrank")]
            for own in (value, *(one for base in bases for key, one in vars(base).items() if key[0] != "_")):
                yield f"{theme.__name__}.{name}", getattr(own, "__doc__", None) or ""
    for name, text in files().items():
        if name.endswith(".py") and name.startswith((*(f"{folder}/" for folder in FOLDERS), "src/")):
            yield from ((name, message) for message in messages(ast.parse(text)))
    for name, command in main.commands.items():
        helps = [getattr(option, "help", None) or "" for option in command.params]
        yield f"fanrank {name}", " ".join([command.help or "", *helps])


def messages(tree: ast.AST) -> Iterator[str]:
    """The string literals of raise statements and of calls that make an error or a warning."""
    for node in ast.walk(tree):
        called = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Raise) or called.endswith(("Error", "Warning", "warn")):
            yield from (part.value for part in ast.walk(node) if isinstance(getattr(part, "value", None), str))


def test_public_texts_name_ideas() -> None:
    texts = list(public_texts())
    assert len(texts) > 1000
    assert [(name, found) for name, text in texts if (found := ids_in(text) | {*re.findall(r"\bSPEC\b", text)})] == []
    assert {*messages(ast.parse("raise ValueError(f'{x} (X03)')"))} == {" (X03)"}


def test_every_item_is_in_the_table_once() -> None:
    ids = [name for row in ROWS for name in re.findall(r"\b[A-EPTX]\d{2,3}\b", row[0])]
    assert len(ids) == len(set(ids))


def test_every_row_says_where_or_why_not() -> None:
    why = ("Declined", "Not ", "Nothing to build", "In part", "As A", "Kept", "Measured with")
    assert [row for row in ROWS if len(row) != 3 or not ("`" in row[2] or row[2].startswith(why))] == []
    assert [row for row in ROWS if row[2].startswith(("Declined", "Not measured")) and len(row[2]) < 31] == []


NOTHING = object()


def named(dotted: str) -> Any:
    """The object of a dotted name below `fr`, or of a public name of any theme; `NOTHING` where there is none."""
    first, *rest = dotted.removeprefix("fr.").split(".")
    value = next((getattr(theme, first) for theme in THEMES if first in dir(theme)), NOTHING)
    for name in rest:
        value = getattr(value, name, NOTHING)
    return value


def leads(token: str, place: str) -> bool:
    """Whether what stands in backticks is there: a file, a public name, a command, a strategy, or a parameter."""
    if token.startswith("fanrank "):
        _, name, *options = token.split()
        known = {option for parameter in main.commands[name].params for option in parameter.opts}
        return known >= set(options)
    if "/" in token or token.startswith(("engine.", "bench.")):
        return (ROOT / token).is_file() or (ROOT / (token.replace(".", "/") + ".py")).is_file()
    keywords = {**get_type_hints(signatures.SearchKeywords), **get_type_hints(signatures.EngineOptions)}
    if token in {**NAMED, **POLICIES, **keywords} or named(token) is not NOTHING:
        return True
    others = filter(callable, map(named, re.findall(r"`((?:fr\.|[A-Z])[^`]*)`", place)))
    return any(token in inspect.signature(other).parameters for other in others)


@pytest.mark.parametrize("token", sorted(PLACES))
def test_each_name_leads_somewhere(token: str) -> None:
    assert token == "agent_rrf" or leads(token, PLACES[token])
