"""Connections: how requests and their JSON are read, and what a connection may hold and take."""

import json
import math
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from support.live import Live, message, read_all, serving, status

import fanrank as fr
from fanrank.server.access import Principal
from fanrank.server.encoding import decode, encode
from fanrank.server.limits import Limits
from fanrank.server.problems import Problem

HEAD = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"query": "tea"}'
PIECE = b"a" * 4_096


@pytest.fixture(scope="module")
def engine() -> fr.Engine:
    engine = fr.Engine()
    engine.add([{"id": str(place), "text": f"tea number {place}"} for place in range(10)])
    return engine


@pytest.fixture
def live(engine: fr.Engine) -> Iterator[Live]:
    # Times that no test reaches: what ends a connection here is what it sent.
    with serving(engine, limits=Limits(head_bytes=8_192, head_seconds=600.0, body_seconds=600.0)) as made:
        yield made
        assert made.answers()


def send_until_ended(connection: socket.socket, piece: bytes, most: int) -> bytes:
    """Send pieces until the server ends the connection, and return its answer. Fails where it takes all of them."""
    try:
        for _ in range(most):
            connection.sendall(piece)
    except OSError:
        return read_all(connection)
    pytest.fail("the server took all pieces")


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /v1/stats?", PIECE),
        (b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\nX: ", PIECE),
        (b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n", b"X: " + PIECE + b"\r\n"),
        (b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n", PIECE),
        (b"", b"\r\n" * 2_048),
        # What follows the last part of a body is a head again.
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + BODY + b"\r\n0\r\nX: ", PIECE),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + BODY + b"\r\n0\r\n", b"X: " + PIECE + b"\r\n"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n10;", PIECE),
    ],
    ids=["address", "value", "headers", "name", "empty lines", "trailer", "trailers", "extension"],
)
def test_a_connection_holds_no_more_of_a_head_than_it_may(live: Live, begin: bytes, piece: bytes) -> None:
    with live.connect() as connection:
        connection.sendall(begin)
        answer = send_until_ended(connection, piece, 4_096)
    assert not answer or status(answer) == 400
    assert live.server.server_state.total_requests == 0


def test_a_head_as_large_as_it_may_be_is_read(live: Live) -> None:
    lines = b"".join(b"X-%d: %s\r\n" % (place, b"a" * 1_000) for place in range(7))
    assert status(live.send(message(BODY, head=lines.decode()))) == 200
    assert status(live.send(message(BODY, head=(lines + lines).decode()))) == 400


@pytest.mark.parametrize("end", [b" HTTP/1.1\r\n\r\n", b" HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", b"\r\n\r\n"])
def test_a_request_names_one_host_and_a_known_version(live: Live, end: bytes) -> None:
    # Health answers whoever asks, so that nothing else refuses the request.
    assert status(live.send(b"GET /v1/health" + end)) == 400
    assert status(live.send(b"GET /v1/health HTTP/1.0\r\n\r\n")) == 200


def test_a_request_in_pieces_is_one_request(live: Live) -> None:
    with live.connect() as connection:
        for place, byte in enumerate(sent := message(BODY)):
            connection.sendall(sent[place : place + 1])
            assert byte == sent[place]
        assert status(read_all(connection)) == 200


def test_an_answer_without_a_body_is_sent(live: Live) -> None:
    with live.connect() as connection:
        for _ in range(2):
            connection.sendall(b"HEAD /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1 << 16).endswith(b"\r\n\r\n")


def test_a_trailer_is_no_header(engine: fr.Engine) -> None:
    def admit(request: Request) -> Principal:
        if request.headers.get("authorization") is None:
            raise Problem(401, "KeyRequired", "give a key")
        return Principal("a")

    key = "Authorization: Bearer k\r\n"
    parts = b"Connection: close\r\nTransfer-Encoding: chunked\r\n%s\r\n10\r\n" + BODY + b"\r\n0\r\n%s\r\n"
    with serving(engine, admit=admit) as live:
        for head, trailer, expected in ((key, "", 200), ("", key, 401)):
            assert status(live.send(HEAD + parts % (head.encode(), trailer.encode()))) == expected


def test_an_upgrade_that_is_not_offered_leaves_the_request_whole(live: Live) -> None:
    # As Java's client asks first, to find out whether the server knows HTTP/2.
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n"
    answer = live.send(message(BODY, head=upgrade))
    assert status(answer) == 200
    assert b'"hits":[{' in answer
    assert status(live.send(message(BODY, head=upgrade, close=False) * 2)) == 400
    assert status(live.send(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n")) == 400


@pytest.mark.parametrize(("brackets", "refused"), [(b"[]", True), (b"{}", True), (b"[]", False)])
def test_a_body_is_nested_as_deeply_as_it_may(live: Live, brackets: bytes, refused: bool) -> None:
    levels = 64 if refused else 62
    opening = b"[" if brackets == b"[]" else b'{"a":'
    answer = live.send(message(b'{"query":' + opening * levels + b"1" + brackets[1:] * levels + b"}"))
    assert status(answer) == 422
    assert (b"nested more than 64 deep" in answer) == refused


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def bits(value: Any) -> Any:
    """The value with its floats as bytes, so that 0.0 and -0.0, and 1 and 1.0, differ."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, list):
        return [bits(each) for each in value]
    return {name: bits(each) for name, each in value.items()} if isinstance(value, dict) else (type(value), value)


@given(values)
@example("\ud800")
@example({"\ud800": [1 << 64, -(1 << 63) - 1]})
@example([math.pi, 5e-324, 1.7976931348623157e308, -0.0, 2**53 + 1.0, 0.1 + 0.2])
@settings(max_examples=100, deadline=None)
def test_a_value_keeps_its_bits(value: Any) -> None:
    written = encode(value)
    assert bits(json.loads(written)) == bits(value)
    again = decode(written)
    assert again is None or bits(again[0]) == bits(value)


@given(st.integers(0, 1 << 64).map(str) | st.floats(allow_nan=False, allow_infinity=False).map(repr))
@example("18446744073709551615")
@example("18446744073709551616")
@example("-9223372036854775809")
@example("-99999999999999999999")
@example("0.30000000000000004")
@example("0.00012345678901234567")
@example("123456789012345678901e5")
@example("9007199254740993.0")
@settings(max_examples=100, deadline=None)
def test_a_number_is_read_as_json_reads_it(text: str) -> None:
    found = decode(text.encode())
    assert found is None or bits(found[0]) == bits(json.loads(text))


def test_most_texts_are_read_by_orjson() -> None:
    body = {"k": 10, "queries": ["where is Ana", {"text": "ünï\u2028", "vector": [0.0012345678901234567, -1e-9]}]}
    assert decode(json.dumps(body).encode()) == (body,)


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b"1e999", b'"\\ud800"', b'"\xff"', b"1" + b"0" * 30, b"[" * 5_000])
def test_what_orjson_refuses_is_left_to_json(text: bytes) -> None:
    assert decode(text) is None
