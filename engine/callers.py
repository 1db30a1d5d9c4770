"""What a verb asks and tells its caller while it works. A server sets both for the thread that works for a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar

Wanted = Callable[[], None]
Chosen = Callable[[Iterable[str]], None]

WANTED: ContextVar[Wanted] = ContextVar("fanrank_wanted", default=lambda: None)
"""A verb that takes long calls this between its steps. It raises where nobody waits for the work any more."""
CHOSEN: ContextVar[Chosen] = ContextVar("fanrank_chosen", default=lambda ids: None)
"""A verb that chose itself which records it changes calls this with their ids, once they are changed."""
