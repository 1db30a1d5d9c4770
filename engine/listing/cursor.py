"""Cursors: where a listing goes on, as a string that a caller keeps."""

from __future__ import annotations

import base64
import json
from typing import NamedTuple

from ..errors import ParameterError
from .orders import Key

_KEYS = {"time": (4, 3), "id": (3,), "written": (2,)}
"""How long the keys of an order are, by the part of the order."""


class Course(NamedTuple):
    """The listing that a cursor belongs to: any listing of these records in this order."""

    order: str
    reverse: bool
    namespace: str | None
    memory: str
    """Whose numbers of writes count; only the order ``written`` has them."""


def encode(course: Course, key: Key) -> str:
    """The cursor behind the entry with this key."""
    data = json.dumps([*course, *key], separators=(",", ":"))
    return base64.urlsafe_b64encode(data.encode()).rstrip(b"=").decode()


def decode(cursor: object, course: Course) -> Key:
    """The key that `encode` was given. Raises `ParameterError` for anything but a cursor of such a listing."""
    if not isinstance(cursor, str):
        raise ParameterError(f"after must be the cursor of a listing, not {type(cursor).__name__}")
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        values = json.loads(base64.b64decode(padded.encode(), b"-_", validate=True))
    except (ValueError, RecursionError):
        values = None
    width = len(course)
    if not isinstance(values, list) or len(values) <= width:
        raise ParameterError(f"after: {cursor[:40]!r} is no cursor; pass what `Listing.cursor` gave")
    for name, mine, theirs in zip(course._fields, course, values, strict=False):
        if mine != theirs or type(mine) is not type(theirs):
            what = "of another memory" if name == "memory" else f"of a listing with {name}={theirs!r}, not {mine!r}"
            raise ParameterError(f"after: the cursor is {what}; begin without it")
    key = tuple(values[width:])
    if not _fits(course.order, key):
        raise ParameterError(f"after: {cursor[:40]!r} is no cursor; pass what `Listing.cursor` gave")
    return key


def _fits(order: str, key: Key) -> bool:
    parts = _KEYS[order]
    if type(key[0]) is not int or not 0 <= key[0] < len(parts) or len(key) != parts[key[0]]:
        return False
    if order == "written":
        return type(key[1]) is int
    strings = key[1:]
    if order == "time" and key[0] == 0:
        if type(key[1]) is not float:
            return False
        strings = key[2:]
    return all(isinstance(value, str) for value in strings)
