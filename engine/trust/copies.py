"""The copies of a memory that fanrank made elsewhere: noted in its directory, for those who forget a record later."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COPIES = "copies.jsonl"
"""The file of a memory's directory that names them."""

logger = logging.getLogger("fanrank")


def note_copy(folders: Sequence[Path], kind: str, path: str | os.PathLike[str]) -> None:
    """Note that a copy of a memory was made at a path, for those who forget a record later."""
    if not folders:
        return
    line = json.dumps({"kind": kind, "path": str(Path(path).absolute()), "at": time.time()})
    try:
        with (folders[0] / COPIES).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        logger.warning("%s: the copy at %s cannot be noted: %s", folders[0] / COPIES, path, error.strerror)


def copies_of(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The copies that were noted, each place once."""
    paths = [folder / COPIES for folder in folders]
    lines = [line for path in paths if path.exists() for line in path.read_text(encoding="utf-8").splitlines()]
    copies = [json.loads(line) for line in lines if line.endswith("}")]  # the last line may have been cut off
    return [*{copy["path"]: copy for copy in copies}.values()]
