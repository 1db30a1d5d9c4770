"""Torch operations of the drivers run through `Runtime.call`, so that they are in a stream's order, as kernels are.

What a search reads was written on another stream. `Residency` hands it out once the current stream waits for that, and
a torch operation that is not given to the runtime could run on any stream, or before the wait.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from fanrank import kernels
from fanrank.kernels.resident import Contributions

FOLDER = Path(kernels.__file__).parent
# The runtime is the door; dense search writes and reads on one stream of its own; the reduction is given to that.
APART = {"runtime.py", "dense.py", "families.py", "timing.py"}
RESIDENT = {field.name for field in fields(Contributions)} | {"on_device"}
# Types, and what makes a tensor or a view of one without a look at elements.
PLAIN = {"device", "empty", "iinfo", "split"}
READS = {"cpu", "item", "to", "gather", "clamp", "clone", "argsort", "repeat_interleave", "masked_fill"}


def operations(text: str) -> Iterator[str]:
    """The torch operations of a module that stand outside the functions that `Runtime.call` is given."""
    tree = ast.parse(text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    given = {
        node.args[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "call"
        and isinstance(node.args[0], ast.Name)
    }
    while True:
        called = {node.id for name in given & set(functions) for node in ast.walk(functions[name]) if _is_name(node)}
        if called & set(functions) <= given:
            break
        given |= called & set(functions)
    inside = {id(node) for name in given & set(functions) for node in ast.walk(functions[name])}
    for node in ast.walk(tree):
        if id(node) not in inside and _is_operation(node):
            yield f"{node.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _is_operation(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr in RESIDENT
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner, name = node.func.value, node.func.attr
    if isinstance(owner, ast.Name) and owner.id == "torch":
        return name not in PLAIN and not name.endswith("Error")
    in_place = name.endswith("_") and not name.startswith("_")
    return in_place or (name in READS and not (isinstance(owner, ast.Name) and owner.id == "np"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_torch_operations_of_the_drivers_are_given_to_the_runtime(path: Path) -> None:
    if path.name not in APART:
        # What sort.py has is given to the runtime by launch.py.
        text = path.read_text() + ((FOLDER / "launch.py").read_text() if path.stem == "sort" else "")
        assert not list(operations(text))


@pytest.mark.parametrize(
    "line",
    [
        "resident.words[where]",
        "sums.index_add_(0, places, values)",
        "torch.where(hits, keys, 0)",
        "keys.gather(1, order).cpu()",
    ],
)
def test_an_operation_outside_the_runtime_is_found(line: str) -> None:
    assert list(operations(f"def answer(runtime):\n    {line}\n"))
    assert not list(operations(f"def read():\n    {line}\ndef answer(runtime):\n    runtime.call(read)\n"))
