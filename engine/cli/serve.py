"""`fanrank serve`: a directory behind HTTP."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from ...server.limits import HELP, Limits
from ...shards.choosing import ShardSettings
from ..errors import MissingExtraError, ParameterError
from .config import config_option
from .mcp import import_mcp
from .options import (
    EngineParameters,
    Models,
    backend_option,
    bundle,
    engine_options,
    json_option,
    memory_argument,
    model_options,
    replicas_option,
    shard_options,
    transport_option,
)
from .output import print_address

NEEDS = ("starlette", "uvicorn", "httptools", "orjson", "opentelemetry")
"""Packages of the extra."""

limit_options = bundle(
    "limits",
    Limits,
    *(
        click.option(
            f"--max-{field.name.replace('_', '-')}",
            field.name,
            type=click.FloatRange(0, min_open=True) if isinstance(field.default, float) else click.IntRange(1),
            default=field.default,
            show_default=True,
            help=HELP[field.name],
        )
        for field in fields(Limits)
    ),
)


@click.command()
@memory_argument
@config_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8765, show_default=True, type=click.IntRange(0, 65_535), help="Port to listen on; 0: a free one."
)
@click.option(
    "--keys", type=click.Path(dir_okay=False), help="File of keys, from `fanrank keys add`. It is read again on change."
)
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Processes that serve: one writes, the others read and follow it. On Linux, for the directory of one engine.",
)
@click.option("--read-only", is_flag=True, help="Answer what reads, follow who writes the directory, refuse writes.")
@click.option(
    "--tls-certificate", type=click.Path(dir_okay=False), help="File in PEM: speak TLS with this certificate."
)
@click.option("--tls-key", type=click.Path(dir_okay=False), help="File in PEM with its key, if it is another.")
@click.option("--max-namespace-records", type=click.IntRange(1), help="Records that each namespace may hold (403).")
@click.option(
    "--max-namespace-bytes", type=click.IntRange(1), help="Bytes of these records, as JSON without vectors (403)."
)
@click.option("--journal", type=click.Path(dir_okay=False), help="File that gets a JSON line of each write.")
@click.option("--journal-texts", "journal_texts", is_flag=True, help="Put what was written into its lines, too.")
@click.option("--backups", type=click.Path(file_okay=False), help="Directory for backups by REST. It must be there.")
@click.option("--mcp", is_flag=True, help="Also serve tools for agents at /mcp (fanrank[mcp]).")
@click.option(
    "--log",
    type=click.Choice(("text", "json", "none")),
    default="text",
    show_default=True,
    help="The log on standard error: a line a request, without texts of queries and records.",
)
@click.option("--log-texts", is_flag=True, help="Put the texts of queries and the messages of errors into the log.")
@backend_option
@model_options
@shard_options
@transport_option
@replicas_option
@engine_options
@limit_options
@json_option
@click.pass_context
def serve(
    context: click.Context,
    path: str,
    host: str,
    port: int,
    keys: str | None,
    workers: int,
    read_only: bool,
    tls_certificate: str | None,
    tls_key: str | None,
    max_namespace_records: int | None,
    max_namespace_bytes: int | None,
    journal: str | None,
    journal_texts: bool,
    backups: str | None,
    mcp: bool,
    log: str,
    log_texts: bool,
    backend: str | None,
    models: Models,
    shard_settings: ShardSettings,
    parameters: EngineParameters,
    limits: Limits,
    as_json: bool,
) -> None:
    """Serve MEMORY over HTTP. It is made if it is not there.

    Prints the address. Without keys it listens on this machine alone, and everyone there may read and write. Ctrl-C or
    SIGTERM ends it: what is under way is answered first.

    Each --max option is a limit; a request beyond it gets the status that its help names. --config FILE may set them
    all, and the other options too. What says how texts are
    analysed and scored is kept when the directory is made, and may be left out later.
    """
    try:
        from ...server import app, logs, run  # an extra
        from ...server.access import Quota
        from ...server.journal import Journal
        from ...server.workers import is_worker
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in NEEDS:
            raise
        raise MissingExtraError(error.name or "starlette", "server") from None
    extra: dict[str, Any] = {}
    if mcp:
        module = import_mcp()
        extra["parts"] = lambda engine: [module.make_part(engine, module.Settings(read_only=read_only), limits=limits)]
    new = not os.path.exists(path)
    if tls_key is not None and tls_certificate is None:
        raise ParameterError("--tls-key goes with --tls-certificate")
    if backups is not None and not os.path.isdir(backups):
        raise ParameterError(
            f"--backups {backups}: is no directory; make it, and let the server's user alone write to it"
        )

    def announce(url: str) -> None:
        # The address stands alone in the first line, where programs read it.
        print_address(as_json, url)
        if not as_json:
            memory = f"{path}, a new and empty memory," if new else path
            admitted = "everyone on this machine" if keys is None else f"the keys of {keys}"
            click.echo(f"serves {memory} to {admitted}; Ctrl-C ends it", err=True)

    address: dict[str, Any] = {"host": host, "port": port, "keys": keys, "limits": limits, "announce": announce}
    if workers > 1 and not is_worker():
        context.exit(
            run.serve_with_workers(path, workers, shards=shard_settings, secure=tls_certificate is not None, **address)
        )
    run.serve(
        path,
        **address,
        # Also where nothing is logged: Python prints errors of packages whose loggers nobody takes.
        log=logs.Log(log, texts=log_texts),
        opening={"backend": backend, **models.load(), **parameters.given_keywords(context)},
        shards=shard_settings,
        options=app.ServerOptions(
            Quota(max_namespace_records, max_namespace_bytes),
            None if journal is None else Journal(journal, texts=journal_texts),
            None if backups is None else Path(os.path.realpath(backups)),
            read_only,
            tls_certificate,
            tls_key,
        ),
        **extra,
    )
