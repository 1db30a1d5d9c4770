"""What can go wrong, named.

Every error a caller can cause derives from `FanrankError` and also from the built-in class a Python user would
catch (`ValueError`, `OSError`, `ImportError`). The message says what was wrong, where, and what to do.
"""

from __future__ import annotations


class FanrankError(Exception):
    """Base of every error that fanrank raises on purpose."""


class ParameterError(FanrankError, ValueError):
    """A parameter of the engine or of a call is out of range or of the wrong type."""


# Sources: B004.
class ModelMismatchError(ParameterError):
    """Vectors of another embedding model than the one that the records were written with."""


class RecordError(FanrankError, ValueError):
    """A record cannot be taken: a missing or mistyped field, or a line that is not JSON.

    `where` names the place (``records.jsonl:51234`` or ``record 17``); `record_id` is the id when it is known.
    """

    def __init__(self, message: str, *, where: str | None = None, record_id: str | None = None) -> None:
        self.message = message
        self.where = where
        self.record_id = record_id
        place = ", ".join(part for part in (where, None if record_id is None else f"id {record_id!r}") if part)
        super().__init__(f"{place}: {message}" if place else message)

    def at(self, where: str) -> RecordError:
        """The same error with its place, unless it has one."""
        return self if self.where else type(self)(self.message, where=where, record_id=self.record_id)


class DuplicateIdError(RecordError):
    """A record's id is already live in its namespace, or stands twice in one batch."""


class UnknownIdError(FanrankError, LookupError):
    """No live record of the namespace has this id."""


class QueryError(FanrankError, ValueError):
    """A query cannot be run: a wrong type, a negative k, or a filter on an unknown column."""


class OverloadedError(FanrankError, RuntimeError):
    """A coalescer has as many queries waiting as it may, and the caller asked not to wait for room."""


class DeadlineError(FanrankError, TimeoutError):
    """A coalesced search was not answered within its `deadline`; queries that had not begun are not run."""


class EncoderError(FanrankError, ValueError):
    """A model cannot be loaded, cannot encode, or answered with something other than one vector a text."""


class DatasetError(FanrankError, ValueError):
    """An evaluation dataset is missing a file or does not have the upstream layout."""


class BackendUnavailableError(FanrankError, RuntimeError):
    """The requested backend cannot serve on this machine; the message says why."""


class DeviceMemoryError(FanrankError, MemoryError):
    """The index or the batch does not fit the device, or the bound set by `max_device_bytes`."""


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
    """A cache of embeddings cannot be used: another kind of file, a newer format, damage, or a disk that fails."""


class PolicyFileError(StorageError):
    """A policy file cannot be used: another kind of file, a newer format, damage, or a disk that fails."""


class IndexFileError(StorageError):
    """A saved index cannot be used. The subclasses say why."""


class ForeignIndexError(IndexFileError):
    """The directory is not a fanrank index."""


class NewerFormatError(IndexFileError):
    """The index was written by a newer fanrank, in a format that this one does not know."""


class DamagedIndexError(IndexFileError):
    """A file of the index is missing, truncated or altered."""


class DamagedStoreError(IndexFileError):
    """The records of an engine directory are damaged. Unlike an index they cannot be rebuilt: restore a copy."""


class StoreLockedError(StorageError):
    """Another writer has the engine directory open; the message names its process."""


class StaleIndexError(StorageError):
    """The store cannot say what changed since the state that an index covers; build it from all records (internal)."""
