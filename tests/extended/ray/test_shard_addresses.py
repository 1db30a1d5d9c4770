"""Clusters that cannot be connected to, and messages as bytes. No test here starts a Ray: any address would take it."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import fanrank as fr

ray = pytest.importorskip("ray")
from fanrank.shards.processes.cluster import (  # noqa: E402
    Cluster,
    pack,
    unpack,
)


@pytest.fixture(autouse=True)
def no_ray() -> None:
    assert not ray.is_initialized()


def test_an_address_where_nobody_listens_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "nonsense"):
        with pytest.raises(
            fr.errors.ShardError, match=f"no Ray cluster can be reached at '{address}'.*ray start --head"
        ):
            Cluster.connect(address)


@pytest.mark.parametrize("address", ["", 7])
def test_an_address_that_is_none_is_refused(address: object) -> None:
    with pytest.raises(fr.errors.ParameterError, match="address must be 'auto'"):
        Cluster.connect(address)  # type: ignore[arg-type]


def test_an_older_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.9.1")
    with pytest.raises(fr.errors.ShardVersionError, match=r"Ray 2\.9\.1 is installed, and shards need 2\.60"):
        Cluster.connect(None)


def test_a_cluster_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*_: object, **__: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.61.0\n    Python: 3.12.1")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(fr.errors.ShardVersionError, match=r"Ray: 2\.61\.0 Python: 3\.12\.1.*same Python and Ray"):
        Cluster.connect("auto")


def test_a_token_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # As Ray says it. It tries for 20 seconds before that.
    def init(*_: object, **__: object) -> None:
        try:
            raise RuntimeError("Failed to connect to GCS. ray.exceptions.AuthenticationError: RPC error: Invalid...")
        except RuntimeError as error:
            raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379") from error

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(fr.errors.ShardError, match=r"the cluster at 'auto' asks for its token.*RAY_AUTH_MODE=token"):
        Cluster.connect("auto")


SCRIPT = """
import sys
from dataclasses import dataclass
from fanrank.shards.processes.cluster import pack

@dataclass(frozen=True)
class Own:
    value: int

sys.stdout.buffer.write(pack((Own(3), lambda: 4)))
"""


def test_what_a_script_defines_is_sent_whole(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, check=True)
    own, function = unpack(done.stdout)
    assert (own.value, function()) == (3, 4)


def test_what_cannot_be_sent_says_so() -> None:
    with pytest.raises(TypeError):
        pack(threading.Lock())
