"""`ShardedEngine` and its namespaces have the verbs of `Engine` and `Namespace`, with the same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import fanrank as fr
from fanrank.engine.namespace import Namespace
from fanrank.errors import ShardError
from fanrank.shards.verbs import ShardedNamespace

OTHER_PARAMETERS = {
    "open": "an address, and how many shards; a sharded memory is opened for writing, and waits for all of its shards",
    "search": "partial, which says what becomes of an answer that some shards have not given",
}
"""The verbs whose parameters differ, and why."""

REFUSED = {
    "from_records": "a sharded memory lives in a directory",
    "load": "a saved index has no records",
    "save": "each shard keeps an index of its own",
    "copy_to": "an export and an import do the same",
    "to": "a shard that is started anew serves from where it was opened",
    "encode": "each shard numbers its own terms",
    "numbering": "each shard numbers its own terms",
    "search_tensors": "each shard numbers its own terms",
}
"""The verbs that raise `ShardError`, and why."""


def names_of(kind: type) -> list[str]:
    return sorted(name for name in dir(kind) if not name.startswith("_"))


@pytest.mark.parametrize(
    ("one", "several"), [(fr.Engine, fr.ShardedEngine), (Namespace, ShardedNamespace)], ids=["engine", "namespace"]
)
def test_every_verb_has_its_twin(one: type, several: type) -> None:
    for name in names_of(one):
        assert hasattr(several, name), (
            f"{one.__name__}.{name} has no twin: give {several.__name__} a verb of this name that means the same over "
            "shards, or one that raises ShardError and says what to do, and name that in REFUSED and docs/scaling.md"
        )
        first, second = inspect.getattr_static(one, name), inspect.getattr_static(several, name)
        assert type(first) is type(second), f"{name} is a {type(first).__name__}, and over shards it is not"
        if isinstance(first, property):
            continue
        known, own = parameters_of(one, name), parameters_of(several, name)
        if name in OTHER_PARAMETERS and one is fr.Engine:
            continue
        assert own == known, f"{several.__name__}.{name} takes other parameters than {one.__name__}.{name}"
    assert {*OTHER_PARAMETERS, *REFUSED} <= {*names_of(fr.Engine)}


def parameters_of(kind: type, name: str) -> list[tuple[str, Any, Any]]:
    """The name, kind and default of each parameter."""
    parameters = inspect.signature(getattr(kind, name)).parameters.values()
    return [(each.name, each.kind, each.default) for each in parameters]


def test_a_search_over_shards_takes_one_parameter_more() -> None:
    known, own = parameters_of(fr.Engine, "search"), parameters_of(fr.ShardedEngine, "search")
    assert own == [*known[:-1], ("partial", inspect.Parameter.KEYWORD_ONLY, None), known[-1]]


def test_what_is_refused_says_so() -> None:
    with pytest.raises(ShardError, match="lives in a directory"):
        fr.ShardedEngine.from_records([])
    with pytest.raises(ShardError, match="one engine"):
        fr.ShardedEngine.load("index")
    bare: Any = object.__new__(fr.ShardedEngine)
    given: dict[str, tuple[Any, ...]] = {
        "save": ("index",),
        "copy_to": ("copy",),
        "to": ("cuda",),
        "encode": (["ant"],),
        "search_tensors": (None, None),
    }
    for name, arguments in given.items():
        with pytest.raises(ShardError, match=r"use |say |copies |export "):
            getattr(bare, name)(*arguments)
    with pytest.raises(ShardError, match="use "):
        _ = bare.numbering
    assert {*given, "numbering", "from_records", "load"} == {*REFUSED}
