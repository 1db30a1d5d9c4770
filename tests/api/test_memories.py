"""Every memory is an `fr.Memory`: it has the verbs of it with the same parameters, or says which it lacks and why."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
from support.memories import make_memory
from support.serving import served

import fanrank as fr
from fanrank.engine.offered import OFFERED
from fanrank.errors import NotSupportedError
from fanrank.integrations.tools import memory_tools

OTHER_PARAMETERS = {
    *((fr.Engine, "open"), (fr.ShardedEngine, "search")),
    *((fr.Client, verb) for verb in ("search", "add", "update", "upsert", "drop")),
    *((fr.scopes.Namespace, verb) for verb in ("search", "asearch", "submit", "candidates", "drop")),
}
"""The verbs that take more: of shards an address and `partial`, of a client `batch`; or less, of a handle."""

KINDS = [fr.Engine, fr.ShardedEngine, fr.scopes.Namespace, fr.Client]
INHERITED = {
    *("aadd", "aupdate", "aupsert", "adelete", "asearch", "submit", "coalescer", "get", "lacking", "space"),
    *("record", "replay", "encoder", "term_encoder", *(f"a{name}" for name in OFFERED)),
}
"""What works for every memory by what it has."""


def names_of(kind: type) -> list[str]:
    return sorted(name for name in dir(kind) if not name.startswith("_"))


def parameters_of(kind: type, name: str) -> list[tuple[str, Any, Any]]:
    """The name, kind and default of each parameter."""
    parameters = inspect.signature(getattr(kind, name)).parameters.values()
    return [(each.name, each.kind, each.default) for each in parameters]


@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_is_there_with_its_parameters_or_is_said_to_be_lacking(kind: type[fr.Memory]) -> None:
    plain: type = fr.Engine if kind is fr.ShardedEngine else fr.Memory
    for name in {*names_of(plain)} - kind.lacking.keys():
        first, second = inspect.getattr_static(plain, name), inspect.getattr_static(kind, name)
        assert isinstance(first, property) == isinstance(second, property), name
        if inspect.isroutine(getattr(plain, name)) and not {(kind, name), (plain, name)} & OTHER_PARAMETERS:
            assert parameters_of(kind, name) == parameters_of(plain, name), name
    for name, why in kind.lacking.items():
        made: Any = object.__new__(kind)
        assert not hasattr(made, name)
        with pytest.raises(NotSupportedError, match=rf"^{kind.__name__} has no {name}: "):
            getattr(made, name)
        with pytest.raises(NotSupportedError):
            getattr(kind, name)()
        assert why in str(getattr(kind, name).__doc__)


@pytest.mark.parametrize("kind", [fr.scopes.Namespace, fr.Client])
def test_a_verb_that_is_not_lacking_is_made_of_what_the_memory_has(kind: type[fr.Memory]) -> None:
    """Else it would read an index that is not there."""
    own = {name for base in kind.__mro__[: kind.__mro__.index(fr.Memory)] for name in vars(base)}
    assert {*names_of(fr.Memory)} - own - INHERITED == set()


@pytest.mark.parametrize("kind", ["engine", "shards"])
def test_it_is_a_memory_and_so_is_each_namespace(kind: str) -> None:
    with make_memory(kind) as memory:
        memory.add([fr.Record("1", "tea", "ana"), fr.Record("2", "tea")])
        handle = memory.namespace("ana")
        assert isinstance(memory, fr.Memory)
        assert isinstance(handle, fr.Memory)
        assert handle.namespaces == ("ana",)
        assert handle.namespace("ana").search("tea")[0] == memory.search("tea", namespace="ana")[0]
        assert (handle.stats(), handle.health("ana")) == (memory.stats(namespace="ana"), memory.health("ana"))
        assert [record.id for record in handle.records(namespace="ana")] == ["1"]
        for ask in (handle.namespace, handle.drop, handle.drift, lambda name: handle.count(namespace=name)):
            with pytest.raises(fr.errors.QueryError, match="on the namespace 'ana'"):
                ask("bo")
        with fr.Coalescer(handle) as coalescer:
            for found in (coalescer.search("tea"), coalescer.submit(["tea"]).result()):
                assert [hit.id for hit in found[0]] == ["1"]
            with pytest.raises(fr.errors.QueryError, match="another namespace"):
                coalescer.search([fr.Query("tea", namespace="bo")])


def test_open_takes_options_a_directory_of_either_kind_or_an_address(tmp_path: Path) -> None:
    assert isinstance(fr.open(analyzer="minimal"), fr.Engine)
    for name, kind, options in (("one", fr.Engine, {}), ("several", fr.ShardedEngine, {"shards": 2})):
        with fr.open(tmp_path / name, **options) as memory:
            assert isinstance(memory, kind)
            memory.add([fr.Record(f"r{number}", "tea", "ana") for number in range(7)])
        with fr.open(tmp_path / name) as memory, served(memory) as url, fr.open(url, key=None) as client:
            assert isinstance(client, fr.Client)
            assert isinstance(client, fr.Memory)
            assert (len(client), client.pin, client.namespaces) == (7, None, ("ana",))
            handle = client.namespace("ana")
            listing = handle.records(limit=3)
            assert [record.id for record in listing] == ["r0", "r1", "r2"]
            assert [record.id for record in handle.records(after=listing.cursor)] == ["r3", "r4", "r5", "r6"]
            wanted = memory.namespace("ana").search(["tea"])[0]
            assert handle.submit(["tea"]).result()[0] == asyncio.run(handle.asearch(["tea"]))[0] == wanted
            assert asyncio.run(handle.adelete(["r0"])) == 1
            assert handle.submit(["tea"]).result()[0] == memory.search(["tea"], namespace="ana")[0] != wanted
            tools = memory_tools(client, namespace="bo")
            assert '"remembered"' in tools.call("remember", {"records": [{"text": "coffee at noon"}]})
            found = asyncio.run(tools.acall("recall", {"queries": ["coffee"]}))
            assert "at noon" in found
            assert found == memory_tools(memory, namespace="bo").recall("coffee")
    for options in ({"analyzer": "minimal"}, {"shards": 2}, {"tiemout": 3}):
        with pytest.raises((fr.errors.ParameterError, TypeError), match=r"is for a directory|did you mean 'timeout'"):
            fr.open("HTTP://127.0.0.1:9", **options)
