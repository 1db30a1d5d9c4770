"""The table of borders is true: each constant is there and read, and no test goes past it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import borders, source

from fanrank.cpu_fallback import prune
from fanrank.engine.index import contributions, snapshot
from fanrank.engine.storage import memory

TESTS = Path(__file__).resolve().parent


@pytest.mark.parametrize("key", list(borders.BORDERS))
def test_every_border_is_there_and_read(key: str) -> None:
    assert borders.fault(key) is None


def test_every_derived_value_is_there() -> None:
    for key, derived in borders.DERIVED.items():
        assert key in borders.BORDERS
        for module, name, derive in derived:
            assert source.defines(module, name)
            assert source.reads(module, name)
            assert callable(derive)


def test_the_small_set_is_of_the_table() -> None:
    assert borders.SMALL.keys() <= borders.BORDERS.keys()


def test_a_border_is_set_wherever_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot.MAX_SEGMENT_DOCUMENTS, contributions.TILE_BITS, prune.TILE
    with monkeypatch.context() as patch:
        borders.shrink(patch, MAX_SEGMENT_DOCUMENTS=7, TILE_BITS=3)
        assert (snapshot.MAX_SEGMENT_DOCUMENTS, memory.MAX_SEGMENT_DOCUMENTS) == (7, 7)
        assert (contributions.TILE_BITS, prune.TILE_BITS, prune.TILE) == (3, 3, 8)
        assert borders.value("TILE_BITS") == 3
    assert before == (memory.MAX_SEGMENT_DOCUMENTS, prune.TILE_BITS, prune.TILE)
    with borders.shrunken({"search.GROUP": 2}, BUILD_CHUNK=3):
        assert [borders.value(key) for key in ("search.GROUP", "BUILD_CHUNK")] == [2, 3]
    assert borders.value("BUILD_CHUNK") > 3


def test_what_is_not_in_the_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LookupError, match=r"'NOTHING' is not in the table of tests/support/borders.py"):
        borders.shrink(monkeypatch, NOTHING=1)


MADE_UP = {
    "borders": "READ = 1\nUNREAD = 2\nONLY_ONCE = 3\nIN_A_DEFAULT = 4\nCOMPILED = 5\nclass Cache:\n    SIZE = 6\n"
    "    def full(self):\n        return self.SIZE\n",
    "readers": "import numba\nfrom .borders import COMPILED, IN_A_DEFAULT, ONLY_ONCE, READ as HERE, UNREAD\n"
    "from . import borders\nTWICE = 2 * ONLY_ONCE\ndef by_name():\n    return HERE\n"
    "def by_module():\n    return borders.READ\n"
    "def shadowed(UNREAD):\n    return UNREAD\ndef late(size=IN_A_DEFAULT):\n    return IN_A_DEFAULT\n"
    "@numba.njit(cache=True)\ndef loop():\n    return COMPILED\n",
}


def test_who_reads_a_constant(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    for name, text in MADE_UP.items():
        (tmp_path / "engine" / f"{name}.py").write_text(text)

    def read(name: str, owner: str = "") -> list[tuple[int, bool]]:
        return sorted((one.line, one.frozen) for one in source.reads("engine.borders", name, owner, tmp_path))

    assert source.holders("engine.borders", "READ", tmp_path) == [
        ("engine.borders", "READ"),
        ("engine.readers", "HERE"),
    ]
    assert read("READ") == [(6, False), (8, False)]
    assert read("UNREAD") == []
    assert read("ONLY_ONCE") == [(4, True)]
    assert read("IN_A_DEFAULT") == [(11, True), (12, False)]
    assert read("COMPILED") == [(15, True)]
    assert read("SIZE", "Cache") == [(9, False)]


def patches(path: Path) -> Iterator[str]:
    """Where a test sets an upper-case constant of the product by its module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    product = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == source.PACKAGE:
            product |= {one.asname or one.name for one in node.names}
        elif isinstance(node, ast.Import):
            product |= {one.asname or source.PACKAGE for one in node.names if one.name.split(".")[0] == source.PACKAGE}
        elif isinstance(node, ast.Assign) and "importorskip" in ast.unparse(node.value):
            first = node.value.args[0] if isinstance(node.value, ast.Call) else None
            if isinstance(first, ast.Constant) and str(first.value).split(".")[0] == source.PACKAGE:
                product |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("setattr", "object", "patch"):
            if node.args and _constant_of(node.args, product):
                yield f"{path.name}:{node.lineno}"
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in (one for whole in targets for one in ast.walk(whole)):
                if isinstance(target, ast.Attribute) and target.attr.isupper() and _root(target.value) in product:
                    yield f"{path.name}:{node.lineno}"


def _constant_of(arguments: list[ast.expr], product: set[str]) -> bool:
    first = arguments[0]
    if isinstance(first, ast.Constant):
        name = str(first.value)
        return name.split(".")[0] == source.PACKAGE and name.rpartition(".")[2].isupper()
    second = arguments[1] if len(arguments) > 1 else None
    return isinstance(second, ast.Constant) and str(second.value).isupper() and _root(first) in product


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_no_test_names_the_file_of_a_constant() -> None:
    assert [found for path in sorted(TESTS.rglob("*.py")) for found in patches(path)] == []


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(memory, "BUILD_CHUNK", 1)',
        'monkeypatch.setattr(memory.Memory, "BUILD_CHUNK", 1)',
        'patch("fanrank.engine.storage.memory.BUILD_CHUNK", 1)',
        'mock.patch.object(memory, "_CHUNK", 1)',
        "memory.BUILD_CHUNK = 1",
        "size, memory.BUILD_CHUNK = memory.BUILD_CHUNK, 1",
    ],
)
def test_a_planted_patch_is_found(tmp_path: Path, line: str) -> None:
    path = tmp_path / "test_planted.py"
    path.write_text(f"from fanrank.engine.storage import memory\n{line}\n")
    assert list(patches(path)) == ["test_planted.py:2"]
    path.write_text(f"from bench import memory\n{line.replace('fanrank', 'bench')}\n")
    assert list(patches(path)) == []
