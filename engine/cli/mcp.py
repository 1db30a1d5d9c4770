"""`fanrank mcp`: a directory as tools of the Model Context Protocol."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import click

from ...shards.choosing import ShardSettings
from ..errors import MissingExtraError, ParameterError, StoreLockedError
from .options import (
    EngineParameters,
    Models,
    backend_option,
    engine_options,
    given_key,
    json_option,
    model_options,
    replicas_option,
    served_argument,
    shard_options,
    transport_option,
)
from .output import print_address

NEEDS = ("mcp", "pydantic", "anyio", "starlette", "uvicorn", "opentelemetry")


@click.command("mcp")
@served_argument
@click.option("--namespace", help="The one namespace to serve. Without it the tools take a namespace.")
@click.option("--read-only", is_flag=True, help="Leave out the tools that write, and only read the memory.")
@click.option(
    "--or-read-only", is_flag=True, help="As --read-only, but only where another process writes to the memory already."
)
@click.option(
    "--text-budget",
    default=20_000,
    show_default=True,
    type=click.IntRange(min=0),
    help="Characters of records in one answer; longer texts are cut.",
)
@click.option("--http", is_flag=True, help="Listen on 127.0.0.1 instead of standard input and output.")
@click.option("--port", default=8766, show_default=True, type=click.IntRange(0, 65_535), help="Port of --http; 0: any.")
@click.option("--keys", type=click.Path(dir_okay=False), help="File of keys for --http, from `fanrank keys add`.")
@backend_option
@model_options
@shard_options
@transport_option
@replicas_option
@engine_options
@json_option
@click.pass_context
def mcp_command(
    context: click.Context,
    path: str,
    namespace: str | None,
    read_only: bool,
    or_read_only: bool,
    text_budget: int,
    http: bool,
    port: int,
    keys: str | None,
    backend: str | None,
    models: Models,
    shard_settings: ShardSettings,
    parameters: EngineParameters,
    as_json: bool,
) -> None:
    """Serve MEMORY to an agent over MCP. It is made if it is not there.

    The agent's program starts this command and talks to it over standard input and output. Most take it in their
    configuration as {"command": "fanrank", "args": ["mcp", "/whole/path/of/memory"]}. With --http it listens at the
    address that it prints, on this machine alone.
    """
    if keys is not None and not http:
        raise ParameterError("--keys is for --http; over a pipe the program that starts the command may do everything")
    if or_read_only and http:
        raise ParameterError("--or-read-only is for a pipe; over --http give --read-only where another process writes")
    if as_json and not http:
        raise ParameterError("--json prints the address of --http; over a pipe nothing but the protocol is printed")
    mcp_run = import_mcp()
    settings = mcp_run.Settings(namespace=namespace, read_only=read_only, text_budget=text_budget)
    opening = {"backend": backend, **given_key(path), **models.load(), **parameters.given_keywords(context)}
    if http:
        announce = partial(print_address, as_json)
        mcp_run.serve_http(
            path, settings, port=port, keys=keys, announce=announce, opening=opening, shards=shard_settings
        )
    else:
        if sys.stdin.isatty():
            click.echo("an agent's program starts this command and talks to it here; Ctrl-C ends it", err=True)
        with _ended_by_interrupt():
            try:
                mcp_run.serve_stdio(path, settings, opening=opening, shards=shard_settings)
            except StoreLockedError as error:
                if not or_read_only:
                    raise
                click.echo(f"{error}; so it is only read here", err=True)
                only = replace(settings, read_only=True)
                mcp_run.serve_stdio(path, only, opening=opening, shards=shard_settings)


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """End the process at an interrupt. It would else end with its input: nothing wakes the thread that reads there.

    Every write that was acknowledged is on disk by then.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, b"fanrank: interrupted\n")
        os._exit(128 + number)

    before = signal.getsignal(signal.SIGINT)
    # A shell's background process ignores interrupts, and goes on ignoring them.
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def import_mcp() -> Any:
    """The module that serves the tools. Raises `MissingExtraError` without its packages."""
    try:
        from ...server import mcp_run  # an extra
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in NEEDS:
            raise
        raise MissingExtraError(error.name or "mcp", "mcp") from None
    return mcp_run
