"""Reads the product's source: its modules, their imports, and which code reads a constant.

A module is named without "fanrank.": ``engine.storage.memory``. Nothing here imports the product.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("engine", "integrations", "kernels", "cpu_fallback", "native", "server", "client", "shards")
PACKAGE = "fanrank"


class Imported(NamedTuple):
    """One name that a module imports from the product, at its top or anywhere else. The face is ``fanrank``."""

    module: str
    name: str
    """Empty where it is the module itself."""
    local: str
    line: int


@dataclass(frozen=True, eq=False)
class Module:
    name: str
    path: Path
    text: str
    known: frozenset[str]
    """The names of all modules."""

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def imports(self) -> tuple[Imported, ...]:
        return tuple(_imports(self))


def paths(root: Path = ROOT) -> dict[str, Path]:
    """Each module of the product and its file."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def modules(root: Path = ROOT) -> dict[str, Module]:
    """Every module of the product, by its name."""
    files = paths(root)
    known = frozenset(files)
    return {name: Module(name, path, path.read_text(encoding="utf-8"), known) for name, path in files.items()}


def _imports(module: Module) -> Iterator[Imported]:
    package = module.name.split(".") if module.path.name == "__init__.py" else module.name.split(".")[:-1]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] == PACKAGE:
                    yield Imported(_inner(one.name), "", one.asname or PACKAGE, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                if (node.module or "").split(".")[0] != PACKAGE:
                    continue
                base = _inner(node.module or "")
            else:
                above = package[: len(package) - (node.level - 1)]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for one in node.names:
                inner = one.name if base in ("", PACKAGE) else f"{base}.{one.name}"
                if inner in module.known:
                    yield Imported(inner, "", one.asname or one.name, node.lineno)
                else:
                    yield Imported(base or PACKAGE, one.name, one.asname or one.name, node.lineno)


def _inner(name: str) -> str:
    return name.removeprefix(f"{PACKAGE}.")


@dataclass(frozen=True)
class Read:
    """One place that reads a constant. It is `frozen` where setting the constant afterwards changes nothing there."""

    module: str
    line: int
    frozen: bool


def holders(module: str, name: str, root: Path = ROOT) -> list[tuple[str, str]]:
    """The modules that hold the constant and its name there: the one that defines it, and each that imports it."""
    known = [(module, name)]
    for holder in known:
        for other in modules(root).values():
            if holder[1] in other.text:
                known += [
                    (other.name, local)
                    for origin, imported, local, _ in other.imports
                    if (origin, imported) == holder and (other.name, local) not in known
                ]
    return known


def defines(module: str, name: str, owner: str = "", root: Path = ROOT) -> bool:
    """Whether the module, or its class `owner`, binds this name at its top."""
    known = modules(root).get(module)
    if known is None:
        return False
    body = known.tree.body
    if owner:
        body = [line for node in body if isinstance(node, ast.ClassDef) and node.name == owner for line in node.body]
    return any(name in _bound(statement) for statement in body)


def _bound(statement: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def reads(module: str, name: str, owner: str = "", root: Path = ROOT) -> list[Read]:
    """Every place of the product that reads the constant."""
    found: list[Read] = []
    if owner:
        for one in modules(root).values():
            if name in one.text:
                found += (Read(one.name, line, frozen) for line, frozen in _loads(one.tree, "", {name: None}))
        return found
    known = holders(module, name, root)
    for one in modules(root).values():
        if name not in one.text and not any(holder == one.name for holder, _ in known):
            continue
        locals_ = {local for holder, local in known if holder == one.name}
        # ``alias.NAME``, where the alias is a module that holds the constant.
        aliases = {
            (local, held): None
            for origin, imported, local, _ in one.imports
            if not imported
            for holder, held in known
            if holder == origin
        }
        for local in locals_:
            found += (Read(one.name, line, frozen) for line, frozen in _loads(one.tree, local, {}))
        for alias, held in aliases:
            found += (Read(one.name, line, frozen) for line, frozen in _loads(one.tree, "", {held: alias}))
    return found


def _loads(tree: ast.Module, name: str, attributes: dict[str, str | None]) -> Iterator[tuple[int, bool]]:
    """(line, frozen) of each load of the name, or of an attribute of this base (None: of any).

    Frozen is what Python evaluates once, when it defines something, and what numba compiles. Triton refuses to start a
    kernel whose constants were changed after it was compiled, so nothing is frozen there without a word.
    """

    def visit(node: ast.AST, frozen: bool) -> Iterator[tuple[int, bool]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = node.args
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            for part in (*decorators, *arguments.defaults, *(own for own in arguments.kw_defaults if own)):
                yield from visit(part, frozen)
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
            if name and any(own is not None and own.arg == name for own in every):
                return
            inside = any(_compiles(decorator) for decorator in decorators)
            for part in [node.body] if isinstance(node, ast.Lambda) else node.body:
                yield from visit(part, inside)
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and name and node.id == name:
            yield node.lineno, frozen
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in attributes:
            base = attributes[node.attr]
            if base is None or (isinstance(node.value, ast.Name) and node.value.id == base):
                yield node.lineno, frozen
        for part in ast.iter_child_nodes(node):
            yield from visit(part, frozen)

    for statement in tree.body:
        yield from visit(statement, True)


def _compiles(decorator: ast.expr) -> bool:
    """Whether numba compiles what this decorates."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    text = ast.unparse(called)
    return text.rpartition(".")[2] in ("njit", "vectorize", "guvectorize") or text.startswith("numba.")
