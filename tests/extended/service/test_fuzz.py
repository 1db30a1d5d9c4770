"""Random requests: no failure of the server, no status, content type or answer that its document does not have.

``make fuzz`` sends 10,000 of them.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

import fanrank as fr
from fanrank.server.app import make_app
from fanrank.server.limits import Limits
from fanrank.server.openapi import make_document
from fanrank.server.operations import Operation, operations

LIMITS = Limits(seconds=600.0)
"""No search ends by its deadline, however busy the machine is."""
OPERATIONS = operations(LIMITS)
SCHEMA = schemathesis.openapi.from_dict(make_document(LIMITS))


@schemathesis.serializer("application/x-ndjson")
def as_lines(_: object, value: Any) -> bytes:
    """A body of lines as it is, anything else as one line of JSON."""
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogatepass")


def not_a_failure(_: object, response: Any, case: object) -> None:
    """The server did not fail. A deadline that the request itself set (504) is no failure."""
    assert response.status_code < 500 or response.status_code == 504, response.text


CHECKS = [
    not_a_failure,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = os.environ.get("FANRANK_FUZZ")
"""Requests of each kind to each operation; without it a few, always the same."""
EXHAUSTIVE = settings(
    max_examples=int(EXAMPLES or 6),
    derandomize=EXAMPLES is None,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    engine = fr.Engine(columns={"project": "category", "year": "number"})
    with TestClient(make_app(engine, limits=LIMITS), raise_server_exceptions=False) as made:
        yield made


def write_examples(client: TestClient) -> None:
    """The records of the example, there again after whatever a request has deleted."""
    client.post("/v1/records", json={**OPERATIONS[0].example.body, "mode": "upsert"})


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: str(mode.value))
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_requests_by_the_document_and_against_it(
    operation: Operation, mode: GenerationMode, client: TestClient
) -> None:
    described = SCHEMA[operation.path][operation.method]
    in_path = all(parameter["in"] == "path" for parameter in operation.parameters)
    if mode is GenerationMode.NEGATIVE and in_path and operation.body is None:
        pytest.skip("every text is a path")
    write_examples(client)

    @EXHAUSTIVE
    @given(described.as_strategy(mode))
    def send(case: schemathesis.Case) -> None:
        request = case.as_transport_kwargs(base_url="http://testserver")
        request = {name: value for name, value in request.items() if name not in ("cookies", "timeout")}
        case.validate_response(client.request(**request), checks=CHECKS)

    send()
