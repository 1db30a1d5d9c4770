"""The schemas of the OpenAPI document: every object that a request or an answer holds, field by field."""

from __future__ import annotations

from typing import Any

from ..engine.encoders.patch import FIELDS
from ..engine.records.declared import Declared, declared
from ..engine.records.filters import MAX_DEPTH
from ..engine.records.neighbours import MAX_WINDOW
from ..engine.records.query import Query
from ..engine.records.record import Record
from .limits import Limits
from .vector_stores import COMPARISONS, DEFAULT_RESULTS, MOST_RESULTS, RANKERS

Schema = dict[str, Any]


def text(about: str, **more: Any) -> Schema:
    return {"type": "string", "description": about, **more}


def whole(about: str, least: int = 0, **more: Any) -> Schema:
    return {"type": "integer", "minimum": least, "description": about, **more}


def number(about: str, **more: Any) -> Schema:
    return {"type": "number", "description": about, **more}


def flag(about: str) -> Schema:
    return {"type": "boolean", "default": False, "description": about}


def several(items: Schema, about: str, **more: Any) -> Schema:
    return {"type": "array", "items": items, "description": about, **more}


def mapping(values: Schema, about: str) -> Schema:
    return {"type": "object", "additionalProperties": values, "description": about}


def ref(name: str, about: str | None = None) -> Schema:
    reference = {"$ref": f"#/components/schemas/{name}"}
    return reference if about is None else {**reference, "description": about}


def thing(properties: dict[str, Schema], *required: str, **more: Any) -> Schema:
    """An object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        **({"required": list(required)} if required else {}),
        "additionalProperties": False,
        **more,
    }


def optional(schema: Schema) -> Schema:
    """The schema, or null."""
    about = {name: value for name, value in schema.items() if name == "description"}
    inner = {name: value for name, value in schema.items() if name != "description"}
    return {"anyOf": [inner, {"type": "null"}], **about}


ANYTHING: Schema = {}
MOMENT: Schema = {
    "anyOf": [{"type": "number"}, {"type": "string"}],
    "description": "A point in time: seconds since 1970-01-01 UTC, or ISO 8601 text. Without a zone it is UTC.",
    "examples": ["2026-11-23T09:00:00Z", 1795424400],
}
SPAN: Schema = {
    "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}],
    "description": "A length of time: seconds, or a number with a unit.",
    "examples": ["7d", 3600],
}
STRATEGY: Schema = {
    "anyOf": [{"type": "string"}, {"type": "object"}],
    "description": "The name of a strategy (`fanrank search --list-strategies` lists those to pick from), or an "
    "object as `Strategy.to_dict` gives it. An object names no model and no file, and its numbers are bounded.",
}
FILTER: Schema = {
    "type": "object",
    "description": "Columns with a value, a list of values, or comparisons (`==`, `!=`, `in`, `not in`, `<`, `<=`, "
    f"`>`, `>=`); `and` and `or` with lists of filters, `not` with one. At most {MAX_DEPTH} deep.",
    "examples": [{"role": "tool", "importance": {">=": 0.5}}],
}
NAMESPACE = text("The namespace; empty for the one without a name.", default="", examples=["users/ana"])
WEIGHTS = mapping({"type": "number", "minimum": 0}, "Learned weights of terms.")
VECTOR = several({"type": "number"}, "The embedding, of the dimension of the engine's.")
ID = text("The id, one of its namespace.", minLength=1)


def query_schema(limits: Limits) -> Schema:
    """One query: all that `fanrank.Query` takes."""
    shapes: dict[str, Schema] = {
        "filter": FILTER,
        "strategy": STRATEGY,
        "weights": WEIGHTS,
        "windows": {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]},
        "vector": {"anyOf": [VECTOR, ref("Embedding")]},
        "scope": thing(
            {
                "column": text("The column.", enum=["session", "user"]),
                "id": text("Its value."),
                "limit": optional(whole("Hits that it adds.", 1)),
            },
            "column",
            "id",
        ),
        "neighbours": thing(
            {
                "window": whole("Places before and after.", maximum=MAX_WINDOW, default=2),
                "weight": {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]},
            }
        ),
    }
    bounds: dict[str, Schema] = {
        "text": {"maxLength": limits.text},
        "k": {"maximum": limits.k},
        "offset": {"maximum": limits.k},
        "namespaces": {"minItems": 1},
    }
    return thing(
        {
            **{
                name: {**field_schema(each, shapes.get(name, ANYTHING)), **bounds.get(name, ANYTHING)}
                for name, each in declared(Query).items()
            },
            "session": text("Search this session alone."),
            "user": text("Search the sessions of this user alone."),
            "_id": text("As id.", deprecated=True),
            "metadata": {"description": "Is not read.", "deprecated": True},
        },
        description="A query. At most one of namespace, namespaces, under, and one of session, user, scope.",
    )


def field_schema(field: Declared, shape: Schema = ANYTHING) -> Schema:
    """What a field takes; `shape` is that of one whose type does not say it."""
    about, least = field.about, field.about.least
    length = {} if least is None else {"minLength": least}
    kinds: dict[str, Schema] = {
        "string": {"type": "string", **length},
        "strings": {"type": "array", "items": {"type": "string", **length}},
        "moment": MOMENT,
        "span": SPAN,
        "filter": FILTER,
        "other": ANYTHING,
    }
    bounds = {"minimum": least, "maximum": about.most}
    number = {"type": field.kind, **{name: bound for name, bound in bounds.items() if bound is not None}}
    schema = shape or kinds.get(field.kind) or number
    said = f"{about.text} {MOMENT['description']}" if field.kind == "moment" else about.text
    return {
        **schema,
        **({"enum": [*field.choices]} if field.choices else {}),
        **({"default": field.default} if field.default is not None else {}),
        **({"description": said} if said else {}),
        **({"examples": [*about.examples]} if about.examples else {}),
    }


def record_fields() -> dict[str, Schema]:
    """What a record may have beside its id and namespace."""
    shapes: dict[str, Schema] = {
        "fields": mapping({"type": "string"}, ""),
        "extra": mapping(ANYTHING, ""),
        "payload": mapping(ANYTHING, ""),
        "passages": several({"type": "string", "minLength": 1}, "", minItems=1),
        "embedding": {"anyOf": [VECTOR, several(VECTOR, "One for each passage."), {"type": "object"}]},
        "weights": WEIGHTS,
        "entities": {
            "anyOf": [several({"type": "string"}, "Ids."), mapping({"type": "string"}, "Names in the text, and ids.")]
        },
        "relations": several(ref("Relation"), ""),
    }
    read = declared(Record, set(FIELDS))
    return {name: field_schema(each, shapes.get(name, ANYTHING)) for name, each in read.items()}


IMPORTED: Schema = thing(
    {
        "added": whole("Records that were added."),
        "replaced": whole("Records that took the place of others with their ids."),
        "held": whole("Records that were there as they are."),
        "expired": whole("Records that were passed over, as they have expired."),
    }
)
ASKED_FOR = {
    "timing": mapping({"type": "number"}, "With timing: milliseconds of each phase, in order."),
    "postings": optional(whole("With timing: postings that were read. Null: they were not counted.")),
    "missing_shards": several(whole("Its number."), "With partial: the shards that did not answer."),
}


def schemas(limits: Limits) -> dict[str, Schema]:
    """Every schema by its name."""
    nullable = {name: optional(schema) for name, schema in record_fields().items() if name != "text"}
    written = {**record_fields(), **nullable}
    result = {
        "id": optional(text("The id of the query.")),
        "hits": several(ref("Hit"), "Best first; of equal scores the record that was added first."),
        "note": text("Why there are no hits."),
        "decision": mapping(ANYTHING, "What a cascade, a router or recall decided, and how long it took."),
    }
    return {
        "Query": query_schema(limits),
        "AnyQuery": {"anyOf": [text("The text of a query.", maxLength=limits.text), ref("Query")]},
        "Record": {
            "type": "object",
            "properties": {"id": {**ID, "maxLength": limits.id_length}, "namespace": NAMESPACE, **written},
            "required": ["id", "text"],
            "additionalProperties": True,
            "description": "A record. Other fields than these are kept in `extra`.",
        },
        "OneRecord": {
            "type": "object",
            "properties": {"id": ID, "namespace": NAMESPACE, **written},
            "required": ["text"],
            "additionalProperties": True,
            "description": "A record whose id and namespace are those of the address.",
        },
        "StoredRecord": thing(
            {"id": ID, "namespace": NAMESPACE, **record_fields(), "time": number("Seconds since 1970-01-01 UTC.")}
            | {"expires": number("Seconds since 1970-01-01 UTC."), "embedding": ref("Embedding")},
            "id",
            "text",
            description="A record, without the fields that it does not have.",
        ),
        "Embedding": thing(
            {
                "rows": whole("Vectors.", 1),
                "float16": text("Base64 of the rows, little-endian half precision."),
                "model": text("The model."),
            },
            "rows",
            "float16",
        ),
        "Relation": thing(
            {
                "source": text("An entity.", minLength=1),
                "target": text("An entity.", minLength=1),
                "kind": text("The kind of edge.", minLength=1),
                "confidence": number("How sure it is.", minimum=0, maximum=1, default=1),
                "valid_from": optional(MOMENT),
                "valid_to": optional(MOMENT),
                "category": optional(text("How much it is relied on.")),
            },
            "source",
            "target",
            "kind",
        ),
        "Hit": thing(
            {
                "id": ID,
                "score": number("The score, exactly."),
                "rank": whole("The place, from 1.", 1),
                "namespace": NAMESPACE,
                "exchange": several({"type": "string"}, "With unit exchange: the ids of its records, in their order."),
                "copies": several({"type": "string"}, "With collapse: the ids of the records that it stands for."),
                "text": text("With texts."),
                "time": optional(number("With texts. Seconds since 1970-01-01 UTC.")),
                "metadata": mapping(ANYTHING, "With texts: columns that are set, importance and extra values."),
                "payload": optional(mapping(ANYTHING, "With payload.")),
                "reranked": optional(number("The score of a reranker that decided the order.")),
                "explanation": optional(ref("Explanation")),
            },
            "id",
            "score",
            "rank",
            "namespace",
        ),
        "Result": thing(result, "id", "hits", description="The answer to one query."),
        "Results": thing(
            {
                "results": several(ref("Result"), "One for each query, in their order."),
                "backend": text("What computed the scores."),
                **ASKED_FOR,
            },
            "results",
            "backend",
        ),
        "Columns": thing(
            {
                "results": several(
                    thing(
                        {
                            "ids": several(ID, "Best first."),
                            "scores": several({"type": "number"}, "Their scores."),
                            "documents": several({"type": "integer"}, "Their numbers in the engine."),
                            "namespaces": several({"type": "string"}, "Theirs, where queries search several."),
                            "reranked": several(optional({"type": "number"}), "Scores of a reranker."),
                            "records": several(ref("StoredRecord"), "With texts or payload."),
                            "note": result["note"],
                            "decision": result["decision"],
                        },
                        "ids",
                        "scores",
                        "documents",
                    ),
                    "One for each query, in their order.",
                ),
                "width": whole("Hits of the longest result."),
                "source": optional(
                    several(
                        {"type": "integer"},
                        "For each query the first one of the batch that equals it. Null: not known.",
                    )
                ),
                **ASKED_FOR,
                "decided": {"type": "boolean", "description": "Whether results have decisions."},
                "reranked": {"type": "boolean", "description": "Whether a reranker decided the order."},
                "backend": text("What computed the scores."),
            },
            "results",
            "width",
            "source",
            "decided",
            "reranked",
            "backend",
            description="Results by columns.",
        ),
        "ExportLine": {
            "anyOf": [ref("StoredRecord"), thing({"problem": ref("Problem")}, "problem")],
            "description": "A line of an export: a record, or last of all the problem that ended it.",
        },
        "StreamLine": {
            "anyOf": [ref("Result"), thing({"problem": ref("Problem")}, "problem")],
            "description": "A line of a stream: a result, or last of all the problem that ended it.",
        },
        "Explanation": {
            "type": "object",
            "properties": {
                "query": whole("The place of the query in the batch."),
                "id": ID,
                "score": optional(number("The score. Null: no candidate.")),
                "quanta": {"type": "integer", "description": "By BM25: the score in units of 2**-18."},
                "terms": several({"type": "object"}, "By BM25: what each term adds, in quanta."),
                "strategy": text("By other strategies: which one."),
                "channels": several({"type": "object"}, "By other strategies: what each channel adds."),
            },
            "required": ["query", "id", "score"],
            "additionalProperties": True,
            "description": "The parts of a score, which add up to it exactly.",
        },
        "Backup": thing(
            {
                "name": text("Its name."),
                "made": number("When it was made: seconds since 1970-01-01 UTC."),
                "bytes": whole("Bytes of its files."),
            },
            "name",
            "made",
            "bytes",
        ),
        "Namespace": thing({"namespace": text("Its name."), "records": whole("Live records.")}, "namespace", "records"),
        "NamespacePage": thing(
            {
                "namespaces": several(ref("Namespace"), "Those that the key reaches, by name."),
                "after": text("The parameter `after` of the next page; missing after the last."),
            },
            "namespaces",
        ),
        "Latency": thing(
            {
                **{name: optional(number("Seconds; null before the first.")) for name in ("p50", "p95", "p99")},
                "buckets": mapping(whole("How many."), "By the bucket's upper end, in seconds."),
            },
            "p50",
            "p95",
            "p99",
            "buckets",
        ),
        "Monitor": thing(
            {
                "query_count": whole("Queries that were answered."),
                "batch_count": whole("Batches that were answered."),
                "batch": ref("Latency", "The time of a batch."),
                "query": ref("Latency", "The time of a batch, divided by its queries."),
                **{
                    name: mapping(whole("Queries."), about)
                    for name, about in {
                        "results": "Queries by their number of hits.",
                        "fallback_count": "Queries that another path answered, by the reason.",
                        "failure_count": "Queries that failed, by the error.",
                        "backends": "Queries by the backend.",
                    }.items()
                },
                "fallback_rate": number("The share that another path answered."),
                "bucket_error": number("The largest relative error of a percentile."),
            },
            "query_count",
            "batch_count",
            description="Counts of a namespace's searches since the server began.",
        ),
        "VectorStoreFilter": {
            "anyOf": [
                thing(
                    {
                        "type": {"enum": list(COMPARISONS)},
                        "key": text("A column.", minLength=1),
                        "value": {"type": ["string", "number", "boolean", "array"]},
                    },
                    "type",
                    "key",
                    "value",
                ),
                thing(
                    {
                        "type": {"enum": ["and", "or"]},
                        "filters": {"type": "array", "items": ref("VectorStoreFilter")},
                    },
                    "type",
                    "filters",
                ),
            ]
        },
        "VectorStoreSearch": thing(
            {
                "query": {
                    "anyOf": [
                        text("A query.", maxLength=limits.text),
                        several(
                            {"type": "string", "maxLength": limits.text},
                            "Several queries.",
                            minItems=1,
                            maxItems=limits.queries,
                        ),
                    ],
                    "description": "One query or several. Of several each record is listed once, by its best score.",
                },
                "filters": ref("VectorStoreFilter"),
                "max_num_results": whole(
                    "Results.", 1, maximum=min(MOST_RESULTS, limits.k), default=min(DEFAULT_RESULTS, limits.k)
                ),
                "ranking_options": thing(
                    {
                        "ranker": text("All of them are this engine's own ranking.", enum=list(RANKERS)),
                        "score_threshold": number("Results that score less are left out."),
                    }
                ),
                "rewrite_query": {"const": False, "description": "Queries are searched as they are."},
            },
            "query",
        ),
        "VectorStoreResults": thing(
            {
                "object": {"const": "vector_store.search_results.page"},
                "search_query": several({"type": "string"}, "The queries."),
                "data": several(ref("VectorStoreResult"), "Best first."),
                "has_more": {"const": False},
                "next_page": {"type": "null"},
            },
            "object",
            "search_query",
            "data",
            "has_more",
            "next_page",
        ),
        "VectorStoreResult": thing(
            {
                "file_id": text("The id of the record."),
                "filename": text("Its value `filename`, else its id."),
                "score": number("The engine's score: above 0, and not bound to 1."),
                "attributes": mapping({"type": ["string", "number", "boolean"]}, "Columns and extra values, and time."),
                "content": several(thing({"type": {"const": "text"}, "text": text("The text.")}, "type", "text"), ""),
            },
            "file_id",
            "filename",
            "score",
            "attributes",
            "content",
        ),
    }
