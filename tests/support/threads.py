"""Tasks side by side."""

import os
import threading
import time
from collections.abc import Callable

PATIENCE = 20.0 if os.environ.get("FANRANK_MUTANTS") else 300.0
"""Seconds after which a thread that should have ended counts as stuck; it may be that of a planted fault."""


def until(holds: Callable[[], object]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def in_threads(*tasks: Callable[[], object]) -> None:
    """Run the tasks side by side; the first failure of any is raised here."""
    failures: list[BaseException] = []

    def guarded(task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]
