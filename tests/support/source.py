"""Reads the product's source: its modules, their imports, and which code reads a constant.

A module is named without "fanrank.": ``engine.storage.storage``. Nothing here imports the product.
"""

import ast
from collections.abc import Callable, Iterator
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
    known: frozenset[str]
    """The names of all modules."""

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def imports(self) -> tuple[Imported, ...]:
        return tuple(_imports(self))


@cache
def modules(root: Path = ROOT) -> dict[str, Module]:
    """Every module of the product, by its name."""
    files = {}
    for path in (path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))):
        parts = path.relative_to(root).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: Module(name, path, frozenset(files)) for name, path in files.items()}


def _imports(module: Module) -> Iterator[Imported]:
    package = module.name.split(".") if module.path.name == "__init__.py" else module.name.split(".")[:-1]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] == PACKAGE:
                    yield Imported(one.name.removeprefix(f"{PACKAGE}."), "", one.asname or PACKAGE, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = ".".join([*package[: len(package) - (node.level - 1)], *([node.module] if node.module else [])])
            elif (node.module or "").split(".")[0] == PACKAGE:
                base = str(node.module).removeprefix(PACKAGE).lstrip(".")
            else:
                continue
            for one in node.names:
                inner = f"{base}.{one.name}".lstrip(".")
                target = (inner, "") if inner in module.known else (base or PACKAGE, one.name)
                yield Imported(*target, one.asname or one.name, node.lineno)


class Read(NamedTuple):
    """One place that reads a constant. It is `frozen` where Python evaluates it once, when it defines something."""

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


def homes(name: str, root: Path = ROOT) -> list[tuple[str, str]]:
    """(module, class or "") of every module, and of every class at the top of one, that binds this name."""
    found = []
    for one in modules(root).values():
        if name not in one.text:
            continue
        bodies = {
            "": one.tree.body,
            **{node.name: node.body for node in one.tree.body if isinstance(node, ast.ClassDef)},
        }
        for owner, body in bodies.items():
            bound = [node for node in body if isinstance(node, ast.Assign | ast.AnnAssign)]
            targets = [target for node in bound for target in getattr(node, "targets", None) or [node.target]]
            if any(isinstance(node, ast.Name) and node.id == name for target in targets for node in ast.walk(target)):
                found.append((one.name, owner))
    return found


def reads(module: str, name: str, owner: str = "", root: Path = ROOT) -> list[Read]:
    """Every place of the product that reads the constant; of a class, by any attribute of its name."""
    known = [] if owner else holders(module, name, root)
    found = []
    for one in modules(root).values():
        own = {local for holder, local in known if holder == one.name}
        # ``alias.NAME``, where the alias is a module that holds the constant.
        aliases = {
            (alias.local, held)
            for at, held in known
            if held in one.text
            for alias in one.imports
            if alias.module == at and not alias.name
        }
        if not own and not aliases and not (owner and name in one.text):
            continue

        def is_read(node: ast.AST, own: set[str] = own, aliases: set[tuple[str, str]] = aliases) -> bool:
            if isinstance(node, ast.Attribute):
                base = node.value.id if isinstance(node.value, ast.Name) else ""
                return (node.attr == name if owner else (base, node.attr) in aliases) and isinstance(node.ctx, ast.Load)
            return isinstance(node, ast.Name) and node.id in own and isinstance(node.ctx, ast.Load)

        found += [Read(one.name, *place) for place in _places(one.tree, is_read, True)]
    return found


def _places(node: ast.AST, is_read: Callable[[ast.AST], bool], frozen: bool) -> Iterator[tuple[int, bool]]:
    """(line, frozen) of each read. What stands in the body of a function is read when it runs."""
    if is_read(node):
        yield getattr(node, "lineno", 0), frozen
    body: list[ast.AST] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        body = [node.body] if isinstance(node, ast.Lambda) else [*node.body]
    for part in ast.iter_child_nodes(node):
        yield from _places(part, is_read, frozen and part not in body)
