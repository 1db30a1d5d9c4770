"""OpenAI's own client asks a server for the search of its vector stores."""

from typing import Any

import pytest

pytest.importorskip("httptools")  # of the extra `server`; frameworks bring starlette too
openai = pytest.importorskip("openai")

from starlette.testclient import TestClient  # noqa: E402

import fanrank as fr  # noqa: E402
from fanrank.server.app import make_app  # noqa: E402


def as_transport(client: TestClient) -> Any:
    """The test client under the type that OpenAI's client asks for."""
    library = __import__(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])

    def send(request: Any) -> Any:
        answer = client.request(request.method, str(request.url), content=request.read(), headers=dict(request.headers))
        return library.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)

    return library.Client(transport=library.MockTransport(send))


def test_the_official_client_reads_answers_and_raises_what_the_server_says() -> None:
    engine = fr.Engine(columns={"year": "number"})
    engine.namespace("users/ana").add(
        {"id": str(year), "text": "tea " * (year - 2019), "year": year} for year in (2020, 2021)
    )
    with TestClient(make_app(engine)) as client:
        given = {"api_key": "none", "http_client": as_transport(client), "max_retries": 0}
        stores = openai.OpenAI(base_url="http://testserver/v1", **given).vector_stores
        late = {"type": "gt", "key": "year", "value": 2020}
        page = stores.search("users/ana", query=["tea", "nothing"], filters=late)
        (found,) = page
        assert (found.file_id, found.filename, found.attributes) == ("2021", "2021", {"year": 2021})
        assert found.score == engine.namespace("users/ana").search(["tea"])[0][0].score
        assert [part.text for part in found.content] == ["tea tea "]
        assert (page.object, page.has_more) == ("vector_store.search_results.page", False)
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            stores.search("users/ana", query="a", filters={"type": "eq", "key": "month", "value": 1})
        assert "no column 'month'" in caught.value.body["detail"]
