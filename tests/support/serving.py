"""A server over an engine, on a free port of this machine, in a thread of this process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

import fanrank as fr
from fanrank.server.app import Admit, make_app
from fanrank.server.limits import Limits


@contextmanager
def served(engine: fr.Engine, *, limits: Limits | None = None, admit: Admit | None = None) -> Iterator[str]:
    """The address of a server over the engine, which ends with the block."""
    with running(make_app(engine, limits=limits, admit=admit)) as url:
        yield url


@contextmanager
def running(app: ASGIApp) -> Iterator[str]:
    """The address at which the application is served until the block ends."""
    # asyncio turns off the delay of small packets (40 ms) only on a socket that says that it is TCP.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
