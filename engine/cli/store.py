"""`fanrank add`, `delete`, `stats` and `vacuum`: commands that make, change and describe a memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator

import click

from ...shards.choosing import ShardSettings, is_address, open_directory
from ..carry.files import format_of
from ..carry.importing import check_model, read
from ..carry.rows import model_of
from ..errors import DuplicateIdError, ParameterError, RecordError, StorageError
from ..records.declared import declared_parameters
from ..records.record import Record
from ..signatures import KEEP, Twins
from ..writing import Writing
from .options import (
    EngineParameters,
    Models,
    accept_loss_option,
    declared_option,
    engine_options,
    format_option,
    json_option,
    memory_argument,
    model_options,
    open_engine,
    open_memory,
    served_argument,
    shard_options,
)
from .output import print_result
from .values import STANDARD, check_source, parse_filters


@click.command()
@served_argument
@click.argument("file", type=click.Path(allow_dash=True))
@format_option
@click.option("--upsert", "--update", "replace", is_flag=True, help="Replace records that have an id of FILE.")
@click.option(
    "--resume",
    is_flag=True,
    help="Write in batches, and pass over records that are there as they are: what was stopped goes on where it was.",
)
@declared_option(declared_parameters(Writing.add, ("self",))["twins"])
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
    file: str,
    format: str | None,
    replace: bool,
    resume: bool,
    twins: Twins,
    accept_loss: bool,
    shard_settings: ShardSettings,
    parameters: EngineParameters,
    models: Models,
    as_json: bool,
) -> None:
    """Add the records of FILE to MEMORY: all of them, or none after an error.

    FILE holds JSON lines or is a Parquet table (.parquet), also what `fanrank export` wrote; - stands for JSON lines on
    standard input. A memory that is not there is made. One that is there keeps the parameters that it was made with.

    With --resume, and at the address of a server, what stands before an error is added, and records that have expired
    are passed over.
    """
    if twins != KEEP and (replace or resume or is_address(path)):
        raise ParameterError("--twins is for new records in one write: leave out --upsert and --resume, or an address")
    given = parameters.given_keywords(context)
    started = time.perf_counter()
    source = sys.stdin.buffer if file == STANDARD else file
    format = format_of(source, format, otherwise="jsonl")
    check_source(file, path)
    expired = Expired()
    opened = open_memory(path, shard_settings, make=True, accept_loss=accept_loss, **models.load(), **given)
    with opened as engine:
        if resume or is_address(path):  # a server takes so many records in one write alone
            done = vars(engine.import_records(source, format=format, upsert=replace, progress=True, resume=resume))
        else:
            model = model_of(engine.pin)
            records = expired.counted(check_model(carried, model) for carried in read(source, format))
            try:
                if twins == KEEP:
                    done = {"added": engine.upsert(records) if replace else engine.add(records, progress=True)}
                else:
                    answer = engine.add(records, progress=True, twins=twins)
                    done = {"added": int(answer), "twins": sum(map(bool, vars(answer)["twins"]))}
            except DuplicateIdError as error:
                if file == STANDARD:
                    raise
                raise _name_lines(error, file, format) from None
        result = {"path": path, **done, "seconds": time.perf_counter() - started, **engine.stats()}
    words = {
        "twins": "with the text of another",
        "replaced": "replaced",
        "held": "there before as they are",
        "expired": "passed over as they have expired",
    }
    counts = [f"{count:,} {word}" for name, word in words.items() if (count := done.get(name))]
    added = f"{done['added']:,} records added"
    added += f" ({expired.count:,} of them have expired already)" if expired.count else ""
    print_result(result, as_json, f"{', '.join((added, *counts))}, {result['documents']:,} there now: {path}")


@click.command()
@served_argument
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
    """Delete the records with these IDS, or those that pass --where, from MEMORY.

    All of them are deleted, or none after an error.
    """
    if bool(ids) == bool(filters):
        raise ParameterError("say which records to delete: either IDS or --where")
    with open_memory(path, accept_loss=accept_loss) as engine:
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
@served_argument
@click.option("--verify", is_flag=True, help="Compare index and records, id by id; exit 1 if they differ.")
@accept_loss_option
@json_option
def stats(path: str, verify: bool, accept_loss: bool, as_json: bool) -> None:
    """Show sizes and state of MEMORY.

    With --accept-loss it is opened for writing, and from then on every command opens it again.
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


def _name_lines(error: DuplicateIdError, file: str, format: str) -> RecordError:
    """The error with the places of `file` at which the id stands."""
    places: dict[str, str] = {}
    for where, record, _ in read(file, format):
        if record.id == error.record_id:
            if record.namespace in places:
                return DuplicateIdError(
                    f"already the id of {places[record.namespace]}; ids must be unique",
                    where=where,
                    record_id=record.id,
                )
            places[record.namespace] = where
    return error


@click.command()
@memory_argument
@json_option
def vacuum(path: str, as_json: bool) -> None:
    """Give back the disk that deleted records still take in MEMORY, and overwrite what is left of them.

    No answer changes. Everything is written anew, which takes up to twice the database's size on disk meanwhile.
    """
    with open_memory(path) as engine:
        freed = engine.vacuum()
        result = {"path": path, "freed_bytes": freed, **engine.stats()}
    print_result(result, as_json, f"{freed:,} bytes given back, {result['documents']:,} records are there: {path}")
