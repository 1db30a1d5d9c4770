"""`Carrying`: the verbs of `Engine` that take a memory elsewhere, or give it another form."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .carry import copying
from .carry.export import Source, export_records, source_of
from .carry.files import AnyFile, path_of
from .carry.importing import Import, Imported, MemoryTarget, Target, read
from .carry.progress import counted
from .carry.rows import Carried
from .errors import ParameterError, StorageError, choices
from .index.column_names import check_names
from .index.columns import Schema
from .monitor.monitor import checked_scope
from .offered import REST, offered
from .opening import OpenIndex, shows_progress
from .records.checks import About
from .records.filters import Filter, parse_filter
from .searcher import Searcher
from .signatures import EngineOptions
from .storage.backup import BackupReport, Progress, back_up, check_backup, restore

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack


def _check_declared(name: str, columns: Mapping[str, str]) -> None:
    if name not in columns:
        raise ParameterError(f"no declared column {name!r}{choices(name, columns)}")


def _check_new(name: str, kind: str, columns: Mapping[str, str]) -> None:
    if name in columns:
        raise ParameterError(f"column {name!r} is there already, as a {columns[name]}")
    Schema.of({name: kind})
    check_names({name: kind})


class Carrying:
    """A part of `Engine`, which says what an engine is."""

    index: OpenIndex
    searcher: Searcher

    if TYPE_CHECKING:

        def _folders(self) -> list[Path]: ...

    def _config(self) -> dict[str, Any]:
        """The parameters that a directory keeps."""
        raise NotImplementedError

    def export(
        self,
        file: AnyFile,
        *,
        format: str | None = None,
        namespace: str | None = None,
        filter: Filter | Mapping[str, Any] | None = None,
        vectors: bool = True,
        progress: bool = False,
    ) -> int:
        """Write the records to a file, oldest first; returns how many.

        `file` is a path, or a binary file that is open for writing. `format` is ``jsonl`` (one JSON object a line) or
        ``parquet``. By default the suffix of a path decides, and an open file gets JSON lines. A path with the suffix
        ``.gz`` is compressed. `namespace` and `filter` choose records; `vectors` false leaves their embeddings out.

        A record is written with all its fields: payload, weights, entities, relations and expiry too, and vectors bit
        by bit. Records that have expired and are not deleted yet are written as well. `import_records` reads the file
        back.

        All records are those of one moment, while writes and searches go on. The file is written a few thousand records
        at a time; a path is renamed to when all of it is on disk. A symbolic link stays, and its target is replaced. A
        FIFO and a character device are written to as they are. Raises `StorageError` for an engine that keeps no
        texts and for a failing disk, `RecordError` for an `extra` of an engine in memory that is no JSON,
        `ParameterError`, `QueryError`, `DamagedStoreError`, and `MissingExtraError` where pyarrow is not installed.
        """
        name, parsed = checked_scope(namespace), parse_filter(filter)

        def export() -> int:
            return export_records(
                self._source(name, vectors),
                self.index.ready().schema,
                file,
                format=format,
                namespace=name,
                filter=parsed,
                pin=self.searcher.models.pin,
                progress=progress,
            )

        count = self.searcher.declaring(export, [parsed])
        if isinstance(file, (str, os.PathLike)):
            self._note_copy("export", file)
        return count

    def _note_copy(self, kind: str, path: str | os.PathLike[str]) -> None:
        """Note where a copy was made, as what is forgotten later may stand in it."""
        from .trust.copies import note_copy  # as in opening.py

        note_copy(self._folders(), kind, path)

    def _source(self, namespace: str | None, vectors: bool) -> Source:
        """What gives the records to export, which may be those of one namespace alone."""
        return source_of(self.index.ready(), vectors)

    def import_records(
        self,
        file: AnyFile | Iterator[Carried],
        *,
        format: str | None = None,
        upsert: bool = False,
        progress: bool = False,
        resume: bool = True,
    ) -> Imported:
        """Add the records of a file, in durable batches; returns what was done.

        `file` and `format` are as in `export`; `file` may also be an iterator of `Carried`, which another reads. Any
        JSON lines and any Parquet table will do whose fields or columns are those of a record; others go to
        `Record.extra`. Records without vectors are encoded as in `add`.

        An id that is there already is an error, or its record is replaced with `upsert`. A record that the engine holds
        with the same content is passed over. So an import that was stopped or killed goes on where it was when it is
        run again. With `resume` false nothing is compared. Where an id stands twice in the file, `upsert` lets the last
        one win. A record that has expired is passed over too, unless it replaces one that is live. What a batch does is
        decided when no other write is under way, so others may write the same ids meanwhile.

        An error stops the import at its record, and says how many are in the engine by then. Raises `RecordError` (also
        for a field in `Record.fields` that the engine does not search) and
        `DuplicateIdError` with file and line, `ModelMismatchError` for vectors of another model, `StorageError`,
        `ParameterError`, `EncoderError`, and `MissingExtraError` where pyarrow is not installed.
        """
        importing = Import(self._target(), self.searcher.models, upsert=upsert, resume=resume)
        given: Any = file
        records = given if isinstance(given, Iterator) and not hasattr(given, "read") else read(given, format)
        return importing.run(counted(records, "importing", None, progress))

    def _target(self) -> Target:
        """Where records are imported to."""
        return MemoryTarget(self.index.ready())

    def copy_to(self, path: str | os.PathLike[str], *, progress: bool = False, **options: Unpack[EngineOptions]) -> int:
        """Make the directory `path`, with these records and other parameters; returns how many records.

        `options` are the constructor's, as in ``copy_to(path, analyzer="full", columns={"project": "category"})``.
        What they do not name stays as it is. The order of arrival stays too. So the copy answers as an engine that was
        made with these parameters and then got the records.

        Vectors and learned weights are copied. Where `encoder` or `term_encoder` is of another model, they are made
        anew from the texts (the logger ``fanrank`` says so); where it is None, they are left out.

        The records are those of one moment, and are copied a few thousand at a time while writes and searches go on.
        The copy is made beside `path`, as ``.NAME.partial``, and renamed when it is whole: `path` is there entirely or
        not at all. A copy that was killed is begun anew by the next. Raises `ForeignIndexError` if `path` is there and
        not empty, or lies in this engine's own directory, `StoreLockedError` while another copy to it runs,
        `StorageError` for an engine that keeps no texts and for a failing disk, `ParameterError`, `ModelMismatchError`,
        `EncoderError`, `RecordError` for a value that does not fit a new column, and for a record with a text field
        that the new `fields` leave out.
        """
        engine_type: Any = type(self)
        memory, models = self.index.ready(), self.searcher.models
        copied = copying.copy(memory, models, path, self._config(), options, engine_type.open, progress)
        self._note_copy("copy", path)
        return copied

    @property
    def columns(self) -> dict[str, str]:
        """The metadata columns that were declared beside the built-in ones: names and kinds."""
        return self.index.memory.schema.declared()

    @offered(REST, writes=True)
    def add_column(
        self,
        name: Annotated[str, About("The column.", examples=("project",))],
        kind: Annotated[str, About("category, number or json.", examples=("category",))],
    ) -> None:
        """Declare one more metadata column, ``category``, ``number`` or ``json``, in place.

        Its values are those that the records hold in `Record.extra`, or else under this key in `Record.payload`, now
        and later. Answers do not change, and queries can filter by the column. The name ``*`` of kind ``json`` declares
        nothing yet: it lets filters declare keys that no record has, too, as ``Engine(columns="auto")`` does. Writes
        wait meanwhile; searches go on. A crash at any moment leaves the old columns or the new ones. An engine that has
        the directory open with ``read_only`` sees the column when it is opened anew.

        Raises `ParameterError` for a name that is taken or longer than 200 bytes, `RecordError` with the id of a record
        whose value is of the wrong type, and `StorageError` for an engine that keeps no texts; nothing is changed then.
        """
        self.change_columns((), {name: kind})

    @offered(REST, writes=True)
    def drop_column(self, name: Annotated[str, About("The column.", examples=("project",))]) -> None:
        """Declare a metadata column no longer, in place. The records keep the values, and `add_column` brings it back.

        Raises `ParameterError` for a column that was not declared, and as `add_column`.
        """
        self.change_columns((name,), {})

    @offered(REST, writes=True)
    def change_columns(
        self,
        dropped: Annotated[Sequence[str], About("The columns to declare no longer.")],
        added: Annotated[Mapping[str, str], About("The kinds of the columns to declare, by their names.")],
    ) -> None:
        """Declare columns no longer, and declare others, in one step: all of it, or nothing after an error.

        Raises as `drop_column` and `add_column`, and `ParameterError` for a column that is dropped twice.
        """

        def change(schema: Schema) -> Schema:
            columns = schema.declared()
            for number, name in enumerate(dropped):
                if name in dropped[:number]:
                    raise ParameterError(f"column {name!r} is to be dropped twice; name it once")
                _check_declared(name, columns)
            columns = {name: kind for name, kind in columns.items() if name not in dropped}
            for name, kind in added.items():
                _check_new(name, kind, columns)
                columns[name] = kind
            return Schema.of(columns)

        self.index.ready().change_columns(change)

    def backup(self, path: str | os.PathLike[str], *, progress: bool = False) -> BackupReport:
        """Copy the memory, as of one moment, to the new directory `path`, which `Engine.open` opens.

        Writes and searches go on meanwhile. The copy holds each batch whole or not at all, and every batch that was
        acknowledged before the call. It appears at `path` in one step, once all of it is on the disk; what an
        killed process leaves is a folder with ``.partial-`` in its name, which the next backup to `path` removes.

        `progress` shows a bar if standard error is a terminal. Raises `StorageError` if something is at `path`
        already, if it cannot be written, and for an engine in memory (`save` keeps its index).
        """
        memory = self.index.ready()
        store = memory.store
        config = None if store is None else store.config
        if store is None or config is None:
            raise StorageError("an engine in memory keeps no records to back up; use Engine.open(path), or save(path)")
        with shown_progress(progress) as show:
            report = back_up(store, memory.saved(), config["store"], path_of(path), show)
        self._note_copy("backup", path)
        return report

    @staticmethod
    def check_backup(path: str | os.PathLike[str], *, progress: bool = False) -> BackupReport:
        """Check a backup, or any engine's directory, and say what it holds. Nothing in it is changed.

        The database is checked by SQLite, each record by its checksum, and the index files by theirs. Raises
        `DamagedStoreError` where a record is altered or acknowledged changes are missing, `ForeignIndexError`,
        `NewerFormatError`, `StorageError`.
        """
        with shown_progress(progress) as show:
            return check_backup(path_of(path), show)

    @staticmethod
    def restore(
        backup: str | os.PathLike[str], path: str | os.PathLike[str], *, progress: bool = False
    ) -> BackupReport:
        """Check the directory `backup` and copy it to the new directory `path`, which appears there in one step.

        Raises as `check_backup`, and `StorageError` if something is at `path` already or it cannot be written.
        """
        with shown_progress(progress) as show:
            return restore(path_of(backup), path_of(path), show)


@contextmanager
def shown_progress(progress: bool) -> Iterator[Progress | None]:
    """A function that shows progress in a bar, a bar for each thing that is done; None where nobody would see it."""
    if not shows_progress(progress):
        yield None
        return
    from tqdm import tqdm  # as in opening.py

    bars: dict[str, Any] = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in bars:
            bars[what] = tqdm(desc=what, total=total)
        bar = bars[what]
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        for bar in bars.values():
            bar.close()
