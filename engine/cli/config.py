"""``--config FILE``: options of a command in a file, each checked by the declaration of its option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..errors import ParameterError, refuse_unknown
from ..records.places import line_in_json, line_in_toml


def _read_config(context: click.Context, _: click.Parameter, file: str | None) -> None:
    """Let the values of a file stand where the command line says nothing."""
    if file is None:
        return
    try:
        text = Path(file).read_bytes().decode()
        given = json.loads(text) if file.endswith(".json") else _toml().loads(text)
    except OSError as error:
        raise ParameterError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ParameterError(f"{file}: {error}") from None
    if not isinstance(given, dict):
        raise ParameterError(f"{file}: must map options to values")
    options = [option for option in context.command.params if isinstance(option, click.Option) and option.expose_value]
    names = {option.opts[0].removeprefix("--"): option.name for option in options}
    known, taken = {str(option.name): option for option in options}, {}
    for name, value in given.items():
        line = line_in_json(text, (name,)) if file.endswith(".json") else line_in_toml(text, name)
        place = file if line is None else f"{file}, line {line}"
        refuse_unknown([name], names, f"{place}: {context.info_name} has no option")
        # As text, as on a command line: a number would else lose its fraction, and true be 1.
        words = [str(each) for each in value] if isinstance(value, list) else str(value)
        taken[str(names[name])] = words
        try:
            known[str(names[name])].type_cast_value(context, words)
        except click.BadParameter as error:
            raise ParameterError(f"{place}: {name}: {error.message}") from None
    context.default_map = taken


def _toml() -> Any:
    try:
        import tomllib
    except ImportError:
        raise ParameterError("TOML needs Python 3.11; write the file as JSON, with the suffix .json") from None
    return tomllib


config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="File of options, as TOML, or JSON where it ends with .json: max-k = 500. The command line wins.",
)
