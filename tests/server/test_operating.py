"""What operators set: quotas, ends and rotations of keys, TLS, a journal, backups, a server that reads alone."""

import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import borders
from support.commands import fails, run, run_json
from support.live import serving
from support.memories import KINDS, make_memory

import fanrank as fr
from fanrank.server.access import ANYONE, Quota
from fanrank.server.app import ServerOptions
from fanrank.server.journal import Journal
from fanrank.server.keys import Keyring, add_key, read_keys, remove_key, rotate_key
from fanrank.server.quotas import Hold, Quotas


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    with make_memory(request.param) as memory:
        yield memory


def ask(live: Any, method: str, path: str, body: Any = None, *, key: str = "", **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(trust_env=False, timeout=60) as client:
        url = f"http://127.0.0.1:{live.port}{path}"
        return client.request(method, url, json=body, headers=headers | more.pop("headers", {}), **more)


def records(*ids: str, text: str = "tea", **more: Any) -> dict[str, Any]:
    return {"records": [{"id": id, "text": text, **more} for id in ids]}


def test_a_key_holds_no_more_records_than_its_quota(engine: Any, keys: Path) -> None:
    key = add_key(keys, ["a", "a/*"], name="acme", quota=Quota(records=3))
    engine.add([fr.Record("0", "tea", namespace="a")])
    with serving(engine, admit=Keyring(keys)) as live:

        def write(*ids: str, **more: Any) -> httpx.Response:
            return ask(live, "POST", "/v1/records", {**records(*ids), "namespace": "a/b", **more}, key=key)

        assert write("1", "2").status_code == 201
        refused = write("3", "4")
        assert (refused.status_code, refused.json()["title"]) == (403, "QuotaError")
        assert "the key 'acme' may hold 3 records; it holds 3, and the write adds 2" in refused.json()["detail"]
        assert write("1", mode="upsert").status_code == 200, "one that is replaced adds none"
        ask(live, "DELETE", "/v1/records/0?namespace=a", key=key)
        assert write("3").status_code == 201, "a delete makes room"
        lines = "\n".join(json.dumps({"id": str(n), "text": "tea", "namespace": "a/b"}) for n in (3, 1, 9))
        kind = {"content-type": "application/x-ndjson"}
        sent = ask(live, "POST", "/v1/import?namespace=a/b", key=key, content=lines, headers=kind)
        assert (sent.status_code, sent.json()["title"], sent.json()["record"]) == (403, "QuotaError", "9")
        refused = ask(live, "POST", "/v1/forget", {"namespace": "a", "ids": []}, key=key)
        assert refused.json()["title"] == "NamespaceForbidden", "its certificate tells of all namespaces"
    assert engine.count(namespace=None) == 3


def test_a_namespace_holds_no_more_bytes_than_its_quota(engine: Any) -> None:
    with serving(engine, options=ServerOptions(quota=Quota(bytes=2_000))) as live:
        assert ask(live, "PUT", "/v1/records/1?namespace=a", {"text": "t" * 1_500}).status_code == 200
        assert ask(live, "PUT", "/v1/records/2?namespace=a", {"text": "t" * 1_500}).json()["title"] == "QuotaError"
        assert ask(live, "PUT", "/v1/records/2?namespace=b", {"text": "t" * 1_500}).status_code == 200
        patch = {"ids": ["1"], "changes": {"payload": {"x": "y" * 600}}, "namespace": "a"}
        assert ask(live, "PATCH", "/v1/records", patch).json()["title"] == "QuotaError"
        assert ask(live, "PUT", "/v1/records/1?namespace=a", {"text": "tea"}).status_code == 200, "smaller than before"
        assert ask(live, "PATCH", "/v1/records", patch).status_code == 200


def test_usages_that_were_forgotten_are_measured_again(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, KEPT_USAGES=2)
    with serving(engine, options=ServerOptions(quota=Quota(records=1))) as live:
        for _ in range(2):
            put = [ask(live, "PUT", f"/v1/records/1?namespace={name}", {"text": "tea"}) for name in "abcd"]
            assert [one.status_code for one in put] == [200] * 4
        more = [ask(live, "PUT", f"/v1/records/2?namespace={name}", {"text": "tea"}) for name in "abcd"]
        assert [one.json()["title"] for one in more] == ["QuotaError"] * 4
        assert len(live.state.quotas.latest) == 2


def test_a_write_under_way_counts_whoever_else_writes(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, KEPT_USAGES=1)
    quotas, hold = Quotas(engine, Quota(records=1)), Hold()

    def take(hold: Hold, name: str) -> bool:
        growths = {name: (1, 10)}
        return quotas.take(hold, ANYONE, growths, lambda: growths)

    assert take(hold, "a")
    assert take(Hold(), "b")
    with pytest.raises(fr.errors.QuotaError, match="it holds 1, and the write adds 1"):
        take(Hold(), "a")
    quotas.settle(hold, False)
    assert take(Hold(), "a")


def test_a_key_ends_and_is_rotated(keys: Path) -> None:
    first = add_key(keys, ["*"], name="first", expires=time.time() + 3_600)
    gone = add_key(keys, ["*"], name="gone", expires=time.time() - 1)
    with serving(fr.Engine(), admit=Keyring(keys)) as live:

        def status(key: str) -> int:
            return ask(live, "GET", "/v1/namespaces", key=key).status_code

        refused = ask(live, "GET", "/v1/namespaces", key=gone)
        assert (refused.status_code, refused.json()["title"]) == (401, "KeyExpired")
        assert "the key 'gone' expired at 20" in refused.json()["detail"]
        second = rotate_key(keys, "first", 3_600)
        assert (status(first), status(second)) == (200, 200), "both secrets are good for a while"
        third = rotate_key(keys, "first", 60)
        assert [status(key) for key in (first, second, third)] == [200, 200, 200], "each has its own overlap"
        fourth = rotate_key(keys, "first", 0)
        assert [status(key) for key in (first, second, third, fourth)] == [401, 401, 401, 200]
        assert ask(live, "GET", "/v1/namespaces", key=third).json()["title"] == "KeyExpired"


def test_commands_make_keys_that_end_and_rotate_them(keys: Path) -> None:
    made = run("keys", "add", keys, "--namespace", "*", "--name", "a", "--expires", "2100-01-01", "--max-records", "5")
    other = run_json("keys", "rotate", keys, "a", "--overlap", "0s", "--json")["key"]
    assert other.split("_")[1] == made.stdout.split("_")[1]
    (listed,) = run_json("keys", "list", keys, "--json")["keys"]
    assert (listed["expires"], listed["quota"]) == ("2100-01-01T00:00:00Z", {"records": 5})
    assert "old_until" in run("keys", "list", keys).stdout
    assert "no key 'b'" in fails("keys", "rotate", keys, "b")
    assert "is neither a span" in fails("keys", "add", keys, "--namespace", "*", "--expires", "soon")


def test_a_wrong_file_is_told_by_its_line_and_field(keys: Path, tmp_path: Path) -> None:
    add_key(keys, ["a"], name="one", quota=Quota(records=1))
    add_key(keys, ["a"], name="two")
    text = keys.read_text()
    for old, new, told in (
        ('"write": true,\n   "hash"', '"write": 1,\n   "hash"', "line 11: keys[0].write: must be true or false"),
        ('"records": 1', '"records": 0', "keys[0].quota.records: must be a whole number above 0"),
        ('"name": "two"', '"names": "two"', "keys[1].names: there is no such field; did you mean 'name'?"),
        ('"name": "two"', '"name": "one"', "keys[1].name: another key has this id or name"),
    ):
        assert old in text
        keys.write_text(text.replace(old, new))
        with pytest.raises(fr.errors.ParameterError) as wrong:
            read_keys(keys)
        assert told in str(wrong.value)
    settings = tmp_path / "serve.toml"
    settings.write_text('log = "json"\n\nmax-k = 0\n')
    assert f"{settings}, line 3: max-k: 0 is not in the range" in fails("serve", tmp_path / "m", "--config", settings)
    settings.write_text('log = "json"\nmax-kk = 5\n')
    assert "line 2: serve has no option 'max-kk'" in fails("serve", tmp_path / "m", "--config", settings)


def test_every_write_and_change_of_a_key_is_in_the_journal(engine: Any, keys: Path, tmp_path: Path) -> None:
    key = add_key(keys, ["*"], name="one")
    file = tmp_path / "journal.jsonl"
    with serving(engine, admit=Keyring(keys), options=ServerOptions(journal=Journal(file))) as live:
        seen = []

        def last() -> dict[str, Any]:
            """The new line, which must be there once the request is answered."""
            (line,) = map(json.loads, file.read_text().splitlines()[len(seen) :])
            seen.append(line)
            return line

        ask(live, "POST", "/v1/records", {**records("m1", "m2", text="secret"), "namespace": "a"}, key=key)
        assert last().items() >= {"operation": "create_memory", "namespaces": ["a"], "ids": ["m1", "m2"]}.items()
        assert (seen[0]["key"], seen[0]["records"]) == ("one", 2)
        ask(live, "POST", "/v1/records", {**records("m1", text="secret"), "namespace": "a"}, key=key)
        assert last()["error"] == "DuplicateIdError"
        ask(live, "DELETE", "/v1/records", {"ids": ["m1"], "namespace": "a"}, key=key)
        assert last()["operation"] == "delete_memory"
        kind = {"content-type": "application/x-ndjson"}
        ask(live, "POST", "/v1/import?namespace=a", key=key, content='{"id": "m3", "text": "secret"}', headers=kind)
        assert last().items() >= {"operation": "import", "added": 1}.items()
        chosen = {"filter": {"role": None}, "namespace": "a"}
        ask(live, "PATCH", "/v1/records", {**chosen, "changes": {"payload": {"x": 1}}}, key=key)
        assert last().items() >= {"operation": "update_memory", "ids": ["m2", "m3"]}.items()
        ask(live, "DELETE", "/v1/records", chosen, key=key)
        assert last().items() >= {"operation": "delete_memory", "ids": ["m2", "m3"], "records": 2}.items()
        ask(live, "POST", "/v1/records", {**records("m3", "m4"), "namespace": "a"}, key=key)
        last()
        ask(live, "POST", "/v1/forget", {"query": "tea", "k": 1, "namespace": "a"}, key=key)
        assert last().items() >= {"operation": "forget", "ids": ["m3"]}.items()
        ask(live, "POST", "/v1/observe", {"ids": ["m4"], "namespace": "a"}, key=key)
        assert last()["operation"] == "observe"
        ask(live, "POST", "/v1/search", {"query": "secret", "namespace": "a"}, key=key)
        second = add_key(keys, ["a"], name="two")
        ask(live, "GET", "/v1/count?namespace=a", key=second)
        assert last().items() >= {"operation": "key_added", "key": "two"}.items()
        remove_key(keys, "two")
        assert ask(live, "GET", "/v1/count?namespace=a", key=second).status_code == 401
        assert last()["operation"] == "key_removed"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "secret" not in file.read_text()
    with serving(engine, options=ServerOptions(journal=Journal(file, texts=True))) as live:
        ask(live, "PUT", "/v1/records/m4?namespace=a", {"text": "secret"})
    assert json.loads(file.read_text().splitlines()[-1])["texts"] == ["secret"]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Each file below a folder: when it was written, and what it holds."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: (path.stat().st_mtime_ns, path.read_bytes()) for name, path in files.items()}


@pytest.mark.parametrize("kind", ["engine", "shards"])
def test_backups_are_made_and_brought_back_by_their_names(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    memory: Any = (
        fr.Engine.open(tmp_path / "m")
        if kind == "engine"
        else fr.ShardedEngine.open(tmp_path / "m", shards=2, transport="local")
    )
    with memory, serving(memory, options=ServerOptions(backups=folder)) as live:

        def texts() -> dict[str, str]:
            return {f"{one.namespace}/{one.id}": one.text for one in memory.records(namespace=None)}

        memory.add([fr.Record("1", "tea", namespace="a"), fr.Record("1", "tea", namespace="b")])
        assert ask(live, "POST", "/v1/backup", {"name": "monday"}).status_code == 201
        assert [one["name"] for one in ask(live, "GET", "/v1/backups").json()["backups"]] == ["monday"]
        copied = contents(folder / "monday")
        memory.upsert([fr.Record("1", "coffee", namespace="a"), fr.Record("2", "milk", namespace="a")])
        memory.upsert([fr.Record("1", "coffee", namespace="b")])
        done = ask(live, "POST", "/v1/restore", {"name": "monday", "namespace": "a"})
        assert done.json()["restored"].items() >= {"replaced": 1, "deleted": 1}.items()
        assert texts() == {"a/1": "tea", "b/1": "coffee"}
        assert ask(live, "POST", "/v1/restore", {"name": "monday"}).status_code == 200
        assert texts() == {"a/1": "tea", "b/1": "tea"}
        assert contents(folder / "monday") == copied, "a restore reads its backup"
        assert ask(live, "POST", "/v1/backup", {"name": "monday"}).json()["title"] == "BackupExists"
        assert ask(live, "POST", "/v1/restore", {"name": "friday"}).json()["title"] == "UnknownBackup"
        (folder / "link").symlink_to(tmp_path)
        for name in ("../x", "/tmp/x", "a/b", "..", "", "link", "x\n", "x" * 101):
            for verb in ("backup", "restore"):
                assert ask(live, "POST", f"/v1/{verb}", {"name": name}).status_code in (409, 422), name
        assert {path.name for path in folder.iterdir()} == {"monday", "link"}
    with serving(fr.Engine()) as live:
        assert ask(live, "POST", "/v1/backup", {"name": "x"}).json()["title"] == "NoBackups"


def test_a_server_that_reads_alone_follows_who_writes_and_refuses_writes(tmp_path: Path) -> None:
    with (
        fr.Engine.open(tmp_path / "m") as writer,
        fr.Engine.open(tmp_path / "m", read_only=True) as reader,
        serving(reader, options=ServerOptions(read_only=True)) as live,
    ):
        writer.add([fr.Record("1", "tea", namespace="a")])
        assert ask(live, "GET", "/v1/count?namespace=a").json() == {"count": 1}
        assert ask(live, "POST", "/v1/distinct", {"column": "role", "namespace": "a"}).status_code == 200
        assert ask(live, "POST", "/v1/audit", {"namespace": "a", "k": 1_001}).json()["title"] == "TooManyHits"
        writes = [("POST", "/v1/records", {**records("2"), "namespace": "a"}), ("DELETE", "/v1/namespaces/a", None)]
        for method, path, body in (*writes, ("POST", "/v1/add_column", {"name": "x", "kind": "json"})):
            refused = ask(live, method, path, body)
            assert (refused.status_code, refused.json()["title"]) == (403, "ReadOnlyServer"), path


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_server_speaks_tls(tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    made = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*made.split(), "-out", certificate, "-keyout", key], check=True, capture_output=True)
    trusted = ssl.create_default_context(cafile=certificate)
    with serving(fr.Engine(), options=ServerOptions(certificate=certificate, private_key=key)) as live:
        with httpx.Client(verify=trusted, trust_env=False) as client:
            assert client.get(f"https://localhost:{live.port}/v1/health").status_code == 200
        with pytest.raises(httpx.HTTPError):
            ask(live, "GET", "/v1/health")
    assert "cannot be used for TLS" in fails("serve", tmp_path / "m", "--port", "0", "--tls-certificate", key)
    assert "goes with --tls-certificate" in fails("serve", tmp_path / "m", "--tls-key", key)
