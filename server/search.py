"""``POST /v1/search`` and ``POST /v1/explain``: queries in, hits or the parts of a score out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ..engine.errors import FanrankError, QueryError, RecordError
from ..engine.records.declared import declared
from ..engine.records.explanation import FusedExplanation
from ..engine.records.filters import Filter
from ..engine.records.hits import Hits
from ..engine.records.query import DEFAULT_K, DEFAULTS, Query
from ..engine.records.query_json import SCOPE, SCOPES, fill, parse_query, parse_scope
from ..engine.search.given import queries_in, set_defaults
from ..shards.choosing import is_sharded_memory
from .access import Principal, check_read, principal_of
from .answer_limits import check_copies, check_records, collapses, too_large
from .bodies import (
    HELD,
    LARGE_BODY,
    as_filter,
    check_filter,
    in_thread_if_large,
    read_json,
    read_parameters,
    require,
    take,
)
from .cancelling import Cancellation, caller_of, in_thread, until_hung_up
from .columns import to_columns
from .encoding import encode
from .limits import Limits
from .problems import Problem, as_problem
from .seen import note_problem
from .state import header_of, seconds_left, state_of
from .strategies import read_strategy
from .watched import search_engine, watch_search

SHARED = (*sorted(DEFAULTS), *SCOPES)
"""Fields that a request may set for those of its queries that set none of their own."""
SEARCH_FIELDS = (
    "query", "queries", "k", "strategy", "texts", "payload", "explain", "form", "timing", "partial", *SHARED,
)  # fmt: skip
_SHARED = frozenset(DEFAULTS - {SCOPE})
FLAGS = frozenset(("texts", "payload", "explain", "timing"))
_SIMPLE: dict[str, Any] = {"string": str, "integer": int, "number": (float, int), "boolean": bool}
_TYPES = {
    name: _SIMPLE[each.kind] for name, each in declared(Query).items() if name in DEFAULTS and each.kind in _SIMPLE
}
"""The types of the shared fields that have a simple one."""
EXPLAIN_FIELDS = ("query", "id", "namespace", "strategy")
NDJSON = "application/x-ndjson"
REFUSE, ALLOW = PARTIAL = ("refuse", "allow")
"""What becomes of an answer that some shards of a sharded memory have not given."""
PART = 32
"""Queries of a stream that are answered at once, in one launch; their lines are sent before the next are searched. A
batch of more is given up once its client hangs up."""
ON_LOOP = 1_024
"""Hits of an answer that is written on the event loop. 65,536 of them take more than a second."""
FORMS = ("hits", "columns")
"""How an answer is written: an object for each hit, or by columns, from which a client makes an equal `Hits`."""


@dataclass(frozen=True)
class Wanted:
    """A search as a request asks for it."""

    queries: Sequence[Query]
    k: int
    texts: bool
    payload: bool
    explain: bool
    form: str
    timing: bool
    partial: bool
    """Whether the hits of some shards will do where others do not answer."""
    options: Mapping[str, Any]


async def search(request: Request) -> Response:
    """Answer one query or a list of them in one launch, which other requests of the moment share."""
    state, principal = state_of(request), principal_of(request)
    read_parameters(request, ())
    body = await read_json(request, state.limits, SEARCH_FIELDS)
    wanted = await in_thread_if_large(request, read_search, body, principal, state.limits)
    if NDJSON in (header_of(request, b"accept") or ""):
        if wanted.form == "columns":
            detail = "a stream has an object for each hit; leave form out, or ask for application/json"
            raise Problem(422, "InvalidField", detail, field="form")
        if wanted.timing:
            detail = "a stream has no times; ask without application/x-ndjson"
            raise Problem(422, "InvalidField", detail, field="timing")
        if wanted.partial:
            detail = "a stream does not say which shards are missing; ask without application/x-ndjson"
            raise Problem(422, "InvalidField", detail, field="partial")
        return await _stream(request, wanted)
    sharded = is_sharded_memory(state.engine)
    if wanted.timing or (wanted.partial and sharded):
        alone = _answer_alone(request, wanted, partial=wanted.partial and sharded)
        hits = await watch_search(alone, wanted.queries, wanted.k, wanted.options.get("strategy", "bm25"))
    else:
        hits = await _answer(request, wanted, wanted.queries)
    if not wanted.explain and hits.documents.size <= ON_LOOP and not collapses(hits):
        answer = _as_json(hits, wanted, sharded, None)
    else:
        writing = Writing.of(request)
        write = partial(_as_json, hits, wanted, sharded, writing)
        # Explanations may take seconds, in which the bodies of others would wait.
        threads = None if wanted.explain else state.parsers
        cancellation, cost = writing.cancellation, hits.documents.size
        answer = await in_thread(request, write, cancellation=cancellation, threads=threads, cost=cost)
    return Response(answer, media_type="application/json")


async def _answer(request: Request, wanted: Wanted, queries: Sequence[Query], *, wait: bool = False) -> Hits:
    work = search_engine(
        state_of(request).engine,
        queries,
        wanted.k,
        texts=wanted.texts,
        payload=wanted.payload,
        deadline=seconds_left(request),
        wait=wait,
        tenant=caller_of(request),
        **wanted.options,
    )
    # A small search is over before its client could hang up.
    large = len(queries) > PART or request.scope.get(HELD, 0) >= LARGE_BODY
    hits = await until_hung_up(request, work, watched=large)
    await _check_records(request, hits)
    return hits


async def _check_records(request: Request, hits: Hits) -> None:
    """Raise `Problem` where the records of the hits, or the ids of their copies, are more than an answer may hold."""
    if collapses(hits):
        check = partial(check_copies, hits, state_of(request).limits)
        await in_thread(request, check, cost=hits.documents.size)
    if hits.records is not None:
        found, limits = hits.records.ravel().tolist(), state_of(request).limits
        if len(found) > ON_LOOP:
            await in_thread(request, partial(check_records, found, limits), cost=len(found))
        else:
            check_records(found, limits)


async def _answer_alone(request: Request, wanted: Wanted, *, partial: bool) -> Hits:
    """As `_answer`, by a launch that no others share: with times of its own, or with the hits of some shards.

    Timed launches run one after another on a thread, so that none is in another's times.
    """
    state = state_of(request)

    def answer() -> Hits:
        options: dict[str, Any] = {"texts": wanted.texts, "payload": wanted.payload, **wanted.options}
        if partial:
            options["partial"] = ALLOW
        return state.engine.search(wanted.queries, wanted.k, timing=wanted.timing, **options)

    hits = await in_thread(request, answer, threads=state.timed if wanted.timing else None)
    await _check_records(request, hits)
    return hits


async def _stream(request: Request, wanted: Wanted) -> Response:
    """A line a query, sent as soon as its part of the batch is answered.

    An error in the first part is a problem as of any request. One in a later part is the last line, under ``problem``.
    """
    parts = [wanted.queries[first : first + PART] for first in range(0, len(wanted.queries), PART)]
    head = await _answer(request, wanted, parts[0] if parts else [])
    writing = Writing.of(request)

    async def write(hits: Hits, first: int) -> bytes:
        lines = partial(_as_lines, hits, wanted, first, writing)
        cancellation = writing.cancellation if wanted.explain else None
        return await in_thread(request, lines, cancellation=cancellation, cost=hits.documents.size)

    async def lines() -> AsyncIterator[bytes]:
        yield await write(head, 0)
        for number, part in enumerate(parts[1:], 1):
            try:
                # The caller has a status by now, so the part waits for room in the queue.
                hits = await _answer(request, wanted, part, wait=True)
                written = await write(hits, number * PART)
            except Exception as error:
                problem = as_problem(error)
                note_problem(problem.code)
                yield encode({"problem": problem.document(request)}) + b"\n"
                return
            yield written

    return StreamingResponse(lines(), media_type=NDJSON)


async def explain(request: Request) -> Response:
    """How one record scores for a query: term by term, or channel by channel."""
    state, principal = state_of(request), principal_of(request)
    read_parameters(request, ())
    body = await read_json(request, state.limits, EXPLAIN_FIELDS)
    if "query" not in body:
        raise Problem(422, "MissingField", "query is missing", field="query")
    namespace = take(body, "namespace", str)
    shared = {} if namespace is None else {"namespace": namespace}
    query = await in_thread_if_large(request, read_query, body["query"], "query", shared, principal, state.limits)
    document = require(body, "id", str)
    options = await in_thread_if_large(request, _options, body, state.limits)
    left, tenant = seconds_left(request), caller_of(request)
    hits = await search_engine(state.engine, [query], 1, deadline=left, wait=False, tenant=tenant, **options)
    explanation = await in_thread(request, partial(hits.explain, 0, document))
    return Response(encode(explanation.to_dict()), media_type="application/json")


def read_search(body: dict[str, Any], principal: Principal, limits: Limits) -> Wanted:
    """The search that a body describes. Raises `Problem`."""
    if ("query" in body) == ("queries" in body):
        raise Problem(422, "InvalidBody", "give either query or queries", field="queries")
    given = [body["query"]] if "query" in body else take(body, "queries", list, [])
    if len(given) > limits.queries:
        raise Problem(422, "TooManyQueries", f"a search may have {limits.queries:,} queries", field="queries")
    k, shared = take(body, "k", int, DEFAULT_K), _read_shared(body, limits)
    _check_width("k", k, shared.get("offset", 0), limits)
    queries: Sequence[Query] | None = None
    places = len(given) * k
    if shared.keys() <= {"namespace"}:
        queries = _read_texts(given, k, shared.get("namespace", ""), principal, limits)
    if queries is None:
        places = 0
        fields = ["query"] if "query" in body else [f"queries[{place}]" for place in range(len(given))]
        queries = _read_queries(given, fields, shared, limits)
        for query, field in zip(queries, fields, strict=True):
            _check_query(query, field, shared, principal, limits)
            asked = k if query.k is None else query.k
            _check_width(f"{field}.k", asked, query.offset, limits)
            places += max(asked, 0)
            if places > limits.hits:
                detail = f"a search may bring {limits.hits:,} hits over all queries"
                raise Problem(422, "TooManyHits", detail, field=field)
    flags = dict.fromkeys(FLAGS, False)
    for name in body.keys() & FLAGS:
        flags[name] = take(body, name, bool, False)
    if flags["explain"] and places > limits.explained:
        # One explanation reads every term of the query anew: 12 ms for one of 50 terms on a busy core.
        detail = f"a search may explain {limits.explained:,} hits over all queries; ask /v1/explain for one"
        raise Problem(422, "TooManyHits", detail, field="explain")
    options = _options(body, limits)
    form = take(body, "form", str, FORMS[0]) if "form" in body else FORMS[0]
    if form not in FORMS:
        raise Problem(422, "InvalidField", f"form must be one of {', '.join(FORMS)}", field="form")
    if form == "columns" and flags["explain"]:
        raise Problem(
            422, "InvalidField", "an answer by columns brings no explanations; ask /v1/explain", field="explain"
        )
    partial = take(body, "partial", str, PARTIAL[0]) if "partial" in body else PARTIAL[0]
    if partial not in PARTIAL:
        raise Problem(422, "InvalidField", f"partial must be one of {', '.join(PARTIAL)}", field="partial")
    return Wanted(queries, k, **flags, partial=partial == ALLOW, form=form, options=options)


def _read_shared(body: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """What a body sets for its queries, as keywords of `Engine.search`. Raises `Problem`."""
    for name in body.keys() & _TYPES.keys():
        take(body, name, _TYPES[name])
    shared = {name: body[name] for name in body.keys() & _SHARED if body[name] is not None}
    if not shared.get("offset"):
        # 0 is no default: each query would be made anew with it.
        shared.pop("offset", None)
    if "filter" in shared:
        shared["filter"] = as_filter(shared["filter"], "filter", limits)
    try:
        scope = parse_scope(body)
    except FanrankError as error:
        raise Problem(422, "QueryError", str(error), field=SCOPE) from None
    return shared if scope is None else {**shared, SCOPE: scope}


def _read_texts(
    given: Sequence[Any], k: int, namespace: str, principal: Principal, limits: Limits
) -> list[Query] | None:
    """The queries of a batch of texts that may be asked; None where one is no text, or a limit or the key refuses it.

    20 texts take 9 us, and 280 where each is read by itself, which finds the one that is wrong.
    """
    if not {*map(type, given)} <= {str} or len(given) * k > limits.hits or not principal.allows(namespace):
        return None
    return queries_in(namespace, given) if max(map(len, given), default=0) <= limits.text else None


def _options(body: dict[str, Any], limits: Limits) -> dict[str, Any]:
    strategy = read_strategy(take(body, "strategy", (str, dict)), "strategy", limits)
    return {} if strategy is None else {"strategy": strategy}


def _check_width(field: str, k: int, offset: int, limits: Limits) -> None:
    if k + offset > limits.k:
        raise Problem(422, "TooManyHits", f"k and offset together may be {limits.k:,}", field=field)


def read_query(data: Any, field: str, shared: Mapping[str, Any], principal: Principal, limits: Limits) -> Query:
    """A query of text or of an object, with the fields of `shared` that it does not have. Raises `Problem`."""
    (query,) = _read_queries([data], [field], shared, limits)
    _check_query(query, field, shared, principal, limits)
    return query


def _read_queries(
    given: Sequence[Any], fields: Sequence[str], shared: Mapping[str, Any], limits: Limits
) -> list[Query]:
    """As `read_query`, without its checks: several queries, which stand at these fields."""
    texts = {field: data for data, field in zip(given, fields, strict=True) if isinstance(data, str)}
    try:
        made = dict(zip(texts, set_defaults([*texts.values()], shared), strict=True))
    except QueryError as error:
        raise Problem.of(error, field=next(iter(texts))) from None
    return [
        made.get(field) or _read_object(data, field, shared, limits) for data, field in zip(given, fields, strict=True)
    ]


def _read_object(data: Any, field: str, shared: Mapping[str, Any], limits: Limits) -> Query:
    if isinstance(data, dict) and isinstance(data.get("strategy"), dict):
        data = {**data, "strategy": read_strategy(data["strategy"], f"{field}.strategy", limits)}
    try:
        return parse_query(fill(data, shared) if isinstance(data, dict) else data)
    except RecordError as error:
        raise Problem(422, "QueryError", str(error), field=field) from None


def _check_query(query: Query, field: str, shared: Mapping[str, Any], principal: Principal, limits: Limits) -> None:
    """Raise `Problem` for a query beyond the limits, or one that the key does not reach."""
    _check_size(query, field, limits)
    if isinstance(query.filter, Filter) and query.filter is not shared.get("filter"):
        check_filter(query.filter, f"{field}.filter", limits)
    if query.under is not None:
        if not principal.allows_under(query.under):
            raise Problem(403, "NamespaceForbidden", "this key does not reach this namespace", field=f"{field}.under")
    else:
        for name in query.namespaces or (query.namespace,):
            check_read(principal, name, field)


def _check_size(query: Query, field: str, limits: Limits) -> None:
    """Raise `Problem` for a query beyond the limits."""
    if len(query.text or "") > limits.text:
        raise Problem(422, "TextTooLong", f"a query's text may have {limits.text:,} characters", field=f"{field}.text")
    for name in ("terms", "weights", "entities", "hints"):
        if len(getattr(query, name) or ()) > limits.terms:
            raise Problem(422, "TooManyTerms", f"{name} may have {limits.terms:,} entries", field=f"{field}.{name}")
    if len(query.namespaces or ()) > limits.namespaces:
        detail = f"a query may search {limits.namespaces:,} namespaces"
        raise Problem(422, "TooManyNamespaces", detail, field=f"{field}.namespaces")


@dataclass
class Writing:
    """Writes a large answer, within the limits of bytes and of terms, and as long as it is wanted."""

    limits: Limits
    cancellation: Cancellation
    terms: int = 0
    """Those of all explanations so far."""
    size: int = 0
    """Bytes so far."""

    @classmethod
    def of(cls, request: Request) -> Writing:
        return cls(state_of(request).limits, Cancellation.of(request))

    def encode(self, value: Any) -> bytes:
        """A part of the answer. Raises `Problem` for more bytes than an answer may have, and `DeadlineError`."""
        self.cancellation.check()
        written = encode(value)
        self.size += len(written)
        if self.size > self.limits.answer_bytes:
            raise too_large(self.limits)
        return written

    def explain(self, hits: Hits, place: int, document: str, query: int) -> dict[str, Any] | None:
        """The parts of a hit's score for this query of the batch; None where the state that it was scored in is gone.

        Raises `Problem` for more terms than an answer may have, and `DeadlineError`.
        """
        self.cancellation.check()
        try:
            explanation = hits.explain(place, document).at(query)
        except FanrankError:
            return None
        lexical = explanation.lexical if isinstance(explanation, FusedExplanation) else explanation
        self.terms += 0 if lexical is None else len(lexical.terms)
        if self.terms > self.limits.explained_terms:
            detail = (
                f"a search may explain {self.limits.explained_terms:,} terms over all hits; ask /v1/explain for one"
            )
            raise Problem(422, "TooManyTerms", detail, field="explain")
        return explanation.to_dict()


def _results(hits: Hits, wanted: Wanted, first: int, writing: Writing | None) -> Iterator[dict[str, Any]]:
    """One object a query: its hits, and a word where there are none. `first` is the place of the first in the batch."""
    notes = hits.notes
    for place, row in enumerate(hits.to_dicts()):
        result: dict[str, Any] = {"id": hits.queries[place].id, "hits": row}
        if notes[place] is not None:
            result["note"] = notes[place]
        if hits.decisions is not None:
            result["decision"] = hits.decisions[place].to_dict()
        if wanted.explain and writing is not None:
            for hit in row:
                hit["explanation"] = writing.explain(hits, place, hit["id"], first + place)
        yield result


def _as_json(hits: Hits, wanted: Wanted, sharded: bool, writing: Writing | None) -> bytes:
    """The answer as JSON. `writing` None: it is small."""
    rows = None
    if wanted.form == "columns":
        answer = to_columns(hits, sharded=sharded)
    elif writing is None:
        answer = {"results": list(_results(hits, wanted, 0, None)), "backend": hits.backend}
    else:
        rows = [writing.encode(row) for row in _results(hits, wanted, 0, writing)]
        answer = {"backend": hits.backend}
    if wanted.partial:
        answer["missing_shards"] = list(hits.missing_shards)
    if wanted.timing:
        answer |= {"timing": hits.timing or {}, "postings": hits.postings}
    written = encode(answer) if writing is None else writing.encode(answer)
    return b"".join((b'{"results":[', b",".join(rows), b"],", written[1:])) if rows is not None else written


def _as_lines(hits: Hits, wanted: Wanted, first: int, writing: Writing) -> bytes:
    return b"".join([writing.encode(row) + b"\n" for row in _results(hits, wanted, first, writing)])
