"""Cursors: where a listing goes on, as a string that a caller keeps.

A cursor is sealed with a secret of its memory. Its key may hold the number of a write, from which a tenant could tell
how much the others write; so the length of a cursor does not depend on numbers either.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import NamedTuple

from ..errors import ParameterError
from .orders import Key

TAG = 12
"""Bytes by which a cursor is recognised."""
NUMBER = 25
"""Characters that each number of a key takes, with blanks: no number has more in JSON."""


class Course(NamedTuple):
    """The listings that a cursor belongs to: those of these records in this order."""

    order: str
    reverse: bool
    namespace: str | None


def encode(course: Course, key: Key, secret: str) -> str:
    """The cursor behind the entry with this key."""
    blanks = sum(NUMBER - len(json.dumps(value)) for value in key if not isinstance(value, str))
    data = json.dumps([*course, *key], separators=(",", ":")).encode() + b" " * blanks
    tag = _tag(data, secret)
    return _written(tag + _mix(data, tag, secret))


def decode(cursor: object, course: Course, secret: str) -> Key:
    """The key that `encode` was given. Raises `ParameterError` for anything but a cursor of such a listing."""
    if not isinstance(cursor, str):
        raise ParameterError(f"after must be the cursor of a listing, not {type(cursor).__name__}")
    try:
        sealed = base64.b64decode((cursor + "=" * (-len(cursor) % 4)).encode(), b"-_", validate=True)
    except ValueError:
        sealed = b""
    tag = sealed[:TAG] if _written(sealed) == cursor else b""
    data = _mix(sealed[TAG:], tag, secret)
    if len(tag) < TAG or _tag(data, secret) != tag:
        raise ParameterError(f"after: {cursor[:40]!r} is no cursor of this memory; pass what `Listing.cursor` gave")
    values = json.loads(data)
    if values[course._fields.index("namespace")] != course.namespace:
        # The caller may be a tenant, who must not read the name of another one.
        raise ParameterError("after: the cursor is of another listing; begin without it")
    for name, mine, theirs in zip(course._fields, course, values, strict=False):
        if mine != theirs:
            raise ParameterError(
                f"after: the cursor is of a listing with {name}={theirs!r}, not {mine!r}; begin without it"
            )
    return tuple(values[len(course) :])


def _written(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def _tag(data: bytes, secret: str) -> bytes:
    return hashlib.blake2b(data, key=secret.encode(), digest_size=TAG).digest()


def _mix(data: bytes, tag: bytes, secret: str) -> bytes:
    """The data made unreadable, or readable again."""
    stream = hashlib.shake_256(secret.encode() + tag).digest(len(data))
    return bytes(a ^ b for a, b in zip(data, stream, strict=True))
