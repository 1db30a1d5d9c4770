"""The repository speaks the field's words: retired ones are refused, and each file that a text names is there."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import NamedTuple

import pytest
from support import source

EVERYWHERE = ("",)
PRODUCT = ("engine/", "kernels/", "cpu_fallback/")
TEXTS = (*PRODUCT, "src/", "tests/", "docs/", "README.md")
SUFFIXES = (".py", ".md", ".cu", ".cuh", ".h", ".cpp", ".hpp", ".toml", ".yml")


class Retired(NamedTuple):
    """A word that stands for something that the field, or this project, calls by another name."""

    pattern: str
    instead: str
    where: tuple[str, ...] = EVERYWHERE
    """What paths of files begin with in which it is refused."""
    suffixes: tuple[str, ...] = SUFFIXES


RETIRED = (
    Retired(
        r"\b(?:Peaks|Listed(?! here)|Gathering|Recalling|RoadResult)\b",
        "UpperBounds, RetrieverResults, EvidenceCollector, RecallCollector, PathResult",
        TEXTS,
    ),
    # In quotes it is a key of recorded rows and of reports, which are data.
    Retired(r'(?<!["`])\b(?:[Rr]oads?|ROADS)\b(?!["`])', "path, or backend"),
    Retired(r"\b(?:floors|raises_floors|query_floor|FLOORS_STAY)\b", "thresholds"),
    # A call of a mathematical floor is one, and so is a name of it.
    Retired(
        r"(?<!math\.)(?<!np\.)(?<!tl\.)\bfloor\b(?!\()",
        "threshold",
        ("kernels/", "cpu_fallback/"),
        (".py", ".cu", ".cuh", ".md"),
    ),
    Retired(r"\bpeaks\b|\bceilings\b", "upper bounds", PRODUCT),
    Retired(r"\.skips\b|\bNO_SKIPS\b|\bSkips\(", "skip tables", ("engine/index/", "cpu_fallback/")),
    Retired(r"\bdead\b", "deleted", TEXTS),
    Retired(
        r"\b(?:best_kinds|MAX_KINDS|kind_type|flag_kinds|rank_kinds|quanta_of_kind|cut_maxima_kinds)\b",
        "impact classes",
    ),
    Retired(r"\b(?:text_road|road_of|gathering_of|_said|check_how)\b", "token_path and so on"),
)

# By file: words that it may use, and why.
EXEMPT: dict[str, str] = {
    "tests/test_words.py": "It lists them.",
}

# Names of variables, functions and arguments that say nothing of what they hold.
UNTELLING = ("said", "told")

# Statements that bind the name that they hold.
BINDING = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar),
)

# What a path that a text names may begin with.
FOLDERS = (
    "engine",
    "integrations",
    "kernels",
    "cpu_fallback",
    "native",
    "server",
    "client",
    "shards",
    "tests",
    "docs",
    "bench",
)
PATH = re.compile(rf"(?<![\w./*-])(?:{'|'.join(FOLDERS)})/[\w./-]*\.(?:py|md|cuh|cu|hpp|h|cpp|jsonl|svg|json|sh)\b")
# Paths that are named and not there, and why.
ABSENT: dict[str, str] = {
    "bench/.cache/dense.jsonl": "A command writes it where it is run.",
    "bench/.cache/growth.jsonl": "A command writes it where it is run.",
    "bench/results/build.jsonl": "A command writes it where it is run.",
    "bench/results/gpu.jsonl": "Rows of a GPU go there once there are any.",
}
# Where an order of rooms, or a line of functions, is read from a page.
ROW = re.compile(r"^\| (.+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"((?:`[\w.]+`(?:, | and )?)+) (?:\(|in |of |\| )\[([\w/.]+)\]\(")


@cache
def tracked() -> tuple[str, ...]:
    """Paths of the repository's files: git's where it knows them, else by folder."""
    if (source.ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=source.ROOT, capture_output=True, text=True, check=True
        ).stdout
        names = [name for name in listed.split("\0") if name]
    else:
        paths = [*source.ROOT.glob("*.md"), *(file for top in FOLDERS for file in (source.ROOT / top).rglob("*"))]
        names = [path.relative_to(source.ROOT).as_posix() for path in paths]
    return tuple(name for name in names if (source.ROOT / name).is_file())


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Path and text of each file that people write."""
    names = (name for name in tracked() if PurePosixPath(name).suffix in SUFFIXES)
    return tuple((name, (source.ROOT / name).read_text(encoding="utf-8")) for name in names)


def retired_words(files: Iterable[tuple[str, str]]) -> list[str]:
    """Where retired words stand."""
    faults = []
    for name, text in files:
        if name in EXEMPT:
            continue
        for word in RETIRED:
            if name.startswith(word.where) and name.endswith(word.suffixes):
                for match in re.finditer(word.pattern, text):
                    line = text.count("\n", 0, match.start()) + 1
                    faults.append(f"{name}:{line}: {match[0]!r}, say {word.instead}")
    return faults


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each variable, argument, function, class and attribute that the code binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, BINDING) and node.name:
            yield node.lineno, node.name


def untelling_names(files: Iterable[tuple[str, str]]) -> list[str]:
    """Where names of `UNTELLING` are bound, in Python files of the product."""
    return [
        f"{name}:{line}: {bound}"
        for name, text in files
        if name.startswith(PRODUCT) and name.endswith(".py")
        for line, bound in bound_names(ast.parse(text))
        if bound in UNTELLING
    ]


def prose(name: str, text: str) -> str:
    """What a file says to its readers: a page whole, of Python the comments and docstrings."""
    if not name.endswith(".py"):
        return text
    comments = [
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
    ]
    # A docstring of a variable or a field is a statement of its own, as those of functions are.
    docstrings = [
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return "\n".join([*comments, *docstrings])


def missing_files(files: Iterable[tuple[str, str]]) -> list[str]:
    """Files that texts name and that are not there."""
    known = {*tracked(), *ABSENT}
    missing = set()
    for name, text in files:
        # Comments are looked for only where the file names something that is not there, as cutting it up takes long.
        if {*PATH.findall(text)} - known:
            missing |= {f"{name}: {path}" for path in PATH.findall(prose(name, text)) if path not in known}
    return sorted(missing)


def test_retired_words_are_gone() -> None:
    assert retired_words(texts()) == []


def test_no_file_holds_a_merge_that_was_not_ended() -> None:
    marks = re.compile(r"^ *(?:<{7} |>{7} )", re.MULTILINE)
    assert [name for name, text in texts() if marks.search(text)] == []


def test_names_say_what_they_hold() -> None:
    assert untelling_names(texts()) == []


def test_files_that_texts_name_are_there() -> None:
    assert missing_files(texts()) == []


def test_exemptions_are_needed() -> None:
    assert EXEMPT.keys() <= {name for name, _ in texts()}
    named = "\n".join(text for _, text in texts())
    assert [path for path in ABSENT if path in tracked() or named.count(path) < 2] == []


def test_architecture_names_functions_where_they_are() -> None:
    page = (source.ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    pairs = [(name, path) for names, path in NAMED.findall(page) for name in re.findall(r"`([\w.]+)`", names)]
    assert len(pairs) > 50
    missing = [
        f"{name} in {path}"
        for name, path in pairs
        if not (source.ROOT / path).is_file()
        or not re.search(rf"\b{name.split('.')[-1]}\b", (source.ROOT / path).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_architecture_lists_the_rooms_in_order() -> None:
    tree = ast.parse((source.ROOT / "tests" / "test_layout.py").read_text(encoding="utf-8"))
    (floors,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "FLOORS" and node.value is not None
    ]
    page = (source.ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page.split("\n## The rooms\n")[1].split("\n## ")[0]
    listed = [
        tuple(
            link.removesuffix("/README.md").removesuffix(".py").replace("/", ".")
            for link in re.findall(r"\]\((.+?)\)", row)
        )
        for row, _ in ROW.findall(table)[1:]
    ]
    assert listed == list(floors)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("engine/index/postings.py", "# the other road\n"),
        ("docs/serving.md", "Each road answers.\n"),
        ("kernels/cuda/score.cu", "// raises the floor\n"),
        ("cpu_fallback/prune.py", "# a dead document\n"),
        ("README.md", "dead records\n"),
        ("bench/run.py", "raises_floors = 1\n"),
    ],
)
def test_a_planted_word_is_found(name: str, line: str) -> None:
    faults = retired_words([(name, "first line\n" + line)])
    assert [fault.split(": ")[0] for fault in faults] == [f"{name}:2"]


def test_words_of_data_and_mathematics_are_let_through() -> None:
    assert retired_words([("bench/report/tables.py", 'row["road"]\n'), ("kernels/device.py", "math.floor(x)\n")]) == []


def test_a_planted_name_is_found() -> None:
    text = "def f(told):\n    said = 1\n    for said in told: self.told = (said := 2)\n"
    assert len(untelling_names([("engine/engine.py", text)])) == 5
    assert untelling_names([("tests/test_layout.py", text)]) == []
    assert untelling_names([("engine/engine.py", "x = said + other.told\n")]) == []


def test_a_planted_path_is_found() -> None:
    comment = ("engine/engine.py", "x = 1  # see engine/gone.py and `engine/engine.py`\n")
    docstring = ("tests/test_layout.py", '"""As tests/gone/test_gone.py."""\n')
    assert missing_files([comment, docstring, ("docs/a.md", "[x](docs/gone.md)\n")]) == [
        "docs/a.md: docs/gone.md",
        "engine/engine.py: engine/gone.py",
        "tests/test_layout.py: tests/gone/test_gone.py",
    ]
    assert missing_files([("engine/engine.py", 'x = "engine/gone.py"\n')]) == []
