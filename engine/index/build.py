"""The segment of a batch of records: its postings, columns, vectors and nested segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from ..records.copies import kept_records
from ..records.entities import terms_of
from ..records.record import Record
from ..text.vocabulary import TermIndexer, Vocabulary
from ..vectors.vectors import Vectors
from .columns import Columns, Ids, Schema
from .postings import sort_tokens
from .segment import Segment, nested_segment


def build_segment(
    records: Sequence[Record],
    encoder: TermIndexer,
    fields: Sequence[str],
    schema: Schema,
    values: Mapping[str, Vocabulary],
    hashes: npt.NDArray[np.uint64] | None = None,
    weight_terms: Vocabulary | None = None,
    entity_terms: Vocabulary | None = None,
    *,
    keep: bool = False,
    orders: Sequence[int] | None = None,
) -> Segment:
    """The segment of these records; new terms and category values enter their vocabularies.

    `fields` names the text fields in order; ``text`` is the record's own text, others come from `Record.fields`.
    `hashes` are those of the ids, if known. `weight_terms` is the vocabulary of learned weights, `entity_terms` that of
    entities and relations; each is needed if a record has any. All embeddings must have the same dimension. With
    `keep` the segment holds the records too. `orders` are as in `Columns.of`. Raises `RecordError` for a column's value
    of the wrong type.
    """
    columns = Columns.of(records, schema, values, orders)
    postings = sort_tokens([encoder.encode_documents(texts_of(records, name)) for name in fields], len(records))
    ids = Ids.of([record.id for record in records], hashes)
    return Segment(
        **vars(postings),
        ids=ids,
        columns=columns,
        vectors=vectors_of(records),
        learned=learned_of(records, weight_terms, ids, columns),
        entities=entities_of(records, entity_terms, ids, columns),
        records=kept_records(records) if keep else None,
    )


def texts_of(records: Sequence[Record], name: str) -> list[str]:
    """The text field `name` of each record; ``text`` is the record's own text, others come from `Record.fields`."""
    return [record.text if name == "text" else record.fields.get(name, "") for record in records]


def vectors_of(records: Sequence[Record]) -> Vectors | None:
    """The embeddings of the records; None if no record has one."""
    embeddings = [record.embedding for record in records]
    dimension = next((embedding.shape[1] for embedding in embeddings if embedding is not None), None)
    return None if dimension is None else Vectors.of(embeddings, dimension)


def learned_of(records: Sequence[Record], vocabulary: Vocabulary | None, ids: Ids, columns: Columns) -> Segment | None:
    """The nested segment of learned weights; None if it has no posting."""
    weights = [record.weights for record in records]
    if not any(weights):
        return None
    # Not above: it builds segments itself.
    from .learned import build_learned

    assert vocabulary is not None
    learned: Segment = build_learned(weights, vocabulary, ids, columns)
    return learned if learned.postings else None


def entities_of(records: Sequence[Record], vocabulary: Vocabulary | None, ids: Ids, columns: Columns) -> Segment | None:
    """The nested segment of entities and relations; None if no record has any."""
    if not any(record.entities or record.relations for record in records):
        return None
    assert vocabulary is not None
    terms = [terms_of(record.entities, record.relations) for record in records]
    documents = np.repeat(np.arange(len(terms)), np.fromiter(map(len, terms), np.int64, len(terms)))
    names = list(chain.from_iterable(terms))
    return nested_segment(names, documents, np.ones(len(names), dtype=np.int64), vocabulary, ids, columns)
