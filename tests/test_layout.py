"""The layout of the product: an arrow (an import) goes only to a room further down one list, and no private name
leaves its file.

Imports count wherever they stand: at the top, for type hints alone, inside functions.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import source

# From top to bottom. Rooms on one line do not import each other.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("engine.cli",),
    ("server",),
    ("integrations",),
    ("client",),
    ("shards.choosing",),
    ("shards.engine",),
    ("shards.namespace", "shards.carrying", "shards.operations", "shards.settings"),
    ("shards.opening", "shards.writing"),
    ("shards.reading",),
    ("shards.listing",),
    ("shards.search",),
    ("shards.moves",),
    ("shards.coordinator",),
    ("shards.replicas",),
    ("shards.processes",),
    ("shards.shard",),
    ("shards.protocol",),
    ("engine.tune",),
    ("engine.evaluate", "engine.check"),
    ("engine.engine",),
    ("engine.namespace", "engine.reading", "engine.writing", "engine.carrying"),
    ("engine.carry",),
    ("engine.serve",),
    ("engine.searcher",),
    ("engine.opening",),
    ("engine.signatures",),
    ("engine.route",),
    ("engine.hybrid", "engine.monitor"),
    ("engine.search", "engine.listing"),
    ("engine.recall", "engine.feedback", "engine.fuse", "engine.rerank"),
    ("engine.encoders", "engine.storage"),
    ("engine.backends",),
    # What serves a search sees nothing above this line.
    ("kernels", "cpu_fallback"),
    ("engine.plan",),
    ("engine.index",),
    ("engine.records",),
    ("engine.text", "engine.vectors"),
    ("engine.metrics",),
    ("engine.timing", "engine.moments", "engine.arrays", "engine.settings", "engine.locks", "engine.errors"),
    ("native",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# The packages themselves, which hold a docstring.
PACKAGES = ("engine", "integrations", "server", "client", "shards", "fanrank")
LONGEST = 500
# The extension module, which `native` makes public.
EXTENSION = "_compiled"
# Of a NamedTuple, whose own names they would clash with: public in spite of their underscore.
NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_make"}


def room_of(module: str) -> str | None:
    """The room of a module: the longest entry of the list that its name begins with."""
    parts = module.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if name in FLOOR), None)


def wrong_arrows(root: Path) -> list[str]:
    """Imports of a room that is not further down the list."""
    found = []
    for module in source.modules(root).values():
        mine = room_of(module.name)
        for imported in module.imports:
            theirs = room_of(imported.module)
            if mine == theirs or imported.module == module.name or imported.module in PACKAGES[:1]:
                continue
            if mine is None or theirs is None or FLOOR[mine] >= FLOOR[theirs]:
                found.append(f"{module.name}:{imported.line} imports {imported.module}")
    return sorted(found)


def circles(root: Path) -> list[list[str]]:
    """Sets of files that reach each other by imports."""
    known = source.modules(root)
    arrows = {name: {one.module for one in module.imports} & known.keys() - {name} for name, module in known.items()}
    reached: dict[str, set[str]] = {}
    for start in arrows:
        seen: set[str] = set()
        waiting = list(arrows[start])
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += arrows[name]
        reached[start] = seen
    sets = {frozenset(other for other in reached[name] if name in reached[other]) for name in arrows}
    return sorted(sorted(one) for one in sets if one)


def private_uses(root: Path) -> list[str]:
    """Names with a leading underscore that a file takes from another one."""
    known = source.modules(root)
    found = []
    for module in known.values():
        mine = _defined(module.tree)
        outside = _foreign(module)
        found += [
            f"{module.name}:{imported.line} imports {imported.module}.{imported.name}"
            for imported in module.imports
            if _private(imported.name) and imported.name != EXTENSION
        ]
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Attribute) or not _private(node.attr) or node.attr in mine:
                continue
            base = node.value
            if isinstance(base, ast.Name) and base.id in ("self", "cls", *outside):
                continue
            if isinstance(base, ast.Call) and isinstance(base.func, ast.Name) and base.func.id == "super":
                continue
            found.append(f"{module.name}:{node.lineno} uses {ast.unparse(node)}")
    return sorted(found)


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in NAMED_TUPLE


def _defined(tree: ast.Module) -> set[str]:
    """Every name that the file binds: variables, functions, classes, and attributes of `self`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            if node.value.id in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "object.__setattr__":
            names |= {one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return names


def _foreign(module: source.Module) -> set[str]:
    """Names bound by importing what is not of the product."""
    mine = {imported.local for imported in module.imports}
    names = set(dir(builtins))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(one.asname or one.name).split(".")[0] for one in node.names}
    return names - mine


def long_files(root: Path) -> list[str]:
    """Files of more than `LONGEST` lines whose head has no sentence that begins with "Long because"."""
    found = []
    for folder in source.FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".py", ".cu", ".cuh", ".h", ".cpp", ".hpp"):
                continue
            text = path.read_text(encoding="utf-8")
            head = (
                ast.get_docstring(ast.parse(text)) or "" if path.suffix == ".py" else "\n".join(text.split("\n")[:40])
            )
            lines = text.count("\n")
            if lines > LONGEST and "Long because" not in head:
                found.append(f"{path.relative_to(root).as_posix()}: {lines} lines")
    return found


def missing_modules(root: Path) -> Iterator[str]:
    """Modules that the product names in a string after ``__package__``, and that are not there."""
    known = source.modules(root)
    for module in known.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.JoinedStr) and ast.unparse(node.values[0]).find("__package__") >= 0:
                package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
                name = package + "".join(str(one.value) for one in node.values[1:] if isinstance(one, ast.Constant))
                if name not in known:
                    yield f"{module.name}:{node.lineno} names {name}"


def test_every_file_is_in_a_room_and_every_room_has_files() -> None:
    names = [name for name in source.modules() if name not in PACKAGES]
    rooms = {name: room_of(name) for name in names}
    assert [name for name, room in rooms.items() if room is None] == []
    assert sorted(FLOOR.keys() - rooms.values()) == []


def test_arrows_go_down() -> None:
    assert wrong_arrows(source.ROOT) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(source.ROOT) == []


def test_nobody_imports_the_command_line() -> None:
    """But itself; it is at the top of the list, so that the law alone would let nobody in anyway."""
    assert FLOORS[0] == ("engine.cli",)
    for module in source.modules().values():
        if room_of(module.name) != "engine.cli":
            assert not [one for one in module.imports if room_of(one.module) == "engine.cli"], module.name


def test_the_engine_reaches_what_serves_through_the_backends_alone() -> None:
    serving = ("kernels", "cpu_fallback")
    found = [
        f"{module.name}:{one.line} imports {one.module}"
        for module in source.modules().values()
        for one in module.imports
        if room_of(one.module) in serving and room_of(module.name) not in (*serving, "engine.backends")
    ]
    assert found == []


def test_no_private_name_leaves_its_file() -> None:
    assert private_uses(source.ROOT) == []


def test_long_files_say_why() -> None:
    assert long_files(source.ROOT) == []


def test_modules_named_in_strings_are_there() -> None:
    assert list(missing_modules(source.ROOT)) == []


def test_tests_share_helpers_through_support_alone() -> None:
    found = []
    for path in sorted((source.ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [one.name for one in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            found += [f"{path.name} imports {name}" for name in names if name.split(".")[-1].startswith("test_")]
    assert found == []


def tree(folder: Path, **files: str) -> Path:
    """A small product: its files by their modules' names, with ``__`` for a dot."""
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "from ..engine import Engine",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fanrank.engine.engine import Engine",
        "def late():\n    from .. import engine",
        "import fanrank.engine.engine",
    ],
)
def test_a_planted_arrow_is_found(tmp_path: Path, text: str) -> None:
    root = tree(tmp_path, engine__engine="class Engine: ...", engine__index__segment=text)
    assert wrong_arrows(root) == [f"engine.index.segment:{text.count(chr(10)) + 1} imports engine.engine"]
    assert (
        wrong_arrows(tree(tmp_path / "down", engine__engine="from .index import segment", engine__index__segment=""))
        == []
    )


def test_an_arrow_between_neighbours_is_found(tmp_path: Path) -> None:
    root = tree(tmp_path, kernels__search="from ..cpu_fallback import select", cpu_fallback__select="")
    assert wrong_arrows(root) == ["kernels.search:1 imports cpu_fallback.select"]


def test_an_import_of_the_face_is_found(tmp_path: Path) -> None:
    assert wrong_arrows(tree(tmp_path, engine__cli__main="from fanrank import Engine")) == [
        "engine.cli.main:1 imports fanrank"
    ]


def test_a_planted_circle_is_found(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        engine__index__one="from .two import x",
        engine__index__two="def f():\n    from . import three",
        engine__index__three="from .one import y",
        engine__index__four="from .one import y",
    )
    assert circles(root) == [["engine.index.one", "engine.index.three", "engine.index.two"]]


def test_a_planted_private_use_is_found(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        engine__engine="from .index.segment import _made, Segment\n"
        "from .index import segment\n"
        "import os\n"
        "class Engine:\n"
        "    def __init__(self, memory):\n"
        "        self._own = memory._held\n"
        "        segment._table\n"
        "        memory._own, self._other, os._exit, super()._hidden, memory._replace()\n",
        engine__index__segment="class Segment: ...",
    )
    assert private_uses(root) == [
        "engine.engine:1 imports engine.index.segment._made",
        "engine.engine:6 uses memory._held",
        "engine.engine:7 uses segment._table",
    ]


def test_a_long_file_is_found(tmp_path: Path) -> None:
    lines = "x = 1\n" * LONGEST
    tree(tmp_path, engine__one=f'"""One."""\n{lines}', engine__two=f'"""Two.\n\nLong because it is."""\n{lines}')
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "score.cu").write_text("//\n" + lines)
    assert long_files(tmp_path) == ["engine/one.py: 501 lines", "kernels/score.cu: 501 lines"]


def test_a_module_that_is_only_a_string_is_found(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        engine__text__dispatch='LOOPS = f"{__package__}.blocks"\nOTHER = f"{__package__}.gone"',
        engine__text__blocks="",
    )
    assert list(missing_modules(root)) == ["engine.text.dispatch:2 names engine.text.gone"]
