"""bm25s's own server of tools (MCP), over HTTP: ``python -m bench.peers.bm25s_server TEXTS FOLDER PORT``, in an
environment of its own.

It indexes the texts, a JSON list in a file, in the folder first, in the way of bm25s's own documentation.
"""

import json
import sys
from pathlib import Path

import bm25s
from bm25s.mcp.server import create_mcp_server


def main(texts: str, folder: str, port: str) -> None:
    corpus = json.loads(Path(texts).read_text(encoding="utf-8"))
    index = bm25s.BM25(corpus=corpus)
    index.index(bm25s.tokenize(corpus, show_progress=False), show_progress=False)
    index.save(folder, corpus=corpus, show_progress=False)
    server = create_mcp_server(folder)
    server.settings.port = int(port)
    # Without sessions, as fanrank's own: every request stands alone.
    server.settings.stateless_http = True
    server.run("streamable-http")


if __name__ == "__main__":
    main(*sys.argv[1:])
