"""Messages that are read at the command line or in a REST answer name no verb or parameter of Python."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import source

from fanrank.engine.advice import in_fields, in_options

PYTHON = re.compile(
    r"\b(?:Engine|fanrank|fr|time|SearchScope)\.[A-Za-z]\w+(?!\.json)|\w+=(?:True|False|\{|'|\.\.\.|,)|\b\w+\(.*?\)"
)
ROOMS = ("records", "index", "search", "hybrid", "route", "encoders", "listing", "carry", "fuse", "feedback", "recall")
NOT_AT_A_DOOR = {"NotBroughtError", "StorageError", "ForeignIndexError", "MissingExtraError"}
"""Of an object of Python, or of files of the server, which its problem does not name."""
FITTING = {"callbacks.py", "alpha.py", "parse.py"}
"""Files whose messages are for programs that fit routers, or translate filters."""


def messages() -> Iterator[tuple[str, str]]:
    """Where it stands, and the text of each error that the engine raises."""
    for room in ROOMS:
        for path in {*(Path(source.ROOT) / "engine" / room).rglob("*.py")}:
            if path.name in FITTING:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Error") and node.args:
                    text = text_of(node.args[0])
                    # A filter is asked for its truth in Python alone.
                    if getattr(node.func, "id", "") not in NOT_AT_A_DOOR and "neither true nor false" not in text:
                        yield f"{path.name}:{node.lineno}", text


def text_of(node: ast.expr) -> str:
    """The text of a literal, with a word in the place of each value."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "'x'"


@pytest.mark.parametrize("read", [in_options, in_fields])
def test_no_message_at_a_door_names_a_verb_or_a_parameter_of_python(read: Callable[[str], str]) -> None:
    assert len(list(messages())) > 200
    said = [f"{where}: {read(text)}" for where, text in messages() if PYTHON.search(read(text).replace("()", ""))]
    assert said == []
