"""A server without keys on this machine: requests that a page of another site makes in a browser are refused.

The browser of the person at the machine reaches the server too, and runs the scripts of every site. Two ways lead in:
a name of the site's own that resolves to 127.0.0.1 (DNS rebinding), which the header Host shows, and a request across
sites, which Origin and Sec-Fetch-Site show. With keys neither is of use: another site has no key.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from starlette.requests import Request

from .problems import Problem


def check_local(request: Request) -> None:
    """Raise `Problem` 403 for a request that this machine's own programs and pages do not make."""
    hosts, browser = [], False
    for name, value in request.scope["headers"]:
        if name == b"host":
            hosts.append(value.decode("latin-1"))
        browser = browser or name == b"origin" or name.startswith(b"sec-fetch-")
    if len(hosts) != 1 or not _is_here(hosts[0]):
        raise Problem(403, "HostForbidden", "without keys this server answers to localhost, 127.0.0.1 and [::1] alone")
    if not browser:
        return
    headers = request.headers
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"{request.url.scheme}://{hosts[0]}".lower():
        raise Problem(403, "OriginForbidden", "without keys this server answers no pages of other sites")
    # A link that a person follows is a navigation, whose answer the other site cannot read.
    follows = request.method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not follows:
        raise Problem(403, "OriginForbidden", "without keys this server answers no pages of other sites")


@lru_cache(maxsize=64)
def _is_here(host: str) -> bool:
    """Whether a header Host, with or without a port, names this machine."""
    name, _, port = host.rpartition("]") if host.startswith("[") else host.partition(":")
    if host.startswith("["):
        name, port = name[1:], port.removeprefix(":")
    if port and not (port.isascii() and port.isdigit()):
        return False
    return name.lower() == "localhost" or is_loopback(name)


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the IP address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
