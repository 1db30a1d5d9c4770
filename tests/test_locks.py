"""The lock and the queue of writers: whoever waits longest is next; and a forked process searches, whatever ran."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.threads import until

import fanrank as fr
from fanrank.engine.locks import FairLock, Take, WriteQueue
from fanrank.engine.recall import graphs
from fanrank.engine.recall.graphs import Graphs
from fanrank.engine.recall.statements import Statements


def wait_until(waiting: FairLock | WriteQueue[int], count: int) -> None:
    until(lambda: (len(waiting) if isinstance(waiting, WriteQueue) else len(waiting._waiting)) >= count)


def test_the_thread_that_waits_longest_is_next() -> None:
    lock, order = FairLock(), list[int]()

    def take(number: int) -> None:
        with lock:
            order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    with lock:
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lock, number + 1)
        with lock:
            pass  # whoever holds it may take it again, before those that wait
        assert order == []
    for thread in threads:
        thread.join()
    assert order == [*range(8)]


def test_a_thread_that_waits_no_longer_holds_up_no_other() -> None:
    lock, taken = FairLock(), list[bool]()

    def give_up() -> None:
        taken.append(lock.acquire(time.monotonic()))

    with lock:
        late = threading.Thread(target=give_up)
        late.start()
        late.join()
        assert taken == [False]
    assert lock.acquire(time.monotonic())
    lock.release()


class Groups:
    """Carries out numbers in groups of up to `most`, and notes which it carried out together."""

    def __init__(self, most: int = 100) -> None:
        self.queue, self.lock = WriteQueue[int](), FairLock()
        self.most = most
        self.done: list[list[int]] = []
        self.failed: list[int] = []

    def lead(self, take: Take[int]) -> None:
        with self.lock:
            taken = take(lambda waiting: min(len(waiting), self.most))
            if min(taken) < 0:
                raise KeyboardInterrupt
            self.done.append(taken)

    def run(self, number: int) -> None:
        try:
            assert self.queue.carry_out(number, self.lead)
        except KeyboardInterrupt:
            self.failed.append(number)

    def wait(self, *numbers: int) -> None:
        """Let threads wait with these numbers, in this order, then go."""
        threads = [threading.Thread(target=self.run, args=(number,)) for number in numbers]
        with self.lock:
            for place, thread in enumerate(threads):
                thread.start()
                wait_until(self.queue, place + 1)
        for thread in threads:
            thread.join()
        assert len(self.queue) == 0


@pytest.mark.parametrize("most", [1, 3, 100])
def test_what_waits_is_carried_out_together_in_its_order(most: int) -> None:
    groups = Groups(most)
    groups.wait(*range(7))
    assert groups.done == [[*range(7)][first : first + most] for first in range(0, 7, most)]


def test_an_interrupt_of_the_first_thread_holds_up_none_that_it_has_not_taken() -> None:
    groups = Groups(2)
    groups.wait(-1, 0, 1, 2)
    assert groups.failed == [-1]
    assert groups.done == [[1, 2]]


def test_lines_do_not_wait_for_each_other() -> None:
    queue, done = WriteQueue[str](), list[list[str]]()

    def lead_inside(take: Take[str]) -> None:
        done.append(take(len))

    def lead(take: Take[str]) -> None:
        assert queue.carry_out("b", lead_inside, "other")
        done.append(take(len))

    assert queue.carry_out("a", lead, "one")
    assert done == [["b"], ["a"]]


def test_who_waits_until_its_time_is_up_is_not_carried_out() -> None:
    groups, found = Groups(), list[bool]()

    def give_up() -> None:
        found.append(groups.queue.carry_out(1, groups.lead, until=time.monotonic()))

    first, late = threading.Thread(target=groups.run, args=(0,)), threading.Thread(target=give_up)
    with groups.lock:
        first.start()
        wait_until(groups.queue, 1)
        late.start()
        late.join()
    first.join()
    assert found == [False]
    assert groups.done == [[0]]


# In a process of its own, as pytest may have threads. A child ends with 0 if it finds what its parent finds.
PROGRAM = """
import os, signal, sys, threading
import fanrank as fr

words = [f"w{number}" for number in range(40)]
engine = fr.Engine.from_records([fr.Record(str(n), " ".join(words[n % 40 :][: n % 7])) for n in range(1500)])
wanted = engine.search(words, threads=2).ids.tolist()
stop = threading.Event()

def search():
    while not stop.is_set():
        assert engine.search(words, threads=2).ids.tolist() == wanted

def write():
    number = 0
    while not stop.is_set():
        engine.upsert([fr.Record("other", f"x{number} y{number}")])
        engine.search([f"x{number}"])
        number += 1

threads = [threading.Thread(target=search), threading.Thread(target=search), threading.Thread(target=write)]
for thread in threads:
    thread.start()
failed = 0
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            same = all(engine.search(words, threads=2).ids.tolist() == wanted for _ in range(3))
            os._exit(0 if same and engine.search(["nothing", "x1"]) is not None else 3)
        except BaseException:
            os._exit(4)
    failed += os.waitpid(child, 0)[1] != 0
stop.set()
for thread in threads:
    thread.join()
sys.exit(failed)
"""


# An encoder may fork, as one does that starts a pool of processes.
ENCODES = """
import os, sys
import numpy as np
import fanrank as fr
from fanrank.engine.feedback.anchors import Anchors

class Forking:
    name, version, dimension, encodes = "forking", "1", 8, True
    def documents(self, texts, **_):
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        return np.ones((len(texts), 8), np.float32)
    queries = documents

anchors = Anchors(Forking())
assert anchors(["Tea is hot. Very.", "", "Tea is hot. Not."]).any(axis=1).tolist() == [True, False, True]
assert anchors(["Tea is hot."]).any()
"""

# A child has none of the threads that its parent's awaited writes made.
WRITES = """
import asyncio, os, signal, sys
import fanrank as fr

engine = fr.Engine.from_records([fr.Record("a", "tea")])

async def write(name):
    await engine.aadd([fr.Record(name, "tea")])
    await engine.aupdate([fr.Record(name, "key")])
    await engine.aupsert([fr.Record(name, "sun")])
    await engine.adelete([name])

asyncio.run(write("b"))
child = os.fork()
if child == 0:
    signal.alarm(60)
    asyncio.run(write("c"))
    engine.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
asyncio.run(write("d"))
engine.close()
"""


# The parent holds each lock of a directory's engine while it forks, as its other threads may.
STORED = """
import os, signal, tempfile
import fanrank as fr

with tempfile.TemporaryDirectory() as folder:
    engine = fr.Engine.open(folder + "/memory")
    engine.add([fr.Record("a", "tea")])
    memory = engine.index.memory
    wanted = engine.search(["tea"]).ids.tolist()
    with memory._writing, memory.store._reading, memory.store._writing:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            assert engine.search(["tea"]).ids.tolist() == wanted
            for verb in (
                lambda: engine.search(["tea"], texts=True),
                lambda: engine.get("a"),
                lambda: engine.fetch(["a"]),
                lambda: list(engine.records()),
                lambda: engine.add([fr.Record("b", "tea")]),
                lambda: engine.delete(["a"]),
                lambda: engine.drop(""),
                lambda: engine.verify(),
                lambda: engine.backup(folder + "/copy"),
            ):
                try:
                    verb()
                except fr.errors.StorageError as error:
                    assert "forked" in str(error), error
                else:
                    os._exit(3)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert engine.get("a").text == "tea"
    engine.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.parametrize("program", [ENCODES, WRITES, STORED], ids=["encodes", "writes", "stored"])
def test_a_fork_leaves_nobody_waiting(program: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", program]
    environment = {**os.environ, "FANRANK_BACKEND": "numpy"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_no_short_lock_is_made_under_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # A fork that began meanwhile would hold the lock of those that make locks, and wait for the other.
    engine = fr.Engine.from_records([fr.Record("a", "tea", entities={"Tea": "tea"})])
    made, held = Graphs(), []
    monkeypatch.setattr(graphs, "Statements", lambda: held.append(made._lock.locked()) or Statements())
    state = engine.index.memory.state
    made.entities(state, state.snapshot(""))
    assert held == [False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_child_searches_whatever_its_parent_was_doing(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path), "3"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, (done.returncode, signal.SIGALRM, done.stderr)
