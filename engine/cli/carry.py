"""`fanrank export`, `copy` and `columns`: a memory goes elsewhere, or gets another form."""

from __future__ import annotations

import sys
import time

import click

from ..encoders.embed import show_pin
from .options import (
    EngineParameters,
    Models,
    engine_options,
    format_option,
    json_option,
    memory_argument,
    model_options,
    open_memory,
    served_argument,
)
from .output import print_result
from .values import FILTER_HELP, STANDARD, parse_columns, parse_filters


@click.command("export")
@served_argument
@click.argument("file", type=click.Path(allow_dash=True))
@format_option
@click.option("--namespace", help="Export the records of this namespace. Default: all records.")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="COLUMN=VALUE",
    help=f"Export only records {FILTER_HELP} Repeatable.",
)
@click.option("--no-vectors", is_flag=True, help="Leave the embeddings out.")
@json_option
def export_command(
    path: str,
    file: str,
    format: str | None,
    namespace: str | None,
    filters: tuple[str, ...],
    no_vectors: bool,
    as_json: bool,
) -> None:
    """Write the records of MEMORY to FILE: .jsonl, .jsonl.gz, .parquet, or - as JSON lines.

    All records are those of one moment; another process may write meanwhile.
    """
    started = time.perf_counter()
    with open_memory(path, read_only=True) as engine:
        count = engine.export(
            sys.stdout.buffer if file == STANDARD else file,
            format=format,
            namespace=namespace,
            filter=parse_filters(filters, engine.columns),
            vectors=not no_vectors,
            progress=True,
        )
    result = {"path": path, "file": file, "exported": count, "seconds": time.perf_counter() - started}
    if file == STANDARD:
        click.echo(f"{count:,} records exported", err=True)
    else:
        print_result(result, as_json, f"{count:,} records exported: {file}")


@click.command("copy")
@memory_argument
@click.argument("target", type=click.Path())
@engine_options
@model_options
@json_option
@click.pass_context
def copy_command(
    context: click.Context,
    /,
    path: str,
    target: str,
    parameters: EngineParameters,
    models: Models,
    as_json: bool,
) -> None:
    """Copy MEMORY to the new directory TARGET, with other parameters where options name them.

    TARGET is there entirely or not at all. With another --encoder, vectors are made anew.
    """
    started = time.perf_counter()
    loaded = models.load()
    with open_memory(path, read_only=True) as engine:
        before = engine.pin
        count = engine.copy_to(target, progress=True, **loaded, **parameters.given_keywords(context))
    with open_memory(target, read_only=True) as engine:
        after = engine.pin
    made = after is not None and after != before
    result = {"path": path, "target": target, "copied": count, "vectors_made": made}
    result["seconds"] = time.perf_counter() - started
    word = f"; vectors made anew by {show_pin(after)}" if made and after is not None else ""
    print_result(result, as_json, f"{count:,} records copied{word}: {target}")


@click.command("columns")
@served_argument
@click.option(
    "--add",
    "added",
    multiple=True,
    metavar="NAME:KIND",
    help="Declare this column: category, number or json; repeatable.",
)
@click.option("--drop", "dropped", multiple=True, metavar="NAME", help="Declare this column no longer; repeatable.")
@json_option
def columns_command(path: str, added: tuple[str, ...], dropped: tuple[str, ...], as_json: bool) -> None:
    """Show the declared columns of MEMORY, or change them in place.

    The values of a column are those that records hold in "extra", or else in "payload". All changes are made, or none
    after an error. With *:json, filters may name keys that no record has.
    """
    fresh = parse_columns(added, "--add")
    with open_memory(path, read_only=not (added or dropped)) as engine:
        if dropped or fresh:
            engine.change_columns(dropped, fresh)
        columns = engine.columns
    text = "\n".join(f"{name:20} {kind}" for name, kind in columns.items())
    print_result({"path": path, "columns": columns}, as_json, text or "no declared columns")
