"""The lock of writers: whoever waits longest is next."""

from __future__ import annotations

import threading
import time

from fanrank.engine.locks import FairLock

PATIENCE = 120.0


def wait_until(waiting: FairLock, count: int) -> None:
    end = time.monotonic() + PATIENCE
    while len(waiting._waiting) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


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
