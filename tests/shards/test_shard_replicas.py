"""Whoever answers a read, the leader of a shard or a follower: the answers are those of one engine, bit for bit."""

import inspect
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders
from support.dying import AFTER, BEFORE, LATE, dying, follower_of, link_of
from support.hashing import Hashing
from support.replicating import (
    answered_by,
    assert_all_follow,
    assert_each_replica_is,
    by_each_replica,
    catch_up,
    forget_next,
    links_of,
    states_of,
    wait_until_all_follow,
)
from support.shard_kills import SHARDS, SPLIT, Oracle, next_write
from support.sharding import (
    FOLDER,
    NOW,
    assert_same_answers,
    assert_same_records,
    conversations,
    outcome,
    sharded,
    split_over_all,
    write,
)
from support.threads import in_threads

import fanrank as fr
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.listing.matching import count
from fanrank.engine.route.policy import POLICIES
from fanrank.engine.search.options import SearchOptions
from fanrank.engine.storage.storage import Storage
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.listing.listing import matching_in
from fanrank.shards.moves.moves import MovingCoordinator
from fanrank.shards.processes.streams import Stream
from fanrank.shards.protocol.messages import Ask, Forward
from fanrank.shards.replicas.replicas import OWN, READS, ReplicatedLink, is_approximate
from fanrank.shards.shard.records import read_sizes
from fanrank.shards.shard.shard import Shard

WORDS = ("ant", "bee", "cat", "dog", "elk", "fox")
SPACES = ("", "big", "team/a", "team/b")
QUERIES = [
    *(fr.Query(text, namespace=space, k=50) for text in ("ant bee", "dog elk") for space in SPACES),
    fr.Query("ant cat", namespaces=["team/b", "big", ""], k=50),
    fr.Query("bee dog", under="team", k=50),
]


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"followers.PAGE": 3})


ids = st.integers(0, 12).map(str)
texts = st.lists(st.sampled_from(WORDS[:4]), max_size=4).map(" ".join)
records = st.builds(fr.Record, ids, texts, namespace=st.sampled_from(SPACES))
spaces = st.sampled_from(SPACES)
changes = st.one_of(
    st.tuples(st.just("add"), st.lists(records, max_size=6)),
    st.tuples(st.just("upsert"), st.lists(records, max_size=8)),
    st.tuples(st.just("upsert"), st.lists(records, max_size=8)),
    st.tuples(st.just("delete"), st.tuples(st.lists(ids, max_size=4), spaces, st.booleans())),
    st.tuples(st.just("drop"), spaces),
    st.tuples(st.just("place"), st.tuples(spaces, st.permutations(range(4)), st.integers(1, 3))),
)
steps = st.one_of(
    changes,
    changes,
    changes,
    st.tuples(st.just("add_shards"), st.none()),
    st.tuples(st.just("catch_up"), st.integers(0, 7)),
    st.tuples(st.just("catch_up"), st.integers(0, 7)),
    st.tuples(st.just("lose"), st.integers(0, 7)),
)


def turn(number: int, space: str = "big", text: str = "") -> fr.Record:
    return fr.Record(f"r{number}", text or f"ant {WORDS[number % 6]}", namespace=space)


def carry_out(one: fr.Engine, several: ShardedEngine, verb: str, what: Any) -> None:
    """Do the same to one engine and to shards; a move concerns the shards alone."""
    if verb != "place":
        assert outcome(write, one, verb, what) == outcome(write, several, verb, what)
        return
    namespace, shards, parts = what
    after = tuple(shard for shard in shards if shard < len(links_of(several)))[:parts]
    try:
        several.coordinator.place(namespace, after)
    except fr.errors.ShardError as error:
        assert "cannot go to" in str(error)  # noqa: PT017


def lose(link: ReplicatedLink, number: int = 0) -> None:
    """Let go of a follower."""
    with link.changed:
        link.followers[number % len(link.followers)].let_go("a test wants it so")


def assert_alike(one: fr.Engine, several: ShardedEngine) -> None:
    """Whichever replica reads: all that can be read is that of one engine."""
    for _ in by_each_replica(several):
        assert_same_answers(one, several, QUERIES, texts=True)
        assert several.count(namespace=None) == one.count(namespace=None)
        assert several.namespaces == tuple(sorted(one.namespaces))
        assert_same_records(one, several, SPACES)


@given(history=st.lists(steps, max_size=12))
@settings(max_examples=15)
def test_any_history_with_followers_that_lag_and_are_lost(history: list[tuple[str, Any]]) -> None:
    one, several = fr.Engine(), sharded(2, split=["big"], replicas=3)
    several.coordinator.page = 3
    for verb, what in [("catch_up", 0), *history]:
        followers = [each for link in links_of(several) for each in link.followers]
        if verb == "catch_up":
            followers[what % len(followers)].work()
        elif verb == "lose":
            lose(links_of(several)[what % len(links_of(several))], what)
        elif verb == "add_shards":
            if len(links_of(several)) < 4:
                several.add_shards(1)
        else:
            carry_out(one, several, verb, what)
        assert_alike(one, several)
    catch_up(several)
    assert_all_follow(several)
    assert_alike(one, several)
    several.close()


@given(data=st.data())
@settings(max_examples=6)
def test_any_history_with_replicas_that_end(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        oracle = Oracle(f"{data.draw(st.integers(0, 1000))}")
        several = dying(Path(folder) / "memory", SHARDS, replicas=2)
        split_over_all(several, SPLIT)
        catch_up(several)
        verbs = st.sampled_from(["apply", "apply", "prepare", "tag", "ask", "live", "last_write", "counts", "go_on"])
        for number in range(data.draw(st.integers(1, 8))):
            for shard in data.draw(st.lists(st.integers(0, SHARDS - 1), max_size=2)):
                link_of(several, shard).plan(data.draw(verbs), data.draw(st.sampled_from([BEFORE, AFTER, LATE])))
            for shard in data.draw(st.lists(st.integers(0, SHARDS - 1), max_size=2, unique=True)):
                if data.draw(st.booleans()):
                    link_of(several, shard).end()
                elif links_of(several)[shard].followers[0].link is not None:
                    follower_of(several, shard).end(away=data.draw(st.integers(0, 2)))
            oracle.write_to(several, number)
            for shard in data.draw(st.lists(st.integers(0, SHARDS - 1), max_size=3)):
                links_of(several)[shard].catch_up()
            if data.draw(st.booleans()):
                assert_each_replica_is(oracle, several)
        assert_each_replica_is(oracle, several)
        several.close()


@cache
def memories() -> tuple[fr.Engine, ShardedEngine]:
    """One engine, and two shards with followers: of each, one was filled early, and one after most writes."""
    options: dict[str, Any] = {"encoder": Hashing(dimension=8), "columns": {"kind": "category"}}
    one, several = fr.Engine(**options), sharded(2, split=["big"], replicas=3, **options)
    for link in links_of(several):
        link.followers[0].work()
    made = conversations(200)
    for engine in (one, several):
        for start in range(0, 200, 40):
            engine.add(made[start : start + 40])
    for link in links_of(several):
        link.followers[1].work()
    for engine in (one, several):
        engine.update([fr.Record(r.id, r.text + " ant", namespace=r.namespace, time=r.time) for r in made[::9]])
        for record in made[5::11]:
            engine.delete([record.id], namespace=record.namespace)
    catch_up(several)
    assert_all_follow(several)
    return one, several


def asked(**how: Any) -> list[fr.Query]:
    return [
        fr.Query(text, now=NOW, namespace=space, weights={"ant": 1.0, "bee": 0.5}, **how)
        for space in ("big", "team/a")
        for text in ("ant bee", "who met the fox yesterday?", "unknown words", "")
    ]


@pytest.mark.parametrize("replica", [1, 2])
@pytest.mark.parametrize("name", [*NAMED, *POLICIES])
def test_every_strategy_of_a_follower(name: str, replica: int) -> None:
    if name == "dense-hnsw":
        pytest.importorskip("faiss", reason="approximate search needs faiss")
    one, several = memories()
    with answered_by(several, replica) as ways:
        assert_same_answers(one, several, asked(), k=5, strategy=name, texts=True, payload=True)
    assert ("leader" in ways) == (name == "dense-hnsw")


def test_lists_and_explanations_of_a_follower() -> None:
    one, several = memories()
    with answered_by(several, 2) as ways:
        assert several.distinct("kind", namespace=None) == one.distinct("kind", namespace=None)
        assert several.events(0.0, NOW, type=None, namespace="big") == one.events(0.0, NOW, type=None, namespace="big")
        found = one.search([fr.Query("ant", namespace="team/a")])
        ours = several.explain(fr.Query("ant", namespace="team/a"), found.ids[0, 0])
        assert ours.score == found.explain(0, found.ids[0, 0]).score
    assert {*ways} == {"follower"}


def test_a_follower_that_lags_is_not_asked() -> None:
    several = sharded(1, replicas=2)
    catch_up(several)
    several.add([turn(1)])
    with answered_by(several, 1) as ways:
        assert several.search([fr.Query("ant", namespace="big")]).ids[0, 0] == "r1"
        assert ways == ["leader"]
        catch_up(several)
        assert several.search([fr.Query("ant", namespace="big")]).ids[0, 0] == "r1"
        assert ways == ["leader", "follower"]


def test_a_read_of_an_older_epoch_is_answered_by_its_state() -> None:
    several = sharded(2, split=["big"], replicas=2)
    several.add([turn(number) for number in range(8)])
    catch_up(several)
    coordinator = several.coordinator
    with coordinator.reading() as view:
        before = several.sizes()
        several.add([turn(number) for number in range(8, 16)])
        catch_up(several)
        with answered_by(several, 1) as ways:
            sent = [
                link.send("read", view.at(link.number), matching_in, count, None, "big") for link in coordinator.links
            ]
            assert sum(each.result(None) for each in sent) == before["big"] == 8
    assert ways == ["follower", "follower"]


@pytest.mark.parametrize("verb", ["apply", "tag"])
def test_a_follower_that_misses_something_answers_nothing_wrong(verb: str) -> None:
    """It is taken for one that holds the state, and says that it does not."""
    one, several = fr.Engine(), sharded(1, replicas=2)
    catch_up(several)
    for engine in (one, several):
        engine.add([turn(1), turn(2)])
    if verb == "tag":
        coordinator = several.coordinator
        coordinator._unknown.add(0)
        with coordinator.paused():
            pass
    link, follower = links_of(several)[0], links_of(several)[0].followers[0]
    told = forget_next(follower, [verb])
    follower.work()
    with link.changed:
        follower._last = told.number
    with answered_by(several, 1) as ways:
        assert_same_answers(one, several, QUERIES)
    assert ways[:2] == ["follower", "leader"]
    # What it misses it has missed for good.
    for engine in (one, several):
        engine.upsert([turn(2, text="bee"), turn(3)])
    follower.work()
    with answered_by(several, 1):
        assert_same_answers(one, several, QUERIES)


def test_a_follower_that_is_started_anew_is_filled_anew(tmp_path: Path) -> None:
    oracle = Oracle("anew")
    with dying(tmp_path / "memory", SHARDS, replicas=2) as several:
        for number in range(3):
            oracle.write_to(several, number)
        catch_up(several)
        for shard in range(SHARDS):
            follower_of(several, shard).end(away=0)
        with answered_by(several, 1):
            assert oracle.differs(several, placed=False) is None
        assert "lost" in states_of(several)
        catch_up(several)
        catch_up(several)
        assert_all_follow(several)
        with answered_by(several, 1) as ways:
            assert oracle.differs(several, placed=False) is None
        assert {*ways} == {"follower"}


def test_searches_go_on_while_leaders_are_away_and_writes_wait(tmp_path: Path) -> None:
    oracle = Oracle("away")
    with dying(tmp_path / "memory", SHARDS, replicas=2) as several:
        split_over_all(several, SPLIT)
        for number in range(4):
            oracle.write_to(several, number)
        catch_up(several)
        for shard in range(SHARDS):
            link_of(several, shard).end(away=10_000)
        sent = [len(link_of(several, shard).sent) for shard in range(SHARDS)]
        for _ in range(5):
            assert oracle.differs(several, placed=False) is None
        # After one message that they do not answer, leaders are left alone.
        assert all(len(link_of(several, shard).sent) <= before + 1 for shard, before in enumerate(sent))
        assert {link.report()[0]["state"] for link in links_of(several)} == {"away"}
        several.coordinator.deadline = 0.2
        write, _ = next_write(oracle.seed, 4, oracle.model)
        with pytest.raises(fr.errors.DeadlineError):
            write(several)
        several.coordinator.deadline = 60.0
        for shard in range(SHARDS):
            link_of(several, shard)._away = 2
        oracle.write_to(several, 5)
        assert_each_replica_is(oracle, several)
        catch_up(several)
        catch_up(several)
        assert_all_follow(several)
        assert_each_replica_is(oracle, several)


def test_a_leader_that_no_search_needs_is_brought_back(tmp_path: Path) -> None:
    oracle = Oracle("back")
    with dying(tmp_path / "memory", SHARDS, replicas=2, background=True) as several:
        for number in range(3):
            oracle.write_to(several, number)
        wait_until_all_follow(several)
        for shard in range(SHARDS):
            link_of(several, shard).end(away=3)
        with answered_by(several, 0):
            assert oracle.differs(several, placed=False) is None
        for link in links_of(several):
            with link.changed:
                assert link.changed.wait_for(lambda link=link: not link.lead.silent, 60)
        wait_until_all_follow(several)
        assert_each_replica_is(oracle, several)


@pytest.mark.parametrize("filled", [True, False])
def test_a_write_that_fails_when_it_is_done_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: bool
) -> None:
    """The leader raises an error, and holds the write. No follower shows it before the leader does."""
    one = fr.Engine()
    with dying(tmp_path / "memory", 1, replicas=2) as several:
        for engine in (one, several):
            engine.add([turn(1), turn(2)])
        if filled:
            catch_up(several)
        write = Storage.write

        def write_then_fail(memory: Storage, **how: Any) -> Any:
            write(memory, **how)
            raise fr.errors.StorageError("the disk is gone")

        with monkeypatch.context() as patched:
            patched.setattr(Storage, "write", write_then_fail)
            with pytest.raises(fr.errors.StorageError, match="the disk is gone"):
                several.add([turn(3)])
        with answered_by(several, 1):
            catch_up(several)
            links_of(several)[0].catch_up()
            follower = links_of(several)[0].followers[0]
            if follower.state == "following":
                with links_of(several)[0].changed:
                    number = links_of(several)[0].last
                held = follower.link.send("as_of", "read", number, read_sizes, False).result(None)
                assert held == {"big": 2}
        several.coordinator.recover()
        catch_up(several)
        assert [several.count(namespace="big") for _ in by_each_replica(several)] == [3, 3]
        for engine in (one, several):
            engine.upsert([turn(3), turn(4)])
        for _ in range(2):
            catch_up(several)
            for _ in by_each_replica(several):
                assert_same_answers(one, several, QUERIES)
        assert_all_follow(several)


def test_the_copies_of_a_move_no_replica_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a move are published before the move ends; followers hide them as their leaders do."""
    one, several = fr.Engine(), sharded(2, replicas=2)
    for engine in (one, several):
        engine.add([turn(number, SPACES[number % 4]) for number in range(32)])
    catch_up(several)
    several.coordinator.page = 2
    pages: list[bool] = []
    copy_page = MovingCoordinator._copy_page

    def copy_then_look(*arguments: Any) -> bool:
        pages.append(copy_page(*arguments))
        catch_up(several)
        assert_alike(one, several)
        return pages[-1]

    monkeypatch.setattr(MovingCoordinator, "_copy_page", copy_then_look)
    home = several.coordinator.placement.home("big")
    several.coordinator.place("big", (1 - home,))
    assert len(pages) > 2
    catch_up(several)
    assert_alike(one, several)
    several.coordinator.place("big", (1 - home, home))
    catch_up(several)
    assert_all_follow(several)
    assert_alike(one, several)


@pytest.mark.usefixtures("small_pages")
def test_a_follower_of_many_pages_takes_the_number_of_its_leader() -> None:
    several = sharded(1, replicas=2)
    several.add([turn(number) for number in range(60)])
    catch_up(several)
    assert_all_follow(several)
    several.add([turn(60)])
    catch_up(several)
    with answered_by(several, 1) as ways:
        assert several.count(namespace="big") == 61
    assert ways == ["follower"]


@pytest.mark.parametrize("how", [BEFORE, AFTER, LATE])
def test_a_leader_that_ends_in_the_middle_of_a_write(tmp_path: Path, how: str) -> None:
    oracle = Oracle("middle")
    with dying(tmp_path / "memory", 1, replicas=2) as several:
        for number in range(6):
            if number % 2:
                catch_up(several)
                link_of(several, 0).plan("apply", how)
            oracle.write_to(several, number)
            assert_each_replica_is(oracle, several)
            catch_up(several)
            assert_each_replica_is(oracle, several)


def test_a_leader_that_ends_between_writes_keeps_its_followers(tmp_path: Path) -> None:
    with dying(tmp_path / "memory", 1, replicas=2) as several:
        several.add([turn(1)])
        catch_up(several)
        first = follower_of(several, 0)
        link_of(several, 0).end(away=0)
        several.coordinator.recover()
        several.add([turn(2)])
        catch_up(several)
        assert_all_follow(several)
        assert follower_of(several, 0) is first


@given(history=st.lists(changes, max_size=8))
@settings(max_examples=25)
def test_a_follower_is_filled_while_others_write(history: list[tuple[str, Any]]) -> None:
    """Between any two pages there is a write, which may concern records of pages before, behind, or both."""
    one, several = fr.Engine(), sharded(2, split=["big"], replicas=2)
    first = [turn(number, SPACES[number % 4]) for number in range(20)]
    for engine in (one, several):
        engine.add(first)
    several.coordinator.page = 2
    left, changing = list(history), False

    def between() -> None:
        nonlocal changing
        # A move reads pages too. It holds its shards at each, so no other write comes between.
        if left and not changing:
            changing = True
            carry_out(one, several, *left.pop(0))
            changing = False

    with pytest.MonkeyPatch.context() as patch:
        borders.shrink(patch, {"followers.PAGE": 2, "streams.PAGE": 2})
        read_page = Stream.go_on

        def page_then_write(stream: Stream) -> Any:
            page = read_page(stream)
            between()
            return page

        patch.setattr(Stream, "go_on", page_then_write)
        catch_up(several)
    while left:
        between()
    catch_up(several)
    assert_all_follow(several)
    assert_alike(one, several)
    several.close()


@pytest.mark.usefixtures("small_pages")
def test_followers_are_filled_in_the_background_under_writes_and_searches() -> None:
    one, several = fr.Engine(), sharded(2, split=["big"], replicas=2, background=True)
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            for row in several.search(QUERIES):
                assert len({(hit.namespace, hit.id) for hit in row}) == len(row)

    def write() -> None:
        try:
            for number in range(60):
                batch = [turn(7 * number + step, SPACES[step % 4]) for step in range(6)]
                for engine in (one, several):
                    engine.upsert(batch)
                    engine.delete([f"r{number}"], namespace=SPACES[number % 4], missing_ok=True)
                if number % 20 == 10:
                    lose(links_of(several)[number % 2])
        finally:
            done.set()

    in_threads(search, write)
    wait_until_all_follow(several)
    assert_alike(one, several)
    several.close()


def test_a_follower_that_is_too_far_behind_is_filled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    one, several = fr.Engine(), sharded(1, replicas=2)
    catch_up(several)
    borders.shrink(monkeypatch, BEHIND=5)
    for number in range(8):
        for engine in (one, several):
            engine.add([turn(number)])
    (follower,) = links_of(several)[0].followers
    assert follower.state == "lost"
    assert follower.report()["failure"] == "more than 5 records waited for it"
    assert follower.report()["lag"] == 0
    catch_up(several)
    assert_all_follow(several)
    assert follower.report()["failure"] is None
    with answered_by(several, 1):
        assert_same_answers(one, several, QUERIES)


def test_a_follower_is_not_asked_before_it_knows_new_columns() -> None:
    options: dict[str, Any] = {"columns": "auto"}
    one, several = fr.Engine(**options), sharded(2, split=["big"], replicas=2, **options)
    catch_up(several)
    for engine in (one, several):
        engine.add([fr.Record(f"r{n}", "ant", namespace="big", extra={"kind": "xy"[n % 2]}) for n in range(9)])
    catch_up(several)
    query = [fr.Query("ant", namespace="big", filter={"kind": "x"}), fr.Query("ant", namespace="big", filter={"no": 1})]
    with answered_by(several, 1):
        assert_same_answers(one, several, query)
        catch_up(several)
        assert_same_answers(one, several, query)
    assert_all_follow(several)


def test_a_follower_learns_what_its_leader_learns() -> None:
    one, several = memories()
    before = [one.recency("team/a").windows(), one.search(asked(), strategy="recall").ids.tolist()]
    for engine in (one, several):
        engine.observe([f"r{number}" for number in range(180)], namespace="team/a", now=NOW)
        engine.resolved("Ant", "bee", namespace="team/a", times=200)
    for link in links_of(several):
        link.followers[0].work()
    for replica in (1, 2):
        with answered_by(several, replica) as ways:
            assert_same_answers(one, several, asked(windows="auto"))
            assert_same_answers(one, several, asked(), strategy="recall")
        # The second one is not told yet, so the leader answers in its place.
        assert ("leader" in ways) == (replica == 2)
    catch_up(several)
    with answered_by(several, 2) as ways:
        assert_same_answers(one, several, asked(windows="auto"))
    assert {*ways} == {"follower"}
    for link in links_of(several):
        lose(link)
    catch_up(several)
    with answered_by(several, 1) as ways:
        assert_same_answers(one, several, asked(windows="auto"))
    assert {*ways} == {"follower"}
    assert before[0] != one.recency("team/a").windows()


def test_a_replica_that_hangs_leaves_time_for_another(tmp_path: Path) -> None:
    oracle = Oracle("hangs")
    with dying(tmp_path / "memory", 1, replicas=2) as several:
        oracle.write_to(several, 0)
        catch_up(several)
        (link,) = links_of(several)
        link_of(several, 0).hanging = True
        for _ in range(3):
            assert oracle.differs(several, placed=False) is None
        assert link.lead.silent
        link_of(several, 0).hanging = False
        several.coordinator.recover()
        link.lead.silent = False
        follower_of(several, 0).hanging = True
        before = link.report()[1]["messages"]
        for _ in range(3):
            assert oracle.differs(several, placed=False) is None
        assert link.report()[1]["messages"] == before + 1
        follower_of(several, 0).hanging = False
        # A follower that did not answer in time is asked again once it has answered anything.
        assert link.followers[0].silent
        catch_up(several)
        assert not link.followers[0].silent
        assert_all_follow(several)


def test_reads_take_turns_and_go_where_fewer_are_under_way() -> None:
    several = sharded(1, replicas=3)
    several.add([turn(1)])
    catch_up(several)
    (link,) = links_of(several)
    for _ in range(9):
        several.search([fr.Query("ant", namespace="big")])
    assert [each["messages"] for each in link.report()] == [3, 3, 3]
    with link.changed:
        link.lead.under_way = 1
        link.followers[1].under_way = 2
    for _ in range(4):
        several.search([fr.Query("ant", namespace="big")])
    assert [each["messages"] for each in link.report()] == [3, 7, 3]
    abandoned = link.send("read", several.coordinator.view.at(link.number), read_sizes, False)
    del abandoned
    assert link.followers[0].under_way == 0


def test_every_verb_of_a_shard_is_known_to_replicas() -> None:
    verbs = {name for name, _ in inspect.getmembers(Shard, inspect.isfunction) if not name.startswith("_")}
    told = {"apply", "tag", "declare", "change", "tell", "learn"}
    known = [READS, OWN, told, {"as_of", "follow", "close"}]
    assert sorted(verbs) == sorted(name for some in known for name in some)


def test_an_approximate_search_is_the_leaders() -> None:
    for name, strategy in NAMED.items():
        item = Forward((), 1, strategy, SearchOptions())
        assert is_approximate(Ask(0, 0.0, (item,), 0)) == (name == "dense-hnsw")


def test_replicas_are_shown_and_checked(tmp_path: Path) -> None:
    for wrong in (0, -1, True, "two", 1.5):
        with pytest.raises(fr.errors.ParameterError, match=r"replicas must be 1 .* or more, not"):
            fr.ShardedEngine.open(tmp_path / "memory", shards=2, transport="local", replicas=wrong)  # type: ignore[arg-type]
    with fr.ShardedEngine.open(tmp_path / "memory", shards=2, transport="local", replicas=2) as several:
        several.add([turn(1)])
        wait_until_all_follow(several)
        for own in several.stats()["shards"]:
            assert [each["state"] for each in own["replicas"]] == ["leading", "following"]
            assert [each["lag"] for each in own["replicas"]] == [0, 0]
        assert len(several) == 1
    with fr.ShardedEngine.open(tmp_path / "memory", transport="local") as several:
        assert [own["replicas"] for own in several.stats()["shards"]] == [[], []]
        assert several.ids(namespace="big") is not None
