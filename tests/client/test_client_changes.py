"""The client changes, exports and imports records as the engine does, says what it cannot send, and serves threads."""

import asyncio
import datetime as dt
import gc
import io
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.memories import KINDS, make_memory
from support.serving import running, served
from support.threads import in_threads, until

import fanrank as fr
from fanrank.client.answers import raise_problem
from fanrank.server import carry
from fanrank.server.access import Principal
from fanrank.server.app import make_app

SPACES = ("", "users/ana", "a b/?#%")
THREADS, ASKED = 8, 12


def make_engine() -> fr.Engine:
    engine = fr.Engine(columns={"project": "category"}, encoder=fr.OwnVectors(2))
    engine.add(
        fr.Record(
            str(number),
            f"tea number {number} of {number % 7}",
            namespace=SPACES[number % 3],
            role=("user", "tool")[number % 2],
            extra={"project": f"p{number % 2}"},
            embedding=[1.0, number],
        )
        for number in range(60)
    )
    return engine


def everything(engine: fr.Engine) -> list[tuple[Any, ...]]:
    """All live records in the order of their last write, vectors as bytes."""
    return [
        (repr(record), None if record.embedding is None else np.asarray(record.embedding).tobytes())
        for space in SPACES
        for record in engine.records(namespace=space)
    ]


CHANGES: list[Callable[[Any], Any]] = [
    lambda memory: memory.patch(["0", "9", "0"], {"project": None}, role="tool", payload={"n": [1, {"a": None}]}),
    lambda memory: memory.patch(["6", "nobody"], time=dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc), missing_ok=True),
    lambda memory: memory.patch("12", {"embedding": np.array([3.0, 4.0], dtype=np.float32)}),
    lambda memory: memory.patch("12", expires=dt.date(2126, 1, 2), embedding=[1, 2], payload={"x": [1]}),
    lambda memory: memory.upsert([{"id": "a", "text": "x", "namespace": name} for name in ("..", "a/../b")]),
    lambda memory: memory.drop("a/../b"),
    lambda memory: memory.patch("15", relations=[fr.Relation("a", "knows", "b")], weights={"tea": 0.1}),
    lambda memory: memory.patch("18", text="coffee", embedding=[1, 1], entities={"Ana": "e1"}),
    lambda memory: memory.update_where({"project": "p1"}, {"project": "p9"}, importance=1.0),
    lambda memory: memory.namespace("users/ana").delete_where(fr.col("role") == "tool"),
    lambda memory: memory.namespace("users/ana").drop(),
    lambda memory: memory.distinct("project", {"role": "tool"}),
    lambda memory: memory.events(0, 9, type=None, filter={}),
    lambda memory: memory.patch("nobody", role="x"),
    lambda memory: memory.patch("3", {"nope": 1}),
    lambda memory: memory.delete_where(None),
]


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_a_change_is_the_engines_own_awaited_or_not(change: Callable[[Any], Any]) -> None:
    def outcome(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except fr.FanrankError as error:
            return type(error), str(error)

    async def ask(url: str) -> Any:
        async with fr.AsyncClient(url) as client:
            return await change(client)

    plain, blocking, awaited = make_engine(), make_engine(), make_engine()
    expected = outcome(lambda: change(plain))
    with served(blocking) as url, fr.Client(url) as client:
        assert outcome(lambda: change(client)) == expected
    with served(awaited) as url:
        assert outcome(lambda: asyncio.run(ask(url))) == expected
    assert everything(blocking) == everything(awaited) == everything(plain)


@pytest.mark.parametrize("name", ["reranker", "rerank_depth", "threads", "execution"])
def test_a_keyword_that_cannot_be_sent_is_named(name: str) -> None:
    with fr.Client("http://127.0.0.1:9") as client:
        with pytest.raises(fr.errors.ParameterError, match=f"{name} cannot be sent"):
            client.search(["tea"], **{name: 2})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="unexpected"):
            client.search(["tea"], nope=1)  # type: ignore[call-arg]
        with pytest.raises(fr.errors.ParameterError, match="a function cannot be sent"):
            client.update_where({"role": "x"}, lambda record: record)  # type: ignore[arg-type]


def test_threads_share_a_client() -> None:
    engine = make_engine()
    meeting = threading.Barrier(THREADS)
    with served(engine) as url, fr.Client(url) as client:

        def ask(number: int) -> None:
            meeting.wait(300)
            own = client.namespace(f"threads/{number}")
            for step in range(ASKED):
                batch = [f"tea number {number}", f"of {step}", fr.Query(f"number {step}", k=1 + number % 3)]
                hits, expected = client.search(batch, 5), engine.search(batch, 5)
                assert hits.ids.tolist() == expected.ids.tolist()
                assert hits.scores.tobytes() == expected.scores.tobytes()
                assert own.upsert([fr.Record(f"{step}", f"tea of {number}", embedding=[1.0, step])]) == 1
                assert own.search([f"tea of {number}"], ASKED)[0][0].namespace == f"threads/{number}"
            assert own.count() == ASKED

        in_threads(*(partial(ask, number) for number in range(THREADS)))


ROWS = [
    fr.Record(f"r{n}", f"tea {n} \u2028", ("", "ana")[n % 2], extra={"n": n}, payload={"n": [n]}) for n in range(90)
]


class Posted:
    """Imports the bytes of a file as they are."""

    def __init__(self, url: str) -> None:
        self.url = url

    def import_records(self, file: io.BytesIO, **flags: Any) -> None:
        headers = {"content-type": carry.NDJSON}
        answer = httpx.post(f"{self.url}/v1/import", content=file.getvalue(), params=flags, headers=headers)
        raise_problem(answer.status_code, answer.json())


@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_goes_through_a_server_and_back(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "SENT", 100)
    memory, other = make_memory(kind), make_memory(kind)
    memory.add(ROWS)
    whole, some, file = io.BytesIO(), io.BytesIO(), tmp_path / "all.jsonl"
    memory.export(whole)
    memory.export(some, namespace="ana", filter={"n": {"<": 9}})
    with served(memory) as url, served(other) as second, fr.Client(url) as client, fr.Client(second) as target:
        assert client.export(file) == 90
        assert file.read_bytes() == whole.getvalue()
        handle = fr.AsyncClient(url).namespace("ana")
        assert asyncio.run(handle.export(tmp_path / "some.jsonl", filter={"n": {"<": 9}})) == 4
        assert (tmp_path / "some.jsonl").read_bytes() == some.getvalue()
        assert target.namespace("ana").import_records(tmp_path / "some.jsonl").added == 4
        assert vars(target.import_records(file)) == {"added": 86, "replaced": 0, "held": 4, "expired": 0}
        assert sorted(other.records(namespace=None), key=str) == sorted(memory.records(namespace=None), key=str)
        lines = file.read_bytes().replace(b"tea 60 ", b"mug 60 ").replace(b"tea 70 ", b"tea 70 \\").splitlines(True)
        for text, upsert in ((b"mug 60", False), (b"tea 70", True)):
            stands = next(n for n, line in enumerate(lines) if text in line)
            advice = {target.import_records: "give upsert=True", Posted(second).import_records: "say upsert=true"}
            for send, words in advice.items():
                with pytest.raises(fr.errors.RecordError, match=rf"{stands} records before it are imported") as caught:
                    send(io.BytesIO(b"".join(lines)), upsert=upsert)
                assert caught.value.imported.read == stands
                assert upsert or words in str(caught.value)
        assert [*carry.split_lines([b"a", b"b\n\nc", b"d\n", b"e"], 2)] == [b"ab", b"", b"cd", b"e"]
        for line in (b'{"id": "1"}', b'{"id": "1", "text": "", "namespace": "bo"}'):
            with pytest.raises(fr.errors.RecordError, match=r"^file:1.*: (names another|'text' is missing)"):
                Posted(second).import_records(io.BytesIO(line), namespace="ana")
        with pytest.raises(fr.errors.UnknownColumnError):
            client.export(tmp_path / "none.jsonl", filter={"nothing": 1})
        assert not (tmp_path / "none.jsonl").exists()


def test_what_breaks_leaves_no_thread_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(carry, "SENT", 1)
    engine = fr.Engine()
    engine.add(ROWS)
    app = make_app(engine)
    threads, export = app.state.fanrank.carriers, engine.export
    with running(app) as url, fr.Client(url) as client:
        with httpx.stream("GET", f"{url}/v1/export") as answer:  # its client goes, with most of the stream unread
            next(answer.iter_raw(1))
        until(lambda: not threads._running)

        def fail(file: Any, **_: Any) -> None:
            export(file, namespace="ana")
            raise fr.errors.DamagedStoreError("a record")

        monkeypatch.setattr(engine, "export", fail)
        with pytest.raises(fr.errors.DamagedStoreError):
            client.export(tmp_path / "file.jsonl")
        assert [*tmp_path.iterdir()] == []
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_stream_of_the_whole_memory_takes_a_key_of_everything() -> None:
    with served(fr.Engine(), admit=lambda request: Principal("some", ("ana",))) as url, fr.Client(url) as client:
        for ask in (lambda file: client.export(file), lambda file: client.import_records(file)):
            with pytest.raises(fr.errors.KeyRefusedError):
                ask(io.BytesIO())
        assert client.namespace("ana").import_records(io.BytesIO(b'{"id": "1", "text": "tea"}')).added == 1
        assert client.namespace("ana").export(io.BytesIO()) == 1


def test_clients_name_the_twins_of_what_they_add(tmp_path: Path) -> None:
    engine = fr.Engine()
    batch = [{"id": "a", "text": "one"}, {"id": "b", "text": "one"}, {"id": "c", "text": "two"}]
    with served(engine) as url:
        with fr.Client(url) as client:
            first = client.add(batch, twins="skip")
            assert (first, vars(first)["twins"]) == (2, [(), ("a",), ()])
            parts = client.namespace("n").add([{**one} for one in batch], twins="tell", batch=1)
            assert (parts, vars(parts)["twins"]) == (3, [(), ("a",), ()])
            with pytest.raises(fr.errors.ParameterError, match="unknown twins"):
                client.add([], twins="no")  # type: ignore[arg-type]
            for body, field in (({"twins": "no"}, "twins"), ({"twins": "skip", "mode": "upsert"}, "twins")):
                refused = httpx.post(f"{url}/v1/records", json={"records": [], **body})
                assert (refused.status_code, refused.json()["field"]) == (422, field)

        async def add() -> int:
            async with fr.AsyncClient(url) as client:
                return await client.add([{"id": "d", "text": "two"}], twins="replace")

        last = asyncio.run(add())
        assert (last, vars(last)["twins"]) == (1, [("c",)])
        assert list(engine.ids(namespace="")) == ["a", "d"]
