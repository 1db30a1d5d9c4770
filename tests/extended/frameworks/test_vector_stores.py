"""The search of OpenAI's vector stores, as OpenAI's own client asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

import openai
from starlette.testclient import TestClient
from support.memories import KINDS, make_memory

import fanrank as fr
from fanrank.server.access import Principal
from fanrank.server.app import make_app
from fanrank.server.limits import Limits

RECORDS: list[dict[str, Any]] = [
    {"id": "a", "text": "tea in the morning", "year": 2020, "project": "x", "time": 5.0},
    {"id": "b", "text": "tea tea and a plant", "year": 2021, "project": "y", "filename": "plants.md"},
    {"id": "c", "text": "a plant", "year": 2022},
]


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> fr.Engine:
    engine = make_memory(request.param, columns={"project": "category", "year": "number"})
    engine.namespace("users/ana").add(RECORDS)
    engine.add([fr.Record("d", "tea of nobody")])
    return engine


@pytest.fixture
def client(engine: fr.Engine) -> Iterator[TestClient]:
    with TestClient(make_app(engine)) as made:
        yield made


@pytest.fixture
def stores(client: TestClient) -> Any:
    """What the official client has for vector stores, over the application."""
    made = openai.OpenAI(
        base_url="http://testserver/v1", api_key="none", http_client=as_transport(client), max_retries=0
    )
    return made.vector_stores


def as_transport(client: TestClient) -> Any:
    """The test client under the type that OpenAI's client asks for."""
    module = openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]
    library = __import__(module)

    def send(request: Any) -> Any:
        answer = client.request(request.method, str(request.url), content=request.read(), headers=dict(request.headers))
        return library.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)

    return library.Client(transport=library.MockTransport(send))


def ids(page: Any) -> list[str]:
    return [found.file_id for found in page]


def test_a_search_answers_as_the_engine(stores: Any, engine: fr.Engine) -> None:
    page = stores.search("users/ana", query="tea plant")
    expected = engine.namespace("users/ana").search(["tea plant"])[0]
    assert [(found.file_id, found.score) for found in page] == [tuple(hit) for hit in expected]
    assert (page.object, page.search_query) == ("vector_store.search_results.page", ["tea plant"])
    assert (page.has_more, page.next_page) == (False, None)
    found = {one.file_id: one for one in page}
    assert [(part.type, part.text) for part in found["a"].content] == [("text", "tea in the morning")]
    assert found["a"].attributes == {"year": 2020, "project": "x", "time": 5.0}
    assert (found["a"].filename, found["b"].filename) == ("a", "plants.md")


def test_of_several_queries_each_record_has_its_best_score(stores: Any, engine: fr.Engine) -> None:
    queries = ["morning", "tea", "plant"]
    page = stores.search("users/ana", query=queries)
    best: dict[str, float] = {}
    for row in engine.namespace("users/ana").search(queries):
        for name, score in row:
            best[name] = max(score, best.get(name, score))
    assert {found.file_id: found.score for found in page} == best
    scores = [found.score for found in page]
    assert scores == sorted(scores, reverse=True)
    assert page.search_query == queries
    assert ids(stores.search("users/ana", query=queries, max_num_results=2)) == ids(page)[:2]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"type": "eq", "key": "project", "value": "x"}, "a"),
        ({"type": "ne", "key": "project", "value": "x"}, "bc"),
        ({"type": "gt", "key": "year", "value": 2020}, "bc"),
        ({"type": "gte", "key": "year", "value": 2021}, "bc"),
        ({"type": "lt", "key": "year", "value": 2021}, "a"),
        ({"type": "lte", "key": "year", "value": 2021}, "ab"),
        ({"type": "in", "key": "project", "value": ["x", "y"]}, "ab"),
        ({"type": "nin", "key": "project", "value": ["x"]}, "bc"),
        (
            {
                "type": "or",
                "filters": [
                    {"type": "eq", "key": "year", "value": 2022},
                    {
                        "type": "and",
                        "filters": [
                            {"type": "lt", "key": "year", "value": 2022},
                            {"type": "eq", "key": "project", "value": "y"},
                        ],
                    },
                ],
            },
            "bc",
        ),
    ],
)
def test_filters_narrow_the_answer(stores: Any, filters: Any, expected: str) -> None:
    assert sorted(ids(stores.search("users/ana", query="tea plant", filters=filters))) == [*expected]


def test_a_threshold_leaves_out_lower_scores(stores: Any) -> None:
    page = stores.search("users/ana", query="tea")
    lowest = min(found.score for found in page)
    options = {"ranker": "auto", "score_threshold": lowest}
    assert ids(stores.search("users/ana", query="tea", ranking_options=options)) == ids(page)
    options["score_threshold"] = lowest + 2**-18
    assert ids(stores.search("users/ana", query="tea", ranking_options=options)) == ids(page)[:-1]


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
        ({"query": "a", "ranking_options": {"ranker": 5}}, "ranking_options.ranker"),
        ({"query": "a", "ranking_options": {"score_threshold": "x"}}, "ranking_options.score_threshold"),
        ({"query": "a", "filters": {"type": "like", "key": "year", "value": 1}}, "filters"),
        (
            {"query": "a", "filters": {"type": "and", "filters": [{"type": "eq", "key": "year"}]}},
            "filters",
        ),
        ({"query": "a", "filters": {"type": "gt", "key": "year", "value": "x"}}, "filters"),
    ],
)
def test_a_mistake_names_its_place(client: TestClient, body: dict[str, Any], field: str) -> None:
    answer = client.post("/v1/vector_stores/users%2Fana/search", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_the_limits_of_the_server_hold_here_too(engine: fr.Engine) -> None:
    with TestClient(make_app(engine, limits=Limits(k=5, hits=8))) as client:
        for body, status in (
            ({"query": "tea"}, 200),
            ({"query": "tea", "max_num_results": 5}, 200),
            ({"query": "tea", "max_num_results": 6}, 422),
            ({"query": ["tea", "plant"], "max_num_results": 4}, 200),
            ({"query": ["tea", "plant"], "max_num_results": 5}, 422),
        ):
            answer = client.post("/v1/vector_stores/users%2Fana/search", json=body)
            assert answer.status_code == status, (body, answer.text)


def test_a_filter_that_is_too_deep_is_refused(client: TestClient) -> None:
    filters: Any = {"type": "eq", "key": "year", "value": 1}
    for _ in range(20):
        filters = {"type": "and", "filters": [filters]}
    assert client.post("/v1/vector_stores/users/ana/search", json={"query": "a", "filters": filters}).status_code == 200
    for _ in range(20):
        filters = {"type": "or", "filters": [filters]}
    assert client.post("/v1/vector_stores/users/ana/search", json={"query": "a", "filters": filters}).status_code == 422


def test_the_official_client_raises_what_the_server_says(stores: Any, engine: fr.Engine) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        stores.search("users/ana", query="a", filters={"type": "eq", "key": "month", "value": 1})
    assert "no column 'month'" in caught.value.body["detail"]
    bo = Principal("bo", ("users/bo",))
    with TestClient(make_app(engine, admit=lambda request: bo)) as client:
        answer = client.post("/v1/vector_stores/users%2Fana/search", json={"query": "tea"})
        assert (answer.status_code, answer.json()["title"]) == (403, "NamespaceForbidden")
