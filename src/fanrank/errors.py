"""The errors that calls raise, and their warnings. All errors are subclasses of `fanrank.FanrankError`."""

from . import _public
from .engine.errors import (
    BackendUnavailableError,
    CacheError,
    DamagedIndexError,
    DamagedStoreError,
    DatasetError,
    DeadlineError,
    DeviceMemoryError,
    DuplicateIdError,
    EncoderError,
    ForeignIndexError,
    IndexFileError,
    MissingExtraError,
    ModelMismatchError,
    NewerFormatError,
    NotBroughtError,
    OverloadedError,
    ParameterError,
    PolicyFileError,
    QueryError,
    RecordError,
    StorageError,
    StoreLockedError,
    UnknownIdError,
)
from .engine.fuse.agent_rrf import RecencyWarning

__all__ = [
    "BackendUnavailableError",
    "CacheError",
    "DamagedIndexError",
    "DamagedStoreError",
    "DatasetError",
    "DeadlineError",
    "DeviceMemoryError",
    "DuplicateIdError",
    "EncoderError",
    "ForeignIndexError",
    "IndexFileError",
    "MissingExtraError",
    "ModelMismatchError",
    "NewerFormatError",
    "NotBroughtError",
    "OverloadedError",
    "ParameterError",
    "PolicyFileError",
    "QueryError",
    "RecencyWarning",
    "RecordError",
    "StorageError",
    "StoreLockedError",
    "UnknownIdError",
]

_public.publish(__name__)
