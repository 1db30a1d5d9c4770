"""Disks that fail or lose their power under a process that writes: `disk.c` stands before the C library."""

import ctypes
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("disk.c")
SECTOR, PAGE = 512, 4096
_EVENT = struct.Struct("<cIIq")


def load() -> None:
    """Start this program anew with `disk.c` before the C library, unless it is there."""
    if hasattr(ctypes.CDLL(None), "start_trace"):
        return
    library = Path(tempfile.mkdtemp(prefix="fanrank-disk-")) / "disk.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    os.environ["LD_PRELOAD"] = str(library)
    os.execv(sys.executable, sys.orig_argv)


def disk() -> ctypes.CDLL:
    return ctypes.CDLL(None)


class Event(NamedTuple):
    """What reached the disk: a file made, written, cut, synced, renamed or removed; or a mark of the program."""

    kind: str
    path: str
    offset: int
    data: bytes


def read_trace(path: Path) -> list[Event]:
    data = path.read_bytes()
    events, at = [], 0
    while at + _EVENT.size <= len(data):
        kind, name, size, offset = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        events.append(Event(kind.decode(), data[at : at + name].decode(), offset, data[at + name : at + name + size]))
        at += name + size
    return events


class _File:
    """What a file holds, and the writes to it that were not synced."""

    def __init__(self, held: bytes = b"") -> None:
        self.synced = bytearray(held)
        self.late: list[tuple[int, bytes | None]] = []
        """(offset, bytes), or (size, None) for a truncation."""

    def apply(self, offset: int, data: bytes | None) -> None:
        if data is None:
            del self.synced[offset:]
        self.synced.extend(bytes(max(offset + len(data or b"") - len(self.synced), 0)))
        self.synced[offset : offset + len(data or b"")] = data or b""

    def sync(self) -> None:
        for late in self.late:
            self.apply(*late)
        self.late = []

    def lose(self, rng: random.Random, unit: int) -> None:
        """Keep each unit of the writes that were not synced, or not."""
        for offset, data in self.late:
            if data is None:
                if rng.random() < 0.5:
                    self.apply(offset, None)
                continue
            at = 0
            while at < len(data):
                size = unit - (offset + at) % unit
                if rng.random() < 0.5:
                    self.apply(offset + at, data[at : at + size])
                at += size
        self.late = []


def cut_power(events: list[Event], folder: Path, target: Path, rng: random.Random) -> int:
    """Make `target` the folder as a loss of power after these events leaves it; returns the last mark, or -1.

    Each sync makes its file and all names so far durable, as a journal does. Of the later names a random number is
    there, in their order.
    """
    files = {str(file): _File(file.read_bytes()) for file in folder.rglob("*") if file.is_file()}
    last = max((n for n, event in enumerate(events) if event.kind == "s"), default=-1)
    names = sum(event.kind in "cru" for event in events[last + 1 :])
    allowed, mark = rng.randint(0, names), -1
    for number, (kind, path, offset, data) in enumerate(events):
        if kind == "m":
            mark = offset
        elif kind in "wt" and path in files:
            files[path].late.append((offset, data if kind == "w" else None))
        elif kind == "s" and path in files:
            files[path].sync()
        elif kind in "cru":
            if number > last:
                if not allowed:
                    continue
                allowed -= 1
            if kind == "c":
                files.setdefault(path, _File())
                continue
            found = files.pop(path, None)
            if kind == "r" and found is not None:
                files[data.decode()] = found
    shutil.rmtree(target, ignore_errors=True)
    unit = rng.choice([SECTOR, PAGE])
    for path, file in files.items():
        if folder in Path(path).parents and not path.endswith("-shm"):
            file.lose(rng, unit)
            place = target / Path(path).relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.synced)
    target.mkdir(parents=True, exist_ok=True)
    return mark


def cuts(events: list[Event], rng: random.Random, count: int) -> Iterator[list[Event]]:
    """The events up to random moments, most of them just after a write."""
    writes = [n for n, event in enumerate(events) if event.kind in "cwtru"]
    for n in sorted(rng.choices(writes, k=count)):
        yield events[: n + 1]
