"""The client of OpenAI-compatible servers, against a local server in a thread."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from fanrank.engine.errors import AnswerError, ParameterError
from fanrank.engine.evaluate import chat
from fanrank.engine.evaluate.chat import ChatAnswerer, ChatJudge, ChatModel, read_judgement
from fanrank.engine.records.query import Query
from fanrank.engine.records.record import Record

Reply = tuple[int, dict[str, str], bytes]


def choice(text: Any) -> Reply:
    return 200, {}, json.dumps({"choices": [{"message": {"content": text}}]}).encode()


class Server(ThreadingHTTPServer):
    """Gives the replies one after another, the last one for ever, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies: list[Reply] = [choice("yes")]
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, dict(self.headers), body))
        replies = self.server.replies
        status, headers, content = replies.pop(0) if len(replies) > 1 else replies[0]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield serving
        serving.shutdown()
        thread.join(300)


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the client, which takes none; no key and no proxy of the machine counts."""
    taken: list[float] = []
    monkeypatch.setattr(chat, "time", SimpleNamespace(sleep=taken.append))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    return taken


def test_what_goes_out_and_what_comes_back(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.replies = [choice("  Berlin \n")]
    assert ChatModel(server.url + "/", "small").complete("be brief", "where?") == "Berlin"
    path, headers, body = server.asked[0]
    assert path == "/v1/chat/completions"
    assert "Authorization" not in headers
    assert body == {
        "model": "small",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "where?"}],
        "temperature": 0.0,
    }
    monkeypatch.setenv("OPENAI_API_KEY", "secret\n")
    monkeypatch.setenv("OTHER", "other")
    ChatModel(server.url, "small", temperature=None).complete("", "")
    ChatModel(server.url, "small", key_variable="OTHER").complete("", "")
    ChatModel(server.url, "small", key_variable="").complete("", "")
    assert [asked[1].get("Authorization") for asked in server.asked[1:]] == ["Bearer secret", "Bearer other", None]
    assert "temperature" not in server.asked[1][2]


def test_a_busy_server_is_asked_again(server: Server, waits: list[float]) -> None:
    busy = [(429, {"Retry-After": "7"}, b"slow down"), (503, {}, b""), (500, {"Retry-After": "Mon"}, b"")]
    server.replies = [*busy, (429, {"Retry-After": "1e9"}, b""), choice("yes")]
    assert ChatModel(server.url, "m").complete("", "") == "yes"
    assert waits == [7.0, 2.0, 4.0, 60.0]
    assert len(server.asked) == 5


def test_a_server_that_stays_busy_is_named(server: Server, waits: list[float]) -> None:
    server.replies = [(503, {}, b"  out of\nmemory ")]
    with pytest.raises(AnswerError, match=r"/v1 answers 503 .*: out of memory; asked 3 times"):
        ChatModel(server.url, "m", retries=2).complete("", "")
    assert (len(server.asked), waits) == (3, [1.0, 2.0])


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "answers 400"),
        (404, "answers 404"),
        (401, r"\$OPENAI_API_K"),
        (302, "answers 302"),  # the key does not follow a redirect
        (200, "not the reply"),
    ],
)
def test_a_refusal_is_final_and_tells_no_key(
    server: Server, status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    server.replies = [(status, {"Location": server.url + "/elsewhere"}, b"no such model: Bearer sk-secret"), choice("")]
    with pytest.raises(AnswerError, match=message) as raised:
        ChatModel(server.url, "m").complete("", "")
    assert "no such model: Bearer (the key)" in str(raised.value)
    assert "sk-secret" not in str(raised.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"[]", b'{"choices": []}', b'{"choices": [{"message": {"content": null}}]}', b"\xff"]
)
def test_what_is_no_reply_is_named(server: Server, content: bytes) -> None:
    server.replies = [(200, {}, content)]
    with pytest.raises(AnswerError, match="not the reply of an OpenAI-compatible server"):
        ChatModel(server.url, "m").complete("", "")


def test_servers_that_are_not_there_or_say_nothing(waits: list[float]) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(AnswerError, match=r"cannot be reached: .*; asked 2 times"):
            ChatModel(url, "m", retries=1).complete("", "")
        mute.listen()  # accepts, and never answers
        with pytest.raises(AnswerError, match=r"did not answer within 0\.05 seconds; asked 2 times"):
            ChatModel(url, "m", timeout=0.05, retries=1).complete("", "")
    assert waits == [1.0, 1.0]


def test_slips_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = ["ftp://host", "host:80", "https://", "file:///etc/passwd", "http://[::1", "https://[zz]/", "https://h:x/"]
    urls += ["https://h:99999", "https://a b", "https://a\nb", "https://a..b", f"https://{'a' * 64}.org", "https://h/é"]
    urls += ["https://name:word@host", "https://host/v1?version=1", "https://host/v1#part"]
    for url in (*urls, None, b"http://h"):
        with pytest.raises(ParameterError, match="must begin with http:// or https://"):
            ChatModel(url, "m")
    slips: dict[str, tuple[Any, ...]] = {
        "model": ("", 3),
        "key_variable": (None,),
        "retries": (-1, 1.5),
        "timeout": (0.0, float("nan"), float("inf"), 1e300, "3"),
        "temperature": (-1.0, float("nan"), "hot", object()),
    }
    for name, bad in ((name, bad) for name, all_bad in slips.items() for bad in all_bad):
        with pytest.raises(ParameterError, match=name):
            ChatModel(**{"url": "https://host", "model": "m", name: bad})
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with pytest.raises(ParameterError, match="would go out unencrypted") as raised:
        ChatModel("http://far.example", "m").complete("", "")
    assert "secret" not in str(raised.value)


def test_a_key_that_no_header_holds_stands_in_no_message(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("sk-secret\nmore", "sk-secreté", "sk-secret\u4e2d"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with pytest.raises(ParameterError, match="the key in OPENAI_API_KEY holds") as raised:
            ChatModel(server.url, "m").complete("", "")
        assert "sk-secret" not in str(raised.value)
    assert server.asked == []


def test_no_proxy_sees_what_goes_to_this_machine(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert ChatModel(server.url, "m", retries=0).complete("", "") == "yes"


def test_an_answerer_gives_records_in_the_order_of_time(server: Server) -> None:
    records = [
        Record("b", "moved to Rome", time=1.7e9),
        Record("n", "timeless"),
        Record("a", "lives in Oslo", time=0.0),
    ]
    answer = ChatAnswerer(ChatModel(server.url, "m"))(Query("Where now?", now=1.7e9 + 60), records)
    assert answer == "yes"
    prompt = server.asked[0][2]["messages"][1]["content"]
    assert prompt == (
        "Record 1:\ntimeless\n\nRecord 2, Thursday 1970-01-01 00:00:\nlives in Oslo\n\n"
        "Record 3, Tuesday 2023-11-14 22:13:\nmoved to Rome\n\nQuestion, Tuesday 2023-11-14 22:14: Where now?"
    )


def test_a_judge_reads_the_first_word_that_judges(server: Server) -> None:
    server.replies = [choice("**Partial**, since yes and no")]
    judge = ChatJudge(ChatModel(server.url, "m"))
    assert judge(Query("Where?"), "Oslo", "Rome") == "partial"
    prompt = server.asked[0][2]["messages"][1]["content"]
    assert prompt == "Question: Where?\n\nReference answer: Oslo\n\nAnswer to grade: Rome"
    replies = {"Yes.": "yes", "NO": "no", "Nope": "unreadable", "": "unreadable", "I know: no": "no"}
    assert {reply: read_judgement(reply) for reply in replies} == replies
