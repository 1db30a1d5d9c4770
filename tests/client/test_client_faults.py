"""What a client makes of answers that no server of fanrank gives, of slow ones, and of mistakes."""

import asyncio
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.responses import Response
from support.serving import running, served
from support.threads import in_threads

import fanrank as fr
from fanrank.client.asynchronous import AT_ONCE
from fanrank.client.sending import Target

UNREACHABLE = fr.errors.UnreachableError
READS: list[Callable[[fr.Client], Any]] = [
    lambda client: client.search(["tea"]),
    lambda client: client.search([]),
    lambda client: client.explain("tea", "a"),
    lambda client: client.get("a"),
    lambda client: client.count(),
    lambda client: list(client.records()),
    lambda client: client.namespaces,
    lambda client: client.add([{"id": "a", "text": "b"}]),
    lambda client: client.delete(["a"]),
    lambda client: client.patch("a", role="user"),
]


def answering(content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Any:
    """An application that gives everyone this answer."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await Response(content, status, headers=headers)(scope, receive, send)

    return app


@pytest.mark.parametrize(
    "content",
    [b"{}", b"[]", b"5", b"null", b"<html>", b"", b"\xff{}", b"[" * 100_000, b'{"results": [{"ids": ["a"]}]}',
     b'{"records": 5, "namespaces": [1], "count": "x", "written": {}, "deleted": [], "patched": null}'],
)  # fmt: skip
def test_an_answer_of_another_form_is_a_named_error(content: bytes) -> None:
    with running(answering(content)) as url, fr.Client(url, retries=0) as client:
        for read in READS:
            with pytest.raises(UNREACHABLE, match="is it a fanrank server"):
                read(client)


def test_a_body_that_cannot_be_unpacked_is_a_named_error() -> None:
    app = answering(b"no gzip", headers={"content-encoding": "gzip"})
    with running(app) as url, fr.Client(url, retries=0) as client, pytest.raises(UNREACHABLE):
        client.count()


def test_a_redirect_is_not_followed() -> None:
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append(scope["path"])
            await Response(b"", 307, headers={"location": "/elsewhere"})(scope, receive, send)

    with running(app) as url, fr.Client(url, "key") as client, pytest.raises(fr.errors.ServerError, match="307"):
        client.count()
    assert asked == ["/v1/count"]


@pytest.mark.parametrize("name", ["UnknownColumnError", "MissingExtraError", "DuplicateIdError", "DeviceMemoryError"])
def test_an_error_that_travelled_is_whole(name: str) -> None:
    app = answering(b'{"title": "%s", "detail": "what is wrong"}' % name.encode(), 422)
    expected = pytest.raises(getattr(fr.errors, name), match="what is wrong")
    with running(app) as url, fr.Client(url, retries=0) as client, expected as caught:
        client.count()
    assert getattr(caught.value, "columns", ()) == ()
    if name != "MissingExtraError":
        assert str(pickle.loads(pickle.dumps(caught.value))) == "what is wrong"


@contextmanager
def speaking(*parts: bytes) -> Iterator[str]:
    """The address of a server that sends these parts, the last again and again until the block ends."""
    ended = threading.Event()

    def speak() -> None:
        while not ended.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(1 << 16)
                    for part in parts:
                        connection.sendall(part)
                    while parts and not ended.wait(0.01):
                        connection.sendall(parts[-1])
                    ended.wait()
                except OSError:
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=speak)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


DRIPPING = (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" ")


def test_an_answer_that_drips_ends_with_the_time_of_the_call() -> None:
    with speaking(*DRIPPING) as url:
        with fr.Client(url, timeout=0.2) as client, pytest.raises(fr.errors.DeadlineError, match=r"0\.2 seconds"):
            client.count()

        async def ask() -> None:
            async with fr.AsyncClient(url, timeout=0.2) as client:
                await client.count()

        with pytest.raises(fr.errors.DeadlineError, match=r"0\.2 seconds"):
            asyncio.run(ask())


def test_an_error_says_whether_a_write_may_have_been_done() -> None:
    unknown = "whether the write was done is not known"
    with speaking() as url, fr.Client(url, timeout=0.2) as client:
        with pytest.raises(fr.errors.DeadlineError, match=unknown):
            client.add([{"id": "a", "text": "b"}])
        with pytest.raises(fr.errors.DeadlineError) as read:
            client.count()
    with fr.Client(url) as client, pytest.raises(UNREACHABLE) as refused:
        client.add([{"id": "a", "text": "b"}])  # nothing listens, so nothing was sent
    assert unknown not in f"{read.value} {refused.value}"


def test_the_deadline_of_a_search_in_parts_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    sent: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            sent.append(float(dict(scope["headers"])[b"fanrank-deadline"]))
            now[0] += 2
            content = (
                b'{"results": [], "width": 1, "source": null, "decided": false, "reranked": false, "backend": "b"}'
            )
            await Response(content)(scope, receive, send)

    with running(app) as url, fr.Client(url, retries=0) as client:
        monkeypatch.setattr("fanrank.client.sending.time", SimpleNamespace(monotonic=lambda: now[0]))
        with pytest.raises(fr.errors.DeadlineError, match="within 5 seconds"):
            client.search(["a", "b", "c", "d"], batch=1, deadline=5)
    assert sent == [5, 3, 1]


def test_a_client_serves_several_event_loops_and_is_closed_in_each() -> None:
    engine = fr.Engine()
    engine.add([{"id": "a", "text": "tea"}])
    with served(engine) as url:
        client = fr.AsyncClient(url)
        handle = client.namespace("x")

        async def ask() -> int:
            counts = await asyncio.gather(*(client.count() for _ in range(3)), handle.count())
            return sum(counts)

        assert [asyncio.run(ask()) for _ in range(3)] == [3, 3, 3]
        found: list[int] = []
        in_threads(*[lambda: found.append(asyncio.run(ask()))] * 3)
        assert found == [3, 3, 3]
        assert asyncio.run(ask()) == 3
        # The pools of the loops that ended are gone.
        assert len(vars(client)["_pools"].loops) == 1
        asyncio.run(client.close())
        with pytest.raises(UNREACHABLE, match="closed"):
            asyncio.run(handle.count())
        with fr.Client(url) as blocking:
            hits = blocking.search(["tea"])
        with pytest.raises(UNREACHABLE, match="closed"):
            hits.explain(0, "a")


@pytest.mark.parametrize("url", ["http://127.0.0.1", "http://127.8.0.1:1", "http://[::1]", "http://LOCALHOST"])
def test_a_key_for_this_machine_passes_no_proxy(url: str) -> None:
    assert Target(url, "key").options()["trust_env"] is False
    assert Target("http://memory.example", "key").options()["trust_env"] is True


@pytest.mark.parametrize("url", ["http://127.0.0.1:abc", "http://127.0.0.1:99999", "http://[::1", "http://x:0"])
def test_an_address_that_no_server_has_is_refused(url: str) -> None:
    for kind in (fr.Client, fr.AsyncClient):
        with pytest.raises(fr.errors.ParameterError, match="address"):
            kind(url)


def test_a_filter_beyond_an_address_is_refused_by_name() -> None:
    with fr.Client("http://127.0.0.1:1") as client, pytest.raises(fr.errors.ParameterError, match="address"):
        client.count(fr.col("session").isin([f"session {n}" for n in range(20_000)]))


def test_requests_of_one_loop_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[int] = []
    now = 0

    async def request(self: Any, **arguments: Any) -> httpx.Response:
        nonlocal now
        now += 1
        under_way.append(now)
        await asyncio.sleep(0)
        now -= 1
        return httpx.Response(200, json={"count": 1})

    async def ask_all() -> list[int]:
        async with fr.AsyncClient("http://127.0.0.1:9") as client:
            return await asyncio.gather(*(client.count() for _ in range(3 * AT_ONCE)))

    monkeypatch.setattr(httpx.AsyncClient, "request", request)
    assert asyncio.run(ask_all()) == [1] * (3 * AT_ONCE)
    assert max(under_way) == AT_ONCE


def test_the_time_of_a_request_goes_on_while_it_waits_for_its_turn() -> None:
    async def hang(scope: Any, receive: Any, send: Any) -> None:
        while scope["type"] == "http" and (await receive())["type"] != "http.disconnect":
            pass

    async def ask_all(url: str) -> list[Any]:
        async with fr.AsyncClient(url, timeout=0.3) as client:
            return await asyncio.gather(*(client.count() for _ in range(AT_ONCE + 1)), return_exceptions=True)

    with running(hang) as url:
        assert {type(found) for found in asyncio.run(ask_all(url))} == {fr.errors.DeadlineError}
