"""The search of vector stores in the form of OpenAI's API. OpenAI's own client asks in tests/extended/frameworks."""

from typing import Any

import pytest
from starlette.testclient import TestClient
from support.memories import KINDS, make_memory

import fanrank as fr

RECORDS: list[dict[str, Any]] = [
    {"id": "a", "text": "tea in the morning", "year": 2020, "project": "x", "time": 5.0},
    {"id": "b", "text": "tea tea and a plant", "year": 2021, "project": "y", "filename": "plants.md"},
    {"id": "c", "text": "a plant", "year": 2022},
]
ADDRESS = "/v1/vector_stores/users%2Fana/search"


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> fr.Engine:
    engine = make_memory(request.param, columns={"project": "category", "year": "number"})
    engine.namespace("users/ana").add(RECORDS)
    engine.add([fr.Record("d", "tea of nobody")])
    return engine


def scores(client: TestClient, query: Any, **more: Any) -> dict[str, float]:
    page = client.post(ADDRESS, json={"query": query, **more}).json()
    return {found["file_id"]: found["score"] for found in page["data"]}


def test_a_search_answers_as_the_engine(client: TestClient, engine: fr.Engine) -> None:
    page = client.post(ADDRESS, json={"query": "tea plant"}).json()
    expected = engine.namespace("users/ana").search(["tea plant"])[0]
    assert [(found["file_id"], found["score"]) for found in page["data"]] == [tuple(hit) for hit in expected]
    assert (page["object"], page["search_query"]) == ("vector_store.search_results.page", ["tea plant"])
    assert (page["has_more"], page["next_page"]) == (False, None)
    found = {one["file_id"]: one for one in page["data"]}
    assert found["a"]["content"] == [{"type": "text", "text": "tea in the morning"}]
    assert found["a"]["attributes"] == {"year": 2020, "project": "x", "time": 5.0}
    assert (found["a"]["filename"], found["b"]["filename"]) == ("a", "plants.md")


def test_of_several_queries_each_record_has_its_best_score(client: TestClient, engine: fr.Engine) -> None:
    queries = ["morning", "tea", "plant"]
    best: dict[str, float] = {}
    for row in engine.namespace("users/ana").search(queries):
        for name, score in row:
            best[name] = max(score, best.get(name, score))
    found = scores(client, queries)
    assert found == best
    assert [*found.values()] == sorted(found.values(), reverse=True)
    assert [*scores(client, queries, max_num_results=2)] == [*found][:2]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"type": "eq", "key": "project", "value": "x"}, "a"),
        ({"type": "or", "filters": [{"type": "eq", "key": "year", "value": year} for year in (2020, 2022)]}, "ac"),
    ],
)
def test_filters_narrow_the_answer(client: TestClient, filters: Any, expected: str) -> None:
    """Operators are compared in tests/records/test_dialects.py, and their limits in test_limits.py."""
    assert sorted(scores(client, "tea plant", filters=filters)) == [*expected]


def test_a_threshold_leaves_out_lower_scores(client: TestClient) -> None:
    whole = scores(client, "tea")
    lowest = min(whole.values())
    assert scores(client, "tea", ranking_options={"ranker": "auto", "score_threshold": lowest}) == whole
    less = scores(client, "tea", ranking_options={"score_threshold": lowest + 2**-18})
    assert [*less] == [*whole][:-1]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"query": []}, "query"),
        ({"query": ["a", 1]}, "query"),
        ({}, "query"),
        ({"query": "a", "max_num_results": 51}, "max_num_results"),
        ({"query": "a", "max_num_results": 0}, "max_num_results"),
        ({"query": "a", "rewrite_query": True}, "rewrite_query"),
        ({"query": "a", "ranking_options": {"ranker": "mine"}}, "ranking_options.ranker"),
        ({"query": "a", "ranking_options": {"score_threshold": "x"}}, "ranking_options.score_threshold"),
        ({"query": "a", "filters": {"type": "like", "key": "year", "value": 1}}, "filters"),
        ({"query": "a", "filters": {"type": "gt", "key": "year", "value": "x"}}, "filters"),
    ],
)
def test_a_mistake_names_its_place(client: TestClient, body: dict[str, Any], field: str) -> None:
    answer = client.post("/v1/vector_stores/users%2Fana/search", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
