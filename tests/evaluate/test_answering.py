"""Answering and judging by callables and by OpenAI-compatible servers, and answers in what was found."""

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fanrank.engine.errors import AnswerError, ParameterError
from fanrank.engine.evaluate import (
    Answering,
    Dataset,
    Evaluation,
    answers_in_context,
    chat,
    draw_per_category,
    judge_answers,
)
from fanrank.engine.evaluate.chat import ChatAnswerer, ChatJudge, ChatModel, read_judgement
from fanrank.engine.records.query import Query
from fanrank.engine.records.record import Record

TEXTS = ("Rex is a puppy", "Berlin was rainy", "Bo runs")


def found(answers: dict[str, str], ranked: dict[str, list[str]], **more: Any) -> Evaluation:
    """An evaluation of these rankings. Question ``c:i`` is asked in the namespace ``c``."""
    records = [Record(f"d{n}", text, space) for space in "xy" for n, text in enumerate(TEXTS)]
    queries = [Query(f"{name}?", namespace=name[0], id=name) for name in ranked]
    dataset = Dataset("toy", records, queries, {name: {"d0": 1} for name in ranked}, answers=answers, **more)
    return Evaluation(dataset, ranked, np.zeros(len(ranked)), {}, "none", {})


def stub_answerer(question: Query, records: Sequence[Record], /) -> str:
    return " | ".join(record.text for record in records)


def stub_judge(question: Query, gold: str, answer: str, /) -> str:
    """Yes where the answer holds the gold one, partial where it holds its first word, else no."""
    return "yes" if gold in answer else "partial" if gold.split()[0] in answer else "no"


RANKED = {"x:0": ["d0", "d1"], "x:1": ["d1", "d0"], "y:0": ["d2", "d0"], "y:1": ["d2"], "y:2": []}
ANSWERS = {"x:0": "puppy", "x:1": "Berlin in May", "y:0": "rainy", "y:1": "Bo runs"}
CATEGORIES = {"x:0": "a", "x:1": "b", "y:0": "a", "y:1": "b", "y:2": "b"}


def test_strict_counts_yes_and_lenient_partial_too() -> None:
    evaluation = found(ANSWERS, RANKED, categories=CATEGORIES)
    judged = judge_answers(evaluation, stub_answerer, stub_judge, depth=2)
    assert [(each.id, each.judgement, each.records) for each in judged.answers] == [
        ("x:0", "yes", ("d0", "d1")),
        ("x:1", "partial", ("d1", "d0")),
        ("y:0", "no", ("d2", "d0")),
        ("y:1", "yes", ("d2",)),
    ]
    assert judged.answers[1].answer == "Berlin was rainy | Rex is a puppy"
    assert judged.accuracy() == {"n": 4, "strict": 0.5, "lenient": 0.75, "unreadable": 0}
    assert judged.per_category() == {
        "a": {"n": 2, "strict": 0.5, "lenient": 0.5, "unreadable": 0},
        "b": {"n": 2, "strict": 0.5, "lenient": 1.0, "unreadable": 0},
    }
    as_json = json.loads(json.dumps(judged.to_dict()))
    assert (as_json["depth"], as_json["answers"][2]["gold"]) == (2, "rainy")
    assert "answers" not in judged.to_dict(answers=False)


def test_workers_do_not_change_the_result() -> None:
    evaluation = found(ANSWERS, RANKED)
    both = threading.Barrier(2)

    def meet(question: Query, records: Sequence[Record], /) -> str:
        both.wait(300)  # two of the four questions are under way at once, twice
        return stub_answerer(question, records)

    done: list[tuple[int, int]] = []
    together = judge_answers(evaluation, meet, stub_judge, workers=2, progress=lambda *at: done.append(at))
    assert together == judge_answers(evaluation, stub_answerer, stub_judge)
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_slips_are_named() -> None:
    evaluation = found(ANSWERS, RANKED)
    with pytest.raises(AnswerError, match=r"question 'x:0': a judge must say one of yes, partial, no, .*not 'maybe'"):
        judge_answers(evaluation, stub_answerer, lambda *_: "maybe")
    with pytest.raises(AnswerError, match="an answerer must return a string, not NoneType"):
        judge_answers(evaluation, lambda *_: None, stub_judge)  # type: ignore[arg-type, return-value]
    with pytest.raises(ParameterError, match="toy has no gold answers"):
        judge_answers(found({}, RANKED), stub_answerer, stub_judge)
    with pytest.raises(ParameterError, match="toy has no gold answers"):
        answers_in_context(found({}, RANKED))
    for slip in ({"depth": 0}, {"workers": 0}):
        with pytest.raises(ParameterError, match="must be 1 or more"):
            judge_answers(evaluation, stub_answerer, stub_judge, **slip)
    with pytest.raises(ParameterError, match="1 or more questions of each category, not 0"):
        draw_per_category(evaluation.dataset, 0)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_an_answerer_raises_stops_the_questions(workers: int) -> None:
    asked = []

    def fail(question: Query, records: Sequence[Record], /) -> str:
        asked.append(question.id)
        raise AnswerError("the server is gone")

    ranked = {f"x:{n}": ["d0"] for n in range(50)}
    with pytest.raises(AnswerError, match="the server is gone"):
        judge_answers(found(dict.fromkeys(ranked, "puppy"), ranked), fail, stub_judge, workers=workers)
    assert 1 <= len(asked) <= workers


def test_a_sample_is_stratified_and_depends_on_the_seed_alone() -> None:
    ranked = {f"x:{n}": ["d0"] for n in range(60)}
    categories = {name: "abc"[min(number // 28, 2)] for number, name in enumerate(ranked)}
    dataset = found(dict.fromkeys(ranked, "puppy"), ranked, categories=categories).dataset
    drawn = draw_per_category(dataset, 17, seed=7)
    assert drawn == draw_per_category(dataset, 17, seed=7)
    assert drawn != draw_per_category(dataset, 17, seed=8)
    assert [sum(categories[name] == each for name in drawn) for each in "abc"] == [17, 17, 4]
    assert drawn == sorted(drawn, key=list(ranked).index)
    # Another order of the categories' names draws the same questions of each.
    unanswered = replace(dataset, answers={name: "puppy" for name in ranked if categories[name] != "c"})
    assert draw_per_category(unanswered, 17, seed=7) == [name for name in drawn if categories[name] != "c"]


def test_answers_in_context_by_category() -> None:
    in_context = answers_in_context(found(ANSWERS, RANKED, categories=CATEGORIES), (1, 2))
    assert in_context["n"] == 4
    assert in_context["metrics"] == {
        "answer_substring@1": 2 / 4,
        "answer_substring@2": 2 / 4,
        # x:0 puppy and y:1 runs are found, of x:1 Berlin alone, and y:0's rainy is not.
        "token_recall@1": 3 / 4,
        "token_recall@2": 3 / 4,
    }
    assert in_context["per_category"]["a"] == {
        "n": 2,
        "answer_substring@1": 0.5,
        "answer_substring@2": 0.5,
        "token_recall@1": 0.5,
        "token_recall@2": 0.5,
    }


@pytest.mark.parametrize(
    "slip", [{"depth": 0}, {"depth": "5"}, {"workers": 0}, {"per_category": 0}, {"judge": None}, {"answerer": "model"}]
)
def test_slips_are_named_before_a_search(slip: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(slip))):
        Answering(**{"answerer": lambda *_: "", "judge": lambda *_: "no", **slip})


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


def test_slips_in_the_options_of_a_server_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
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
