"""docs/openapi.json, made from the server's tables; ``make docs`` writes it."""

from __future__ import annotations

import sys
from pathlib import Path

# As in cli_docs.py.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.reference import write

from fanrank.server.limits import Limits
from fanrank.server.openapi import make_text

PAGE = "openapi.json"

if __name__ == "__main__":
    write(PAGE, make_text(Limits()))
