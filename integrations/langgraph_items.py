"""How an item of LangGraph's store becomes a record, and a record an item again; used by `langgraph.py`.

Labels of namespaces and keys are escaped so that any two stay apart and can be read back: ``%``, in labels ``/`` too,
and lone surrogates, which no file can hold, become ``%`` and four hexadecimal digits. An empty key becomes ``%``.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, cast

from ..engine.encoders.encoder import Encoder
from ..engine.errors import EncoderError, MissingExtraError, ParameterError, QueryError, RecordError, StorageError
from ..engine.records.record import Record

try:
    from langgraph.store.base import (
        Embeddings,
        InvalidNamespaceError,
        ListNamespacesOp,
        MatchCondition,
        PutOp,
        SearchItem,
        get_text_at_path,
        tokenize_path,
    )
    from langgraph.store.base.embed import EmbeddingsLambda
except ImportError:
    raise MissingExtraError("langgraph-checkpoint", "langgraph") from None

MINUTE = 60.0

BARE = "bare"
"""`Record.type` of an item without a text or a vector, which only a search without a text finds."""

Labels = tuple[str, ...]


class NamespaceError(QueryError, InvalidNamespaceError):
    """A namespace of an operation is empty or reserved, or one of its labels is not allowed."""


class Embedder:
    """Makes the vectors of a store, all that a batch needs in one call. Without a model there are none."""

    def __init__(self, embeddings: Embeddings | None, encoder: Encoder | None) -> None:
        """`embeddings` are the store's; `encoder` is the engine's, which serves where there are none."""
        self._embeddings = embeddings
        self._encoder = encoder if embeddings is None and getattr(encoder, "encodes", True) else None

    def queries(self, texts: Sequence[str]) -> Sequence[Any]:
        """A vector for each text; none where the engine makes them while it searches words."""
        made = self._embeddings
        if made is None or not texts:
            return []
        if isinstance(made, EmbeddingsLambda):  # a function makes queries as it makes documents
            return _checked(made.embed_documents([*texts]), texts)
        if len(texts) == 1:
            return [made.embed_query(texts[0])]
        # LangChain's embeddings have no call for several queries.
        with ThreadPoolExecutor() as pool:
            return [*pool.map(made.embed_query, texts)]

    async def aqueries(self, texts: Sequence[str]) -> Sequence[Any]:
        """As `queries`, awaited."""
        made = self._embeddings
        if made is None or not texts:
            return []
        if isinstance(made, EmbeddingsLambda):
            return _checked(await made.aembed_documents([*texts]), texts)
        return await asyncio.gather(*map(made.aembed_query, texts))

    def documents(self, texts: Sequence[str]) -> Sequence[Any]:
        """A vector for each text."""
        if texts and self._embeddings is not None:
            return _checked(self._embeddings.embed_documents([*texts]), texts)
        return [] if self._encoder is None or not texts else [*self._encoder.documents(texts)]

    async def adocuments(self, texts: Sequence[str]) -> Sequence[Any]:
        """As `documents`, awaited."""
        if texts and self._embeddings is not None:
            return _checked(await self._embeddings.aembed_documents([*texts]), texts)
        return [] if self._encoder is None or not texts else await asyncio.to_thread(self.documents, texts)


def _checked(vectors: Sequence[Any], texts: Sequence[str]) -> Sequence[Any]:
    if len(vectors) != len(texts):
        raise EncoderError(f"the embeddings made {len(vectors)} vectors of {len(texts)} texts")
    return vectors


def tokenized_paths(paths: Iterable[str]) -> list[str | list[str]]:
    """Paths as `get_text_at_path` takes them, read once."""
    return [path if path == "$" else tokenize_path(path) for path in paths]


def texts_of(op: PutOp, paths: Iterable[str | list[str]]) -> list[str]:
    """The texts at these paths of a value that is put. Raises `RecordError` for a value that is no JSON."""
    value = dict(cast(Mapping[str, Any], op.value))
    try:
        return [text for path in paths for text in get_text_at_path(value, path)]
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"the item's value must be JSON: {error}", record_id=op.key) from None


def passages_of(indexed: Mapping[tuple[str, str], list[str]]) -> list[str]:
    """The texts to embed, each once."""
    return [*dict.fromkeys(text for texts in indexed.values() for text in texts)]


def record_of(
    place: tuple[str, str], op: PutOp, texts: Sequence[str], row_of: Mapping[str, Any], now: float
) -> tuple[Record, dict[str, Any]]:
    """The record of an item that is put, and its `extra`, which may still change."""
    value = dict(cast(Mapping[str, Any], op.value))
    for name in value:
        if not isinstance(name, str):
            raise RecordError(f"an item's value must have strings as keys, not {name!r}", record_id=op.key)
    extra: dict[str, Any] = {"created_at": now}
    if op.ttl is not None:
        extra["ttl"] = op.ttl
    rows = [row_of[text] for text in texts] if row_of else []
    text = "\n".join(map(_readable, texts))
    record = Record(
        place[1],
        text,
        place[0],
        type=None if rows or (not row_of and text) else BARE,
        time=now,
        extra=extra,
        embedding=rows or None,
        payload=value,
        expires=None if op.ttl is None else now + op.ttl * MINUTE,
    )
    return record, extra


def _readable(text: str) -> str:
    """The words of a text. Of JSON, in which line breaks are letters, the names and values, a line each."""
    if text[:1] not in ("{", "["):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return "\n".join(_words(value))


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _words(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _words(inner)
    elif value is not None:
        yield str(value)


def check_labels(namespace: object) -> None:
    if not isinstance(namespace, tuple | list):
        raise NamespaceError(f"a namespace must be a tuple of strings, not {namespace!r}")
    for label in namespace:
        if not isinstance(label, str):
            wrong = f"must be a string, not {type(label).__name__}"
        elif not label:
            wrong = "is empty"
        elif "." in label or "\0" in label:
            wrong = "holds a period or a NUL, which namespaces cannot"
        else:
            continue
        raise NamespaceError(f"label {label!r} of the namespace {namespace!r} {wrong}")


def check_put(op: PutOp) -> None:
    check_labels(op.namespace)
    check_key(op.key)
    if op.value is None:
        return
    if not op.namespace:
        raise NamespaceError("an item cannot be put into the empty namespace")
    if op.namespace[0] == "langgraph":
        raise NamespaceError(f"the root label 'langgraph' is reserved; put the item elsewhere than {op.namespace!r}")
    if not isinstance(op.value, Mapping):
        raise RecordError(f"an item's value must be a mapping, not {type(op.value).__name__}", record_id=op.key)
    if op.index is not None and op.index is not False and not _are_paths(op.index):
        raise ParameterError(f"index must be None, False or a list of paths, not {op.index!r}")
    if op.ttl is not None and not (
        isinstance(op.ttl, int | float) and not isinstance(op.ttl, bool) and 0 <= op.ttl < math.inf
    ):
        raise ParameterError(f"ttl must be minutes, 0 or more, or None, not {op.ttl!r}")


def _are_paths(index: object) -> bool:
    return isinstance(index, list | tuple) and all(isinstance(path, str) for path in index)


def check_key(key: object) -> None:
    if not isinstance(key, str):
        raise RecordError(f"a key must be a string, not {key!r}")


_IN_LABELS, _IN_KEYS = re.compile("[%/\ud800-\udfff]"), re.compile("[%\ud800-\udfff]")
_ESCAPED = re.compile("%([0-9A-F]{4})")


def _hexadecimal(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):04X}"


@lru_cache(4096)
def escaped(label: str) -> str:
    return _IN_LABELS.sub(_hexadecimal, label)


def id_of(key: str) -> str:
    return _IN_KEYS.sub(_hexadecimal, key) or "%"


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text) if "%" in text else text


def key_of(record_id: str) -> str:
    return "" if record_id == "%" else _plain(record_id)


@lru_cache(65536)
def labels_at(path: str) -> Labels:
    """The namespace of items that lie at this path below the root."""
    return tuple([_plain(part) for part in path.split("/")])


def value_of(record: Record) -> dict[str, Any]:
    payload = record.payload
    return payload if type(payload) is dict else dict(payload or {})


@lru_cache(4096)
def moment(seconds: float | None) -> datetime:
    """A time of a record as LangGraph has it."""
    return datetime.fromtimestamp(seconds or 0.0, timezone.utc)


def created_at(record: Record) -> datetime:
    created = record.extra.get("created_at")
    if created is None:
        raise StorageError(
            f"the record {record.id!r} in namespace {record.namespace!r} was not put by a FanrankStore; keep other "
            "records out of the store's root"
        )
    return moment(created)


def items_of(found: Iterable[tuple[Record, float | None]], skip: int) -> list[SearchItem]:
    """The items of records, with their scores; `skip` is the length of the root's path, with the slash behind it."""
    items = []
    for record, score in found:
        # The constructor also reads times of text, and takes three times as long: a fifth of a search of 20 queries.
        item = SearchItem.__new__(SearchItem)
        item.namespace = labels_at(record.namespace[skip:])
        item.key = key_of(record.id) if "%" in record.id else record.id
        item.value = value_of(record)
        item.created_at = created_at(record)
        item.updated_at = moment(record.time)
        item.score = score
        items.append(item)
    return items


def listed_namespaces(known: Iterable[Labels], op: ListNamespacesOp) -> list[Labels]:
    conditions = op.match_conditions or ()
    found = {namespace for namespace in known if all(_matches(one, namespace) for one in conditions)}
    if op.max_depth is not None:
        found = {namespace[: op.max_depth] for namespace in found}
    return sorted(found)[op.offset : op.offset + op.limit]


def _matches(condition: MatchCondition, namespace: Labels) -> bool:
    path = condition.path
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
