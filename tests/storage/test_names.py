"""The namespaces of a state stay sorted through all that adds or removes one, and those below a path are found."""

from __future__ import annotations

import random
from pathlib import Path

import fanrank as fr
from fanrank.engine.storage.state import names_under

NAMES = ["", "a", "a/b", "a/b/c", "a0", "a.", "a-b", "ab", "b", "b/a", "é", "a/é"]


def check(engine: fr.Engine) -> None:
    state = engine.index.ready().state
    assert state.names == tuple(sorted(state.snapshots))
    for path in (*NAMES[1:], "a/", "c"):
        assert state.names_under(path) == names_under(state.snapshots, path), path


def test_names_stay_sorted(tmp_path: Path) -> None:
    chance = random.Random(3)
    path = tmp_path / "m"
    engine = fr.Engine.open(path)
    for step in range(60):
        name = chance.choice(NAMES)
        if chance.random() < 0.6:
            engine.upsert([fr.Record("1", "tea", name), fr.Record("2", "tea", chance.choice(NAMES))])
        elif chance.random() < 0.5:
            engine.drop(name)
        else:
            engine.delete(["1"], namespace=name, missing_ok=True)
        check(engine)
        if step % 20 == 19:
            engine.flush()
            check(engine)
            engine.close()
            engine = fr.Engine.open(path)
            check(engine)
    with fr.Engine.open(path, read_only=True) as reader:
        engine.add([fr.Record("9", "tea", "new/one")])
        reader.refresh()
        check(reader)
        assert reader.index.ready().state.names_under("new") == ("new/one",)
    engine.close()
