"""`fanrank list` and `fanrank count`: the records of an engine's directory, without ranking them."""

from __future__ import annotations

import click

from ..carry.rows import to_json
from ..errors import ForeignIndexError
from ..listing.orders import ORDERS
from ..memory import Memory
from ..records.record import Record
from .options import json_option, open_engine, served_argument
from .output import cut_to, one_line, print_json, print_result, print_text, shown_time, terminal_width
from .values import FILTER_HELP, parse_filters

COLUMN = 20
"""The most characters of an id, so that texts begin in one line with each other."""

filter_option = click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="COLUMN=VALUE",
    help=f"Only records {FILTER_HELP} Repeatable: all must hold, but several = on one column are alternatives.",
)
namespace_option = click.option(
    "--namespace", default="", show_default="the unnamed namespace", help="Namespace of the records."
)
all_option = click.option("--all", "everywhere", is_flag=True, help="Records of all namespaces.")


@click.command("list")
@served_argument
@filter_option
@namespace_option
@all_option
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default="written",
    show_default=True,
    help="Order of the records: by their last write, by time, or by id. Records without a time come last.",
)
@click.option("--reverse", is_flag=True, help="Turn the order around: the newest or the last written first.")
@click.option("--limit", type=click.IntRange(min=0), help="Most records to show. Default: all.")
@click.option("--after", metavar="CURSOR", help="Go on behind the page that ended with this cursor.")
@json_option
def list_command(
    path: str,
    filters: tuple[str, ...],
    namespace: str,
    everywhere: bool,
    order: str,
    reverse: bool,
    limit: int | None,
    after: str | None,
    as_json: bool,
) -> None:
    """List the records of MEMORY, one a line: id, time, namespace and text.

    On a terminal, lines are cut to its width. If more records follow, the last line of standard error says the cursor
    for --after. With --json each line is a JSON object, and the last one holds the cursor alone.
    """
    with _open_memory(path) as engine:
        listing = engine.records(
            filter=parse_filters(filters, engine.columns),
            namespace=None if everywhere else namespace,
            order=order,
            reverse=reverse,
            after=after,
            limit=limit,
        )
        width = terminal_width()
        for record in listing:
            if as_json:
                print_json(to_json(record, vectors=False))
            else:
                print_text(as_line(record, everywhere, width))
        if as_json:
            print_json({"cursor": listing.cursor})
        elif listing.cursor is not None:
            click.echo(f"more: --after {listing.cursor}", err=True)


@click.command("count")
@served_argument
@filter_option
@namespace_option
@all_option
@click.option("--by", "column", metavar="COLUMN", help="Count the records of each value of this metadata column.")
@json_option
def count_command(
    path: str, filters: tuple[str, ...], namespace: str, everywhere: bool, column: str | None, as_json: bool
) -> None:
    """Count the records of MEMORY."""
    scope = None if everywhere else namespace
    with open_engine(path) as engine:
        filter = parse_filters(filters, engine.columns)
        if column is None:
            count = engine.count(filter, namespace=scope)
            print_result({"path": path, "count": count}, as_json, f"{count:,}")
            return
        values = engine.distinct(column, filter, namespace=scope)
    counts = [{"value": value, "count": count} for value, count in values.items()]
    lines = [f"{count:>12,}  {'-' if value is None else one_line(str(value))}" for value, count in values.items()]
    print_result({"path": path, "column": column, "counts": counts}, as_json, "\n".join(lines) or "no records")


def as_line(record: Record, named: bool, width: int | None) -> str:
    """The record on one line, cut to `width` columns; with `named` it says the namespace."""
    time = "-" if record.time is None else shown_time(record.time)
    space = f"{record.namespace or '-'}  " if named else ""
    return cut_to(f"{one_line(record.id):{COLUMN}}  {time:20}  {space}{one_line(record.text)}", width)


def _open_memory(path: str) -> Memory:
    """The engine of a directory with records. A saved index has no texts to list."""
    engine = open_engine(path)
    if not engine.keeps_texts:
        raise ForeignIndexError(
            f"{path}: a saved index, which keeps no records; list a directory made by `fanrank add`"
        )
    return engine
