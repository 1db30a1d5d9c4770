"""A pytest plugin: ``-p support.ptx.plugin`` runs tests/kernels/test_cuda_kernels.py over the PTX of $FANRANK_PTX."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from fanrank.kernels.cuda_host.launcher import Order

from .launchers import CudaPtx
from .nvrtc import Edits


class Launchers(CudaPtx):
    """In place of the launchers of the sources."""

    def __init__(
        self, edits: Edits = (), order: Order = "ascending", seed: int = 0, sanitized: Sequence[str] = ()
    ) -> None:
        assert not sanitized
        super().__init__(os.environ["FANRANK_PTX"], tuple(edits), order, seed)


def pytest_collection_modifyitems(items: Sequence[pytest.Function]) -> None:
    for module in {item.module for item in items}:
        module.Launchers = Launchers
