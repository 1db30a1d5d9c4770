"""``/``: a page on which a person searches, and sees why a memory was found. Its files are those of `server/page/`.

The files are the same for everybody and hold nothing of the memory, so they need no key. The page itself asks the
endpoints of this server as any client does, with the key that the person types.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).with_name("page")
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = {
    "/" if path.name == "index.html" else f"/page/{path.name}": path
    for path in sorted(FOLDER.iterdir())
    if path.suffix in KINDS
}
"""Every address of the page, and its file."""

# The last two: no script may write HTML, so that text of a record stays text even where the page has a fault.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Another version of the server has another page.
    "Cache-Control": "no-cache",
}


async def serve_page(request: Request) -> Response:
    """The page, or one of its files."""
    path = FILES[request.scope["path"]]
    return Response(_read(path), headers=HEADERS, media_type=KINDS[path.suffix])


@lru_cache(maxsize=32)
def _read(path: Path) -> bytes:
    return path.read_bytes()
