"""`fanrank keys`: the file of keys for `fanrank serve`."""

from __future__ import annotations

from types import ModuleType

import click

from ..errors import MissingExtraError
from .options import json_option
from .output import print_result

file_argument = click.argument("file", type=click.Path(dir_okay=False))


@click.group()
def keys() -> None:
    """Add, list and remove keys of `fanrank serve --keys FILE`.

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
@json_option
def add(file: str, namespaces: tuple[str, ...], read_only: bool, metrics: bool, name: str, as_json: bool) -> None:
    """Make a key, and print it. FILE, which is made if it is not there, keeps its hash alone: it is not shown again."""
    key = _module().add_key(file, namespaces, name=name, write=not read_only, metrics=metrics)
    print_result({"key": key}, as_json, key)


@keys.command("list")
@file_argument
@json_option
def list_keys(file: str, as_json: bool) -> None:
    """Print each key's id, name, rights and namespaces."""
    rows = [
        {
            "id": key.id,
            "name": key.name,
            "write": key.write,
            "metrics": key.metrics,
            "namespaces": list(key.namespaces),
        }
        for key in _module().read_keys(file)
    ]
    lines = [
        f"{one['id']}  {one['name']}  {'read and write' if one['write'] else 'read only'}"
        f"{', metrics' if one['metrics'] else ''}  {one['namespaces']}"
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
