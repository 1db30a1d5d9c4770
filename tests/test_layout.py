"""The layout of the product: an arrow (an import) goes only to a room further down the list of ARCHITECTURE.md, and
no private name leaves its file.

Imports count wherever they stand: at the top, for type hints alone, inside functions.
"""

import ast
import builtins
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support import source

PAGE = (source.ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
TABLE = PAGE.split("\n## The rooms\n")[1].split("\n## ")[0]
# From top to bottom, as the page lists them. Rooms on one line do not import each other.
FLOORS = [
    [re.sub(r"(/README\.md|\.py)$", "", link).replace("/", ".") for link in re.findall(r"\]\((.+?)\)", row)]
    for row in re.findall(r"^\| (.+) \| .+ \|$", TABLE, re.MULTILINE)[1:]
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# The packages themselves, which hold a docstring.
PACKAGES = ("engine", "integrations", "server", "client", "shards", "fanrank")
LONGEST = 500
# Public in spite of their underscore: the extension module, and the names of a NamedTuple.
PUBLIC = {"_compiled", "_replace", "_asdict", "_fields", "_make"}
# How private names of other files stand in formatted code. Most files have none, and need not be parsed.
SUSPECT = re.compile(
    rf"(?<!\bself)(?<!\bcls)\.(?!(?:{'|'.join(PUBLIC)})\b)_[^_\W]|\bimport\b.*\b_[^_\W]|^ +_\w+(?: as \w+)?,",
    re.MULTILINE,
)


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
            if mine == theirs or imported.module in (module.name, "engine"):
                continue
            if mine is None or theirs is None or FLOOR[mine] >= FLOOR[theirs]:
                found.append(f"{module.name}:{imported.line} imports {imported.module}")
    return sorted(found)


def circle(root: Path) -> list[str]:
    """Files that reach each other by imports, if there are any."""
    known = source.modules(root)
    arrows = {name: {one.module for one in own.imports} & known.keys() - {name} for name, own in known.items()}
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return sorted(set(error.args[1]))
    return []


def private_uses(root: Path) -> list[str]:
    """Names with a leading underscore that a file takes from another one."""
    found = []
    for module in source.modules(root).values():
        if SUSPECT.search(module.text) is None:
            continue
        imported = {one.local for one in module.imports}
        outside = {"self", "cls", *dir(builtins)}
        mine = set()
        nodes = list(ast.walk(module.tree))
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                outside |= {(one.asname or one.name).split(".")[0] for one in node.names} - imported
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                mine.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                own = isinstance(node, ast.Name) or getattr(node.value, "id", "") in ("self", "cls")
                mine |= {node.id if isinstance(node, ast.Name) else node.attr} if own else set()
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "__setattr__":
                mine |= {str(one.value) for one in node.args if isinstance(one, ast.Constant)}
        found += [f"{module.name}:{one.line} imports {one.name}" for one in module.imports if is_private(one.name)]
        for node in nodes:
            if not isinstance(node, ast.Attribute) or not is_private(node.attr) or node.attr in mine:
                continue
            if ast.unparse(node.value) not in {*outside, "super()"}:
                found.append(f"{module.name}:{node.lineno} uses {ast.unparse(node)}")
    return sorted(found)


def is_private(name: str) -> bool:
    return bool(re.match(r"_[^_]", name)) and name not in PUBLIC


def long_files(root: Path) -> list[str]:
    """Files of more than `LONGEST` lines whose head has no sentence that begins with "Long because"."""
    found = []
    for path in (path for folder in source.FOLDERS for path in sorted((root / folder).rglob("*"))):
        if path.suffix in (".py", ".cu", ".cuh", ".h", ".cpp", ".hpp"):
            text = path.read_text(encoding="utf-8")
            if text.count("\n") > LONGEST and "Long because" not in "\n".join(text.split("\n")[:40]):
                found.append(f"{path.relative_to(root).as_posix()}: {text.count(chr(10))} lines")
    return found


def test_every_file_is_in_a_room_and_every_room_has_files() -> None:
    rooms = {name: room_of(name) for name in source.modules(source.ROOT) if name not in PACKAGES}
    assert [name for name, room in rooms.items() if room is None] == []
    assert sorted(FLOOR.keys() - rooms.values()) == []


def test_arrows_go_down() -> None:
    assert wrong_arrows(source.ROOT) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle(source.ROOT) == []


def test_the_engine_reaches_what_serves_through_the_backends_alone() -> None:
    serving = ("kernels", "cpu_fallback")
    found = [
        f"{module.name}:{one.line} imports {one.module}"
        for module in source.modules(source.ROOT).values()
        for one in module.imports
        if room_of(one.module) in serving and room_of(module.name) not in (*serving, "engine.backends")
    ]
    assert found == []


def test_no_private_name_leaves_its_file() -> None:
    assert private_uses(source.ROOT) == []


def test_long_files_say_why() -> None:
    assert long_files(source.ROOT) == []


def test_tests_share_helpers_through_support_alone() -> None:
    imports = re.compile(r"^ *(?:from|import) .*\btest_\w+", re.MULTILINE)
    texts = {path: path.read_text(encoding="utf-8") for path in (source.ROOT / "tests").rglob("*.py")}
    assert [path.name for path, text in texts.items() if imports.search(text)] == []


UP = "engine.index.a:{line} imports engine.engine"


@pytest.mark.parametrize(
    ("text", "arrow"),
    [
        ("from ..engine import Engine", UP.format(line=1)),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fanrank.engine.engine", UP.format(line=3)),
        ("def late():\n    from .. import engine", UP.format(line=2)),
        ("from fanrank import Engine", "engine.index.a:1 imports fanrank"),
        ("from ..text import tokens", ""),
    ],
)
def test_a_planted_arrow_is_found(tmp_path: Path, text: str, arrow: str) -> None:
    plant(tmp_path, {"engine/engine.py": "", "engine/text/tokens.py": "", "engine/index/a.py": text})
    assert wrong_arrows(tmp_path) == [arrow] * bool(arrow)


def test_other_planted_faults_are_found(tmp_path: Path) -> None:
    uses = "class A:\n    def __init__(self, b):\n        self._own = b._own, b._held, super()._hidden\n"
    texts = {"two": "def f():\n    from . import three", "three": "from .two import _x", "four": uses + "\n" * LONGEST}
    texts["five"] = "from .four import (\n    _A,\n)"
    plant(tmp_path, {f"kernels/{name}.py": text for name, text in texts.items()})
    assert circle(tmp_path) == ["kernels.three", "kernels.two"]
    found = ["kernels.five:1 imports _A", "kernels.four:3 uses b._held", "kernels.three:1 imports _x"]
    assert private_uses(tmp_path) == found
    assert long_files(tmp_path) == ["kernels/four.py: 503 lines"]


def plant(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
