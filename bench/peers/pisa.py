"""PISA, without PyTerrier: only the compiled module of pyterrier-pisa is loaded."""

import ctypes
import importlib.util
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..harness.cases import K1, B
from .adapter import Arrays

ENCODING = "block_simdbp"


def _load_module() -> ModuleType:
    ctypes.CDLL(str(Path(sys.prefix) / "lib" / "libtbb.so.2"), ctypes.RTLD_GLOBAL)
    package = importlib.util.find_spec("pyterrier_pisa")
    assert package is not None
    assert package.submodule_search_locations is not None
    file = next(Path(package.submodule_search_locations[0]).glob("_pisathon*.so"))
    spec = importlib.util.spec_from_file_location("_pisathon", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Peer:
    """PISA's own analysis of texts, with the second version of Porter's stemmer and the same stop words."""

    STEMMER = "porter2"

    def __init__(self, stop: list[str]) -> None:
        self.pisa: Any = _load_module()
        self.stop = stop

    def version(self) -> str:
        return f"pyterrier-pisa {version('pyterrier-pisa')}"

    def build(self, texts: Iterable[str], folder: Path, threads: int) -> None:
        (folder / "stop.txt").write_text("".join(f"{word}\n" for word in self.stop))
        lines = folder / "documents.txt"
        with lines.open("w") as handle:
            handle.writelines(f"{number} {' '.join(text.split())}\n" for number, text in enumerate(texts))
        self.pisa.index(str(lines), str(folder), self.STEMMER, 100_000, threads)
        lines.unlink()

    def open(self, folder: Path) -> str:
        self.context = self.pisa.RetrievalContext()
        stop = str(folder / "stop.txt")
        self.pisa.prepare_index(
            self.context, str(folder), ENCODING, "bm25", self.STEMMER, bm25_k1=K1, bm25_b=B, stop_fname=stop
        )
        return "maxscore"

    def ask(self, texts: list[str], k: int) -> Any:
        size = len(texts) * k
        numbers, ranks = np.empty(size, np.int32), np.empty(size, np.int32)
        names, scores = np.empty(size, object), np.empty(size, np.float32)
        found = self.pisa.retrieve(
            self.context,
            "maxscore",
            list(enumerate(texts)),
            k=k,
            threads=1,
            query_weighted=0,
            pretokenised=False,
            result_qidxs=numbers,
            result_docnos=names,
            result_ranks=ranks,
            result_scores=scores,
        )
        return len(texts), numbers[:found], ranks[:found], names[:found], scores[:found]

    def arrays(self, result: Any, k: int) -> Arrays:
        queries, numbers, ranks, names, found = result
        documents, scores = np.full((queries, k), -1, np.int64), np.zeros((queries, k))
        documents[numbers, ranks] = names.astype(np.int64)
        scores[numbers, ranks] = found
        return documents, scores
