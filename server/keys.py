"""Keys: who may ask, which namespaces each key reaches, and the file that holds their hashes.

A key is ``fanrank_ID_SECRET``. The id is public, names the key in lists and finds its hash; the secret is 256 random
bits. The file holds the SHA-256 of the secret. One hash is enough: scrypt and its like slow down guessing of passwords
that people chose, and of 2**256 secrets nobody guesses one. A slow hash would only cost time for each request.

While a key is rotated it has further secrets: those before, each until a moment that the file names.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from starlette.requests import Request

from ..engine.errors import ParameterError, StorageError, choices
from ..engine.moments import to_seconds
from ..engine.records.places import line_in_json
from ..engine.storage.sync import replace_file
from .access import UNBOUNDED, Principal, Quota
from .problems import Problem

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger("fanrank.server")

FORMAT, VERSION = "fanrank-keys", 1
EVERYTHING = "*"
"""The pattern of all namespaces."""
PATTERNS = 1_000
"""Namespaces and paths that a key may name. A request compares each of them."""
LARGEST_FILE = 16 << 20
_ID = re.compile(r"[0-9a-f]{16}")
_HASH = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"fanrank_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_NOBODY = "0" * 64


class _WrongError(ParameterError):
    """A field of a key that is wrong; `path` says where it stands in the key."""

    def __init__(self, problem: str, *path: str | int) -> None:
        super().__init__(problem)
        self.path = path


@dataclass(frozen=True)
class Key:
    """One key as the file holds it. `hash` is the SHA-256 of its secret, as 64 hexadecimal digits.

    `metrics`: it may read the counts of the whole server. Such a key may reach no namespace. `expires` is the moment
    from which on it is refused, and `old` the hashes of the secrets before and until when each is good.
    """

    id: str
    name: str
    namespaces: tuple[str, ...]
    write: bool
    hash: str
    metrics: bool = False
    expires: float | None = None
    quota: Quota = UNBOUNDED
    old: tuple[tuple[str, float], ...] = ()

    @property
    def principal(self) -> Principal:
        """What the key allows. Its name in the server is its id, which no other key ever had."""
        reached = None if EVERYTHING in self.namespaces else self.namespaces
        return Principal(self.id, reached, self.write, self.metrics, self.name, self.quota)

    @classmethod
    def of(cls, value: Any) -> Key:
        """From the object of the file. Raises `ParameterError`."""
        _check(value, _NEEDED, _FIELDS)
        old = value.get("old", [])
        for number, one in enumerate(old):
            _check(one, _OLD, _OLD, "old", number)
        _check(value.get("quota", {}), (), _QUOTA, "quota")
        metrics, expires = value.get("metrics", False), value.get("expires")
        try:
            patterns = check_patterns(value["namespaces"], none=metrics)
        except ParameterError as error:
            raise _WrongError(str(error), "namespaces") from None
        return cls(
            value["id"],
            value["name"],
            patterns,
            value["write"],
            value["hash"],
            metrics,
            None if expires is None else to_seconds(expires),
            Quota(**value.get("quota", {})),
            tuple((one["hash"], to_seconds(one["expires"])) for one in old),
        )

    def to_dict(self) -> dict[str, Any]:
        """The object of the file."""
        quota = self.quota.to_dict()
        old = [{"hash": secret, "expires": moment_text(until)} for secret, until in self.old]
        return {
            **{name: getattr(self, name) for name in ("id", "name")},
            "namespaces": list(self.namespaces),
            "write": self.write,
            "hash": self.hash,
            **({"metrics": True} if self.metrics else {}),
            **({} if self.expires is None else {"expires": moment_text(self.expires)}),
            **({"quota": quota} if quota else {}),
            **({"old": old} if old else {}),
        }


def _is_moment(value: Any) -> bool:
    try:
        return isinstance(value, str) and to_seconds(value) is not None
    except ValueError:
        return False


Check = tuple[Callable[[Any], bool], str]
_HASHED: Check = lambda value: isinstance(value, str) and _HASH.fullmatch(value) is not None, "64 hexadecimal digits"
_MOMENT: Check = _is_moment, "a moment, as 2027-01-01T00:00:00Z"
_NUMBER: Check = lambda value: type(value) is int and value > 0, "a whole number above 0"
_FIELDS: dict[str, Check] = {
    "id": (lambda value: isinstance(value, str) and _ID.fullmatch(value) is not None, "16 hexadecimal digits"),
    "name": (lambda value: isinstance(value, str) and value != "", "text"),
    "namespaces": (lambda value: isinstance(value, list), "a list"),
    "write": (lambda value: isinstance(value, bool), "true or false"),
    "hash": _HASHED,
    "metrics": (lambda value: isinstance(value, bool), "true or false"),
    "expires": _MOMENT,
    "quota": (lambda value: isinstance(value, dict), "an object"),
    "old": (lambda value: isinstance(value, list), "a list"),
}
"""The schema of a key in the file: what each field must be."""
_NEEDED = ("id", "name", "namespaces", "write", "hash")
_OLD: dict[str, Check] = {"hash": _HASHED, "expires": _MOMENT}
_QUOTA: dict[str, Check] = {"records": _NUMBER, "bytes": _NUMBER}


def _check(
    value: Any, needed: Sequence[str] | Mapping[str, Check], known: Mapping[str, Check], *path: str | int
) -> None:
    """Raise `_WrongError` for an object that is not as the schema says."""
    if not isinstance(value, dict):
        raise _WrongError("must be an object", *path)
    for name in value:
        if name not in known:
            raise _WrongError(f"there is no such field{choices(name, known)}", *path, name)
        check, wanted = known[name]
        if not check(value[name]):
            raise _WrongError(f"must be {wanted}", *path, name)
    for name in needed:
        if name not in value:
            raise _WrongError("is missing", *path, name)


def moment_text(seconds: float) -> str:
    """A moment as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def check_patterns(patterns: Sequence[Any], *, none: bool = False) -> tuple[str, ...]:
    """The patterns of a key: namespaces, paths with ``/*``, or ``*``; `none`: there may be none.

    Raises `ParameterError`.
    """
    if not (patterns or none) or len(patterns) > PATTERNS:
        raise ParameterError(f"a key reaches 1 to {PATTERNS:,} namespaces or paths; name one with --namespace")
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ParameterError(f"a namespace is text, not {pattern!r}")
        body = pattern.removesuffix("/*")
        if pattern != EVERYTHING and ("*" in body or (body != pattern and not body.strip("/"))):
            raise ParameterError(f"{pattern!r}: give a namespace, a path with all below it (acme/*), or * for all")
    return tuple(patterns)


def add_key(
    file: str | os.PathLike[str],
    namespaces: Sequence[str],
    *,
    name: str = "",
    write: bool = True,
    metrics: bool = False,
    expires: float | None = None,
    quota: Quota | None = None,
) -> str:
    """Make a key, and write its hash to the file, which is made with mode 0600 if it is not there.

    With `metrics` it may read the counts of the server, and needs no namespace. From the moment `expires` on it is
    refused. `quota` bounds what its namespaces hold together.

    Returns the key, which nothing can tell again. Raises `ParameterError` for a name that another key has, and
    `StorageError`.
    """
    id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    patterns = check_patterns(namespaces, none=metrics)
    key = Key(id, name or id, patterns, write, _hash(secret), metrics, expires, quota or UNBOUNDED)
    with _changing(file):
        keys = read_keys(file) if os.path.lexists(file) else ()
        if any(key.name in (other.name, other.id) for other in keys):
            raise ParameterError(f"{os.fspath(file)}: there is a key {key.name!r}; give another --name")
        _write_keys(file, (*keys, key))
    return f"fanrank_{id}_{secret}"


def rotate_key(file: str | os.PathLike[str], name: str, overlap: float) -> str:
    """Give the key with this name or id a new secret; the old one is good for `overlap` more seconds.

    Those before it stay good until their own moments; with an overlap of 0 all of them end.

    Returns the new key. Raises `ParameterError` and `StorageError`.
    """
    secret, now = secrets.token_urlsafe(32), time.time()
    with _changing(file):
        keys = read_keys(file)
        found = next((key for key in keys if name in (key.name, key.id)), None)
        if found is None:
            raise _no_key(file, name)
        good = [one for one in found.old if one[1] > now and overlap]
        fresh = replace(found, hash=_hash(secret), old=(*good, (found.hash, now + overlap)))
        _write_keys(file, [fresh if key is found else key for key in keys])
    return f"fanrank_{found.id}_{secret}"


def _no_key(file: str | os.PathLike[str], name: str) -> ParameterError:
    return ParameterError(f"{os.fspath(file)}: there is no key {name!r}; `fanrank keys list` names them")


def remove_key(file: str | os.PathLike[str], name: str) -> None:
    """Take the key with this name or id out of the file. Raises `ParameterError` and `StorageError`."""
    with _changing(file):
        keys = read_keys(file)
        kept = [key for key in keys if name not in (key.name, key.id)]
        if len(kept) == len(keys):
            raise _no_key(file, name)
        _write_keys(file, kept)


def read_keys(file: str | os.PathLike[str]) -> tuple[Key, ...]:
    """The keys of a file. Raises `StorageError` and `ParameterError`, which name the file, the line and the field."""
    try:
        with open(file, "rb") as handle:
            mode = os.fstat(handle.fileno()).st_mode
            content = handle.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise StorageError(f"{os.fspath(file)}: is not there; `fanrank keys add` makes it") from None
    except OSError as error:
        raise StorageError(f"{os.fspath(file)}: cannot be read: {error.strerror or error}") from None
    try:
        # Windows keeps rights elsewhere.
        if sys.platform != "win32" and mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ParameterError("others than its owner may write it; run: chmod 600")
        return _parse(content)
    except _WrongError as error:
        line, (number, *path) = line_in_json(content.decode("utf-8"), ("keys", *error.path)), error.path
        field = ".".join([f"keys[{number}]", *map(str, path)])
        raise ParameterError(f"{os.fspath(file)}, line {line}: {field}: {error}") from None
    except ParameterError as error:
        raise ParameterError(f"{os.fspath(file)}: {error}") from None


def _parse(content: bytes) -> tuple[Key, ...]:
    if len(content) > LARGEST_FILE:
        raise ParameterError(f"a file of keys has at most {LARGEST_FILE:,} bytes")
    try:
        value = json.loads(content.decode("utf-8"))
    except json.JSONDecodeError as error:
        raise ParameterError(f"is not JSON, at line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError):
        raise ParameterError("is not JSON") from None
    if not isinstance(value, dict) or set(value) != {"format", "version", "keys"} or value["format"] != FORMAT:
        raise ParameterError("is no file of keys; `fanrank keys add` makes one")
    if value["version"] != VERSION:
        raise ParameterError(f"is of version {value['version']!r}, and this fanrank reads version {VERSION}")
    if not isinstance(value["keys"], list):
        raise ParameterError("keys is a list")
    keys, names = [], set[str]()
    for number, one in enumerate(value["keys"]):
        try:
            key = Key.of(one)
            for field in ("id", "name"):
                if getattr(key, field) in names:
                    raise _WrongError("another key has this id or name", field)
        except _WrongError as error:
            error.path = number, *error.path
            raise
        names |= {key.id, key.name}
        keys.append(key)
    return tuple(keys)


def _write_keys(file: str | os.PathLike[str], keys: Sequence[Key]) -> None:
    """Replace the file at once: a reader sees the old keys or the new ones."""
    target = Path(os.path.realpath(file))
    text = json.dumps({"format": FORMAT, "version": VERSION, "keys": [key.to_dict() for key in keys]}, indent=1)
    try:
        replace_file(target, text + "\n", 0o600)
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {error.strerror or error}") from None


@contextmanager
def _changing(file: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the folder's lock, so that two commands at once do not lose a key. Windows has no such lock."""
    if sys.platform == "win32":
        yield
        return
    folder = os.path.dirname(os.path.realpath(file))
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be read: {error.strerror or error}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("ascii")).hexdigest()


class Keyring:
    """The keys of a file, read again whenever it changes; called with a request, it says whose it is.

    A file that is missing or wrong when it is read again leaves the keys as they were, and the log says so. `changed`
    is told what became of each key, by its name. Raises as `read_keys`.
    """

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self._file = file
        self.changed: Callable[[str, str], None] = lambda what, name: None
        self._state = self._look()
        self._take(read_keys(file))

    def __call__(self, request: Request) -> Principal:
        """Who asks. Raises `Problem` 401 where no key of the file is given, or one that has expired."""
        self._read_again()
        given = request.headers.getlist("authorization")
        scheme, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        found = _KEY.fullmatch(text.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise _refused("KeyRequired", "give a key in the header Authorization: Bearer KEY", "")
        # An id that is not there costs the same comparison as one that is.
        key, principal = self._keys.get(found[1], (None, None))
        said, ends = _hash(found[2]), None if key is None else key.expires
        good = hmac.compare_digest(said, _NOBODY if key is None else key.hash)
        for secret, until in () if good or key is None else key.old:
            if hmac.compare_digest(said, secret):
                good, ends = True, min(until, until if ends is None else ends)
        if not good or key is None or principal is None:
            raise _refused("KeyUnknown", "this server does not know the key", ' error="invalid_token"')
        if ends is not None and time.time() >= ends:
            detail = f"the key {key.name!r} expired at {moment_text(ends)}; ask for a new one"
            raise _refused("KeyExpired", detail, ' error="invalid_token"')
        return principal

    def _take(self, keys: Sequence[Key]) -> None:
        self._keys = {key.id: (key, key.principal) for key in keys}

    def _look(self) -> tuple[int, ...]:
        try:
            now = os.stat(self._file)
        except OSError:
            return ()
        return now.st_mtime_ns, now.st_ctime_ns, now.st_ino, now.st_size, now.st_mode

    def _read_again(self) -> None:
        """Read the file if it is another one. To look costs 2 us, so each request looks: a removed key ends at once."""
        state = self._look()
        if state == self._state:
            return
        self._state = state
        try:
            keys = read_keys(self._file)
        except (ParameterError, StorageError) as error:
            logger.error("keys stay as they were: %s", error)
            return
        before = {id: key for id, (key, _) in self._keys.items()}
        self._take(keys)
        logger.info("%d keys were read again", len(keys))
        for key in keys:
            old = before.pop(key.id, None)
            if old != key:
                what = "added" if old is None else "changed" if old.hash == key.hash else "rotated"
                self.changed(f"key_{what}", key.name)
        for key in before.values():
            self.changed("key_removed", key.name)


def _refused(code: str, detail: str, parameter: str) -> Problem:
    return Problem(401, code, detail, headers={"WWW-Authenticate": f"Bearer{parameter}"})
