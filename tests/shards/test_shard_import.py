"""The records of one engine's directory go into a sharded memory, which then gives the same answers."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.borders import shrink
from support.commands import fails, run_json
from support.sharding import Crash, assert_same_answers, crash

import fanrank as fr
from fanrank.engine.encoders.encoder import OwnVectors
from fanrank.engine.errors import StorageError
from fanrank.engine.storage import failpoints
from fanrank.shards.engine import ShardedEngine

WORDS = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"]
BY_WORDS = [
    *(fr.Query("ant fox hen", namespace=name) for name in ("", "a", "b/c", "nobody")),
    fr.Query("bee dog", namespaces=["a", "b/c"]),
    fr.Query("cat", under="b"),
    fr.Query("elk gnu", namespace="a", filter={"project": "p1"}),
    fr.Query("ant", namespace="a", windows="auto", now=9_000.0),
]
BY_VECTOR = [fr.Query("ant", namespace=name, vector=[1.0, 0.5]) for name in ("a", "b/c")]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The directory of an engine with a past: changes, removals, vectors, expiry, and what it learned."""
    with fr.Engine.open(
        tmp_path / "old", columns={"project": "category"}, encoder=OwnVectors(2), k1=0.9, profile="literature"
    ) as engine:
        rng = np.random.default_rng(7)
        records = [
            fr.Record(
                f"r{number}",
                " ".join(rng.choice(WORDS, 4)),
                ("", "a", "b/c")[number % 3],
                time=float(number),
                extra={"project": f"p{number % 2}"},
                embedding=rng.normal(size=2) if number % 4 else None,
                expires=1.0 if number % 50 == 0 else None,
            )
            for number in range(300)
        ]
        engine.add(records)
        engine.update([fr.Record("r1", "ant ant hen", "a"), fr.Record("r2", "bee", "b/c")])
        engine.delete(["r3", "r6"])
        engine.drop("nobody")
        for _ in range(30):
            engine.observe(["r4", "r7", "r100"], namespace="a", now=9_000.0)
        engine.resolved("ant", "Ant", namespace="a", times=3)
    return tmp_path / "old"


def opened(path: Path, **options: Any) -> ShardedEngine:
    return ShardedEngine.open(path, transport="local", **options)


def assert_same(old: Path, several: ShardedEngine) -> None:
    with fr.Engine.open(old, read_only=True) as one:
        assert len(several) == len(one)
        assert several.namespaces == one.namespaces
        assert_same_answers(one, several, BY_WORDS, k=300)
        for strategy in ("dense", "fused", "recall"):
            assert_same_answers(one, several, BY_VECTOR, k=50, strategy=strategy)
        ids = [f"r{number}" for number in range(300)]
        for name in one.namespaces:
            found, expected = several.fetch(ids, namespace=name), one.fetch(ids, namespace=name)
            assert list(map(repr, found)) == list(map(repr, expected))


@pytest.mark.parametrize("shards", [1, 3])
def test_answers_are_those_of_the_engine(tmp_path: Path, old: Path, shards: int) -> None:
    with opened(tmp_path / "new", shards=shards, source=old, split_at=60) as several:
        assert len(several.coordinator.placement.split) == (3 if shards > 1 else 0)
        assert_same(old, several)
    with opened(tmp_path / "new") as several:
        assert_same(old, several)
        # Later writes go on in the same order.
        several.add([fr.Record("new", "ant fox hen", "a")])
        shutil.copytree(old, tmp_path / "copy")
        with fr.Engine.open(tmp_path / "copy") as one:
            one.add([fr.Record("new", "ant fox hen", "a")])
            assert_same_answers(one, several, BY_WORDS, k=300)


def test_what_was_learned_goes_with_the_records(tmp_path: Path, old: Path) -> None:
    with fr.Engine.open(old, read_only=True) as one:
        assert one.recency("a").windows() != fr.Engine().recency("a").windows()
        learned = one.index.memory.store.learned()["a"]  # type: ignore[union-attr]
    opened(tmp_path / "new", shards=2, source=old).close()
    with opened(tmp_path / "new") as several:
        home = several.coordinator.placement.home("a")
        kept = several.coordinator.links[home].shard.engine.index.memory.store.learned()  # type: ignore[attr-defined]
        assert kept == {"a": learned}
        with fr.Engine.open(old, read_only=True) as one:
            assert several.recency("a").windows() == one.recency("a").windows()


@pytest.mark.parametrize(
    ("point", "count"), [("source.batch", 1), ("source.batch", 3), ("batch.prepared", 2), ("source.copied", 1)]
)
def test_an_import_that_is_cut_off_goes_on_and_never_answers_in_part(
    tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch, point: str, count: int
) -> None:
    shrink(monkeypatch, BUILD_CHUNK=70)
    failpoints.arm(point, count, crash)
    with pytest.raises(Crash):
        opened(tmp_path / "new", shards=3, source=old, split_at=60)
    failpoints.disarm()
    with pytest.raises(fr.errors.ShardError, match=r"not all there yet.*--import"):
        opened(tmp_path / "new")
    assert "not all there yet" in fails("shards", tmp_path / "new", "--status")
    with opened(tmp_path / "new", source=old) as several:
        assert_same(old, several)
    with opened(tmp_path / "new") as several:
        assert_same(old, several)


def test_an_import_does_not_go_on_with_other_records(
    tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, BUILD_CHUNK=70)
    failpoints.arm("source.batch", 2, crash)
    with pytest.raises(Crash):
        opened(tmp_path / "new", shards=2, source=old)
    failpoints.disarm()
    with fr.Engine.open(old) as engine:
        engine.delete(["r9"])
    with pytest.raises(fr.errors.ShardError, match="before its last writes"):
        opened(tmp_path / "new", source=old)


def test_what_cannot_be_brought_in_is_said(tmp_path: Path, old: Path) -> None:
    new = tmp_path / "new"
    with fr.Engine.open(old), pytest.raises(fr.errors.StoreLockedError, match="process"):
        opened(new, shards=2, source=old)
    for source, error in ((tmp_path / "nothing", "no fanrank records"), (tmp_path, "no fanrank records")):
        with pytest.raises(fr.errors.ForeignIndexError, match=error):
            opened(new, shards=2, source=source)
    with pytest.raises(fr.errors.ForeignIndexError, match="choose a place outside"):
        opened(old / "new", shards=2, source=old)
    with pytest.raises(fr.errors.ParameterError, match="'k1' is as in"):
        opened(new, shards=2, source=old, k1=2.0)
    with pytest.raises(fr.errors.ModelMismatchError):
        opened(new, shards=2, source=old, encoder=OwnVectors(3))
    assert not new.exists()
    opened(new, shards=2, source=old).close()
    with pytest.raises(fr.errors.ParameterError, match="is a sharded memory already"):
        opened(new, source=old)
    with pytest.raises(fr.errors.ForeignIndexError, match="is a sharded memory already"):
        opened(tmp_path / "other", shards=2, source=new)
    with pytest.raises(fr.errors.ForeignIndexError, match="is a shard of"):
        opened(tmp_path / "other", shards=2, source=new / "shard-0000")
    with fr.Engine.open(old) as engine:  # nothing holds it any more
        engine.delete(["r9"])


def test_each_kind_of_directory_says_how_it_is_opened(tmp_path: Path, old: Path) -> None:
    with pytest.raises(fr.errors.ForeignIndexError, match=r"Engine\.open opens.*--import"):
        opened(old, shards=2)
    new = tmp_path / "new"
    opened(new, shards=2).close()
    for open_it in (fr.Engine.open, fr.Engine.load, lambda path: fr.Engine.open(path, read_only=True)):
        with pytest.raises(StorageError, match=r"is a sharded memory.*ShardedEngine\.open"):
            open_it(new)  # type: ignore[operator]


def test_shards_whose_table_is_lost_are_no_new_memory(tmp_path: Path) -> None:
    with opened(tmp_path / "new", shards=3) as several:
        several.add([fr.Record("r1", "ant")])
    (tmp_path / "new" / "owner.sqlite").unlink()
    for folder, storage in ((tmp_path / "new", None), (tmp_path / "other", tmp_path / "new")):
        with pytest.raises(fr.errors.ForeignIndexError, match=r"hold records.*owner\.sqlite.*not there"):
            opened(folder, shards=3, storage=storage)


def test_the_command_brings_an_engine_into_shards(tmp_path: Path, old: Path) -> None:
    new = tmp_path / "new"
    assert "--shards" in fails("shards", new, "--import", old)
    made = run_json("shards", new, "--import", old, "--shards", 3)
    with fr.Engine.open(old, read_only=True) as one:
        assert (made["shards"], made["records"]) == (3, len(one))
    with opened(new) as several:
        assert_same(old, several)
    assert "is a sharded memory already" in fails("shards", new, "--import", old)
    empty = run_json("shards", tmp_path / "empty", "--shards", 2)
    assert (empty["shards"], empty["records"]) == (2, 0)
    assert "has 2 shards, not 3" in fails("shards", tmp_path / "empty", "--shards", 3)
