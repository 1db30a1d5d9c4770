"""The file of keys, what a key allows, and when it is read again."""

import json
import logging
import os
import stat
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.commands import fails, run, run_json

import fanrank as fr
from fanrank.engine.errors import ParameterError, StorageError
from fanrank.server import keys
from fanrank.server.access import Principal
from fanrank.server.app import make_app
from fanrank.server.keys import Keyring, add_key, check_patterns, read_keys, remove_key


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_commands_add_list_and_remove_keys(file: Path) -> None:
    key = run("keys", "add", file, "--namespace", "acme/*", "--namespace", "shared", "--read-only", "--name", "one")
    secret = key.stdout.strip()
    assert run_json("keys", "add", file, "--namespace", "*", "--json")["key"] != secret
    listed = run_json("keys", "list", file, "--json")["keys"]
    assert [(one["write"], one["namespaces"]) for one in listed] == [(False, ["acme/*", "shared"]), (True, ["*"])]
    assert listed[0]["name"] == "one"
    assert "one" in run("keys", "list", file).stdout
    assert "give another --name" in fails("keys", "add", file, "--namespace", "x", "--name", "one")
    run("keys", "remove", file, "one")
    run("keys", "remove", file, listed[1]["id"])
    assert run("keys", "list", file).stdout == "no keys\n"
    assert "no key 'one'" in fails("keys", "remove", file, "one")


@pytest.mark.skipif(os.name != "posix", reason="rights of POSIX")
def test_the_file_is_its_owners_and_holds_no_key(file: Path) -> None:
    key = add_key(file, ["acme"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key.split("_", 2)[2] not in file.read_text()
    # 256 random bits, as 43 characters.
    assert {len(add_key(file, ["acme"]).split("_", 2)[2]) for _ in range(8)} == {43}
    os.chmod(file, 0o620)
    with pytest.raises(ParameterError, match="chmod 600"):
        Keyring(file)


@pytest.mark.parametrize("pattern", ["a*", "*/a", "/*", "a/**", "**", "//*", 5])
def test_a_pattern_says_what_it_reaches(pattern: object) -> None:
    with pytest.raises(ParameterError):
        check_patterns([pattern])


@pytest.mark.parametrize(
    ("patterns", "namespace", "reached"),
    [
        (("acme/*",), "acme/ana", True),
        (("acme/*",), "acme/ana/notes", True),
        (("acme/*",), "acme", False),
        (("acme/*",), "acmecorp/ana", False),
        (("acme/*",), "Acme/ana", False),
        (("acme",), "acme/ana", False),
        (("acme",), "", False),
        (("",), "", True),
        (("",), "acme", False),
    ],
)
def test_a_pattern_reaches(patterns: tuple[str, ...], namespace: str, reached: bool) -> None:
    assert Principal("x", patterns).allows(namespace) is reached


@pytest.mark.parametrize(
    ("patterns", "path", "reached"),
    [
        (("acme/*",), "acme", False),
        (("acme/*",), "acme/", False),
        (("acme", "acme/*"), "acme", True),
        (("acme", "acme/*"), "acme//", True),
        (("acme/*",), "acme/ana", True),
        (("acme/*",), "acme/ana/", True),
        (("acme/*",), "", False),
        (("acme/*",), "/", False),
        (("acme/*",), "acmecorp", False),
        (("acme",), "acme", False),
        (None, "", True),
    ],
)
def test_a_path_is_reached_whole_or_not_at_all(patterns: tuple[str, ...] | None, path: str, reached: bool) -> None:
    assert Principal("x", patterns).allows_under(path) is reached


def test_a_request_needs_one_whole_key(file: Path) -> None:
    key = add_key(file, ["*"])
    other = add_key(file, ["*"])
    mixed = f"{key[:24]}_{other.split('_', 2)[2]}"
    with TestClient(make_app(fr.Engine(), admit=Keyring(file))) as client:
        assert client.get("/v1/stats", headers=bearer(key)).status_code == 200
        assert client.get("/v1/stats", headers={"authorization": f"bearer  {key}"}).status_code == 200
        for wrong in ("", key, f"Basic {key}", "Bearer", f"Bearer {key[:-1]}", f"Bearer {key}x", f"Bearer {mixed}"):
            answer = client.get("/v1/stats", headers={"authorization": wrong})
            assert answer.status_code == 401, wrong
            assert answer.headers["www-authenticate"].startswith("Bearer")
        twice = [("authorization", f"Bearer {key}"), ("authorization", f"Bearer {key}")]
        assert client.get("/v1/stats", headers=twice).status_code == 401
        assert client.get("/nowhere").status_code == 401
        assert client.get("/v1/stats", params={"key": key}).status_code == 401
        assert client.get("/v1/health").status_code == 200


def test_an_unknown_id_and_a_wrong_secret_are_refused_alike_in_constant_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, seen = add_key(file, ["*"]), []
    _, id, secret = key.split("_", 2)
    whole = keys.hmac.compare_digest
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda one, other: seen.append(one) or whole(one, other))
    with TestClient(make_app(fr.Engine(), admit=Keyring(file))) as client:
        given = (f"fanrank_{'0' * 16}_{secret}", f"fanrank_{id}_{'A' * 43}", key)
        unknown, wrong, right = (client.get("/v1/stats", headers=bearer(one)) for one in given)
    assert unknown.content == wrong.content
    assert (unknown.status_code, wrong.status_code, right.status_code) == (401, 401, 200)
    assert len(seen) == 3


def test_the_file_is_read_again_when_it_changes(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = add_key(file, ["*"], name="first")
    with TestClient(make_app(fr.Engine(), admit=Keyring(file))) as client:

        def status(key: str) -> int:
            return client.get("/v1/stats", headers=bearer(key)).status_code

        second = add_key(file, ["*"], name="second")
        assert (status(first), status(second)) == (200, 200)
        remove_key(file, "first")
        assert (status(first), status(second)) == (401, 200)
        with caplog.at_level(logging.ERROR, "fanrank.server"):
            file.write_text("{")
            assert (status(first), status(second)) == (401, 200)
            file.unlink()
            assert (status(first), status(second)) == (401, 200)
        assert len(caplog.records) == 2
        assert str(file) in caplog.text
        third = add_key(file, ["*"])
        assert (status(second), status(third)) == (401, 200)


def test_a_missing_or_broken_file_is_an_error_at_the_start(file: Path) -> None:
    with pytest.raises(StorageError, match="is not there; `fanrank keys add` makes it"):
        Keyring(file)
    file.touch(0o600)
    whole = {"id": "0" * 16, "name": "a", "namespaces": ["a"], "write": True, "hash": "0" * 64}
    wrong = [
        "",
        "[]",
        '{"keys": []}',
        *(
            json.dumps({"format": "fanrank-keys", "version": 1, "keys": [{**whole, name: value}]})
            for name, value in (
                ("namespaces", []),
                ("namespaces", ["a*"]),
                ("hash", ""),
                ("id", "x"),
                ("rights", "all"),
            )
        ),
        json.dumps({"format": "fanrank-keys", "version": 1, "keys": [whole, whole]}),
        json.dumps({"format": "fanrank-keys", "version": 2, "keys": []}),
    ]
    for text in wrong:
        file.write_text(text)
        with pytest.raises(ParameterError, match=r"keys\.json"):
            read_keys(file)


@pytest.mark.parametrize("columns", [{}, {"*": "json"}], ids=["plain", "auto"])
@pytest.mark.parametrize("keyed", [True, False])
def test_a_filter_declares_no_column_where_there_are_keys(file: Path, keyed: bool, columns: dict[str, str]) -> None:
    """A column reads all records, and is there for all tenants from then on."""
    engine = fr.Engine(columns=columns)
    engine.add([fr.Record("m1", "tea", namespace="acme", extra={"project": "atlas"})])
    headers = bearer(add_key(file, ["*"]))
    wanted = {"project": "atlas"}
    query = {"text": "tea", "namespace": "acme", "filter": wanted}
    with TestClient(make_app(engine, admit=Keyring(file) if keyed else None)) as client:
        answers = [
            client.post("/v1/search", json={"query": query}, headers=headers),
            client.get("/v1/count", params={"namespace": "acme", "filter": json.dumps(wanted)}, headers=headers),
            client.request("DELETE", "/v1/records", json={"namespace": "acme", "filter": wanted}, headers=headers),
        ]
    assert [answer.status_code for answer in answers] == [422 if keyed else 200] * 3
    assert engine.columns == (columns if keyed else {**columns, "project": "json"})
    assert engine.count(namespace="acme") == (1 if keyed else 0)
