"""Makes a file or a folder's entries durable, and replaces a file whole."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def sync(path: Path) -> None:
    """Make a file's content durable, or a folder's entries, where the system can sync a folder."""
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(target: Path, text: str, mode: int = 0o666) -> None:
    """Put a synced file of this text, which is ASCII, in the place of `target`: a reader sees the old or the new one.

    `mode` are the rights of the file, less those that the process masks. Raises `OSError`, and changes nothing then.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="ascii") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
