"""docs/cli.md is current; each command and option has help, and each public name and keyword has words."""

import ast
import doctest
import importlib
import inspect
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import fanrank as fr
from fanrank.engine import signatures
from fanrank.engine.cli.main import main
from fanrank.engine.namespace import Namespace

ROOT = Path(__file__).resolve().parents[2]
THEMES = ("errors", "strategies", "routing", "encoders", "text", "scopes", "reports", "evaluation", "published")
MODULES = [fr, *(importlib.import_module(f"fanrank.{theme}") for theme in THEMES)]
PUBLIC = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
GUIDES = "\n".join(
    page.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if page.name != "cli.md"
)


def test_the_generated_page_is_current() -> None:
    subprocess.run([sys.executable, "docs/make_cli.py", "--check"], cwd=ROOT, check=True)


@pytest.mark.parametrize("name", main.commands)
def test_every_command_occurs_in_the_guides_and_has_help(name: str) -> None:
    assert f"fanrank {name}" in GUIDES
    command = main.commands[name]
    assert command.help
    assert [one.name for one in command.params if isinstance(one, click.Option) and not one.help] == []


def functions(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of a class, each once, those of its bases in the package included."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("fanrank")]
    names = dict.fromkeys(name for base in bases for name in vars(base) if not name.startswith("_"))
    for name in names:
        value = getattr(kind, name)
        if inspect.isroutine(value) and name not in getattr(kind, "lacking", ()):
            yield name, value


def described_constants() -> set[str]:
    """Names that a module of the engine binds at its top, with a string below."""
    return {
        name.id
        for path in (ROOT / "engine").rglob("*.py")
        for statement, below in itertools.pairwise(ast.parse(path.read_text(encoding="utf-8")).body)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        for name in ast.walk(statement)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }


def test_every_public_name_has_words() -> None:
    constants = described_constants()
    for path, value in PUBLIC.items():
        if inspect.isclass(value) or inspect.isroutine(value):
            # A dataclass without a docstring gets its signature as one.
            assert not (value.__doc__ or "(").startswith(("(", f"{value.__name__}(")), path
        else:
            assert path.rpartition(".")[2] in constants, path


def verbs() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Each public function and method of the memories and their clients, and the words that stand for its keywords."""
    own = {name: inspect.getdoc(value) or "" for name, value in functions(fr.Engine)}
    for kind in (fr.Engine, Namespace, fr.ShardedEngine, fr.Client, fr.AsyncClient):
        for name, value in functions(kind):
            # A verb with the name of one of `Engine` takes its words, and an awaited one those of the one that blocks.
            yield f"{kind.__name__}.{name}", value, f"{inspect.getdoc(value)} {own.get(name)} {own.get(name[1:])}"
    for path, value in PUBLIC.items():
        if inspect.isfunction(value):
            yield path, value, inspect.getdoc(value) or ""


def test_every_keyword_of_a_public_verb_has_words() -> None:
    common = inspect.getsource(signatures)
    silent = [
        f"{path}({name}=)"
        for path, function, words in verbs()
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
        and not re.search(rf"\b{name}\b", words)
        and not re.search(rf'\n    {name}: .*\n    """', common)
        and not re.search(rf"`{name}`|\b{name}=", GUIDES)
    ]
    assert not silent, "\n".join(silent)


@pytest.mark.parametrize("path", PUBLIC)
def test_examples_in_docstrings_are_right(path: str) -> None:
    value = PUBLIC[path]
    for name, function in [(path, value), *(functions(value) if inspect.isclass(value) else ())]:
        test = doctest.DocTestParser().get_doctest(inspect.cleandoc(function.__doc__ or ""), {}, name, path, 0)
        assert doctest.DocTestRunner(verbose=False).run(test).failed == 0
