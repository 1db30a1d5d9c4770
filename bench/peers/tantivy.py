"""tantivy through its Python binding: one segment on disk, frequencies without positions."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tantivy

from ..harness.corpora import Tokens
from .adapter import Arrays, folder_bytes, interleave, pad, run_in_threads


class Peer:
    def version(self) -> str:
        return version("tantivy")

    def load(self, corpus: Tokens, scratch: Path) -> None:
        self.corpus = corpus
        self.documents: Iterable[str] = [" ".join(terms) for terms in corpus.each_document()]
        self._clear(scratch)

    def stream(self, corpus: Tokens, scratch: Path) -> None:
        self.corpus = corpus
        self.documents = (" ".join(terms) for terms in corpus.each_document())
        self._clear(scratch)

    def _clear(self, scratch: Path) -> None:
        self.folder = scratch / "index"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def build(self, threads: int) -> None:
        builder = tantivy.SchemaBuilder()
        builder.add_integer_field("id", fast=True)
        builder.add_text_field("text", tokenizer_name="plain", index_option="freq")
        self.schema = builder.build()
        self.index = tantivy.Index(self.schema, path=str(self.folder))
        plain = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex("[a-z0-9]+"))
        self.index.register_tokenizer("plain", plain.filter(tantivy.Filter.lowercase()).build())
        writer = self.index.writer(heap_size=1_000_000_000, num_threads=threads)
        for number, text in enumerate(self.documents):
            document = tantivy.Document()
            document.add_integer("id", number)
            document.add_text("text", text)
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
        self.index.reload()
        self.searcher = self.index.searcher()
        del self.documents

    def index_bytes(self) -> int:
        return folder_bytes(self.folder)

    def prepare(self, queries: slice, phase: str) -> list[Any]:
        if phase == "end_to_end":
            return self.corpus.query_texts[queries]
        return [self._any_of(terms) for terms in self.corpus.query_terms()[queries]]

    def _any_of(self, terms: Sequence[str]) -> Any:
        should = tantivy.Occur.Should
        query = tantivy.Query
        return query.boolean_query([(should, query.term_query(self.schema, "text", term, "freq")) for term in terms])

    def search(self, prepared: Any, k: int, threads: int, phase: str, options: Mapping[str, Any]) -> Any:
        searcher, index = self.searcher, self.index

        def some(queries: Sequence[Any]) -> list[tuple[list[int], list[tuple[float, Any]]]]:
            results = []
            for query in queries:
                if phase == "end_to_end":
                    query = index.parse_query_lenient(query, ["text"])[0]
                hits = searcher.search(query, k, count=False).hits
                results.append((searcher.fast_field_values("id", [address for _, address in hits]), hits))
            return results

        return run_in_threads(some, prepared, threads)

    def arrays(self, result: Any, k: int) -> Arrays:
        rows = interleave(result)
        return pad([[(number, score) for number, (score, _) in zip(ids, hits, strict=True)] for ids, hits in rows], k)


class TextPeer:
    """The same stop words, and the second version of Porter's stemmer, the only one for English."""

    def __init__(self, stop: list[str]) -> None:
        self.stop = stop

    def version(self) -> str:
        return version("tantivy")

    def _index(self, folder: Path) -> Any:
        builder = tantivy.SchemaBuilder()
        builder.add_integer_field("id", fast=True)
        builder.add_text_field("text", tokenizer_name="english", index_option="freq")
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

    def build(self, texts: Iterable[str], folder: Path) -> None:
        index = self._index(folder)
        writer = index.writer(heap_size=1_000_000_000, num_threads=1)
        for number, text in enumerate(texts):
            document = tantivy.Document()
            document.add_integer("id", number)
            document.add_text("text", text)
            writer.add_document(document)
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
        return pad([[(number, score) for number, (score, _) in zip(ids, hits, strict=True)] for ids, hits in result], k)
