"""The namespaces of a state stay sorted through all that adds or removes one, and those below a path are found."""

from __future__ import annotations

from pathlib import Path

import fanrank as fr

NAMES = ["é", "a/b/c", "a0", "", "b/a", "a.", "a", "a-b", "ab", "a/b", "b", "a/é"]
BELOW = {
    "a": ("a", "a/b", "a/b/c", "a/é"),
    "a/b": ("a/b", "a/b/c"),
    "a/": ("a", "a/b", "a/b/c", "a/é"),
    "c": (),
    "é": ("é",),
}


def check(engine: fr.Engine, held: list[str]) -> None:
    state = engine.index.ready().state
    assert state.names == tuple(sorted(held))
    for path, below in BELOW.items():
        assert state.names_under(path) == tuple(name for name in below if name in held), path


def test_names_stay_sorted(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path) as engine, fr.Engine.open(tmp_path, read_only=True) as reader:
        for count, name in enumerate(NAMES, 1):
            engine.upsert([fr.Record("1", "tea", name), fr.Record("2", "tea", NAMES[0])])
            check(engine, NAMES[:count])
        for count, name in enumerate(NAMES, 1):
            engine.drop(name)
            check(engine, NAMES[count:])
            reader.refresh()
            check(reader, NAMES[count:])
