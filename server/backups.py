"""``/v1/backup``, ``/v1/backups`` and ``/v1/restore``: copies of the memory in one directory of the server's machine.

A client says the name of a copy, and never a path.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..engine.memory import Memory
from ..shards.choosing import is_sharded, memory_class, open_directory
from .access import check_everything, principal_of
from .bodies import read_json, read_parameters, require, take
from .cancelling import in_thread
from .encoding import json_response
from .journal import journaled
from .problems import Problem
from .state import State, state_of

BACKUP_FIELDS = ("name",)
RESTORE_FIELDS = ("name", "namespace")
AT_ONCE = 10_000
"""Records that a restore deletes at once."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


async def backup(request: Request) -> Response:
    """Copy the memory, as of one moment, to a new directory of this name among the server's backups."""
    state = _enter(request)
    name = require(await read_json(request, state.limits, BACKUP_FIELDS), "name", str)
    path = _path(state, name)
    if path.exists():
        raise Problem(409, "BackupExists", f"there is a backup {name!r}; give another name", field="name")
    with journaled("backup", (None,)) as line:
        line["backup"] = name
        # As exports, by threads of their own: it takes as long as the disk.
        await in_thread(request, lambda: state.engine.backup(path), threads=state.carriers, finish=True)
    return json_response({"backup": await in_thread(request, lambda: _describe(path))}, 201)


async def list_backups(request: Request) -> Response:
    """The server's backups, by their names, with when they were made and their bytes."""
    state = _enter(request)
    read_parameters(request, ())

    def listed() -> list[dict[str, Any]]:
        folder = _folder(state)
        return [_describe(path) for path in sorted(folder.iterdir()) if _NAME.fullmatch(path.name) and path.is_dir()]

    return json_response({"backups": await in_thread(request, listed)})


async def restore(request: Request) -> Response:
    """Make the records of a namespace, or of the memory, those of a backup, which is checked first.

    Records that it does not hold are deleted last. Until the answer, searches see some of both; after an error send it
    again. What is written meanwhile may stay.
    """
    state = _enter(request)
    body = await read_json(request, state.limits, RESTORE_FIELDS)
    name, namespace = require(body, "name", str), take(body, "namespace", str)
    path = _path(state, name)
    if not path.is_dir():
        raise Problem(404, "UnknownBackup", f"there is no backup {name!r}; GET /v1/backups lists them", field="name")
    with journaled("restore", (namespace,)) as line:
        line["backup"] = name

        def work() -> dict[str, int]:
            return bring_back(state.engine, path, namespace)

        done = await in_thread(request, work, threads=state.carriers, finish=True)
        line |= done
    return json_response({"restored": done})


def bring_back(memory: Memory, backup: Path, namespace: str | None) -> dict[str, int]:
    """As `restore`. Raises as `Engine.check_backup`, `Engine.open` and `Engine.import_records`."""
    sharded = is_sharded(backup)
    with tempfile.TemporaryDirectory(prefix=".restoring-", dir=backup.parent) as folder, ExitStack() as held:
        read = backup
        if sharded:
            # Its owner writes wherever it is opened, so a copy is.
            read = Path(folder, backup.name)
            memory_class(backup).restore(backup, read)
        else:
            memory_class(backup).check_backup(backup)
        source = held.enter_context(open_directory(read, read_only=not sharded))
        file = held.enter_context(tempfile.TemporaryFile(dir=folder))
        source.export(file, namespace=namespace)
        file.seek(0)
        done = vars(memory.import_records(file, upsert=True))
        deleted = 0
        for name in memory.namespaces if namespace is None else [namespace]:
            extra = sorted(set(memory.ids(namespace=name)).difference(source.ids(namespace=name)))
            for first in range(0, len(extra), AT_ONCE):
                deleted += memory.delete(extra[first : first + AT_ONCE], namespace=name, missing_ok=True)
    return {**done, "deleted": deleted}


def _enter(request: Request) -> State:
    state = state_of(request)
    check_everything(principal_of(request), write=True)
    _folder(state)
    return state


def _folder(state: State) -> Path:
    if state.backups is None:
        raise Problem(404, "NoBackups", "this server keeps no backups; start it with --backups DIRECTORY")
    return state.backups


def _path(state: State, name: str) -> Path:
    """Where the backup of this name is, below the directory and nowhere else."""
    path = _folder(state) / name
    if not _NAME.fullmatch(name) or path.is_symlink():
        detail = "a backup's name has 1 to 100 letters, digits, - or _, and begins with a letter or a digit"
        raise Problem(422, "InvalidField", detail, field="name")
    return path


def _describe(path: Path) -> dict[str, Any]:
    files = [Path(folder, file) for folder, _, names in os.walk(path) for file in names]
    size = sum(file.stat().st_size for file in files if file.exists())
    return {"name": path.name, "made": path.stat().st_mtime, "bytes": size}
