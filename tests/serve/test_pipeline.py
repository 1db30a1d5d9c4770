"""Batches in a stream: the loop's answers, the state that each batch sees, back-pressure, errors and ends."""

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.answers import assert_same

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.serve import stream as pipeline

WORDS = ["a1", "b2", "c3", "d4", "e5", "f6"]
PATHS = ("numpy", "native", "cuda-host", *(pytest.param(name, marks=pytest.mark.gpu) for name in backend.DEVICES))


def needs(name: str) -> None:
    status = next(status for status in backend.statuses() if status.name == name)
    if not status.usable:
        pytest.skip(status.reason)


def engine_of(name: str, seed: int, count: int = 200) -> fr.Engine:
    needs(name)
    rng = random.Random(seed)
    engine = fr.Engine(analyzer="minimal", backend=name)
    for start in range(0, count, 50):
        engine.add(
            fr.Record(f"r{n}", " ".join(rng.choices(WORDS, k=rng.randrange(1, 6))), time=float(n), session=f"s{n % 3}")
            for n in range(start, start + 50)
        )
    engine.delete([f"r{n}" for n in range(0, count, 9)])
    return engine


def some_query(rng: random.Random) -> str | fr.Query:
    text = " ".join(rng.choices([*WORDS, "unknown"], k=rng.randrange(4)))
    return rng.choice(
        [
            text,
            fr.Query(text, k=rng.randrange(1, 30)),
            fr.Query(text, filter={"session": "s1"}),
            fr.Query(text, half_life=30.0, now=250.0),
            fr.Query(text, since=50.0, statistics="filtered", filter={"session": "s2"}),
        ]
    )


def stream_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fanrank-stream")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not stream_threads()


@pytest.mark.parametrize("name", PATHS)
def test_a_stream_gives_what_a_loop_gives(name: str) -> None:
    engine = engine_of(name, 1)
    rng = random.Random(1)
    batches = [[some_query(rng) for _ in range(rng.choice([0, 1, 3, 20, 40]))] for _ in range(7)]
    # Fan-outs, whose buffers are used again, with more of them on their way than there are buffers.
    batches += [[" ".join(rng.choices(WORDS, k=3)) for _ in range(4)] for _ in range(12)]
    wanted = [engine.search(batch, 5) for batch in batches]
    for options in ({}, {"ahead": 0}, {"ahead": 1}, {"ahead": 6, "threads": 4}, {"execution": "pruned"}):
        found = list(engine.search_stream(batches, 5, **options))  # type: ignore[arg-type]
        assert len(found) == len(wanted)
        for own, other in zip(found, wanted, strict=True):
            assert_same(own, other)
    assert wanted[1].counts.shape == (len(batches[1]),)


class Steps:
    """What `in_order` did, by one thread and by others."""

    def __init__(self, failing: dict[int, str]) -> None:
        self.failing = failing
        self.read = 0
        self.begun: list[int] = []
        self.readers: set[int] = set()

    def source(self, count: int) -> Iterator[int]:
        for item in range(count):
            self.readers.add(threading.get_ident())
            self.read += 1
            if self.failing.get(item) == "source":
                raise ArithmeticError(item)
            yield item

    def begin(self, item: int) -> Callable[[], int]:
        self.begun.append(item)
        if self.failing.get(item) == "begin":
            raise LookupError(item)

        def finish() -> int:
            if self.failing.get(item) == "finish":
                raise ValueError(item)
            return item

        return finish


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    count=st.integers(0, 9),
    ahead=st.integers(0, 4),
    workers=st.integers(1, 3),
    failing=st.dictionaries(st.integers(0, 8), st.sampled_from(["source", "begin", "finish"]), max_size=2),
    taken=st.integers(0, 10),
)
def test_order_back_pressure_errors_and_ends(
    count: int, ahead: int, workers: int, failing: dict[int, str], taken: int
) -> None:
    steps = Steps(failing)
    answers = pipeline.run_in_order(steps.source(count), steps.begin, ahead=ahead, workers=workers)
    first = min((item for item in failing if item < count), default=None)
    assert steps.read == 0
    for wanted in range(taken):
        if wanted == first:
            kind = {"source": ArithmeticError, "begin": LookupError, "finish": ValueError}[failing[wanted]]
            with pytest.raises(kind):
                next(answers)
            break
        if wanted >= count:
            break
        assert next(answers) == wanted
        assert wanted + 1 <= steps.read <= wanted + 1 + ahead
    else:
        answers.close()  # type: ignore[attr-defined]
    assert list(answers) == []
    assert not stream_threads()
    # Only the caller reads, in order, and nothing after what failed to be read or begun.
    assert steps.readers <= {threading.get_ident()}
    assert steps.begun == list(range(len(steps.begun)))
    early = [item for item, where in failing.items() if item < count and where != "finish"]
    assert steps.read <= min([*early, count]) + 1


def test_each_batch_sees_what_was_written_before_it_was_read() -> None:
    engine = fr.Engine(analyzer="minimal", backend="numpy")
    wanted = []

    def source() -> Iterator[list[str]]:
        for number in range(8):
            engine.add([fr.Record(f"r{number}", f"tea {WORDS[number % 6]}")])
            batch = ["tea", WORDS[number % 6]]
            wanted.append(engine.search(batch, 20))
            yield batch

    for number, hits in enumerate(engine.search_stream(source(), 20, ahead=3, threads=2)):
        assert hits.counts[0] == number + 1
        assert_same(hits, wanted[number])


def test_errors_come_in_their_turn_and_end_the_stream() -> None:
    engine = engine_of("numpy", 1)
    batches: list[Any] = [["a1"], 5, ["b2"]]
    found = engine.search_stream(batches, 3)
    assert_same(next(found), engine.search(["a1"], 3))
    with pytest.raises(fr.errors.QueryError, match="takes queries"):
        next(found)
    assert list(found) == []
    assert engine.health().failure_count == {"QueryError": 1}


def test_arguments_are_checked_before_anything_is_read() -> None:
    engine = engine_of("numpy", 1, 50)
    with pytest.raises(fr.errors.QueryError, match="an iterable of lists"):
        engine.search_stream("tea")
    for options in ({"ahead": -1}, {"ahead": True}, {"ahead": 65}, {"threads": 0}, {"execution": "x"}, {"k": -1}):
        with pytest.raises(fr.FanrankError):
            engine.search_stream([["a1"]], **options)  # type: ignore[arg-type]


def test_an_abandoned_stream_leaves_no_thread() -> None:
    engine = engine_of("numpy", 1)
    found = engine.search_stream((["a1"] for _ in range(100)), 3)
    next(found)
    assert stream_threads()
    del found
    assert not stream_threads()
