"""Keys: who may ask, which namespaces each key reaches, and the file that holds their hashes.

A key is ``fanrank_ID_SECRET``. The id is public, names the key in lists and finds its hash; the secret is 256 random
bits. The file holds the SHA-256 of the secret. One hash is enough: scrypt and its like slow down guessing of passwords
that people chose, and of 2**256 secrets nobody guesses one. A slow hash would only cost time for each request.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request

from ..engine.errors import ParameterError, StorageError
from ..engine.storage.sync import replace_file
from .access import Principal
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


@dataclass(frozen=True)
class Key:
    """One key as the file holds it. `hash` is the SHA-256 of its secret, as 64 hexadecimal digits.

    `metrics`: it may read the counts of the whole server. Such a key may reach no namespace.
    """

    id: str
    name: str
    namespaces: tuple[str, ...]
    write: bool
    hash: str
    metrics: bool = False

    @property
    def principal(self) -> Principal:
        """What the key allows. Its name in the server is its id, which no other key ever had."""
        reached = None if EVERYTHING in self.namespaces else self.namespaces
        return Principal(self.id, reached, self.write, self.metrics, self.name)

    @classmethod
    def of(cls, value: Any) -> Key:
        """From the object of the file. Raises `ParameterError`."""
        fields = {"id", "name", "namespaces", "write", "hash"}
        if not isinstance(value, dict) or set(value) - {"metrics"} != fields:
            raise ParameterError(f"a key is an object with {', '.join(sorted(fields))}, and metrics if it reads them")
        if not isinstance(value["id"], str) or not _ID.fullmatch(value["id"]):
            raise ParameterError("a key's id is 16 hexadecimal digits")
        if not isinstance(value["hash"], str) or not _HASH.fullmatch(value["hash"]):
            raise ParameterError("a key's hash is 64 hexadecimal digits")
        if not isinstance(value["name"], str) or not value["name"]:
            raise ParameterError("a key's name is text")
        if not isinstance(value["write"], bool):
            raise ParameterError("write is true or false")
        metrics = value.get("metrics", False)
        if not isinstance(metrics, bool):
            raise ParameterError("metrics is true or false")
        if not isinstance(value["namespaces"], list):
            raise ParameterError("namespaces is a list")
        patterns = check_patterns(value["namespaces"], none=metrics)
        return cls(value["id"], value["name"], patterns, value["write"], value["hash"], metrics)

    def to_dict(self) -> dict[str, Any]:
        """The object of the file."""
        fields = {**vars(self), "namespaces": list(self.namespaces)}
        if not self.metrics:
            del fields["metrics"]
        return fields


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
) -> str:
    """Make a key, and write its hash to the file, which is made with mode 0600 if it is not there.

    With `metrics` it may read the counts of the server, and needs no namespace.

    Returns the key, which nothing can tell again. Raises `ParameterError` for a name that another key has, and
    `StorageError`.
    """
    id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    key = Key(id, name or id, check_patterns(namespaces, none=metrics), write, _hash(secret), metrics)
    with _changing(file):
        keys = read_keys(file) if os.path.lexists(file) else ()
        if any(key.name in (other.name, other.id) for other in keys):
            raise ParameterError(f"{os.fspath(file)}: there is a key {key.name!r}; give another --name")
        _write_keys(file, (*keys, key))
    return f"fanrank_{id}_{secret}"


def remove_key(file: str | os.PathLike[str], name: str) -> None:
    """Take the key with this name or id out of the file. Raises `ParameterError` and `StorageError`."""
    with _changing(file):
        keys = read_keys(file)
        kept = [key for key in keys if name not in (key.name, key.id)]
        if len(kept) == len(keys):
            raise ParameterError(f"{os.fspath(file)}: there is no key {name!r}; `fanrank keys list` names them")
        _write_keys(file, kept)


def read_keys(file: str | os.PathLike[str]) -> tuple[Key, ...]:
    """The keys of a file. Raises `StorageError` and `ParameterError`, which name the file."""
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
    except ParameterError as error:
        raise ParameterError(f"{os.fspath(file)}: {error}") from None


def _parse(content: bytes) -> tuple[Key, ...]:
    if len(content) > LARGEST_FILE:
        raise ParameterError(f"a file of keys has at most {LARGEST_FILE:,} bytes")
    try:
        value = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ParameterError("is not JSON") from None
    if not isinstance(value, dict) or set(value) != {"format", "version", "keys"} or value["format"] != FORMAT:
        raise ParameterError("is no file of keys; `fanrank keys add` makes one")
    if value["version"] != VERSION:
        raise ParameterError(f"is of version {value['version']!r}, and this fanrank reads version {VERSION}")
    if not isinstance(value["keys"], list):
        raise ParameterError("keys is a list")
    keys = tuple(Key.of(one) for one in value["keys"])
    names = [key.id for key in keys] + [key.name for key in keys if key.name != key.id]
    if len(set(names)) < len(names):
        raise ParameterError("two keys have one id or name")
    return keys


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

    A file that is missing or wrong when it is read again leaves the keys as they were, and the log says so.
    Raises as `read_keys`.
    """

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self._file = file
        self._state = self._look()
        self._keys = {key.id: (key.hash, key.principal) for key in read_keys(file)}

    def __call__(self, request: Request) -> Principal:
        """Who asks. Raises `Problem` 401 where no key of the file is given."""
        self._read_again()
        given = request.headers.getlist("authorization")
        scheme, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        found = _KEY.fullmatch(text.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise _refused("KeyRequired", "give a key in the header Authorization: Bearer KEY", "")
        # An id that is not there costs the same comparison as one that is.
        kept, principal = self._keys.get(found[1], (_NOBODY, None))
        if not hmac.compare_digest(_hash(found[2]), kept) or principal is None:
            raise _refused("KeyUnknown", "this server does not know the key", ' error="invalid_token"')
        return principal

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
        self._keys = {key.id: (key.hash, key.principal) for key in keys}
        logger.info("%d keys were read again", len(keys))


def _refused(code: str, detail: str, parameter: str) -> Problem:
    return Problem(401, code, detail, headers={"WWW-Authenticate": f"Bearer{parameter}"})
