"""tantivy through its Python binding: one segment on disk, frequencies without positions."""

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tantivy

from .adapter import Arrays


class Peer:
    """The same stop words, and the second version of Porter's stemmer, the only one for English."""

    def __init__(self, stop: list[str]) -> None:
        self.stop = stop

    def version(self) -> str:
        return version("tantivy")

    def _index(self, folder: Path, *, stored: bool = False) -> Any:
        builder = tantivy.SchemaBuilder()
        if stored:
            builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
        else:
            builder.add_integer_field("id", fast=True)
        builder.add_text_field("text", stored=stored, tokenizer_name="english", index_option="freq")
        index = tantivy.Index(builder.build(), path=str(folder))
        analyzer = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(r"[\p{L}\p{N}]+"))
        for each in (
            tantivy.Filter.lowercase(),
            tantivy.Filter.custom_stopword(self.stop),
            tantivy.Filter.stemmer("english"),
        ):
            analyzer = analyzer.filter(each)
        index.register_tokenizer("english", analyzer.build())
        return index

    def build(self, texts: Iterable[str], folder: Path, threads: int) -> None:
        index = self._index(folder)
        writer = index.writer(heap_size=1_000_000_000, num_threads=threads)
        for number, text in enumerate(texts):
            document = tantivy.Document()
            document.add_integer("id", number)
            document.add_text("text", text)
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()

    def store(self, batches: Iterable[list[tuple[str, str]]], folder: Path) -> None:
        writer = self._index(folder, stored=True).writer(heap_size=128_000_000, num_threads=1)
        for batch in batches:
            for name, text in batch:
                writer.add_document(tantivy.Document(id=name, text=text))
            writer.commit()
        writer.wait_merging_threads()

    def open(self, folder: Path) -> str:
        self.index = self._index(folder)
        self.searcher = self.index.searcher()
        return ""

    def ask(self, texts: list[str], k: int) -> Any:
        results = []
        for text in texts:
            query = self.index.parse_query_lenient(text, ["text"])[0]
            hits = self.searcher.search(query, k, count=False).hits
            results.append((self.searcher.fast_field_values("id", [address for _, address in hits]), hits))
        return results

    def arrays(self, result: Any, k: int) -> Arrays:
        documents, scores = np.full((len(result), k), -1, np.int64), np.zeros((len(result), k))
        for number, (ids, hits) in enumerate(result):
            documents[number, : len(ids)] = ids
            scores[number, : len(ids)] = [score for score, _ in hits]
        return documents, scores
