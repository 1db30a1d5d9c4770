"""Exports and imports through a server: the same files as the engine's, whatever breaks in between."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.memories import KINDS, make_memory
from support.serving import running, served
from support.threads import until

import fanrank as fr
from fanrank.client.answers import raise_problem
from fanrank.server import carry
from fanrank.server.access import Principal
from fanrank.server.app import make_app

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
        for line in (b'{"id": "1"}', b'{"id": "1", "text": "", "namespace": "bo"}'):
            with pytest.raises(fr.errors.RecordError, match=r"^file:1.*: (names another|'text' is missing)"):
                Posted(second).import_records(io.BytesIO(line), namespace="ana")
        with pytest.raises(fr.errors.UnknownColumnError):
            client.export(tmp_path / "none.jsonl", filter={"nothing": 1})
        assert not (tmp_path / "none.jsonl").exists()


def test_what_breaks_ends_the_thread_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "SENT", 1)
    engine = fr.Engine()
    engine.add(ROWS)
    app = make_app(engine)
    threads, export = app.state.fanrank.carriers, engine.export
    with running(app) as url, fr.Client(url) as client:
        with httpx.stream("GET", f"{url}/v1/export") as answer:  # its client goes, with most of the stream unread
            next(answer.iter_raw(1))
            until(lambda: threads._running)
        until(lambda: not threads._running)

        def fail(file: Any, **_: Any) -> None:
            export(file, namespace="ana")
            raise fr.errors.DamagedStoreError("a record")

        monkeypatch.setattr(engine, "export", fail)
        with pytest.raises(fr.errors.DamagedStoreError):
            client.export(tmp_path / "file.jsonl")
        assert [*tmp_path.iterdir()] == []


def test_a_stream_of_the_whole_memory_takes_a_key_of_everything() -> None:
    with served(fr.Engine(), admit=lambda request: Principal("some", ("ana",))) as url, fr.Client(url) as client:
        for ask in (lambda file: client.export(file), lambda file: client.import_records(file)):
            with pytest.raises(fr.errors.KeyRefusedError):
                ask(io.BytesIO())
        assert client.namespace("ana").import_records(io.BytesIO(b'{"id": "1", "text": "tea"}')).added == 1
        assert client.namespace("ana").export(io.BytesIO()) == 1
