"""`fanrank index`, `add`, `delete` and `stats`: commands that make, change and describe an index."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator

import click

from ...shards.choosing import ShardSettings, open_directory
from ..engine import Engine
from ..errors import DuplicateIdError, ForeignIndexError, ParameterError, RecordError, StorageError
from ..records.jsonl import parse_lines, read_json_lines, read_records
from ..records.record import Record
from ..storage.row_codec import RECORDS
from .options import (
    EngineParameters,
    Models,
    accept_loss_option,
    engine_options,
    holds_records,
    json_option,
    model_options,
    open_engine,
    shard_options,
)
from .output import print_result
from .values import STANDARD, check_source, parse_filters


@click.command()
@click.argument("records", type=click.Path())
@click.argument("index", type=click.Path())
@engine_options
@model_options
@json_option
def index(records: str, index: str, parameters: EngineParameters, models: Models, as_json: bool) -> None:
    """Build an INDEX directory from RECORDS (JSON lines with "id" and "text").

    The index keeps no texts. For a memory that keeps them and can grow, use `fanrank add`.
    """
    engine = Engine(**models.load(), **parameters.keywords(), keep_texts=False)
    started = time.perf_counter()
    try:
        engine.add(read_records(records), progress=True)
    except DuplicateIdError as error:
        raise _name_lines(error, records) from None
    built = time.perf_counter() - started
    engine.save(index)
    result = {"index": index, "build_seconds": built, **engine.stats()}
    text = (
        f"{result['documents']:,} records in {result['namespaces']:,} namespace(s), "
        f"{result['postings']:,} postings, "
        f"{result['bytes_per_posting']:.1f} bytes each, built in {built:.2f} s: {index}"
    )
    print_result(result, as_json, text)


@click.command()
@click.argument("path", type=click.Path())
@click.argument("records", type=click.Path(allow_dash=True))
@click.option("--upsert", "--update", "replace", is_flag=True, help="Replace records that have an id of RECORDS.")
@accept_loss_option
@shard_options
@engine_options
@model_options
@json_option
@click.pass_context
def add(
    context: click.Context,
    /,
    path: str,
    records: str,
    replace: bool,
    accept_loss: bool,
    shard_settings: ShardSettings,
    parameters: EngineParameters,
    models: Models,
    as_json: bool,
) -> None:
    """Add RECORDS (JSON lines, or - for standard input) to the directory PATH: all of them, or none after an error.

    A directory that is not there is made. An existing directory keeps the parameters that it was made with.
    """
    given = parameters.given_keywords(context)
    started = time.perf_counter()
    check_source(records, path)
    over = Expired()
    with open_directory(
        path, shard_settings, progress=True, accept_loss=accept_loss, **models.load(), **given
    ) as engine:
        try:
            read = over.counted(_read(records))
            count = engine.upsert(read) if replace else engine.add(read, progress=True)
        except DuplicateIdError as error:
            if records == STANDARD:
                raise
            raise _name_lines(error, records) from None
        result = {"path": path, "added": count, "seconds": time.perf_counter() - started, **engine.stats()}
    word = f" ({over.count:,} of them have expired already)" if over.count else ""
    print_result(result, as_json, f"{count:,} records added{word}, {result['documents']:,} there now: {path}")


@click.command()
@click.argument("path", type=click.Path())
@click.argument("ids", nargs=-1)
@click.option(
    "--where",
    "filters",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="In place of IDS: delete all records that pass, given as for `fanrank list --filter`. Repeatable.",
)
@click.option("--namespace", default="", help="Namespace of the records. Default: the unnamed one.")
@click.option("--missing-ok", is_flag=True, help="Ignore ids that are not there instead of failing.")
@accept_loss_option
@json_option
def delete(
    path: str,
    ids: tuple[str, ...],
    filters: tuple[str, ...],
    namespace: str,
    missing_ok: bool,
    accept_loss: bool,
    as_json: bool,
) -> None:
    """Delete the records with these IDS, or those that pass --where, from the engine's directory PATH.

    All of them are deleted, or none after an error.
    """
    if bool(ids) == bool(filters):
        raise ParameterError("say which records to delete: either IDS or --where")
    if not holds_records(path):
        raise ForeignIndexError(f"{path}: no engine's directory (it has no {RECORDS})")
    with open_directory(path, progress=True, accept_loss=accept_loss) as engine:
        if filters:
            where = parse_filters(filters, engine.columns)
            if where is None:
                raise ParameterError("--where says nothing; a filter such as session=s1 chooses records")
            count = engine.delete_where(where, namespace=namespace)
        else:
            count = engine.delete(ids, namespace=namespace, missing_ok=missing_ok)
        result = {"path": path, "removed": count, **engine.stats()}
    print_result(result, as_json, f"{count:,} records deleted, {result['documents']:,} left: {path}")


@click.command()
@click.argument("path", type=click.Path())
@click.option("--verify", is_flag=True, help="Compare index and records, id by id; exit 1 if they differ.")
@accept_loss_option
@json_option
def stats(path: str, verify: bool, accept_loss: bool, as_json: bool) -> None:
    """Show sizes and state of the index or engine's directory PATH.

    With --accept-loss the directory is opened for writing, and from then on every command opens it again.
    """
    with open_directory(path, progress=True, accept_loss=True) if accept_loss else open_engine(path) as engine:
        if verify and not engine.keeps_texts:
            raise StorageError(
                f"{path}: is a saved index, which keeps no records to compare with; its files have just been compared "
                "with their checksums, so leave --verify out"
            )
        result = {"path": path, **engine.stats(), **(engine.verify() if verify else {})}
    # What each shard holds is for `fanrank shards` to show.
    shown = {name: value for name, value in result.items() if name != "shards"}
    print_result(result, as_json, "\n".join(f"{name:20} {value}" for name, value in shown.items()))
    if result.get("missing") or result.get("extra"):
        sys.exit(1)


class Expired:
    """Counts the records that have expired by now."""

    count = 0

    def counted(self, records: Iterable[Record]) -> Iterator[Record]:
        clock = time.time()
        for record in records:
            self.count += record.expired(clock)
            yield record


def _read(records: str) -> Iterator[Record]:
    if records != STANDARD:
        return read_records(records)
    lines = sys.stdin.buffer
    return (record for _, record in parse_lines(lines, "standard input", Record.from_dict))


def _name_lines(error: DuplicateIdError, path: str) -> RecordError:
    """The error with the lines of the file `path` on which the id stands."""
    lines: dict[str, str] = {}
    for line, record in read_json_lines(path, Record.from_dict):
        if record.id == error.record_id:
            if record.namespace in lines:
                return DuplicateIdError(
                    f"already the id of {lines[record.namespace]}; ids must be unique",
                    where=line,
                    record_id=record.id,
                )
            lines[record.namespace] = line
    return error


@click.command()
@click.argument("path", type=click.Path())
@json_option
def vacuum(path: str, as_json: bool) -> None:
    """Give back the disk that deleted records still take in the directory PATH, and overwrite what is left of them.

    No answer changes. Everything is written anew, which takes up to twice the database's size on disk meanwhile.
    """
    if not holds_records(path):
        raise ForeignIndexError(f"{path}: no engine's directory (it has no {RECORDS})")
    with open_directory(path, progress=True) as engine:
        freed = engine.vacuum()
        result = {"path": path, "freed_bytes": freed, **engine.stats()}
    print_result(result, as_json, f"{freed:,} bytes given back, {result['documents']:,} records are there: {path}")
