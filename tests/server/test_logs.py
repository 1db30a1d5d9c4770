"""The server's log: a line a request, ids of requests, and what never stands in it."""

import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.borders import shrink

import fanrank as fr
from fanrank.server import logs
from fanrank.server.access import Principal
from fanrank.server.app import make_app
from fanrank.server.logs import Log, logging_to

SECRET = "Zanzibarov"
KEY = Principal("0123", ("acme/*",), label="the agents' key")


@pytest.fixture
def engine() -> fr.Engine:
    engine = fr.Engine()
    engine.add([{"id": "a", "text": f"tea of {SECRET}", "namespace": "acme/ana"}])
    return engine


class Watched:
    """An application over the engine, and its lines."""

    def __init__(self, engine: fr.Engine, form: str = "json", texts: bool = False) -> None:
        self.stream = io.StringIO()
        self.log = Log(form, texts=texts, stream=self.stream)
        self.client = TestClient(make_app(engine, log=self.log, admit=lambda request: KEY))

    def text(self) -> str:
        self.log.close()
        return self.stream.getvalue()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]


@pytest.fixture
def watched(engine: fr.Engine) -> Iterator[Watched]:
    made = Watched(engine)
    with logging_to(made.log), made.client:
        yield made


def ask_all(client: TestClient) -> None:
    """Each kind of request, with a secret in all that it can hold."""
    mine = {"namespace": "acme/ana"}
    client.post("/v1/search", json={"queries": [SECRET, "tea"], **mine})
    client.post("/v1/search", json={"query": SECRET, "strategy": SECRET, **mine})
    client.post("/v1/search", json={"query": SECRET, "namespace": SECRET})
    client.post("/v1/records", json={"records": [{"id": SECRET, "text": SECRET, "payload": {SECRET: SECRET}}], **mine})
    client.post("/v1/records", json={"records": [{"id": SECRET, "text": SECRET}], **mine})
    client.get(f"/v1/records/{SECRET}", params=mine)
    client.get(f"/{SECRET}?{SECRET}={SECRET}", headers={"user-agent": SECRET, "referer": SECRET})
    client.get("/v1/records", params={"filter": SECRET, **mine})
    client.post("/v1/explain", json={"query": SECRET, "id": SECRET, **mine})
    client.post("/v1/vector_stores/acme%2Fana/search", json={"query": SECRET})
    client.delete(f"/v1/records/{SECRET}", params=mine)
    client.request(SECRET, "/v1/search")
    client.get("/v1/health")


def test_each_file_of_the_page_is_logged_by_its_own_address(watched: Watched) -> None:
    """They have one endpoint."""
    for address in ("/", "/page/main.js"):
        assert watched.client.get(address).status_code == 200
    assert [line["route"] for line in watched.lines()] == ["/", "/page/main.js"]


def test_a_line_says_what_was_asked_and_how_it_ended(watched: Watched) -> None:
    watched.client.post("/v1/search", json={"queries": ["tea", "zanzibarov", "nothing"], "namespace": "acme/ana"})
    watched.client.get("/v1/records/nobody", params={"namespace": "acme/ana"})
    watched.client.delete("/v1/records/a", params={"namespace": "acme/ana"})
    watched.client.get("/nowhere")
    search, absent, delete, nowhere = watched.lines()
    assert search.pop("milliseconds") > 0
    assert search.pop("time").endswith("Z")
    assert len(search.pop("request")) == 16
    assert search == {
        "level": "info",
        "method": "POST",
        "route": "/v1/search",
        "status": 200,
        "queries": 3,
        "hits": 2,
        "strategy": "bm25",
        "key": "the agents' key",
    }
    assert (absent["route"], absent["status"], absent["problem"]) == ("/v1/records/{id}", 404, "UnknownIdError")
    assert delete["records"] == 1
    assert (nowhere["route"], nowhere["status"]) == (None, 404)


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_line_holds_a_text_an_id_or_a_path(engine: fr.Engine, form: str) -> None:
    made = Watched(engine, form)
    with made.client as client:
        ask_all(client)
    text = made.text()
    assert len(text.splitlines()) == 13
    assert SECRET not in text


def test_texts_of_queries_are_there_where_the_owner_asks(engine: fr.Engine) -> None:
    made = Watched(engine, texts=True)
    with made.client as client:
        ask_all(client)
    lines = made.lines()
    assert lines[0]["texts"] == [SECRET, "tea"]
    # The text of a record never.
    assert SECRET not in json.dumps(lines[3])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["abc-1.2:X_"], True),
        ([], False),
        ([""], False),
        (["two words"], False),
        (["a" * 65], False),
        (["é"], False),
        (["x\x1b[31m"], False),
        (["a", "b"], False),
    ],
)
def test_a_sane_id_of_a_request_is_kept_and_any_other_replaced(watched: Watched, given: list[str], kept: bool) -> None:
    headers = [(b"x-request-id", value.encode("latin-1")) for value in given]
    answers = [
        watched.client.get("/v1/health", headers=headers),
        watched.client.get("/nowhere", headers=headers),
        watched.client.post("/v1/search", headers=headers, content=b"{"),
    ]
    sent = [answer.headers.get_list("x-request-id") for answer in answers]
    logged = [[line["request"]] for line in watched.lines()]
    assert sent == logged
    assert (sent == [given] * 3) is kept
    if not kept:
        assert len({id for (id,) in sent}) == 3


def test_an_unexpected_error_is_logged_without_its_message(
    watched: Watched, engine: fr.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its class, its places in the code, and the id that its answer has."""

    def break_off(*arguments: object, **keywords: object) -> None:
        try:
            raise ValueError(SECRET)
        except ValueError as error:
            raise RuntimeError(f"of {SECRET}") from error

    monkeypatch.setattr(engine, "count", break_off)
    answer = watched.client.get("/v1/count", params={"namespace": "acme/ana"})
    assert (answer.status_code, answer.json()["title"]) == (500, "InternalError")
    error, request = watched.lines()
    assert (error["level"], error["logger"], error["error"]) == ("error", "fanrank.server", "RuntimeError")
    assert any("break_off" in frame for frame in error["frames"])
    assert "from ValueError" in error["frames"]
    assert error["request"] == request["request"] == answer.headers["x-request-id"]
    assert (request["status"], request["problem"]) == (500, "InternalError")
    assert SECRET not in watched.stream.getvalue()


def test_a_failure_of_the_disk_is_logged_with_its_reason(
    watched: Watched, engine: fr.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*arguments: object, **keywords: object) -> None:
        raise fr.errors.StorageError("/data/wal: no space left") from OSError(28, "No space left on device")

    monkeypatch.setattr(engine, "count", break_off)
    assert watched.client.get("/v1/count", params={"namespace": "acme/ana"}).status_code == 503
    error, _ = watched.lines()
    assert error["reason"] == "/data/wal: no space left"
    assert "from OSError: [Errno 28] No space left on device" in error["frames"]


def test_messages_of_other_packages_are_left_out(watched: Watched) -> None:
    logging.getLogger("asyncio").error("Task exception was never retrieved: %s", SECRET)
    logging.getLogger("mcp.server").error("tool failed: %s", SECRET, exc_info=ValueError(SECRET))
    logging.getLogger("uvicorn.error").error("Exception in ASGI application")
    tasks, tool, application = watched.lines()
    assert tasks["place"].startswith("test_logs:")
    assert tool["error"] == "ValueError"
    assert application["message"] == "Exception in ASGI application"
    assert SECRET not in watched.stream.getvalue()


def test_the_loggers_are_as_before_afterwards() -> None:
    logger = logging.getLogger("fanrank")
    assert logger.propagate
    before = logger.level, logger.propagate, list(logger.handlers)
    with logging_to(Log(stream=io.StringIO())):
        assert not logger.propagate
        assert len(logger.handlers) == len(before[2]) + 1
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_a_reader_that_hangs_stops_nobody(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines are left out and counted."""
    shrink(monkeypatch, MOST_LINES=5, CLOSING=0.1)
    wrote, go_on = threading.Event(), threading.Event()

    class Pipe(io.StringIO):
        def write(self, text: str) -> int:
            wrote.set()
            assert go_on.wait(300)
            return super().write(text)

    pipe = Pipe()
    log = Log("json", stream=pipe)
    with TestClient(make_app(engine, log=log)) as client:
        client.get("/v1/health")
        assert wrote.wait(300)
        for _ in range(12):
            assert client.get("/v1/health").status_code == 200
        assert log.dropped == 7
        assert "fanrank_dropped_log_lines_total 7\n" in client.get("/metrics").text
    log.close()
    go_on.set()


def test_a_closed_stream_ends_no_server(engine: fr.Engine) -> None:
    stream = io.StringIO()
    stream.close()
    log = Log("text", stream=stream)
    with TestClient(make_app(engine, log=log)) as client:
        assert client.get("/v1/health").status_code == 200
    log.close()
    assert log.dropped == 1


def test_text_is_one_line_whatever_it_holds() -> None:
    line = logs.write_text(
        {"time": 0.0, "level": "info", "request": "1", "method": "GET", "route": "/", "status": 200,
         "milliseconds": 1.5, "key": 'a b"\n\x1b[31m', "texts": ["x\ny"]}
    )  # fmt: skip
    assert line == (
        r'1970-01-01T00:00:00.000Z INFO GET / 200 1.500 ms request=1 key="a b\"\n\u001b[31m" texts=["x\ny"]'
    )


def test_a_silent_log_takes_what_python_would_print(engine: fr.Engine, capfd: pytest.CaptureFixture[str]) -> None:
    log = Log("none", stream=io.StringIO())
    with logging_to(log), TestClient(make_app(engine, log=log)) as client:
        client.get("/v1/health")
        logging.getLogger("asyncio").error("Task exception was never retrieved: %s", SECRET)
    assert capfd.readouterr() == ("", "")
