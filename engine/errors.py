"""The errors that fanrank raises.

Every error that a caller can cause derives from `FanrankError`, and also from the built-in class that a Python user
would catch (`ValueError`, `OSError`, `ImportError`). The message says what was wrong, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any


class FanrankError(Exception):
    """Base of every error that fanrank raises on purpose."""

    imported: Any = None
    """What an import had done when the error stopped it."""


class ParameterError(FanrankError, ValueError):
    """A parameter of the engine or of a call is out of range or of the wrong type."""


# Sources: B004.
class ModelMismatchError(ParameterError):
    """The vectors come from another embedding model than the one that the records were written with."""


class RecordError(FanrankError, ValueError):
    """A record is not accepted: a field is missing or has the wrong type, or a line is not JSON.

    `where` names the position (``records.jsonl:51234`` or ``record 17``). `record_id` is the id, where it is known.
    """

    def __init__(self, message: str, *, where: str | None = None, record_id: str | None = None) -> None:
        self.message = message
        self.where = where
        self.record_id = record_id
        known = (where, None if record_id is None else f"id {record_id!r}")
        location = ", ".join(text for text in known if text)
        super().__init__(f"{location}: {message}" if location else message)

    def at(self, where: str) -> RecordError:
        """The same error with this position, unless it names one already."""
        return self if self.where else type(self)(self.message, where=where, record_id=self.record_id)


class DuplicateIdError(RecordError):
    """A record's id is already live in its namespace, or occurs twice in one batch."""


class QuotaError(RecordError):
    """A write would hold more records, or more bytes of them, than its key or its namespace may on this server."""


class UnknownIdError(FanrankError, LookupError):
    """No live record of the namespace has this id."""


class QueryError(FanrankError, ValueError):
    """A query cannot be run: a wrong type, a negative k, or a filter on an unknown column."""


class UnknownColumnError(QueryError):
    """A filter or a `distinct` names columns that are none. `columns` are their names, `known` those that there are."""

    def __init__(
        self, problem: str, columns: tuple[str, ...] = (), known: Iterable[str] = (), advice: str = ""
    ) -> None:
        self.columns, self.known, self.advice = columns, tuple(known), advice
        self._rest = f"{choices(columns[0], self.known)}. {advice}" if self.known else ""
        super().__init__(f"{problem}{self._rest}")

    @property
    def problem(self) -> str:
        """The message without what there is and what to do."""
        return str(self).removesuffix(self._rest)

    def __reduce__(self) -> tuple[type[UnknownColumnError], tuple[object, ...]]:
        # The default would call the class with the message alone.
        return type(self), (self.problem, self.columns, self.known, self.advice)


class NotBroughtError(FanrankError, AttributeError):
    """A hit is asked for a text, a record or a payload that its search did not bring; the message names the keyword."""


class NotSupportedError(FanrankError, AttributeError):
    """A memory of this kind does not have the verb; `Memory.lacking` of its class lists all that it does not have."""


class OverloadedError(FanrankError, RuntimeError):
    """A coalescer's queue of waiting queries is full, and the caller asked not to wait for room."""


class DeadlineError(FanrankError, TimeoutError):
    """A coalesced search was not answered within its `deadline`. Queries that had not begun are not run."""


class ServerError(FanrankError, RuntimeError):
    """A server refused a request for a reason that no other class names, such as one of its limits.

    `code` is the server's name for it (``TooManyQueries``), `status` the HTTP status, `field` the place in the request.
    """

    def __init__(self, message: str, *, code: str = "", status: int = 0, field: str | None = None) -> None:
        super().__init__(message)
        self.code, self.status, self.field = code, status, field


class KeyRefusedError(ServerError):
    """The server asks for a key, or the key does not reach what was asked for."""


class UnreachableError(FanrankError, ConnectionError):
    """The server does not answer, or the connection broke. Whether a write was done is then not known."""


class ShardError(FanrankError, RuntimeError):
    """A shard does not answer, or a sharded memory cannot do what it was asked; the message names the shard."""


class SplitNamespaceError(ShardError, QueryError):
    """A strategy reads a namespace as one that is split over shards, and too large for a whole copy."""


class ShardVersionError(ShardError):
    """The cluster runs another version of Ray or of fanrank than this process."""


class EncoderError(FanrankError, ValueError):
    """A model cannot be loaded, cannot encode, or did not return one vector for each text."""


class DatasetError(FanrankError, ValueError):
    """An evaluation dataset is missing a file or does not have the upstream layout."""


class AnswerError(FanrankError, RuntimeError):
    """A question cannot be answered or judged: a model's server does not serve, or an answerer or judge misbehaves."""


class BackendUnavailableError(FanrankError, RuntimeError):
    """The requested backend cannot serve on this machine; the message says why."""


class DeviceMemoryError(FanrankError, MemoryError):
    """The index or the batch does not fit into the device's memory, or into the limit set by `max_device_bytes`."""


class MissingExtraError(FanrankError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed; run: pip install 'fanrank[{extra}]'")
        self.what = what
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        # The default would call the class with the message alone.
        return type(self), (self.what, self.extra)


class StorageError(FanrankError, OSError):
    """A file or directory cannot be read or written."""


class CacheError(StorageError):
    """A cache of embeddings cannot be used: wrong kind of file, newer format, damaged file, or failing disk."""


class PolicyFileError(StorageError):
    """A policy file cannot be used: wrong kind of file, newer format, damaged file, or failing disk."""


class IndexFileError(StorageError):
    """A saved index cannot be used. The subclasses say why."""


class ForeignIndexError(IndexFileError):
    """The directory is not a fanrank index."""


class NewerFormatError(IndexFileError):
    """The index was written by a newer fanrank, in a format that this one does not know."""


class DamagedIndexError(IndexFileError):
    """A file of the index is missing, truncated or altered."""


class DamagedStoreError(IndexFileError):
    """The records of an engine directory are damaged. An index can be rebuilt, records cannot: restore a copy."""


class StoreLockedError(StorageError):
    """Another writer has the engine directory open; the message names its process."""


class StaleIndexError(StorageError):
    """The store cannot say what changed since an index was saved. Rebuild the index from all records (internal)."""


class RecencyWarning(UserWarning):
    """The weight of recency is so high that it measurably harms the ranking."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known one that is nearest, or nothing where none is near."""
    from difflib import get_close_matches  # only a mistake needs it

    close = get_close_matches(str(name), list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def choices(name: object, known: Iterable[str], others: Iterable[str] = ()) -> str:
    """The end of a message about an unknown name: the known one that is nearest, and all that there are.

    `others` may be nearest too, and are not listed.
    """
    names = list(known)
    hint = did_you_mean(name, [*names, *others])
    return f"{hint or ';'} {'There' if hint else 'there'} are: {', '.join(names) or 'none'}"


def refuse_unknown(
    given: Iterable[object], known: Collection[str], problem: str, error: type[Exception] = ParameterError
) -> None:
    """Raise `error` for the first name that is not known. `problem` begins the message, as in ``a router has no``."""
    for name in given:
        if name not in known:
            raise error(f"{problem} {name!r}{choices(name, known)}")


_OTHERS = {"limit": "k", "top_k": "k", "n_results": "k", "where": "filter", "query_filter": "filter"}
"""Words of other libraries, and ours."""


def check_names(given: Iterable[str], known: Collection[str], shown: Collection[str], verb: str) -> None:
    """Raise `TypeError` for the first keyword that is not known; the nearest of `shown` may be meant."""
    for name in given:
        if name not in known:
            other = _OTHERS.get(name)
            hint = did_you_mean(other if other in shown else name, shown)
            raise TypeError(f"{verb}() got an unexpected keyword argument {name!r}{hint}")
