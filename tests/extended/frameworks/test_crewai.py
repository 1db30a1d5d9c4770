"""CrewAI's storage backend. CrewAI takes no current mcp, openai and pydantic: it is installed in a venv of its own."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("crewai.memory.storage.backend")

from crewai.memory.storage.backend import EmbeddingDimensionMismatchError, StorageBackend
from crewai.memory.types import MemoryRecord

from fanrank.integrations.crewai import FanrankStorage

START = datetime(2026, 3, 1, 12)
SCOPES = ("/", "/team", "/team/ana", "/teams", "/team/bo/x")


def filled(count: int = 40) -> tuple[FanrankStorage, list[MemoryRecord]]:
    rows = np.random.default_rng(0).normal(size=(count, 4))
    records = [
        MemoryRecord(
            id=f"m{number}",
            content=f"memory {number}",
            scope=SCOPES[number % 5],
            categories=[["fact"], ["plan", "fact"], []][number % 3],
            metadata={"kind": number % 2, "deep": {"a": [number]}},
            created_at=START + timedelta(days=number),
            embedding=row.tolist(),
            source="ana" if number % 2 else None,
            private=number % 4 == 0,
        )
        for number, row in enumerate(rows)
    ]
    storage = FanrankStorage(dimension=4)
    storage.save(records)
    return storage, records


def below(scope: str, prefix: str) -> bool:
    return prefix == "/" or scope == prefix or scope.startswith(f"{prefix}/")


async def test_search_gives_the_nearest_of_those_that_pass_every_filter() -> None:
    storage, records = filled()
    assert isinstance(storage, StorageBackend)
    query = [1.0, 0.5, -0.2, 0.1]

    def cosine(record: MemoryRecord) -> float:
        row = np.array(record.embedding)
        return max(0.0, float(row @ query / np.linalg.norm(row) / np.linalg.norm(query)))

    for scope in ("/", "/team", "/team/ana", "/nobody"):
        for categories in (None, ["plan"], ["fact", "none"]):
            for metadata in (None, {"kind": 1}, {"deep": {"a": [3]}}):
                passing = [
                    record
                    for record in records
                    if below(record.scope, scope)
                    and (categories is None or {*categories} & {*record.categories})
                    and all(record.metadata[key] == value for key, value in (metadata or {}).items())
                ]
                expected = sorted(filter(cosine, passing), key=cosine, reverse=True)[:5]
                given = (query, scope, categories, metadata, 5, 0.01)
                found = [(record.id, score) for record, score in storage.search(*given)]
                assert [id for id, _ in found] == [record.id for record in expected if cosine(record) >= 0.01]
                assert [score for _, score in found] == pytest.approx([*map(cosine, expected)][: len(found)], abs=2e-3)
                assert [(record.id, score) for record, score in await storage.asearch(*given)] == found
    batch = storage.search_batch([query, query[::-1]], "/team", 3)
    assert batch == [storage.search(vector, "/team", limit=3) for vector in (query, query[::-1])]
    record = storage.get_record("m3")
    assert record is not None
    assert record.model_dump() == records[3].model_dump()
    for wrong in (
        lambda: storage.search([1.0]),
        lambda: storage.save([records[0].model_copy(update={"embedding": [1.0]})]),
    ):
        with pytest.raises(EmbeddingDimensionMismatchError):
            wrong()


async def test_scopes_are_listed_counted_updated_and_deleted(tmp_path: Path) -> None:
    storage, records = filled()
    assert storage.list_scopes() == ["/team", "/teams"]
    assert storage.list_scopes("/team") == ["/team/ana", "/team/bo"]
    info = storage.get_scope_info("/team/")
    assert (info.path, info.record_count, info.categories) == ("/team", 24, ["fact", "plan"])
    assert (info.oldest_record, info.newest_record) == (records[1].created_at, records[39].created_at)
    assert storage.get_scope_info("/nobody").model_dump()["oldest_record"] is None
    assert storage.list_categories("/team/ana") == {"fact": 5, "plan": 3}
    assert [one.id for one in storage.list_records("/team", limit=3, offset=1)] == ["m37", "m36", "m34"]
    storage.update(records[1].model_copy(update={"content": "new", "embedding": None}))
    updated = storage.get_record("m1")
    assert updated is not None
    assert updated.content == "new"
    assert np.dot(updated.embedding, records[1].embedding) > 0
    assert storage.delete("/team", older_than=START + timedelta(days=5)) == 3
    assert await storage.adelete("/team", record_ids=["m5", "m6"]) == 1
    assert storage.delete(record_ids=["m0", "m0", "gone"]) == 1
    assert storage.delete(categories=["plan"], metadata_filter={"kind": 0}) == 5
    storage.reset("/team")
    assert {one.scope for one in storage.list_records()} == {"/", "/teams"}
    storage.reset()
    assert storage.count() == 0
    await storage.asave(records[:2])
    assert storage.count("/team") == 1
