"""Clients that mean harm, against a real server: each is refused or dropped, and the server answers afterwards."""

import asyncio
import json
import re
import select
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request
from support.live import Live, message, read_all, serving, status
from support.threads import until

import fanrank as fr
from fanrank.engine.errors import ParameterError
from fanrank.engine.records.hits import Hits
from fanrank.server import bodies
from fanrank.server.access import Principal
from fanrank.server.cancelling import Cancellation
from fanrank.server.limits import Limits
from fanrank.server.run import open_sockets


@pytest.fixture(scope="module")
def engine() -> fr.Engine:
    engine = fr.Engine(columns={"project": "category"})
    engine.add([{"id": str(place), "text": f"tea number {place}"} for place in range(100)])
    return engine


@pytest.fixture
def live(engine: fr.Engine) -> Iterator[Live]:
    """Its times are so long that no test reaches them, however busy the machine is."""
    with serving(engine, limits=Limits(body_bytes=100_000, head_seconds=600.0, body_seconds=600.0)) as made:
        yield made
        assert made.answers()
        # An answer arrives before its request counts as ended.
        until(lambda: made.state.body_bytes == 0 and not made.state.in_flight_of)


@pytest.fixture
def hasty(engine: fr.Engine) -> Iterator[Live]:
    """It gives a client half a second."""
    with serving(engine, limits=Limits(head_seconds=0.5, body_seconds=0.5, answer_seconds=0.5)) as made:
        yield made
        # A busy machine may take half a second for an honest request too.
        until(made.answers)
        until(lambda: made.state.body_bytes == 0 and not made.state.in_flight_of)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"query": "\xff"}', 400),
        (b'{"query": "\xed\xa0\x80"}', 400),
        (b"[" * 90_000, 400),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, 400),
        (b'{"query": "tea", "k": 1' + b"0" * 4_000 + b"}", 422),
        (b'{"query": "tea", "k": 1' + b"0" * 5_000 + b"}", 400),
        (b'{"query": "tea", "k": -1}', 422),
        (b'{"query": "tea", "k": 1e3}', 422),
        (b'{"query": "tea", "offset": 99999999999999999999}', 422),
        (b'{"query": {"text": "tea", "filter": ' + b'{"not": ' * 40 + b'{"project": 1}' + b"}" * 40 + b"}}", 422),
        (b'{"query": "' + b"a" * 200_000 + b'"}', 413),
    ],
    ids=range(13),
)
def test_a_body_that_means_harm_is_a_problem(live: Live, body: bytes, expected: int) -> None:
    answer = live.send(message(body))
    assert status(answer) == expected
    assert b"application/problem+json" in answer


def test_a_body_that_grows_beyond_its_limit_is_refused_before_its_end(live: Live) -> None:
    head = message(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with live.connect() as connection:
        connection.sendall(head + b"20000\r\n" + b" " * 0x20000 + b"\r\n")
        assert status(connection.recv(65_536)) == 413


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_a_form_of_a_page_is_no_request(live: Live, kind: str) -> None:
    sent = message(b'{"query": "tea"}').replace(b"application/json", kind.encode())
    assert status(live.send(sent)) == 415


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("Host: evil.example", 403),
        ("Host: localhost.evil.example", 403),
        ("Host: 127.0.0.1.evil.example", 403),
        ("Host: localhost:80@evil.example", 403),
        ("Host: 10.0.0.1", 403),
        ("Host: ", 403),
        ("Host: 127.0.0.1:99", 200),
        ("Host: [::1]:99", 200),
        ("Host: LOCALHOST", 200),
        ("Host: localhost\r\nOrigin: http://evil.example", 403),
        ("Host: localhost\r\nOrigin: null", 403),
        ("Host: localhost\r\nOrigin: http://localhost:99", 403),
        ("Host: localhost\r\nOrigin: http://localhost", 200),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site", 403),
        ("Host: localhost\r\nSec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors", 403),
        ("Host: localhost\r\nSec-Fetch-Site: same-origin", 200),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate", 200),
        ("Host: localhost\r\nHost: localhost", 400),
    ],
)
def test_pages_of_other_sites_reach_no_server_without_keys(live: Live, head: str, expected: int) -> None:
    answer = live.send(f"GET /v1/stats HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n".encode())
    assert status(answer) == expected
    assert b"access-control" not in answer.lower()


def test_no_site_is_let_in_beforehand(live: Live) -> None:
    ask = "OPTIONS /v1/search HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nConnection: close\r\n"
    answer = live.send(f"{ask}Access-Control-Request-Method: POST\r\n\r\n".encode())
    assert status(answer) == 405
    assert b"access-control" not in answer.lower()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET /v1/stats\r\n\r\n",
        b"GET /v1/stats HTTP/1.1\r\n\r\n",
        b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        # Two readings of where a request ends are how one is smuggled past a proxy.
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length : 5\r\n\r\n{}",
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=range(9),
)  # fmt: skip
def test_what_is_no_http_ends_the_connection(live: Live, sent: bytes) -> None:
    answer = live.send(sent)
    assert not answer or status(answer) in (400, 415, 501)


def test_a_slow_body_is_refused(hasty: Live) -> None:
    sent = message(b'{"query": "tea"}')
    with hasty.connect() as connection:
        connection.sendall(sent[:-3])
        assert status(connection.recv(65_536)) == 408


@pytest.mark.parametrize("sent", [b"", b"GET /v1/st", b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_half_open_connection_is_ended(hasty: Live, sent: bytes) -> None:
    assert hasty.send(sent) == b""


def test_a_client_that_does_not_read_is_ended(engine: fr.Engine) -> None:
    with serving(engine, limits=Limits(answer_seconds=0.5)) as live:
        # Each answer has 100 hits for 256 queries: more than what the system holds for a connection.
        body = b'{"k": 100, "texts": true, "queries": [' + b'"tea number",' * 255 + b'"tea"]}'
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", live.port))
        with connection:
            connection.sendall(message(body, close=False) * 2)
            until(lambda: live.state.in_flight > 0)
            until(lambda: live.state.in_flight == 0 and not live.server.server_state.connections)
        until(live.answers)


def test_more_connections_than_the_limit_are_turned_away(engine: fr.Engine) -> None:
    with serving(engine, limits=Limits(connections=3, head_seconds=600.0)) as live:
        held = [live.connect() for _ in range(3)]
        until(lambda: len(live.server.server_state.connections) == 3)
        with live.connect() as beyond:
            assert status(read_all(beyond)) == 503
        for connection in held:
            connection.close()
        until(lambda: not live.server.server_state.connections)
        assert live.answers()


def admit(request: Request) -> Principal:
    """Admits everyone by the name that the key says."""
    return Principal(request.headers.get("authorization", "Bearer one").removeprefix("Bearer "))


@pytest.mark.parametrize(
    ("limits", "key", "refused"),
    [(Limits(bodies_bytes=150_000), "other", 503), (Limits(bodies_bytes_per_key=150_000), "one", 429)],
    ids=["of all", "of a key"],
)
def test_many_large_bodies_at_once_are_bounded(engine: fr.Engine, limits: Limits, key: str, refused: int) -> None:
    head = f"Authorization: Bearer {key}\r\n"
    with serving(engine, admit=admit, limits=replace(limits, body_seconds=600.0)) as live:
        large = b'{"query": "tea"' + b" " * 100_000 + b"}"
        with live.connect() as first:
            first.sendall(message(large)[:-3])
            until(lambda: live.state.body_bytes > 90_000)
            assert status(live.send(message(large, head=head))) == refused
            # A small body finds room, and so does a large one with another key where the limit is of a key.
            assert status(live.send(message(b'{"query": "tea"' + b" " * 60_000 + b"}", head=head))) == 200
            other = live.send(message(large, head="Authorization: Bearer third\r\n"))
            assert status(other) == (200 if refused == 429 else 503)
            first.sendall(message(large)[-3:])
            assert status(read_all(first)) == 200
        until(lambda: live.state.body_bytes == 0 and not live.state.body_bytes_of)
        assert live.answers()


def test_a_client_that_hangs_up_ends_its_explanations(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    explain_hit, begun, explained = Hits.explain, threading.Event(), list[str]()

    def explain(hits: Hits, query: int, document: str) -> Any:
        begun.set()
        # The server's loop learns of the end while this thread waits.
        until(lambda: cancellations[0].disconnected)
        explained.append(document)
        return explain_hit(hits, query, document)

    cancellations, of = list[Cancellation](), Cancellation.of
    monkeypatch.setattr(Cancellation, "of", lambda request: cancellations.append(of(request)) or cancellations[0])
    monkeypatch.setattr(Hits, "explain", explain)
    with serving(engine, limits=Limits(seconds=600.0)) as live:
        with live.connect() as connection:
            connection.sendall(message(b'{"query": "tea", "k": 100, "explain": true}'))
            assert begun.wait(300)
        until(lambda: not live.state.in_flight)
    assert len(explained) == 1


def trickle(live: Live, start: bytes, piece: bytes) -> bytes:
    """Send a start, and then a piece again and again until the server has had enough. Returns what it answered."""
    with live.connect() as connection:
        connection.sendall(start)
        for _ in range(15_000):
            readable, _, _ = select.select([connection], [], [], 0.02)
            if readable:
                break
            try:
                connection.sendall(piece)
            except OSError:
                break
        else:
            raise AssertionError("the server takes one piece after the other")
        return read_all(connection)


def test_a_client_that_sends_byte_by_byte_is_ended(hasty: Live) -> None:
    assert trickle(hasty, b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n", b"X: a\r\n") == b""


def test_requests_in_one_go_are_answered_in_their_order(live: Live) -> None:
    bodies = [json.dumps({"query": {"text": "tea", "id": str(place)}, "k": 1}).encode() for place in range(200)]
    sent = b"".join(message(body, close=False) for body in bodies[:-1]) + message(bodies[-1])
    answer = live.send(sent)
    assert re.findall(rb'"results":\[\{"id":"(\d+)"', answer) == [str(place).encode() for place in range(200)]


def test_of_a_field_that_is_given_twice_the_last_is_meant_and_checked(engine: fr.Engine) -> None:
    own = Principal("a", ("acme",))
    with serving(engine, admit=lambda request: own) as live:
        for first, last, expected in (("acme", "", 403), ("", "acme", 200)):
            body = f'{{"query": "tea", "namespace": "{first}", "namespace": "{last}"}}'
            assert status(live.send(message(body.encode()))) == expected


def test_a_large_body_holds_up_no_other_request(engine: fr.Engine) -> None:
    """A filter of many comparisons takes a second to read. Meanwhile others are answered, so it is read in a thread."""
    threads, read = list[str](), bodies._read

    def parse(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read(*arguments)

    with pytest.MonkeyPatch.context() as patched, serving(engine) as live:
        patched.setattr(bodies, "_read", parse)
        wide = json.dumps({"query": {"text": "tea", "filter": {"or": [{"project": str(n)} for n in range(20_000)]}}})
        answer = live.send(message(wide.encode()))
        assert (status(answer), b"FilterTooLarge" in answer) == (422, True)
        assert live.answers()
    large, small = threads
    assert large != small


def test_a_name_that_resolves_elsewhere_is_beyond_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("127.0.0.1", "10.1.2.3")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **keywords: found)
    with pytest.raises(ParameterError, match=r"10\.1\.2\.3"):
        open_sockets("localhost", 0, loopback_only=True)


def test_a_stop_answers_what_is_under_way_and_refuses_the_rest(engine: fr.Engine) -> None:
    sent = message(b'{"query": "tea"}')
    with serving(engine) as live, live.connect() as waiting:
        waiting.sendall(sent[:-3])
        until(lambda: live.state.in_flight == 1)
        live.server.handle_exit(signal.SIGTERM, None)
        assert not asyncio.run(live.server.on_tick(1))
        ready = b"GET /v1/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert status(live.send(ready)) == 503
        refused = live.send(sent)
        assert status(refused) == 503
        assert b"StoppingError" in refused
        waiting.sendall(sent[-3:])
        assert status(read_all(waiting)) == 200
        until(lambda: live.server.should_exit)


def test_a_key_whose_requests_take_long_leaves_threads_to_others(
    engine: fr.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, counted, count, answer = threading.Event(), list[str](), engine.count, engine.searcher.answer

    def held(filter: Any, *, namespace: str) -> int:
        counted.append(namespace)
        return count(filter) if namespace == "other" else int(release.wait(300))

    def ask(key: str, more: str = "") -> bytes:
        head = f"Host: localhost\r\nAuthorization: {key}\r\nConnection: close\r\n{more}"
        return f"GET /v1/count?namespace={key} HTTP/1.1\r\n{head}\r\n".encode()

    monkeypatch.setattr(engine, "count", held)
    monkeypatch.setattr("fanrank.engine.serve.coalesce.AT_ONCE", 0.0)
    monkeypatch.setattr(engine.searcher, "answer", lambda *asked: release.wait(300) and answer(*asked))
    limits = Limits(seconds=600.0, stop_seconds=1e-9)
    with serving(engine, admit=lambda request: Principal(request.headers["authorization"]), limits=limits) as live:
        try:
            gone = [live.connect() for _ in range(44)]
            with live.connect() as kept, live.connect() as searching:
                for connection in (kept, *gone):
                    connection.sendall(ask("x"))
                    until(lambda: counted)  # the first has a thread when the others come
                gone.append(live.connect())
                for connection, more in ((gone[-1], b', "tea"' * 32), (searching, b"")):
                    connection.sendall(message(b'{"queries": ["tea"%s]}' % more, head="Authorization: x\r\n"))
                until(lambda: live.state.in_flight == 47)
                assert status(live.send(ask("other"))) == 200
                assert status(live.send(ask("x", "Fanrank-Deadline: 0.05\r\n"))) == 504
                for connection in gone:
                    connection.close()
                # Those that wait go with their clients. Those that have threads are refused at the end, as is a search.
                until(lambda: live.state.in_flight == live.state.threads.each + 1)
                live.server.handle_exit(signal.SIGTERM, None)
                assert b"StoppingError" in read_all(kept)
                assert b"StoppingError" in read_all(searching)
        finally:
            release.set()
    assert Counter(counted) == {"x": live.state.threads.each, "other": 1}
