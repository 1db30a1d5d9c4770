"""A border is set wherever it is held, and no test sets a constant past `borders.shrink`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from support import borders, source

from fanrank.cpu_fallback import prune
from fanrank.engine.index import contributions, snapshot
from fanrank.engine.storage import memory


def test_a_border_is_set_wherever_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot.MAX_SEGMENT_DOCUMENTS, contributions.TILE_BITS, prune.TILE
    with monkeypatch.context() as patch:
        borders.shrink(patch, MAX_SEGMENT_DOCUMENTS=7, TILE_BITS=3)
        assert (snapshot.MAX_SEGMENT_DOCUMENTS, memory.MAX_SEGMENT_DOCUMENTS) == (7, 7)
        assert (contributions.TILE_BITS, prune.TILE_BITS, prune.TILE) == (3, 3, 8)
        assert borders.value("TILE_BITS") == 3
    assert before == (memory.MAX_SEGMENT_DOCUMENTS, prune.TILE_BITS, prune.TILE)
    for name, words in (("NO_SUCH_BORDER", "no module"), ("QUERIES", "cpu_fallback.dense"), ("MAX_BATCH", "once, when")):
        with pytest.raises(LookupError, match=words):
            borders.shrink(monkeypatch, {name: 1})


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
