"""The lock and the queue of writers: whoever waits longest is next, and what waits is carried out together."""

from __future__ import annotations

import threading
import time

import pytest
from support.threads import until

from fanrank.engine.locks import FairLock, Take, WriteQueue


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
