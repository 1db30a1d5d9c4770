"""The files of an export: their formats, and how they are opened, written beside and renamed."""

from __future__ import annotations

import gzip
import io
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from ..errors import FanrankError, ParameterError, StorageError, choices
from ..storage.failpoints import reach
from ..storage.sync import sync

FORMATS = ("jsonl", "parquet")
"""What records are exported to and imported from: JSON lines, and Parquet."""
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
_ZIPPED = ".gz"

AnyFile = str | os.PathLike[str] | IO[bytes]
"""A path, or a binary file that is open."""


def format_of(file: AnyFile, format: str | None, *, otherwise: str | None = None) -> str:
    """The format that was asked for, or that of the path's suffix; JSON lines for an open file.

    `otherwise` is that of a path whose suffix names none; without it, such a path raises `ParameterError`.
    """
    if format is not None:
        if format not in FORMATS:
            raise ParameterError(f"unknown format {format!r}{choices(format, FORMATS)}")
        chosen: str | None = format
    elif is_path(file):
        path = path_of(file)
        inner = path.with_suffix("") if path.suffix == _ZIPPED else path
        chosen = _SUFFIXES.get(inner.suffix.lower(), otherwise)
        if chosen is None:
            raise ParameterError(f"{path}: the suffix names no format; say format=, one of: {', '.join(FORMATS)}")
    else:
        return "jsonl"
    if chosen == "parquet" and is_path(file) and path_of(file).suffix == _ZIPPED:
        raise ParameterError(f"{file}: Parquet compresses by itself; leave {_ZIPPED} out")
    assert chosen is not None
    return chosen


def is_path(file: AnyFile) -> bool:
    """Whether `file` is a path. Raises `ParameterError` for what is neither a path nor a binary file."""
    if isinstance(file, (str, os.PathLike)):
        path_of(file)
        return True
    if not (hasattr(file, "write") or hasattr(file, "read")):
        raise ParameterError(f"a file must be a path or an open binary file, not {type(file).__name__}")
    # A temporary file is a wrapper of its `file`.
    if isinstance(getattr(file, "file", file), io.TextIOBase):
        raise ParameterError(
            f"a file must be a path or an open binary file, and this one is open for text ({type(file).__name__}); "
            "open it with mode 'rb' or 'wb', or give its .buffer"
        )
    return False


def path_of(path: Any) -> Path:
    """A path. Raises `ParameterError` for what is none."""
    try:
        return Path(path)
    except TypeError:
        raise ParameterError(f"a path must be text or a Path, not {type(path).__name__}") from None


def name_of(file: AnyFile) -> str:
    """What errors call the file."""
    if is_path(file):
        return path_of(file).name
    name = getattr(file, "name", None)
    if name == "<stdin>" or not isinstance(name, str):
        return "standard input" if name == "<stdin>" else "file"
    return os.path.basename(name)


@contextmanager
def written(file: AnyFile) -> Iterator[IO[bytes]]:
    """A binary file to write to.

    A path is written beside, as ``.NAME.xxxxxxxx.part``, and renamed once all of it is on disk. So whatever happens,
    `file` is the old file or the whole new one. A path that ends with ``.gz`` is compressed. Of a symbolic link the
    target is replaced. What is no file that could be replaced (`_is_stream`) is written to as it is.
    """
    if not is_path(file):
        if not hasattr(file, "write"):
            raise ParameterError(f"the file ({type(file).__name__}) is not open for writing; open it with mode 'wb'")
        yield cast("IO[bytes]", file)
        return
    path = path_of(file)
    with _named(path, "written"):
        if _is_stream(path):
            with path.open("ab") as raw, _zipped(path, raw) as handle:
                yield handle
            return
        target = Path(os.path.realpath(path))
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        try:
            with part.open("xb") as raw:
                with _zipped(path, raw) as handle:
                    yield handle
                raw.flush()
                os.fsync(raw.fileno())
            reach("export.written")
            os.replace(part, target)
            sync(target.parent)
            reach("export.renamed")
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _is_stream(path: Path) -> bool:
    """Whether the path is a FIFO, a character device, or an open descriptor (``/dev/stdout``), and no file to replace.

    Raises `StorageError` for what nothing can be written to.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "neither a file, a FIFO nor a character device"
        raise StorageError(f"{path}: cannot be written: it is {what}")
    # A link of the system to a descriptor: the file behind it is open, and is not replaced.
    while path.is_symlink():
        folder = Path(os.path.realpath(path.parent))
        if folder.parts[:2] == ("/", "proc"):
            return True
        path = folder / os.readlink(path)
    return False


@contextmanager
def _zipped(path: Path, raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """The file, or one that compresses into it if the path says so."""
    if path.suffix != _ZIPPED:
        yield raw
        return
    # Without a time in it, equal records make equal files.
    with gzip.GzipFile("", "wb", 6, raw, mtime=0) as zipped:
        yield cast("IO[bytes]", zipped)


@contextmanager
def opened(file: AnyFile) -> Iterator[IO[bytes]]:
    """A binary file to read. A path that ends with ``.gz`` is decompressed. Raises `StorageError`."""
    if not is_path(file):
        if not hasattr(file, "read"):
            raise ParameterError(f"the file ({type(file).__name__}) is not open for reading; open it with mode 'rb'")
        yield cast("IO[bytes]", file)
        return
    path = path_of(file)
    with _named(path, "read"), path.open("rb") as raw:
        if path.suffix == _ZIPPED:
            with gzip.GzipFile("", "rb", fileobj=raw) as unzipped:
                yield cast("IO[bytes]", unzipped)
        else:
            yield raw


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
