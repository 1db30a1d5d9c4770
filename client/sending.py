"""How a client reaches its server: address, key, limits of time, and when a request is sent again."""

from __future__ import annotations

import ipaddress
import json
import random
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..engine.errors import DeadlineError, MissingExtraError, ParameterError, UnreachableError
from ..engine.serve.calls import check_seconds
from .answers import raise_problem
from .calls import Call, Limit

if TYPE_CHECKING:
    import httpx

TIMEOUT, RETRIES = 30.0, 3
DEADLINE = "Fanrank-Deadline"
BUSY = (429, 503)
NDJSON = "application/x-ndjson"
LONGEST_LINE = 1 << 30
"""Bytes of a record that a server sends as a line."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds before the second attempt, doubled for each further one, and the longest pause also where the server says
more."""
IDLE = 3.0
"""Seconds that an unused connection is kept. The server closes them after 5, and a write that meets a closing
connection cannot be repeated."""


@dataclass(frozen=True)
class Target:
    """A server and how patient a client is with it. Raises `ParameterError`."""

    url: str
    key: str | None = None
    timeout: float = TIMEOUT
    retries: int = RETRIES

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise ParameterError(f"the address of a server is text, not {self.url!r}")
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), 0
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or port == 0
            or parts.query
            or parts.fragment
            or parts.username
        ):
            raise ParameterError(
                "the address of a server is http://HOST:PORT or https://HOST, without a user or a query"
            )
        if self.key is not None and not (isinstance(self.key, str) and self.key.isascii() and self.key.isprintable()):
            raise ParameterError("a key is printable ASCII text")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)) or not 0 < self.timeout < 1e9:
            raise ParameterError(f"timeout must be seconds above 0, not {self.timeout!r}")
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise ParameterError(f"retries must be 0 or more, not {self.retries!r}")

    def options(self) -> dict[str, Any]:
        """What httpx makes its pool of connections from. Raises `ParameterError`."""
        headers = {"Accept": "application/json", "Fanrank-Words": "engine"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        # A key for this machine must not pass a proxy that the environment names.
        local = _is_here(urlsplit(self.url).hostname or "")
        httpx = load_httpx()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=IDLE)
        try:
            httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ParameterError(f"the address of the server: {error}") from None
        common = {"base_url": self.url, "headers": headers, "limits": limits}
        return {**common, "trust_env": not local, "verify": _certificates(not local)}

    def limit(self, deadline: float | None = None) -> Limit:
        """The time of a call that begins now. Raises `ParameterError`."""
        seconds = self.timeout if deadline is None else min(check_seconds("deadline", deadline), self.timeout)
        return Limit(seconds, time.monotonic() + seconds)


class Attempt:
    """The attempts to send one call: what is left of its time, and whether it may be sent again."""

    def __init__(self, target: Target, call: Call) -> None:
        self.target, self.call = target, call
        self.limit = call.limit or target.limit()
        self.number = 0
        self._content = call.content()

    def seconds_left(self) -> float:
        """Seconds until the answer must be there. Raises `DeadlineError`."""
        left = self.limit.until - time.monotonic()
        if left <= 0:
            raise self.late()
        return left

    def arguments(self) -> dict[str, Any]:
        """The arguments of httpx's ``stream``. Raises `DeadlineError`."""
        left = self.seconds_left()
        headers = {DEADLINE: f"{left:.6f}"}
        if self._content is not None:
            headers["Content-Type"] = "application/json"
        return {
            "method": self.call.method,
            "url": self.call.path,
            "content": self._content,
            "params": self.call.params,
            "headers": headers,
            "timeout": left,
        }

    def read(self, response: httpx.Response, content: bytes) -> dict[str, Any]:
        """The answer as a JSON object. Raises the error that a problem document stands for."""
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if response.status_code >= 300:
            raise_problem(response.status_code, answer)
        if not isinstance(answer, dict):
            raise UnreachableError(f"{self.target.url} did not answer with a JSON object: is it a fanrank server?")
        return answer

    def pause_after(self, failed: httpx.Response | Exception) -> float | None:
        """Seconds to wait before the call is sent again; None where its failure is final."""
        self.number += 1
        if not self.call.repeatable or self.number > self.target.retries:
            return None
        pause = FIRST_PAUSE * 2 ** (self.number - 1) * (0.5 + random.random() / 2)
        if isinstance(failed, Exception):
            if isinstance(failed, load_httpx().TimeoutException):
                return None
        elif failed.status_code not in BUSY:
            return None
        else:
            said = failed.headers.get("retry-after", "")
            # Dates, the other form of this header, are not sent by this server.
            pause = max(pause, float(said)) if said.isdecimal() and len(said) < 9 else pause
        pause = min(pause, LONGEST_PAUSE)
        return pause if time.monotonic() + pause < self.limit.until else None

    def error(self, failed: Exception) -> Exception:
        """The error for a request that got no answer."""
        httpx = load_httpx()
        if isinstance(failed, httpx.TimeoutException):
            return self.late()
        if isinstance(failed, httpx.InvalidURL):
            return ParameterError(f"this does not fit into the address of a request: {failed}")
        doubt = "" if isinstance(failed, httpx.ConnectError) else self._doubt
        return UnreachableError(f"{self.target.url} does not answer: {failed}{doubt}")

    @property
    def _doubt(self) -> str:
        """What an error adds where a request that may not be repeated got no answer."""
        return "" if self.call.repeatable else "; whether the write was done is not known"

    def late(self) -> DeadlineError:
        """The error for an answer that did not come in time."""
        return DeadlineError(f"no answer within {self.limit.seconds:g} seconds{self._doubt}")


def _is_here(host: str) -> bool:
    """Whether a host of an address is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@cache
def _certificates(trust_env: bool) -> Any:
    """Whom a client trusts. To read the certificates takes 20 ms, so all clients and event loops share them."""
    return load_httpx().create_ssl_context(trust_env=trust_env)


def load_httpx() -> Any:
    """The package httpx. Raises `MissingExtraError`."""
    try:
        import httpx
    except ModuleNotFoundError:
        raise MissingExtraError("httpx", "client") from None
    return httpx
