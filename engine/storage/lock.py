"""Makes a store's directory, and takes the lock that allows one writer at a time."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from ..errors import ForeignIndexError, StoreLockedError
from .index_files import MANIFEST, check_one
from .row_codec import RECORDS
from .sync import sync

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = "lock"


def make_folder(root: Path) -> None:
    """Make the directory if it is missing. Raises `ForeignIndexError` unless it is empty or holds a store."""
    if root.exists() and not root.is_dir():
        raise ForeignIndexError(f"{root}: not a directory")
    if not root.exists():
        root.mkdir(parents=True, exist_ok=True)
        # SQLite syncs the directory for its own files, but nothing syncs the entry of the directory itself.
        sync(root.parent)
    check_one(root)
    if not (root / RECORDS).exists() and any(file.name != LOCK for file in root.iterdir()):
        if (root / MANIFEST).exists():
            raise ForeignIndexError(
                f"{root}: is a saved index, which keeps no records and cannot grow; search it with Engine.load or "
                "`fanrank search`, and add records to a new directory"
            )
        raise ForeignIndexError(f"{root}: holds other files; choose an empty or new directory")


def take_lock(path: Path) -> int:
    """A descriptor that holds the writer's lock until `let_go`, or until the process ends in any way.

    Raises `StoreLockedError` while another process has the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            if sys.platform == "win32":
                # On Windows others cannot read a locked byte. So the locked byte lies behind the process number.
                os.lseek(descriptor, 1 << 20, os.SEEK_SET)
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                os.lseek(descriptor, 0, os.SEEK_SET)
            else:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                raise
            holder = os.pread(descriptor, 20, 0) if sys.platform != "win32" else os.read(descriptor, 20)
            raise StoreLockedError(
                f"{path.parent}: process {holder.decode(errors='replace').strip() or 'unknown'} writes to it; there is "
                "one writer at a time (readers may open it with read_only=True)"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def hold_folder(folder: Path) -> int | None:
    """A descriptor that says that this process works on the folder, until it is closed or the process ends.

    None where another process holds it, or where the system locks no folders.
    """
    if sys.platform == "win32":
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def let_go(lock: int) -> None:
    try:
        if sys.platform == "win32":
            os.lseek(lock, 1 << 20, os.SEEK_SET)
            msvcrt.locking(lock, msvcrt.LK_UNLCK, 1)
        else:
            # A forked child has the descriptor too. If this process only closed its own, the child would keep the lock.
            fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)
