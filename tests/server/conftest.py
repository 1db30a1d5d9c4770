"""Shared by the tests of the server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

import fanrank as fr
from fanrank.server.app import make_app


@pytest.fixture
def client(engine: fr.Engine) -> Iterator[TestClient]:
    """Of the engine that each file has for itself."""
    with TestClient(make_app(engine), raise_server_exceptions=False) as made:
        yield made
