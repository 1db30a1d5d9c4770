"""Several workers over one directory: each gives the same bits, and sees what any of them acknowledged."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.live import Live, serving
from support.threads import until

import fanrank as fr
from fanrank.server.connections import GREETING
from fanrank.server.keys import Keyring, add_key
from fanrank.server.team import calls_reader, merge, reads
from fanrank.server.workers import PAUSE, Seat, Supervisor

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sockets of POSIX")


@contextmanager
def pair(folder: Path, admit: Keyring | None = None) -> Iterator[tuple[Live, Live, fr.Engine]]:
    """A worker that writes and one that reads, and the engine of the latter."""
    addresses = (str(folder / "0"), str(folder / "1"))
    with ExitStack() as held:
        memory = held.enter_context(fr.Engine.open(folder / "memory"))
        reader = held.enter_context(fr.Engine.open(folder / "memory", read_only=True))
        workers = []
        for number, engine in enumerate((memory, reader)):
            inner = socket.socket(socket.AF_UNIX)
            inner.bind(addresses[number])
            seat = Seat(number, (), inner.detach(), -1, addresses)
            workers.append(held.enter_context(serving(engine, admit=admit, seat=seat)))
        yield workers[0], workers[1], reader


def ask(
    worker: Live,
    method: str,
    path: str,
    body: object = None,
    *,
    key: str = "",
    chunked: bool = False,
    deadline: str = "",
) -> tuple[int, bytes]:
    """Status and body of the answer."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {key}\r\n" if key else ""
    head += f"Fanrank-Deadline: {deadline}\r\n" if deadline else ""
    if chunked:
        parts = [content[:3], content[3:]]
        content = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    head += "Transfer-Encoding: chunked\r\n" if chunked else f"Content-Length: {len(content)}\r\n"
    answer = worker.send(head.encode() + b"\r\n" + content)
    start, _, rest = answer.partition(b"\r\n\r\n")
    return int(start.split(b" ", 2)[1]), rest


WRITES = [
    ("POST", "/v1/records", {"records": [{"id": str(n), "text": f"green tea {n}", "role": "user"} for n in range(9)]}),
    ("PUT", "/v1/records/a%2Fb%20c?namespace=x%2Fy", {"text": "black tea"}),
    ("PATCH", "/v1/records", {"ids": ["3"], "changes": {"text": "coffee and tea"}}),
    ("DELETE", "/v1/records", {"ids": ["1", "2"]}),
    ("DELETE", "/v1/namespaces/x/y", None),
]
READS = [
    ("POST", "/v1/search", {"queries": ["tea", "coffee green"], "form": "columns", "k": 20}),
    ("POST", "/v1/search", {"query": "tea", "filter": {"role": "user"}, "texts": True}),
    ("POST", "/v1/search", {"query": "tea", "under": "x"}),
    ("POST", "/v1/explain", {"query": "tea", "id": "3"}),
    ("POST", "/v1/records/fetch", {"ids": ["3", "1"]}),
    ("GET", "/v1/records?order=id", None),
    ("GET", "/v1/namespaces", None),
    ("GET", "/v1/stats", None),
    ("HEAD", "/v1/stats", None),
]


def test_every_worker_gives_the_same_bits_and_sees_what_was_acknowledged(tmp_path: Path) -> None:
    with pair(tmp_path) as (writer, reader, _):
        for number, write in enumerate(WRITES):
            # A write that reaches the reader is carried to the writer, and the next that reaches the writer is not.
            status, said = ask((reader, writer)[number % 2], *write, chunked=write[2] is not None)
            assert status < 300, said
            for read in READS:
                assert ask(reader, *read) == ask(writer, *read)
        status, found = ask(reader, "POST", "/v1/search", {"query": "coffee"})
        assert [hit["id"] for hit in json.loads(found)["results"][0]["hits"]] == ["3"]


def test_a_worker_follows_without_being_asked(tmp_path: Path) -> None:
    with pair(tmp_path) as (writer, _, engine):
        assert ask(writer, "POST", "/v1/records", {"records": [{"id": "a", "text": "tea"}]})[0] == 201
        until(lambda: engine.count() == 1)


def test_what_one_worker_learns_all_know(tmp_path: Path) -> None:
    with pair(tmp_path) as (writer, reader, engine):
        assert ask(writer, "PUT", "/v1/records/1?namespace=x", {"text": "tea"})[0] == 200
        # One of the namespaces has no record.
        for worker, name, space in ((writer, "Ana", "x"), (reader, "Bo", "y")):
            told = {"name": name, "entity": f"person/{name}", "namespace": space}
            assert ask(worker, "POST", "/v1/resolved", told)[0] == 200
            assert ask(reader, "GET", "/v1/count")[0] == 200
            assert engine.monitor.meant((space, None, None), name.lower()) == {f"person/{name}": 1}
            assert ask(reader, "DELETE", f"/v1/namespaces/{space}")[0] == 200
            assert ask(reader, "GET", "/v1/count")[0] == 200
            assert not engine.monitor.meant((space, None, None), name.lower())


def test_keys_and_limits_are_those_of_one_server(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    all_of_it, some = add_key(file, ["*"]), add_key(file, ["x"], write=False)
    with pair(tmp_path, Keyring(file)) as (writer, reader, _):
        wrong = {"records": [{"id": "a" * 2_000, "text": "tea"}]}
        tea = {"records": [{"id": "a", "text": "tea", "namespace": "x"}]}
        for key, body in (("", {}), (some, tea), (all_of_it, wrong)):
            write = ("POST", "/v1/records", body)
            assert ask(reader, *write, key=key) == ask(writer, *write, key=key)
        assert ask(reader, "GET", "/metrics", key=some)[0] == 403
        assert ask(reader, "POST", "/v1/search", {"query": "tea"}, key=all_of_it)[0] == 200
        line = b'fanrank_requests_total{worker="%d",method="POST",route="/v1/%b",status="%d"} %d\n'

        def counted() -> bool:
            status, counts = ask(writer, "GET", "/metrics", key=all_of_it)
            assert status == 200
            assert counts.count(b"# TYPE fanrank_requests_total ") == 1
            # A request is counted once its answer is sent.
            return line % (1, b"search", 200, 1) in counts and line % (0, b"records", 422, 2) in counts

        until(counted)


def test_a_write_whose_worker_dies_is_refused_by_name(tmp_path: Path) -> None:
    """Whether it was done is not known where it was sent; where nobody took it in time, it was not."""
    with fr.Engine.open(tmp_path / "memory") as engine:
        engine.add([fr.Record("a", "tea")])
    gone, inner = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    gone.bind(str(tmp_path / "0"))
    gone.listen()
    inner.bind(str(tmp_path / "1"))
    seat = Seat(1, (), inner.detach(), -1, (str(tmp_path / "0"), str(tmp_path / "1")))

    sent: list[bytes] = []

    def die() -> None:
        late, _ = gone.accept()
        sent.append(late.recv(1 << 16))
        connection, _ = gone.accept()
        connection.sendall(GREETING)
        connection.recv(1 << 16)
        connection.close()
        gone.close()

    with fr.Engine.open(tmp_path / "memory", read_only=True) as engine, serving(engine, seat=seat) as reader:
        write = ("POST", "/v1/records", {"records": [{"id": "b", "text": "tea"}]})
        status, missed = ask(reader, *write, deadline="0.05")
        assert (status, json.loads(missed)["title"]) == (504, "DeadlineError")
        dying = threading.Thread(target=die)
        dying.start()
        status, lost = ask(reader, *write)
        dying.join()
        # Nobody waits for it, so nothing of it was sent.
        assert sent == [b""]
        assert (status, json.loads(lost)["title"]) == (503, "WriterLost")
        status, refused = ask(reader, *write)
        assert (status, json.loads(refused)["title"]) == (503, "StoppingError")
        assert ask(reader, "POST", "/v1/search", {"query": "tea"})[0] == 200


def test_a_machine_without_room_for_a_process_keeps_the_other_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor(2, lambda: [], 1.0, lambda: None)
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=BlockingIOError(11, "no room")))
    with closing(supervisor):
        with pytest.raises(fr.errors.StorageError, match="worker 0 cannot be started: no room"):
            supervisor.start(supervisor.workers[0])
        supervisor.announced = True
        supervisor.workers[1].started = -PAUSE
        assert supervisor.step() is None
        assert [worker.process for worker in supervisor.workers] == [None, None]
        # It is tried again after a pause.
        assert supervisor.workers[1].started > 0


def test_what_may_write_is_carried() -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search_memory"}}
    assert calls_reader(json.dumps(call).encode())
    writing = [json.dumps(call).replace("search_memory", name).encode() for name in ("\\u0072emember", "delete_where")]
    for body in (*writing, json.dumps([call]).encode(), b"{", None):
        assert not calls_reader(body)
    assert not any(reads(*one) for one in (("GET", "/v1/unknown"), ("POST", "/v1/records"), ("POST", "/v1/drift")))
    assert merge({"0": "# HELP a x\na 1\n", "1": '# HELP a x\na{b="c d"} 2\n'}) == (
        '# HELP a x\na{worker="0"} 1\na{worker="1",b="c d"} 2\n'
    )
