"""The journal: a JSON line for each write and each change of a key, in the file before the write is answered."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ..engine.callers import CHOSEN
from ..engine.errors import StorageError
from ..engine.records.record import Record
from .logs import moment_of
from .problems import Problem, as_problem
from .seen import SEEN, Journaled, Seen

logger = logging.getLogger("fanrank.server")


class Journal:
    """A file to which lines are added. With `texts` they hold what was written, too. Raises `StorageError`."""

    def __init__(self, file: str | os.PathLike[str], *, texts: bool = False) -> None:
        self.file, self.texts = os.fspath(file), texts
        try:
            self._handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise StorageError(f"{self.file}: cannot be written: {error.strerror or error}") from None

    def put(self, line: dict[str, Any]) -> None:
        """Add a line. The system has it when this returns, so it outlives this process. Raises `Problem`."""
        content = json.dumps({"time": moment_of(time.time()), **line}).encode() + b"\n"
        try:
            while content:
                content = content[os.write(self._handle, content) :]
        except OSError as error:
            logger.error("the journal %s cannot be written: %s", self.file, error.strerror or error)
            detail = "the journal cannot be written; whether the write was made is not in it"
            raise Problem(503, "JournalFailed", detail) from None

    def close(self) -> None:
        os.close(self._handle)


def journaled(
    operation: str,
    namespaces: Iterable[str | None] = (),
    *,
    ids: Iterable[str] = (),
    written: Iterable[Record] = (),
    **said: Any,
) -> AbstractContextManager[dict[str, Any]]:
    """Put a line about the write that is made in the block, which may add to it. It says the error of one that failed.

    `written` are its records, or `ids` name them; where a verb of the engine chooses them itself, it tells their ids.
    What was `said` beside them is in the line where texts are.
    """
    seen = SEEN.get()
    if seen is None or seen.journal is None:
        return nullcontext({})
    return _told(seen, seen.journal, operation, namespaces, ids, written, said)


@contextmanager
def _told(
    seen: Seen,
    journal: Journaled,
    operation: str,
    namespaces: Iterable[str | None],
    ids: Iterable[str],
    written: Iterable[Record],
    said: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    records = list(written)
    names = [record.id for record in records] or list(ids)
    spaces = {record.namespace for record in records} | set(namespaces)
    line: dict[str, Any] = {"request": seen.id, "key": seen.key, "operation": operation}
    if spaces:
        line["namespaces"] = sorted(name for name in spaces if name is not None) if None not in spaces else None
    if names:
        line["ids"] = names
    if journal.texts:
        line |= {name: value for name, value in said.items() if value is not None}
        line |= {"texts": [record.text for record in records]} if records else {}
    chosen = CHOSEN.set(lambda ids: line.update(ids=[*ids]))
    try:
        yield line
    except Exception as error:
        line["error"] = as_problem(error).code if isinstance(error, Problem) else type(error).__name__
        raise
    except BaseException:
        line["error"] = "unknown: nobody waited for it"
        raise
    finally:
        CHOSEN.reset(chosen)
        journal.put(line)
