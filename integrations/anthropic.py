"""Anthropic's memory tool (``memory_20250818``) over a memory: the six verbs by which Claude keeps files of its own.

    client.beta.messages.tool_runner(model=..., messages=..., tools=[FanrankMemoryTool("memory")])

A file is a record: its id is the path below ``/memories``, its text the content. So searches find what Claude keeps in
files, and records that others wrote are files, too. A directory is what the ids of its files begin with.

`view` takes a query beside the path, which ranks the files instead of listing them: as the field ``query``, or behind a
question mark, ``/memories/projects?what did we decide about caching``, which is what a model can send, as the fields of
the tool are Anthropic's. The answers and errors are worded as those of the SDK's own tool over a file system.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

from ..engine.errors import MissingExtraError
from ..engine.hybrid.strategy import AnyStrategy
from ..engine.memory import Memory
from ..engine.records.filters import col
from ..engine.records.hits import Hits
from ..engine.records.query import Query
from ..engine.records.record import Record
from .shared import AnyEngine, check_memory, open_engine, with_text

try:
    from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError

    from .anthropic_files import ROOT, ancestors, listing, name_of, numbered
except ImportError:
    raise MissingExtraError("anthropic", "anthropic") from None

FOLDERS = "folders"
"""The key of the payload that holds the directories of a file, which a ranked view is filtered by."""
SHOWN = 200
"""Characters of a file's first line in a ranked view."""

Change = Callable[[Mapping[str, Record]], Iterable[Record]]


class _Files:
    """The verbs over the records of one namespace. What cannot be done is a `ToolError`, and then nothing changed."""

    def __init__(
        self,
        engine: AnyEngine = None,
        *,
        namespace: str = "",
        strategy: AnyStrategy = "bm25",
        k: int = 10,
        cache_control: Any = None,
    ) -> None:
        super().__init__(cache_control=cache_control)  # type: ignore[call-arg]  # of the SDK's class behind this one
        self.memory: Memory = open_engine(engine)
        check_memory(self.memory, "rewrite")
        self.namespace, self.strategy, self.k = namespace, strategy, k

    def view(self, command: Any) -> str:
        query = self._query_of(command)
        if query is None:
            return self._read(command)
        return self._ranked(self.memory.search([query], self.k, strategy=self.strategy, texts=True))

    async def aview(self, command: Any) -> str:
        """As `view`; ranked views of callers who ask at the same time are one launch."""
        query = await asyncio.to_thread(self._query_of, command)
        if query is None:
            return await asyncio.to_thread(self._read, command)
        return self._ranked(await self.memory.asearch([query], self.k, strategy=self.strategy, texts=True))

    def _query_of(self, command: Any) -> Query | None:
        """What a view asks for, if it asks."""
        text, (path, mark, rest) = getattr(command, "query", None), command.path.partition("?")
        if text is None and mark and self._find(command.path.removeprefix(f"{ROOT}/")) is None:
            text = rest
        if text is None:
            return None
        name = name_of(path)
        filter = col(f"payload.{FOLDERS}").contains(name) if name else None
        return Query(text, filter=filter, namespace=self.namespace)

    def _ranked(self, hits: Hits) -> str:
        """The files that were found: score, path, and the first line that is not empty."""
        firsts = ["".join((hit.text or "").strip().split("\n")[:1]) for hit in hits[0]]
        rows = [
            f"{hit.score:.2f}\t{ROOT}/{hit.id}\t{first[:SHOWN]}" for hit, first in zip(hits[0], firsts, strict=True)
        ]
        return "\n".join(["Here're the files that match, the best first:", *rows] if rows else ["No file matches."])

    def _read(self, command: Any) -> str:
        path, name = command.path, name_of(command.path)
        record = self._find(name)
        if record is None:
            return self._listed(path, name)
        lines = record.text.split("\n")
        first, last = 0, len(lines)
        if command.view_range and len(command.view_range) == 2:
            first = max(1, command.view_range[0]) - 1
            last = last if command.view_range[1] == -1 else command.view_range[1]
        return f"Here's the content of {path} with line numbers:\n{numbered(lines, first, last)}"

    def create(self, command: Any) -> str:
        name = name_of(command.path)
        if not name or self._below(name) or any(self.memory.fetch(ancestors(name), namespace=self.namespace)):
            raise ToolError(f"File {command.path} already exists, or lies below a file")

        def change(live: Mapping[str, Record]) -> Iterable[Record]:
            if live:
                raise ToolError(f"File {command.path} already exists")
            payload = {FOLDERS: ancestors(name)}
            return [Record(name, command.file_text, self.namespace, time=time.time(), payload=payload)]

        self._rewrite([name], change)
        return f"File created successfully at: {command.path}"

    def str_replace(self, command: Any) -> str:
        old, line = command.old_str, 0

        def change(text: str) -> str:
            nonlocal line
            places = [text.count("\n", 0, found.start()) for found in re.finditer(re.escape(old), text)]
            if len(places) == 1:
                line = places[0]
                return text.replace(old, command.new_str or "")
            why = f", old_str `{old}` did not appear verbatim in {command.path}."
            if places:
                named = ", ".join(str(place + 1) for place in places)
                why = f". Multiple occurrences of old_str `{old}` in lines: {named}. Please ensure it is unique"
            raise ToolError(f"No replacement was performed{why}")

        lines = self._edit(command.path, change).split("\n")
        shown = numbered(lines, max(0, line - 2), line + 3)
        return f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{shown}"

    def insert(self, command: Any) -> str:
        def change(text: str) -> str:
            lines = text.removesuffix("\n").split("\n") if text else []
            if not 0 <= command.insert_line <= len(lines):
                raise ToolError(
                    f"Invalid `insert_line` parameter: {command.insert_line}. "
                    f"It should be within the range [0, {len(lines)}]."
                )
            lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
            return "\n".join(lines).removesuffix("\n") + "\n"

        self._edit(command.path, change)
        return f"The file {command.path} has been edited."

    def delete(self, command: Any) -> str:
        name = name_of(command.path)
        if not name:
            raise ToolError(f"Cannot delete the {ROOT} directory itself")
        if not self.memory.delete([name, *self._below(name)], namespace=self.namespace, missing_ok=True):
            raise ToolError(f"The path {command.path} does not exist")
        return f"Successfully deleted {command.path}"

    def rename(self, command: Any) -> str:
        old, new = name_of(command.old_path), name_of(command.new_path)
        if not old:
            raise ToolError(f"Cannot rename the {ROOT} directory itself")
        if f"{new}/".startswith(f"{old}/"):
            raise ToolError(f"The destination {command.new_path} lies below the path itself, or is it")
        taken = not new or self._below(new) or any(self.memory.fetch(ancestors(new), namespace=self.namespace))
        names = {name: new + name[len(old) :] for name in [old, *self._below(old)]}

        def change(live: Mapping[str, Record]) -> Iterable[Record]:
            if taken or any(name in live for name in names.values()):
                raise ToolError(f"The destination {command.new_path} already exists")
            if not live:
                raise ToolError(f"The path {command.old_path} does not exist")
            return [
                replace(live[name], id=moved, payload={**(live[name].payload or {}), FOLDERS: ancestors(moved)})
                for name, moved in names.items()
                if name in live
            ]

        self._rewrite([*names, *names.values()], change)
        return f"Successfully renamed {command.old_path} to {command.new_path}"

    def clear_all_memory(self) -> str:
        self.memory.drop(self.namespace)
        return "All memory cleared"

    def _find(self, name: str) -> Record | None:
        return self.memory.get(name, namespace=self.namespace) if name else None

    def _below(self, name: str) -> list[str]:
        """The ids of the files in a directory, at any depth."""
        ids = self.memory.ids(namespace=self.namespace)
        return [id for id in ids if id.startswith(f"{name}/")] if name else [*ids]

    def _listed(self, path: str, name: str) -> str:
        below = self._below(name)
        if name and not below:
            raise ToolError(f"The path {path} does not exist. Please provide a valid path.")
        texts = dict(zip(below, self.memory.fetch(below, namespace=self.namespace), strict=True))
        return listing(path, name, {id: record.text for id, record in texts.items() if record is not None})

    def _edit(self, path: str, change: Callable[[str], str]) -> str:
        """Write what `change` makes of a file's content, which no other write touches meanwhile."""
        name, written = name_of(path), ""

        def rewritten(live: Mapping[str, Record]) -> Iterable[Record]:
            nonlocal written
            if name not in live:
                there = "is not a file." if self._below(name) else "does not exist. Please provide a valid path."
                raise ToolError(f"The path {path} {there}")
            written = change(live[name].text)
            return [with_text(live[name], written, time.time())]

        self._rewrite([name] if name else [], rewritten)
        return written

    def _rewrite(self, names: Iterable[str], change: Change) -> None:
        self.memory.rewrite({self.namespace: names}, lambda live: change({id: one for (_, id), one in live.items()}))


def _awaited(verb: Any) -> Any:
    async def ask(self: Any, *given: Any) -> str:
        return str(await asyncio.to_thread(verb, self, *given))

    return wraps(verb)(ask)


class FanrankMemoryTool(_Files, BetaAbstractMemoryTool):  # type: ignore[misc]  # typed where it is installed
    """The memory tool of one namespace, for ``tools=`` of the SDK's runner.

    `engine` is an engine or shards, a path, or None for a memory that ends with the program. `namespace` is the user's;
    the model cannot name another. `strategy` ranks the at most `k` files of a view with a query. Any thread may use it.
    Raises `ParameterError`, `NotSupportedError` for a memory that cannot rewrite in place, and as `Engine.open`.
    """


class FanrankAsyncMemoryTool(_Files, BetaAsyncAbstractMemoryTool):  # type: ignore[misc]
    """As `FanrankMemoryTool`, awaited. Writes of callers who wait at the same time share one sync of the disk."""

    view = _Files.aview  # type: ignore[assignment]
    create, str_replace, insert = _awaited(_Files.create), _awaited(_Files.str_replace), _awaited(_Files.insert)
    delete, rename = _awaited(_Files.delete), _awaited(_Files.rename)
    clear_all_memory = _awaited(_Files.clear_all_memory)
