"""`fanrank check`: compares every backend with the oracle over the user's corpus."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

import click

from ..check import check as checks
from ..evaluate.presets import LOADERS
from ..plan.device_options import DeviceOptions
from ..records.jsonl import read_records
from .demo import questions_of
from .options import EngineParameters, backend_option, device_options, engine_options, json_option
from .output import print_json
from .values import detect_kind


@click.command()
@click.argument("path", type=click.Path())
@click.option(
    "--kind",
    type=click.Choice(["records", *LOADERS]),
    help="What PATH holds: records (JSON lines) or a kind of dataset. Default: told by its content.",
)
@click.option("-k", default=100, show_default=True, help="Number of hits per query to compare.")
@click.option("--limit", type=click.IntRange(1), help="Check only this many queries, the first ones. Default: all.")
@backend_option
@device_options
@engine_options
@json_option
def check(
    path: str,
    kind: str | None,
    k: int,
    limit: int | None,
    backend: str | None,
    device: DeviceOptions,
    parameters: EngineParameters,
    as_json: bool,
) -> None:
    """Compare every backend with the oracle over the corpus at PATH; exit 1 on any difference.

    The oracle is a slow search in plain Python. Ids, scores and order must be equal to the bit. Printed are those paths
    of a backend that differ; --json names all.
    """
    keywords = parameters.keywords()
    kind = kind or detect_kind(path)
    if kind == "records":
        records = list(read_records(path))
        queries = questions_of(records, 100)
    else:
        dataset = LOADERS[kind](path)
        records, queries = list(dataset.records), dataset.queries
    corpus = Path(path).name
    result = checks.check(
        records, queries[:limit], corpus=corpus, k=k, backend=backend, device=device, progress=True, **keywords
    )
    if as_json:
        print_json(result)
    else:
        click.echo(f"{result['corpus']}: {len(records):,} records, {result['queries']:,} queries, top {k}")
        for name, entries in groupby(result["roads"], lambda entry: entry["name"].partition(": ")[0]):
            compared = list(entries)
            total = sum(entry["differences"] for entry in compared)
            click.echo(f"  {name}: {len(compared)} paths, {total} differences")
            for entry in compared:
                if entry["differences"]:
                    click.echo(f"    {entry['name']}: {entry['differences']} of {entry['queries']} queries differ")
        click.echo("one answer" if not result["differences"] else f"{result['differences']} DIFFERENCES")
    if result["differences"]:
        sys.exit(1)
