"""The repository speaks the field's words: retired ones are refused, and each file that a text names is there."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import pytest
from support import source

PRODUCT = ("engine/", "kernels/", "cpu_fallback/")
TEXTS = (*PRODUCT, "src/", "tests/", "docs/", "README.md")
SUFFIXES = (".py", ".md", ".cu", ".cuh", ".h", ".cpp", ".hpp", ".toml", ".yml")


class Retired(NamedTuple):
    """A word that stands for something that the field, or this project, calls by another name."""

    pattern: str
    instead: str
    where: tuple[str, ...] = ("",)
    """What paths of files begin with in which it is refused."""


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
    Retired(r"(?<!math\.)(?<!np\.)(?<!tl\.)\bfloor\b(?!\()", "threshold", ("kernels/", "cpu_fallback/")),
    Retired(r"\bpeaks\b|\bceilings\b", "upper bounds", PRODUCT),
    Retired(r"\.skips\b|\bNO_SKIPS\b|\bSkips\(", "skip tables", ("engine/index/", "cpu_fallback/")),
    Retired(r"\bdead\b", "deleted", TEXTS),
    Retired(
        r"\b(?:best_kinds|MAX_KINDS|kind_type|flag_kinds|rank_kinds|quanta_of_kind|cut_maxima_kinds)\b",
        "impact classes",
    ),
    Retired(r"\b(?:text_road|road_of|gathering_of|_said|check_how)\b", "token_path and so on"),
    # Names of variables and functions that say nothing of what they hold.
    Retired(r"\b(?:said|told)\b *(?::[^\n=]*)?:?=[^=]|def (?:said|told)\b", "what it is", PRODUCT),
)
# What a path that a text names may begin with.
FOLDERS = "engine|integrations|kernels|cpu_fallback|native|server|client|shards|tests|docs|bench"
PATH = re.compile(rf"(?<![\w./*-])(?:{FOLDERS})/[\w./-]*\.(?:py|md|cuh|cu|hpp|h|cpp|jsonl|svg|json|sh|txt)\b")
# Paths that are named and not there, and why.
ABSENT: dict[str, str] = {"bench/results/gpu.jsonl": "Rows of a GPU go there once there are any."}
NAMED = re.compile(r"((?:`[\w.]+`(?:, | and )?)+) (?:\(|in |of |\| )\[([\w/.]+)\]\(")


@cache
def tracked() -> tuple[str, ...]:
    """Paths of the repository's files: git's where it knows them, else by folder."""
    root = source.ROOT
    if (root / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
        names = [name for name in listed.split("\0") if name]
    else:
        paths = [*root.glob("*.md"), *(file for top in FOLDERS.split("|") for file in (root / top).rglob("*"))]
        names = [path.relative_to(root).as_posix() for path in paths]
    return tuple(name for name in names if (root / name).is_file())


@cache
def texts() -> dict[str, str]:
    """Path and text of each file that people write, this one left out: it lists the words."""
    names = (name for name in tracked() if name.endswith(SUFFIXES) and name != "tests/test_words.py")
    return {name: (source.ROOT / name).read_text(encoding="utf-8") for name in names}


def retired_words(files: Iterable[tuple[str, str]]) -> list[str]:
    """Where retired words stand."""
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}, say {word.instead}"
        for name, text in files
        for word in RETIRED
        if name.startswith(word.where)
        for match in re.finditer(word.pattern, text)
    ]


def prose(name: str, text: str) -> str:
    """What a file says to its readers: a page whole, of Python the comments and docstrings."""
    if not name.endswith(".py"):
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    # A docstring of a variable or a field is a statement of its own, as those of functions are.
    docstrings = [
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return "\n".join([*(token.string for token in tokens if token.type == tokenize.COMMENT), *docstrings])


def missing_files(files: Iterable[tuple[str, str]]) -> list[str]:
    """Files that texts name and that are not there."""
    known = {*tracked(), *ABSENT}
    # Comments are looked for only where the file names something that is not there, as cutting it up takes long.
    unknown = [(name, text) for name, text in files if {*PATH.findall(text)} - known]
    return sorted({f"{name}: {path}" for name, text in unknown for path in {*PATH.findall(prose(name, text))} - known})


def test_retired_words_are_gone() -> None:
    assert retired_words(texts().items()) == []


def test_no_file_holds_a_merge_that_was_not_ended() -> None:
    marks = re.compile(r"^ *(?:<{7} |>{7} )", re.MULTILINE)
    assert [name for name, text in texts().items() if marks.search(text)] == []


def test_files_that_texts_name_are_there() -> None:
    assert missing_files(texts().items()) == []
    assert [path for path in ABSENT if path in tracked() or not any(path in text for text in texts().values())] == []


def test_architecture_names_functions_where_they_are() -> None:
    page = (source.ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    pairs = [(name, path) for names, path in NAMED.findall(page) for name in re.findall(r"`([\w.]+)`", names)]
    assert len(pairs) > 50
    files = {path: (source.ROOT / path).read_text(encoding="utf-8") for _, path in pairs}
    assert [pair for pair in pairs if not re.search(rf"\b{pair[0].split('.')[-1]}\b", files[pair[1]])] == []


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        ("engine/index/postings.py", "# the other road\n", 1),
        ("kernels/cuda/score.cu", "// raises the floor\n", 1),
        ("cpu_fallback/score.py", "# a dead document\n", 1),
        ("engine/engine.py", "said = 1; self.told = (said := 2); told: int = 3\n", 4),
        ("engine/engine.py", "x = said + other.told\nassert said == 2\n", 0),
        ("bench/report/tables.py", 'row["road"]\n', 0),
        ("kernels/device.py", "math.floor(x)\n", 0),
    ],
)
def test_planted_words_are_found(name: str, line: str, found: int) -> None:
    assert len(retired_words([(name, line)])) == found


def test_planted_paths_are_found() -> None:
    files = [("engine/engine.py", 'x = "engine/gone.py"  # see engine/lost.py and `engine/engine.py`\n')]
    files += [("tests/test_layout.py", '"""As tests/gone/test_gone.py."""\n'), ("docs/a.md", "[x](docs/gone.md)\n")]
    found = ["docs/a.md: docs/gone.md", "engine/engine.py: engine/lost.py"]
    assert missing_files(files) == [*found, "tests/test_layout.py: tests/gone/test_gone.py"]
