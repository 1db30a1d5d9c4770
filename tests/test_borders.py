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


def test_every_border_is_there_and_read() -> None:
    assert [borders.fault(key) for key in borders.BORDERS if borders.fault(key)] == []
    assert borders.SMALL.keys() | borders.DERIVED.keys() <= borders.BORDERS.keys()
    for module, name, _ in (one for derived in borders.DERIVED.values() for one in derived):
        assert source.defines(module, name)
        assert source.reads(module, name)


def test_a_border_is_set_wherever_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot.MAX_SEGMENT_DOCUMENTS, contributions.TILE_BITS, prune.TILE
    with monkeypatch.context() as patch:
        borders.shrink(patch, MAX_SEGMENT_DOCUMENTS=7, TILE_BITS=3)
        assert (snapshot.MAX_SEGMENT_DOCUMENTS, memory.MAX_SEGMENT_DOCUMENTS) == (7, 7)
        assert (contributions.TILE_BITS, prune.TILE_BITS, prune.TILE) == (3, 3, 8)
        assert borders.value("TILE_BITS") == 3
    assert before == (memory.MAX_SEGMENT_DOCUMENTS, prune.TILE_BITS, prune.TILE)
    with pytest.raises(LookupError, match=r"'NOTHING' is not in the table of tests/support/borders.py"):
        borders.shrink(monkeypatch, NOTHING=1)


def test_who_reads_a_constant(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "borders.py").write_text(
        "READ = 1\nUNREAD = 2\nONCE = 3\nIN_A_DEFAULT = 4\nclass Cache:\n    SIZE = 6\n    def full(self):\n"
        "        return self.SIZE\n"
    )
    (tmp_path / "engine" / "readers.py").write_text(
        "from .borders import IN_A_DEFAULT, ONCE, READ as HERE, UNREAD\nfrom . import borders\nTWICE = 2 * ONCE\n"
        "def by_name():\n    return HERE\ndef by_module():\n    return borders.READ\n"
        "def late(size=IN_A_DEFAULT):\n    return IN_A_DEFAULT\n"
    )
    expected = {
        "READ": [(5, False), (7, False)],
        "UNREAD": [],
        "ONCE": [(3, True)],
        "IN_A_DEFAULT": [(8, True), (9, False)],
    }
    for name, places in expected.items():
        assert sorted((one.line, one.frozen) for one in source.reads("engine.borders", name, "", tmp_path)) == places
    assert source.reads("engine.borders", "SIZE", "Cache", tmp_path) == [("engine.borders", 8, False)]
    assert source.holders("engine.borders", "READ", tmp_path)[1:] == [("engine.readers", "HERE")]


def patches(text: str) -> Iterator[int]:
    """Lines where a test sets an upper-case constant of a module of the product."""
    tree = ast.parse(text)
    product = {
        one.asname or one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(source.PACKAGE)
        for one in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".setattr", "patch.object", "patch")):
            first, *rest = map(ast.unparse, node.args or [ast.Constant("")])
            named = rest[0] if first.split(".")[0] in product and rest else first if source.PACKAGE in first else ""
            if named.strip("'").rpartition(".")[2].isupper():
                yield node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr.isupper():
            yield from [node.lineno] * (ast.unparse(node.value).split(".")[0] in product)


def test_no_test_names_the_file_of_a_constant() -> None:
    found = [(path.name, *patches(path.read_text(encoding="utf-8"))) for path in (source.ROOT / "tests").rglob("*.py")]
    assert [one for one in found if len(one) > 1] == []
    head = "from fanrank.engine.storage import memory\n"
    for line in (
        'monkeypatch.setattr(memory, "BUILD_CHUNK", 1)',
        'patch("fanrank.engine.storage.memory.BUILD_CHUNK", 1)',
        "memory.Memory.BUILD_CHUNK = 1",
    ):
        assert list(patches(head + line)) == [2]
        assert list(patches(head.replace("fanrank", "bench") + line.replace("fanrank", "bench"))) == []
