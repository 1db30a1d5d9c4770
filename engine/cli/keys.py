"""`fanrank keys`: the file of keys for `fanrank serve`."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import click

from ..errors import MissingExtraError, ParameterError
from ..moments import to_seconds, to_span
from .options import json_option
from .output import print_result

file_argument = click.argument("file", type=click.Path(dir_okay=False))


@click.group()
def keys() -> None:
    """Add, list, rotate and remove keys of `fanrank serve --keys FILE`.

    A caller sends its key in the header Authorization: Bearer KEY. A running server reads FILE again when it changes.
    """


@keys.command("add")
@file_argument
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Namespace that the key reaches; repeatable. acme/* is all below acme, but not acme itself; * is everything.",
)
@click.option("--read-only", is_flag=True, help="The key may search and read, and not write.")
@click.option("--metrics", is_flag=True, help="The key may read /metrics of the whole server. It needs no --namespace.")
@click.option("--name", default="", help="Name of the key in lists. Default: its id.")
@click.option("--expires", help="From when on it is refused: a moment (2027-01-01), or a span from now (90d).")
@click.option("--max-records", type=click.IntRange(1), help="Records that its namespaces may hold together.")
@click.option("--max-bytes", type=click.IntRange(1), help="Bytes of these records, as JSON without vectors.")
@json_option
def add(
    file: str,
    namespaces: tuple[str, ...],
    read_only: bool,
    metrics: bool,
    name: str,
    expires: str | None,
    max_records: int | None,
    max_bytes: int | None,
    as_json: bool,
) -> None:
    """Make a key, and print it. FILE, which is made if it is not there, keeps its hash alone: it is not shown again."""
    module = _module()
    key = module.add_key(
        file,
        namespaces,
        name=name,
        write=not read_only,
        metrics=metrics,
        expires=None if expires is None else _moment(expires),
        quota=module.Quota(max_records, max_bytes),
    )
    print_result({"key": key}, as_json, key)


@keys.command("rotate")
@file_argument
@click.argument("name")
@click.option(
    "--overlap",
    default="1d",
    show_default=True,
    help="For how long the old secret is good too, as 12h; 0s: no old one is.",
)
@json_option
def rotate(file: str, name: str, overlap: str, as_json: bool) -> None:
    """Give the key with this NAME or id a new secret, and print the new key. The old one is good for a while."""
    key = _module().rotate_key(file, name, _span(overlap))
    print_result({"key": key}, as_json, key)


def _moment(value: str) -> float:
    """A moment, or a span from now on."""
    try:
        return to_seconds(value)
    except ValueError:
        return time.time() + _span(value)


def _span(value: str) -> float:
    try:
        return to_span(value)
    except ValueError:
        raise ParameterError(f"{value!r} is neither a span, as 90d or 12h, nor a moment, as 2027-01-01") from None


@keys.command("list")
@file_argument
@json_option
def list_keys(file: str, as_json: bool) -> None:
    """Print each key's id, name, rights, namespaces, quota and end."""
    rows: list[dict[str, Any]] = []
    for key in _module().read_keys(file):
        row = {name: value for name, value in key.to_dict().items() if name not in ("hash", "old")}
        old = key.to_dict().get("old")
        row |= {"metrics": key.metrics} | ({"old_until": old[-1]["expires"]} if old else {})
        rows.append(row)
    lines = [
        f"{one['id']}  {one['name']}  {'read and write' if one['write'] else 'read only'}"
        f"{', metrics' if one['metrics'] else ''}  {one['namespaces']}"
        + "".join(f"  {name} {one[name]}" for name in ("quota", "expires", "old_until") if name in one)
        for one in rows
    ]
    print_result({"keys": rows}, as_json, "\n".join(lines) or "no keys")


@keys.command("remove")
@file_argument
@click.argument("name")
@json_option
def remove(file: str, name: str, as_json: bool) -> None:
    """Take the key with this NAME or id out of FILE."""
    _module().remove_key(file, name)
    print_result({"removed": name}, as_json, f"removed {name}")


def _module() -> ModuleType:
    try:
        from ...server import keys as module  # an extra
    except ModuleNotFoundError as error:
        if error.name != "starlette":
            raise
        raise MissingExtraError("starlette", "server") from None
    return module
