"""Runs one function on a thread of its own while the caller goes on (SPEC A005, A053)."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """``with Beside(function) as other:`` runs `function` while the block runs; after it `other.result` is there.

    The block ends when both have ended, so no thread is left behind by an error or by Ctrl-C. If both raise, the error
    of the block is the one that counts, so which error is raised depends on nothing but the two.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._error: BaseException | None = None
        # What the caller set for its own context, such as how numpy treats a division by 0, holds on the thread too.
        run = contextvars.copy_context().run
        # A daemon: a second Ctrl-C, while the first one waits for the thread, ends the program at once.
        self._thread = threading.Thread(target=run, args=(self._run,), name="fanrank-beside", daemon=True)

    def _run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Beside[T]:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error
