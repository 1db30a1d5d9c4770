"""What a process that is killed at a failpoint leaves: a copy of its files as they were then."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fanrank.engine.storage import failpoints
from fanrank.engine.storage.storage import Storage


def leave(folder: Path, point: str, act: Callable[[], object], left: Path, count: int = 1) -> bool:
    """Act, and copy the folder to `left` when the failpoint is reached for the `count`-th time; whether it was.

    A killed process leaves just these files, as the system keeps the pages that were written. tests/extended/histories
    kills processes; a copy takes a hundredth of the time, and hits the same step each time.
    """
    acting = threading.current_thread()

    def copy() -> None:
        if threading.current_thread() is not acting:
            # A whole copy of a split namespace is filled beside the writes, and comes by the same failpoints.
            failpoints.arm(point, 1, copy)
            return
        shutil.copytree(folder, left, copy_function=shutil.copyfile)

    failpoints.arm(point, count, copy)
    try:
        with pytest.MonkeyPatch.context() as patch:
            # No background thread writes files beside the copying.
            patch.setattr(Storage, "wake", lambda memory: None)
            act()
    finally:
        failpoints.disarm()
    return left.exists()
