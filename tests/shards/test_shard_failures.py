"""A shard may end at any moment of a write or of a search: the answers stay those of one engine."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dying import AFTER, BEFORE, HANGS, LATE, dying, link_of
from support.shard_kills import SHARDS, SPLIT, TEAMS, Oracle
from support.sharding import FOLDER, assert_same_answers, assert_same_records, outcome, split_over_all

import fanrank as fr
from fanrank.shards.engine import ShardedEngine

TEAM = TEAMS[0]
RECORDS = [
    *(fr.Record(f"b{place}", "ant bee"[: place % 8], namespace=SPLIT) for place in range(24)),
    *(fr.Record(f"t{place}", "cat ant", namespace=team) for place in range(3) for team in TEAMS),
]
QUERIES = [
    *(fr.Query(text, namespace=space, k=50) for text in ("ant bee", "cat") for space in (SPLIT, *TEAMS)),
    fr.Query("ant cat", namespaces=(SPLIT, TEAM), k=50),
]
WRITES = {
    "add to one": lambda engine: engine.add([fr.Record("new", "ant", namespace=TEAM)]),
    "update of one": lambda engine: engine.update([fr.Record("t1", "bee", namespace=TEAM)]),
    "patch of one": lambda engine: engine.patch("t1", namespace=TEAM, text="bee"),
    "add that is refused": lambda engine: engine.add([fr.Record("t1", "bee", namespace=TEAM)]),
    "delete of one": lambda engine: engine.delete(["t1", "t2"], namespace=TEAM),
    "delete that is refused": lambda engine: engine.delete(["nobody"], namespace=TEAM),
    "delete of some": lambda engine: engine.delete(["t1", "nobody"], namespace=TEAM, missing_ok=True),
    "upsert of many": lambda engine: engine.upsert(
        [fr.Record(f"b{place}", "ant ant", namespace=SPLIT) for place in range(12, 36)]
    ),
    "delete of many": lambda engine: engine.delete([f"b{place}" for place in range(12)], namespace=SPLIT),
    "drop of one": lambda engine: engine.drop(TEAM),
    "drop of many": lambda engine: engine.drop(SPLIT),
}


def filled(path: Path, **options: object) -> ShardedEngine:
    engine = dying(path, SHARDS, **options)  # type: ignore[arg-type]
    split_over_all(engine, SPLIT)
    engine.add(RECORDS)
    return engine


def one_engine() -> fr.Engine:
    engine = fr.Engine()
    engine.add(RECORDS)
    return engine


def assert_alike(one: fr.Engine, several: ShardedEngine) -> None:
    assert_same_answers(one, several, QUERIES)
    assert_same_records(one, several, (SPLIT, *TEAMS))


@pytest.mark.parametrize("how", [BEFORE, AFTER, LATE])
@pytest.mark.parametrize("name", WRITES)
def test_a_shard_that_ends_in_the_middle_of_a_write_does_it_once(tmp_path: Path, name: str, how: str) -> None:
    one = one_engine()
    with filled(tmp_path / "memory") as several:
        placement = several.coordinator.placement
        shard = placement.finder()(SPLIT, "b12") if name.endswith("many") else placement.home(TEAM)
        link_of(several, shard).plan("apply", how)
        assert outcome(WRITES[name], several) == outcome(WRITES[name], one)
        assert_alike(one, several)
        assert outcome(WRITES["add to one"], several) == outcome(WRITES["add to one"], one)
        assert_alike(one, several)
    with dying(tmp_path / "memory", SHARDS) as several:
        assert_alike(one, several)


@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_any_history_with_shards_that_end_gives_the_answers_of_one_engine(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        oracle = Oracle(f"{data.draw(st.integers(0, 1000))}")
        several = dying(Path(folder) / "memory", SHARDS)
        split_over_all(several, SPLIT)
        for number in range(data.draw(st.integers(1, 8))):
            for shard in data.draw(st.lists(st.integers(0, SHARDS - 1), max_size=2)):
                verb = data.draw(
                    st.sampled_from(["apply", "apply", "prepare", "tag", "ask", "live", "last_write", "counts"])
                )
                link_of(several, shard).plan(verb, data.draw(st.sampled_from([BEFORE, AFTER, LATE])))
            if data.draw(st.booleans()):
                link_of(several, data.draw(st.integers(0, SHARDS - 1))).end()
            oracle.write_to(several, number)
            if data.draw(st.booleans()):
                assert oracle.differs(several) is None
        assert oracle.differs(several) is None
        several.close()
        with dying(Path(folder) / "memory", SHARDS) as several:
            assert oracle.differs(several) is None


def test_a_shard_that_ended_answers_the_next_search(tmp_path: Path) -> None:
    one = one_engine()
    with filled(tmp_path / "memory") as several:
        for shard in range(SHARDS):
            held = several.holdings()
            link_of(several, shard).end()
            assert_alike(one, several)
            link_of(several, shard).end()
            assert several.holdings() == held


@pytest.mark.parametrize("how", [BEFORE, AFTER])
@pytest.mark.parametrize("verb", ["holdings", "begin_task", "go_on", "go_on go_on", "apply", "tag"])
@pytest.mark.parametrize("ends", ["source", "target"])
def test_a_move_begins_anew_where_a_shard_ends(tmp_path: Path, ends: str, verb: str, how: str) -> None:
    one = one_engine()
    with filled(tmp_path / "memory") as several:
        coordinator = several.coordinator
        coordinator.page = 1
        (home,) = coordinator.placement.homes(TEAM)
        after = (home + 1) % SHARDS
        link = link_of(several, home if ends == "source" else after)
        for planned in verb.split():
            link.plan(planned, how)
        if verb == "tag":
            link.end()
        coordinator.place(TEAM, (after,))
        assert coordinator.placement.homes(TEAM) == (after,)
        assert_alike(one, several)
        assert outcome(WRITES["update of one"], several) == outcome(WRITES["update of one"], one)
        assert_alike(one, several)


def test_a_shard_that_hangs_is_missing_or_an_error(tmp_path: Path) -> None:
    one = one_engine()
    with filled(tmp_path / "memory") as several:
        link_of(several, 1).hanging = True
        with pytest.raises(fr.errors.DeadlineError, match="shard 1 did not answer by the deadline"):
            several.search(QUERIES)
        found = several.search(QUERIES, partial="allow")
        assert found.missing_shards == (1,)
        expected = one.search([QUERIES[0]]).ids[0].tolist()
        shard_of = several.coordinator.view.placement.finder()
        there = [name for name in expected if name is not None and shard_of(SPLIT, name) != 1]
        assert sorted(name for name in found.ids[0] if name is not None) == sorted(there)
        link_of(several, 1).hanging = False
        assert_alike(one, several)


@pytest.mark.parametrize("name", ["add to one", "upsert of many", "delete of many"])
def test_a_write_that_times_out_is_done_or_not_and_found_out_before_the_next(tmp_path: Path, name: str) -> None:
    one = one_engine()
    with filled(tmp_path / "memory") as several:
        placement = several.coordinator.placement
        shard = placement.home(TEAM) if name == "add to one" else placement.finder()(SPLIT, "b0")
        if name == "upsert of many":
            shard = placement.finder()(SPLIT, "b12")
        link_of(several, shard).plan("apply", HANGS)
        with pytest.raises(fr.errors.DeadlineError, match="before the next one"):
            WRITES[name](several)
        link_of(several, shard).hanging = False
        if name != "add to one":  # the batch is in the log of intents
            WRITES[name](one)
        WRITES["delete of one"](several)
        WRITES["delete of one"](one)
        assert_alike(one, several)


def test_a_lost_directory_is_named_and_not_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    with filled(folder) as several:
        link_of(several, 2).end(away=0)
        shutil.move(folder / "shard-0002", tmp_path / "elsewhere")
        with pytest.raises(fr.errors.StorageError, match="the directory of shard 2 is lost; bring it back"):
            several.search(QUERIES)
        shutil.move(tmp_path / "elsewhere", folder / "shard-0002")
        assert_alike(one_engine(), several)
