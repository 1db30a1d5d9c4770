"""`fanrank serve`: a directory behind HTTP."""

from __future__ import annotations

import click

from ..errors import MissingExtraError


@click.command()
@click.argument("path", type=click.Path())
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8765, show_default=True, type=click.IntRange(0, 65_535), help="Port to listen on.")
def serve(path: str, host: str, port: int) -> None:
    """Serve the directory PATH over HTTP. It is made if it is not there.

    Without keys it listens on this machine alone.
    """
    try:
        from ...server import run  # an extra
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise MissingExtraError(error.name, "server") from None
    click.echo(f"http://{host}:{port}", err=True)
    run.serve(path, host=host, port=port)
