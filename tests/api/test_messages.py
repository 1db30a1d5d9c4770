"""What a caller is told who gives the wrong thing: the mistake is named where it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanrank as fr


class Model:
    """An encoder and a term encoder, without the methods that are named."""

    name = "model"
    version = "1"
    dimension = 2

    def __init__(self, *without: str) -> None:
        for method in {"documents", "queries", "scores"} - {*without}:
            setattr(self, method, self._answer)

    def _answer(self, texts: Sequence[Any], *, progress: bool = False) -> Any:
        return np.ones((len(texts), 2), dtype=np.float32)


@pytest.fixture
def memory(tmp_path: Path) -> Any:
    with fr.Engine.open(tmp_path / "memory", backend="numpy") as engine:
        engine.add([fr.Record("m1", "tea"), fr.Record("m2", "coffee")])
        yield engine


@pytest.mark.parametrize("ids", ["m1", b"m1", fr.Record("m1", "tea"), {"m1": 1}, 5, None])
def test_fetch_and_delete_take_a_batch(memory: fr.Engine, ids: Any) -> None:
    for call in (memory.fetch, memory.delete, memory.namespace("").fetch):
        with pytest.raises(fr.errors.RecordError, match=r"takes a batch: pass a list of ids"):
            call(ids)
    assert len(memory) == 2


@pytest.mark.parametrize("wrong", [1, None, b"m1", ("m1",)])
def test_fetch_and_delete_take_ids_that_are_strings(memory: fr.Engine, wrong: Any) -> None:
    for call in (memory.fetch, memory.delete):
        with pytest.raises(fr.errors.RecordError, match="an id must be a string, not "):
            call(["m1", wrong])
    assert [record and record.id for record in memory.fetch(iter(["m1", "x", np.str_("m2")]))] == ["m1", None, "m2"]


def test_an_id_that_is_twice_in_a_batch_is_not_called_taken(memory: fr.Engine) -> None:
    with pytest.raises(fr.errors.DuplicateIdError, match=r"^id 'd': the batch has this id twice"):
        memory.add([fr.Record("d", "x"), fr.Record("d", "y")])
    with pytest.raises(fr.errors.DuplicateIdError, match=r"^namespace 'ana', id 'd': the batch has this id twice"):
        memory.namespace("ana").update([fr.Record("d", "x"), fr.Record("d", "y")], insert=True)
    with pytest.raises(fr.errors.DuplicateIdError, match=r"^id 'm1': the id is already taken; .* update"):
        memory.add([fr.Record("m1", "x"), fr.Record("m1", "y")])
    assert len(memory) == 2


@pytest.mark.parametrize("ids", [("q", "q"), ("1", None)], ids=["given twice", "given, and a position"])
def test_two_queries_with_one_id_are_refused_everywhere(memory: fr.Engine, ids: tuple[str, str | None]) -> None:
    hits = memory.search([fr.Query("tea", id=name) for name in ids])
    assert [row[0][0] for row in hits] == ["m1", "m1"]
    for call in (hits.to_run, lambda: list(hits.to_trec()), hits.to_pandas, hits.to_arrow):
        with pytest.raises((fr.errors.QueryError, fr.errors.MissingExtraError)) as caught:
            call()
        if not isinstance(caught.value, fr.errors.MissingExtraError):
            assert f"two queries of the batch have the id '{ids[0]}'" in str(caught.value)


@pytest.mark.parametrize("method", ["documents", "queries"])
def test_an_encoder_without_a_method_is_refused_when_it_is_given(tmp_path: Path, method: str) -> None:
    for options in ({"encoder": Model(method)}, {"term_encoder": Model(method)}):
        name = next(iter(options))
        with pytest.raises(fr.errors.ParameterError, match=f"^{name}: Model has no method '{method}'; an? "):
            fr.Engine(**options)
        with pytest.raises(fr.errors.ParameterError, match=f"Model has no method '{method}'"):
            fr.Engine.open(tmp_path / name, **options)
    broken = Model()
    broken.documents = "no function"  # type: ignore[attr-defined]
    with pytest.raises(fr.errors.ParameterError, match="Model has no method 'documents'"):
        fr.Engine(encoder=broken)
    fr.Engine(encoder=Model(), term_encoder=Model())


def test_a_reranker_without_its_method_is_refused_when_it_is_given() -> None:
    with pytest.raises(fr.errors.ParameterError, match=r"^reranker: Model has no method 'scores'; a reranker has it"):
        fr.strategies.CheckedReranker(Model("scores"), unchecked=True)
    assert fr.strategies.CheckedReranker(Model(), unchecked=True).name == "model"
    assert fr.strategies.CheckedReranker(lambda pairs: [1.0] * len(pairs), unchecked=True).name.endswith("<lambda>")


def test_a_misspelled_keyword_is_told_what_it_may_mean(memory: fr.Engine, tmp_path: Path) -> None:
    message = r"open\(\) got an unexpected keyword argument 'colums'; did you mean 'columns'\?"
    with pytest.raises(TypeError, match=message):
        fr.Engine.open(tmp_path / "new", colums={})  # type: ignore[call-arg]
    assert not (tmp_path / "new").exists()
    with pytest.raises(TypeError, match=r"from_records\(\) got .* 'analyser'; did you mean 'analyzer'\?"):
        fr.Engine.from_records([], analyser="minimal")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"submit\(\) got .* 'strateg'; did you mean 'strategy'\?"):
        memory.submit(["tea"], strateg="bm25")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"asearch\(\) got .* 'dedline'; did you mean 'deadline'\?"):
        asyncio.run(memory.asearch(["tea"], dedline=1.0))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'zzz'$"):
        memory.submit(["tea"], zzz=1)  # type: ignore[call-arg]
