"""Pyserini (Lucene): white-space tokens in and out, one segment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jnius_config

from ..harness.cases import K1, B
from ..harness.corpora import WORD, Tokens
from .adapter import Arrays, folder_bytes, pad

# Set before pyserini starts the Java machine: its heap size cannot be changed afterwards.
jnius_config.add_options("-Xms1g", "-Xmx4g")


class Peer:
    def version(self) -> str:
        return version("pyserini")

    def load(self, corpus: Tokens, scratch: Path) -> None:
        self.corpus = corpus
        self.input, self.folder = scratch / "input", scratch / "index"
        for folder in (self.input, self.folder):
            shutil.rmtree(folder, ignore_errors=True)
        self.input.mkdir(parents=True)
        with (self.input / "documents.jsonl").open("w") as handle:
            for number, terms in enumerate(corpus.each_document()):
                handle.write(json.dumps({"id": str(number), "contents": " ".join(terms)}) + "\n")

    def build(self, threads: int) -> None:
        options = ["--collection", "JsonCollection", "--generator", "DefaultLuceneDocumentGenerator"]
        places = ["--input", str(self.input), "--index", str(self.folder), "--threads", str(threads)]
        subprocess.run(
            [sys.executable, "-m", "pyserini.index.lucene", *options, *places, "--pretokenized", "--optimize"],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        from pyserini.analysis import JWhiteSpaceAnalyzer
        from pyserini.search.lucene import LuceneSearcher

        self.searcher = LuceneSearcher(str(self.folder))
        self.searcher.set_analyzer(JWhiteSpaceAnalyzer())
        self.searcher.set_bm25(K1, B)

    def index_bytes(self) -> int:
        return folder_bytes(self.folder)

    def prepare(self, queries: slice, phase: str) -> list[str]:
        if phase == "end_to_end":
            return self.corpus.query_texts[queries]
        return [" ".join(terms) for terms in self.corpus.query_terms()[queries]]

    def search(self, prepared: Any, k: int, threads: int, phase: str, options: Mapping[str, Any]) -> Any:
        if phase == "end_to_end":
            prepared = [" ".join(WORD.findall(text.lower())) for text in prepared]
        names = [str(number) for number in range(len(prepared))]
        found = self.searcher.batch_search(prepared, names, k=k, threads=threads)
        return [found.get(name, []) for name in names]

    def arrays(self, result: Any, k: int) -> Arrays:
        return pad([[(int(hit.docid), hit.score) for hit in row] for row in result], k)
