"""Segments of a few records."""

import fanrank as fr
from fanrank.engine.index.build import build_segment
from fanrank.engine.index.columns import Schema
from fanrank.engine.index.segment import Segment
from fanrank.engine.text.analyzers import get_analyzer
from fanrank.engine.text.vocabulary import TermIndexer, Vocabulary

ANALYZER = get_analyzer("minimal")
SCHEMA = Schema.of(None)


def build(texts: list[str], terms: tuple[str, ...] = ()) -> tuple[Segment, Vocabulary]:
    vocabulary = Vocabulary(terms)
    records = [fr.Record(f"r{number}", text) for number, text in enumerate(texts)]
    return of(records, vocabulary), vocabulary


def of(records: list[fr.Record], vocabulary: Vocabulary, fields: tuple[str, ...] = ("text",)) -> Segment:
    values = {name: Vocabulary(["x", "y", "z"]) for name in SCHEMA.categories}
    return build_segment(records, TermIndexer(ANALYZER, vocabulary), fields, SCHEMA, values)
