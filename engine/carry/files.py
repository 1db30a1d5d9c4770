"""The files of an export: their formats, and how they are opened, written beside and renamed."""

from __future__ import annotations

import gzip
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from ..errors import FanrankError, ParameterError, StorageError
from ..storage.failpoints import reach

FORMATS = ("jsonl", "parquet")
"""What records are exported to and imported from: JSON lines, and Parquet."""
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
_ZIPPED = ".gz"

AnyFile = str | os.PathLike[str] | IO[bytes]
"""A path, or a binary file that is open."""


def format_of(file: AnyFile, format: str | None) -> str:
    """The format that was asked for, or that of the path's suffix; JSON lines for an open file. Raises
    `ParameterError`.
    """
    if format is not None:
        if format not in FORMATS:
            raise ParameterError(f"unknown format {format!r}; there are: {', '.join(FORMATS)}")
        chosen: str | None = format
    elif is_path(file):
        path = _path(file)
        inner = path.with_suffix("") if path.suffix == _ZIPPED else path
        chosen = _SUFFIXES.get(inner.suffix.lower())
        if chosen is None:
            raise ParameterError(f"{path}: the suffix names no format; say format=, one of: {', '.join(FORMATS)}")
    else:
        return "jsonl"
    if chosen == "parquet" and is_path(file) and _path(file).suffix == _ZIPPED:
        raise ParameterError(f"{file}: Parquet compresses by itself; leave {_ZIPPED} out")
    assert chosen is not None
    return chosen


def is_path(file: AnyFile) -> bool:
    """Whether `file` is a path. Raises `ParameterError` for what is neither a path nor a binary file."""
    if isinstance(file, (str, os.PathLike)):
        return True
    if not (hasattr(file, "write") or hasattr(file, "read")):
        raise ParameterError(f"a file must be a path or an open binary file, not {type(file).__name__}")
    return False


def name_of(file: AnyFile) -> str:
    """What errors call the file."""
    if is_path(file):
        return _path(file).name
    name = getattr(file, "name", None)
    if name == "<stdin>" or not isinstance(name, str):
        return "standard input" if name == "<stdin>" else "file"
    return os.path.basename(name)


@contextmanager
def written(file: AnyFile) -> Iterator[IO[bytes]]:
    """A binary file to write to.

    A path is written beside, as ``.NAME.xxxxxxxx.part``, and renamed once all of it is on disk. So whatever happens,
    `file` is the old file or the whole new one. A path that ends with ``.gz`` is compressed.
    """
    if not is_path(file):
        yield cast("IO[bytes]", file)
        return
    path = _path(file)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with _named(path, "written"):
            with part.open("xb") as raw:
                if path.suffix == _ZIPPED:
                    # Without a time in it, equal records make equal files.
                    with gzip.GzipFile("", "wb", 6, raw, mtime=0) as zipped:
                        yield cast("IO[bytes]", zipped)
                else:
                    yield raw
                raw.flush()
                os.fsync(raw.fileno())
            reach("export.written")
            os.replace(part, path)
            sync_folder(path.parent)
            reach("export.renamed")
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def opened(file: AnyFile) -> Iterator[IO[bytes]]:
    """A binary file to read. A path that ends with ``.gz`` is decompressed. Raises `StorageError`."""
    if not is_path(file):
        yield cast("IO[bytes]", file)
        return
    path = _path(file)
    with _named(path, "read"), path.open("rb") as raw:
        if path.suffix == _ZIPPED:
            with gzip.GzipFile("", "rb", fileobj=raw) as unzipped:
                yield cast("IO[bytes]", unzipped)
        else:
            yield raw


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable, if the system can do that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _path(file: Any) -> Path:
    return Path(file)


@contextmanager
def _named(path: Path, what: str) -> Iterator[None]:
    """Turn failures of the system into an error that names the file."""
    try:
        yield
    except FanrankError:
        raise
    except EOFError:
        raise StorageError(f"{path}: cannot be {what}: the file ends too early; get it again") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be {what}: {error.strerror or error}") from error
