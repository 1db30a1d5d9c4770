"""Serves the tools of `server/mcp.py`: over the pipe of the process that began this one, or over HTTP at ``/mcp``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.runner import modern_error_data
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolResult, TextContent
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..client.opening import open_with
from ..engine.errors import ParameterError
from ..engine.memory import Memory
from ..shards.choosing import ShardSettings, is_address
from .app import Part
from .bodies import check_json, read_bytes
from .cancelling import until_hung_up
from .encoding import decode, encode
from .keys import Keyring
from .limits import Limits
from .mcp import Settings, make_mcp
from .run import HOST, End, open_sockets, run_app
from .spans import is_traced
from .state import header_of, state_of

ADDRESS = "/mcp"
ACCEPTED = ("application/json", "text/event-stream")
"""What the protocol has a client accept."""
SMALL_CALL = 1_024
"""Bytes of a call that is over before its client could hang up."""
CallTool = Callable[[Request, dict[str, Any]], Awaitable[dict[str, Any]]]


def serve_stdio(
    path: str | os.PathLike[str],
    settings: Settings,
    *,
    opening: Mapping[str, Any] = MappingProxyType({}),
    shards: ShardSettings | None = None,
) -> None:
    """Answer on standard input and output until the input ends. Nothing else is printed there.

    With ``settings.read_only`` the directory is only read, so that any number of processes may serve it, but for a
    sharded memory, which has one owner. `opening` are keywords of `Engine.open`, and `shards` says how a sharded memory
    is opened, or made. Raises as `open_directory`.
    """
    with _open(path, settings, opening, shards) as engine:
        server = make_mcp(engine, replace(settings, refresh=settings.read_only), local=True)
        anyio.run(server.run_stdio_async)


def serve_http(
    path: str | os.PathLike[str],
    settings: Settings,
    *,
    port: int,
    keys: str | os.PathLike[str] | None = None,
    announce: Callable[[str], None] = lambda url: None,
    opening: Mapping[str, Any] = MappingProxyType({}),
    shards: ShardSettings | None = None,
) -> None:
    """Answer on this machine's own address until SIGINT or SIGTERM. `announce` is called with the tools' address.

    `keys` is a file of keys; None: everyone on this machine may do everything. `opening` and `shards` are as
    in `serve_stdio`. Raises as `read_keys`, as `open_directory`, and `StorageError` for a port that cannot be taken.
    """
    if keys is not None and is_address(path):
        raise ParameterError(f"{path}: --keys is for a directory; the server at an address checks its own: say --key")
    keyring = None if keys is None else Keyring(keys)
    listeners = open_sockets(HOST, port, loopback_only=True)
    try:
        with End(settings.limits) as end, _open(path, settings, opening, shards) as engine:
            part = make_part(engine, replace(settings, refresh=settings.read_only))
            run_app(
                engine,
                listeners,
                keyring,
                settings.limits,
                lambda url: announce(url + ADDRESS),
                parts=[part],
                rest=False,
                end=end,
            )
    finally:
        for listener in listeners:
            listener.close()


def make_part(engine: Memory, settings: Settings | None = None, *, limits: Limits | None = None) -> Part:
    """The tools as a part of `make_app`, whose gate says who asks and from where. It may run once.

    `limits` are those of the server beside it, of which the smaller hold.
    """
    settings = settings or Settings()
    if limits is not None:
        settings = replace(settings, limits=settings.limits.least(limits))
    server = make_mcp(engine, settings)
    # Without sessions: each request carries its own key, and nothing is kept between two of them.
    app = server.streamable_http_app(
        streamable_http_path=ADDRESS,
        stateless_http=True,
        max_request_body_size=settings.limits.body_bytes,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with server.session_manager.run():
            yield

    (route,) = app.routes
    assert isinstance(route, Route)
    # A stream by GET would bring nothing, and hold a place among the requests under way until its client leaves.
    answering = WholeBodies(route.app, settings.limits, partial(call_tool, server))
    return Part([Route(ADDRESS, answering, methods=["POST"])], running)


class WholeBodies:
    """Reads the body of a request within the server's limits before the tools see it.

    The transport of the package mcp does not end a request whose connection breaks within its body.
    """

    def __init__(self, app: ASGIApp, limits: Limits, call: CallTool) -> None:
        self.app, self.limits, self.call = app, limits, call
        self.joint = limits, limits
        """The limits of the server beside it, and the smaller ones of both."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        check_json(request)
        given = state_of(request).limits
        if given is not self.joint[0]:
            self.joint = given, self.limits.least(given)
        body = await read_bytes(request, self.joint[1])
        message = None if is_traced() else plain_call(request, body)
        if message is not None:
            answer = await until_hung_up(request, self.call(request, message), watched=len(body) > SMALL_CALL)
            await Response(encode(answer), media_type="application/json")(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, receive_again, send)


def plain_call(request: Request, body: bytes) -> dict[str, Any] | None:
    """The call of a tool that a body is, in the form that every client sends; None: the package's transport answers.

    The transport makes a server with streams and tasks of its own for each request, which takes 1 to 2 ms.
    """
    version, accept = header_of(request, b"mcp-protocol-version"), header_of(request, b"accept") or ""
    if version not in (None, *HANDSHAKE_PROTOCOL_VERSIONS) or not all(kind in accept for kind in ACCEPTED):
        return None
    decoded = decode(body)
    message = None if decoded is None else decoded[0]
    if not isinstance(message, dict) or message.keys() != {"jsonrpc", "id", "method", "params"}:
        return None
    parameters = message["params"]
    if (message["jsonrpc"], message["method"]) != ("2.0", "tools/call") or type(message["id"]) not in (int, str):
        return None
    if not isinstance(parameters, dict) or not parameters.keys() <= {"name", "arguments"}:
        return None
    known = isinstance(parameters.get("name"), str) and isinstance(parameters.get("arguments", {}), dict)
    return message if known else None


async def call_tool(server: MCPServer[Any], request: Request, message: dict[str, Any]) -> dict[str, Any]:
    """The answer to the call of a tool, as the package's handler gives it, without its session and its streams."""
    parameters = message["params"]
    asking: Any = Asking(request)
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        result = await server.call_tool(parameters["name"], parameters.get("arguments", {}), asking)
    except ToolError as error:
        result = CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)
    except Exception as error:
        answer["error"] = modern_error_data(error).model_dump(mode="json", by_alias=True, exclude_none=True)
        return answer
    answer["result"] = result.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"result_type"})
    return answer


class Asking:
    """What a tool reads of the package's `Context`: the request, under ``context.request_context``."""

    def __init__(self, request: Request) -> None:
        self.request, self.request_context = request, self


def _open(
    path: str | os.PathLike[str], settings: Settings, opening: Mapping[str, Any], shards: ShardSettings | None
) -> Memory:
    return open_with(path, shards, read_only=settings.read_only, wait=False, **opening)
