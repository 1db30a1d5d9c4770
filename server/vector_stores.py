"""``POST /v1/vector_stores/{namespace}/search``: the search of OpenAI's vector stores, over a namespace.

What is kept and what differs is said in docs/server.md.
"""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..engine.errors import QueryError, choices
from ..engine.records.dialects.parse import parse_filter
from ..engine.records.hit import Hit
from ..engine.records.hits import Hits
from ..engine.records.query import Query
from .access import check_read, principal_of
from .answer_limits import too_large
from .bodies import check_filter, read_json, read_parameters, take
from .cancelling import caller_of, in_thread
from .limits import Limits
from .problems import Problem
from .search import ON_LOOP
from .spans import RETRIEVAL
from .state import seconds_left, state_of
from .watched import search_engine

FIELDS = ("query", "filters", "max_num_results", "ranking_options", "rewrite_query")
RANKERS = ("none", "auto", "default-2024-11-15")
DEFAULT_RESULTS, MOST_RESULTS = 10, 50
COMPARISONS = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin")


async def search(request: Request) -> Response:
    """Search a namespace as OpenAI's vector stores are searched. Of several queries each record has its best score."""
    state, principal = state_of(request), principal_of(request)
    read_parameters(request, ())
    namespace = request.path_params["namespace"]
    check_read(principal, namespace, "namespace")
    body = await read_json(request, state.limits, FIELDS)
    texts = _read_texts(body, state.limits)
    most = min(MOST_RESULTS, state.limits.k)
    count = take(body, "max_num_results", int, min(DEFAULT_RESULTS, most))
    if not 1 <= count <= most:
        raise Problem(422, "InvalidField", f"max_num_results must be 1 to {most}", field="max_num_results")
    if count * len(texts) > state.limits.hits:
        detail = f"a search may bring {state.limits.hits:,} hits over all queries"
        raise Problem(422, "TooManyHits", detail, field="max_num_results")
    if take(body, "rewrite_query", bool, False):
        detail = "this server searches queries as they are; leave rewrite_query out"
        raise Problem(422, "InvalidField", detail, field="rewrite_query")
    threshold = _read_threshold(body)
    try:
        filter = parse_filter(take(body, "filters", dict), "openai")
        queries = [Query(text, namespace=namespace, filter=filter, min_score=threshold) for text in texts]
    except QueryError as error:
        raise Problem.of(error, field="filters") from None
    check_filter(filter, "filters", state.limits)
    about: dict[str, Any] = {"operation": RETRIEVAL, "tenant": caller_of(request), "deadline": seconds_left(request)}
    try:
        hits = await search_engine(state.engine, queries, count, texts=True, wait=False, **about)
    except QueryError as error:
        raise Problem.of(error, field="filters") from None

    def write() -> str:
        best = best_hits(hits, count)
        if sum(len(hit.text) for hit in best) > state.limits.answer_bytes:
            raise too_large(state.limits)
        answer = {
            "object": "vector_store.search_results.page",
            "search_query": texts,
            "data": [_result(hit) for hit in best],
            "has_more": False,
            "next_page": None,
        }
        return json.dumps(answer)

    large = hits.documents.size > ON_LOOP
    return Response(await in_thread(request, write) if large else write(), media_type="application/json")


def best_hits(hits: Hits, count: int) -> list[Hit]:
    """The best `count` hits of all queries, each record once with its best score.

    Of equal scores the one of the earlier query comes first, then the one of the better rank.
    """
    best: dict[str, Hit] = {}
    for hit in sorted((hit for row in hits for hit in row), key=lambda hit: -hit.score):
        best.setdefault(hit.id, hit)
    return list(best.values())[:count]


def _result(hit: Hit) -> dict[str, Any]:
    found = hit.to_dict()
    attributes = {name: value for name, value in found["metadata"].items() if isinstance(value, str | int | float)}
    if found.get("time") is not None:
        attributes["time"] = found["time"]
    name = attributes.get("filename")
    return {
        "file_id": hit.id,
        "filename": name if isinstance(name, str) else hit.id,
        "score": hit.score,
        "attributes": attributes,
        "content": [{"type": "text", "text": hit.text}],
    }


def _read_texts(body: dict[str, Any], limits: Limits) -> list[str]:
    given = take(body, "query", (str, list))
    if given is None:
        raise Problem(422, "MissingField", "query is missing", field="query")
    texts = [given] if isinstance(given, str) else given
    if not texts or not all(isinstance(text, str) for text in texts):
        raise Problem(422, "InvalidField", "query must be text or a list of texts", field="query")
    if len(texts) > limits.queries:
        raise Problem(422, "TooManyQueries", f"a search may have {limits.queries:,} queries", field="query")
    if any(len(text) > limits.text for text in texts):
        raise Problem(422, "TextTooLong", f"a query's text may have {limits.text:,} characters", field="query")
    return texts


def _read_threshold(body: dict[str, Any]) -> float | None:
    options = take(body, "ranking_options", dict, {})
    field = "ranking_options"
    try:
        ranker, threshold = take(options, "ranker", str, "auto"), take(options, "score_threshold", (float, int))
    except Problem as problem:
        problem.field = f"{field}.{problem.field}"
        raise
    unknown = sorted(set(options) - {"ranker", "score_threshold"})
    if unknown:
        detail = f"there is no {unknown[0]!r}{choices(unknown[0], ('ranker', 'score_threshold'))}"
        raise Problem(422, "UnknownField", detail, field=f"{field}.{unknown[0]}")
    if ranker not in RANKERS:
        raise Problem(422, "InvalidField", f"ranker must be one of {', '.join(RANKERS)}", field=f"{field}.ranker")
    if threshold is not None and not (abs(threshold) < 2**53 and math.isfinite(threshold)):
        raise Problem(422, "InvalidField", "score_threshold is out of range", field=f"{field}.score_threshold")
    return None if threshold is None else float(threshold)
