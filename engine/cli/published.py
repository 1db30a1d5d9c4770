"""`fanrank published`: each headline of the sources beside what this package gives."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import ParameterError
from ..evaluate import headlines
from .options import json_option
from .output import print_json, print_text


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="A folder with locomo/locomo10.json and scifact/, over which figures are measured, in about two minutes.",
)
@click.option("--dense", is_flag=True, help="Also measure what needs an encoder, which takes many minutes more.")
@click.option("--encoder", help="The model of --dense. Default: that of `fanrank eval`.")
@json_option
def published(data: Path | None, dense: bool, encoder: str | None, as_json: bool) -> None:
    """Show each headline of the sources beside the figure here.

    A figure here is computed, or measured over --data. Else the command is shown that measures it, or why there is
    none. docs/sources.md lists the sources.
    """
    if data is not None and not data.is_dir():
        raise ParameterError(f"--data {data}: not a directory")
    rows = []
    for headline, here in headlines.measure(data, encoder, dense):
        row = {**{name: getattr(headline, name) for name in ("source", "where", "what", "published")}, "here": here}
        rows.append({**row, "command": headline.command, "differs": headline.differs})
        if not as_json:
            print_text(f"{headline.source}, {headline.where}: {headline.what}: {headline.published}; here: {here}")
            if headline.differs:
                print_text(f"    {headline.differs}")
    if as_json:
        print_json({"headlines": rows})
