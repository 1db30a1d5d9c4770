"""The server's log: a line for each request, as JSON or as text, and the errors of the library and of its packages.

Lines hold no text of a query or a record. An error's message may quote one, so of an error whose message is not the
server's own the class and the places in the code are shown. ``--log-texts`` shows all.

Lines are written by a thread. A pipe that nobody reads would stop the event loop, and with it every request; here lines
are left out and counted.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol

from ..engine.errors import ParameterError, StorageError
from .seen import SEEN, Seen

FORMS = ("text", "json", "none")
MOST_LINES = 10_000
"""Lines that wait to be written. Further ones are left out."""
AT_ONCE = 256
"""Lines that are written together."""
PAUSE = 0.05
"""Seconds for which lines are gathered."""
CLOSING = 2.0
"""Seconds in which the lines that wait are written when the server ends."""
LEVELS = {
    "fanrank": logging.WARNING,
    "fanrank.server": logging.INFO,
    "uvicorn": logging.ERROR,
    "uvicorn.error": logging.ERROR,
}
"""Loggers whose messages hold no text, and from which level on they are logged."""
FOREIGN = {"asyncio": logging.ERROR, "mcp": logging.ERROR, "starlette": logging.ERROR}
"""Loggers of which the place alone is logged: their messages may quote a text."""

Line = dict[str, Any]
_encode = json.JSONEncoder().encode


class Stream(Protocol):
    """Where lines go."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> None: ...


class Log:
    """Writes lines in a thread of its own, from the first line on until it is closed.

    `form` is ``text``, ``json``, or ``none`` for a log without lines. With `texts`, lines hold the texts of queries and
    the messages of all errors.
    """

    def __init__(self, form: str = "text", *, texts: bool = False, stream: Stream | None = None) -> None:
        if form not in FORMS:
            raise ParameterError(f"a log is one of {', '.join(FORMS)}, not {form!r}")
        self.texts, self.silent, self.dropped = texts, form == "none", 0
        self._write = write_json if form == "json" else write_text
        self._stream: Stream = sys.stderr if stream is None else stream
        self._lines: deque[str] = deque()
        self._wanted, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="fanrank-log", daemon=True)
        self._thread.start()

    def put(self, line: Line) -> None:
        """Take a line to be written soon. Never blocks; the line is left out where too many wait."""
        if not self.silent:
            self._put(self._write(line))

    def put_request(self, seen: Seen, method: str, status: str, now: float) -> None:
        """Take the line of a request that ended at `now`, a time of `time.perf_counter`."""
        line: Line = {
            "time": time.time(),
            "level": "info",
            "request": seen.id,
            "method": method,
            "route": seen.route,
            "status": int(status) if status.isdecimal() else None,
            "milliseconds": round((now - seen.began) * 1e3, 3),
        }
        if seen.strategy is not None:
            line |= {"queries": seen.queries, "hits": seen.hits, "strategy": seen.strategy}
        if seen.records is not None:
            line["records"] = seen.records
        if seen.key:
            line["key"] = seen.key
        if seen.problem is not None:
            line["problem"] = seen.problem
        if self.texts and seen.texts:
            line["texts"] = seen.texts
        self.put(line)

    def close(self) -> None:
        """Write what waits, for `CLOSING` seconds at most."""
        self._closing.set()
        self._wanted.set()
        self._thread.join(CLOSING)

    def _put(self, line: str) -> None:
        if len(self._lines) >= MOST_LINES:
            self.dropped += 1
            return
        self._lines.append(line)
        if not self._wanted.is_set():
            self._wanted.set()

    def _run(self) -> None:
        while not self._closing.is_set() or self._lines:
            self._wanted.wait()
            # Lines of a busy moment are written together: each time that this thread wakes, it takes turns with the
            # event loop.
            self._closing.wait(PAUSE)
            self._wanted.clear()
            while self._lines:
                part = [self._lines.popleft() for _ in range(min(AT_ONCE, len(self._lines)))]
                try:
                    self._stream.write("\n".join([*part, ""]))
                    self._stream.flush()
                except (OSError, ValueError):  # the stream is closed
                    self.dropped += len(part)


def write_json(line: Line) -> str:
    """A line as a JSON object."""
    return _encode({**line, "time": moment_of(line["time"])})


def write_text(line: Line) -> str:
    """A line to be read by a person. Values that hold a space, a quote or a control character are written as JSON."""
    rest = dict(line)
    words = [moment_of(rest.pop("time")), rest.pop("level").upper()]
    if "method" in rest:
        words += [rest.pop("method"), rest.pop("route") or "-", str(rest.pop("status") or "-")]
        words.append(f"{rest.pop('milliseconds'):.3f} ms")
    if "message" in rest:
        words.append(_plain(rest.pop("message")))
    frames = rest.pop("frames", [])
    words += [f"{name}={_word(value)}" for name, value in rest.items() if value is not None]
    return "\n    ".join([" ".join(words), *map(_plain, frames)])


def _plain(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if text.isprintable() and not {" ", '"', "="} & set(text) else json.dumps(value)


@lru_cache(maxsize=2)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def moment_of(seconds: float) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    thousandths = int(seconds * 1e3)
    return f"{_second(thousandths // 1_000)}.{thousandths % 1_000:03d}Z"


class _Handler(logging.Handler):
    """Brings the records of Python's loggers into the log."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        line: Line = {"time": record.created, "level": record.levelname.lower(), "logger": record.name}
        if self.log.texts or record.name.split(".")[0] not in FOREIGN:
            line["message"] = record.getMessage()
        else:
            line["place"] = f"{record.module}:{record.lineno}"
        seen = SEEN.get()
        if seen is not None:
            line["request"] = seen.id
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line |= describe_error(error, self.log.texts)
        self.log.put(line)


def describe_error(error: BaseException, texts: bool = False) -> Line:
    """An error for the log: its class, the places that it came through, and its message where it quotes no text.

    A `StorageError` and an `OSError` name files and what the system said. Other messages are there with `texts`.
    """
    line: Line = {"error": type(error).__name__}
    if texts or isinstance(error, StorageError | OSError):
        line["reason"] = str(error)
    frames = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        inner = describe_error(cause, texts)
        reason = f": {inner['reason']}" if "reason" in inner else ""
        frames += [f"from {inner['error']}{reason}", *inner["frames"]]
    return {**line, "frames": frames}


@contextmanager
def logging_to(log: Log) -> Iterator[Log]:
    """Bring what the server, the library and its packages log into `log` until the block ends, which closes it."""
    handler = _Handler(log)
    before = [(logger, logger.level, logger.propagate) for logger in map(logging.getLogger, [*LEVELS, *FOREIGN])]
    for (logger, _, _), level in zip(before, [*LEVELS.values(), *FOREIGN.values()], strict=True):
        logger.setLevel(level)
        if "." not in logger.name:
            logger.addHandler(handler)
            logger.propagate = False
    try:
        yield log
    finally:
        for logger, level, propagates in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagates
        log.close()
